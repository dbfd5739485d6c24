"""Executors without Logmark: a Python that lacks it, and the archive that brings it."""

import os
import shutil
import sysconfig
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
HERE = "LOGMARK_TEST_DRIVER"


def bare_python(folder: Path) -> Path:
    """A Python that has all that we have but Logmark and Cython; on the driver, which says so, it finds Logmark too."""
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    for name in os.listdir(sysconfig.get_paths()["purelib"]):
        if "logmark" not in name.lower() and "cython" not in name.lower() and not (site / name).exists():
            (site / name).symlink_to(Path(sysconfig.get_paths()["purelib"], name))
    (site / "driver.pth").write_text(f"import os, sys; sys.path.extend(filter(None, [os.environ.get({HERE!r})]))\n")
    return folder / "bin" / "python"


def package(folder: Path) -> Path:
    """What a wheel holds, its compiled modules as well."""
    return Path(shutil.make_archive(str(folder / "package"), "zip", REPOSITORY / "src"))


def only_on_the_driver(python: Path) -> dict[str, str]:
    """What makes Spark run this Python everywhere, and lets it find Logmark where the driver is."""
    return {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), HERE: str(REPOSITORY / "src")}
