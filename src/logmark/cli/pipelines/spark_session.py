"""The Spark session of `logmark pipelines`: its settings, the packages for its executors, and its log file."""

import contextlib
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logmark import private_files
from logmark.errors import UserError
from logmark.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="The Spark to use: local[N] or spark://HOST:PORT."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", "-c", metavar="K=V", help="A Spark setting; may be repeated.", show_default=False),
]
Package = Annotated[
    list[Path] | None,
    typer.Option(
        "--package",
        metavar="FILE",
        help="Ship this to the executors of a cluster: a wheel, .zip, .tar.gz or .py; may be repeated.",
        show_default=False,
    ),
]

_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")


def parse_conf(given: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--conf`."""
    settings = {}
    for one in given:
        name, mark, value = one.partition("=")
        if not mark or not name.strip():
            raise UserError(f"--conf takes NAME=VALUE, not {one!r}. Nothing was run.", exit_code=2)
        settings[name.strip()] = value
    return settings


@contextlib.contextmanager
def start_spark(
    name: str,
    *,
    master: str,
    conf: Sequence[str],
    package: Sequence[Path],
    paths: Sequence[str],
    log_file: Path,
) -> "Iterator[SparkSession]":
    """Start Spark, and stop it at the end; the output of Spark and its workers goes to the log file.

    `paths` are folders from which its Python processes on this machine import as well.
    """
    settings = parse_conf(conf)
    # It works; PySpark warns of it once in every process.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    for one in package:
        if not one.exists():
            raise UserError(f"There is no file {one} to ship (--package). Nothing was run.", exit_code=2)
    with tempfile.TemporaryDirectory(prefix="logmark-package-") as folder:
        shipped = _shipping_settings(package, Path(folder), is_local=master.startswith("local"))
        wanted = [*paths, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(one for one in wanted if one))
        # One pipeline's long batch must not keep the others waiting.
        config = {"spark.scheduler.mode": "FAIR"} | shipped | settings
        with _redirect_stderr(log_file):
            spark = session(name, master=master, config=config, progress=False)
        handler = logging.FileHandler(log_file)
        logging.getLogger().addHandler(handler)
        try:
            for one in package:
                if one.name.endswith(".py"):
                    spark.sparkContext.addPyFile(str(one))
            yield spark
        finally:
            with contextlib.suppress(Exception):
                spark.stop()
            logging.getLogger().removeHandler(handler)
            handler.close()


def _shipping_settings(package: Sequence[Path], folder: Path, *, is_local: bool) -> dict[str, str]:
    """Return the settings by which executors unpack archives and import from them.

    They are unpacked, because Python imports no compiled module from an archive. Spark does not take a wheel for an
    archive by its name, so it is copied.
    """
    archives, names = [], []
    for one in package:
        if one.name.endswith(".py"):
            continue
        name = one.name.partition("-")[0].partition(".")[0]
        if one.suffix == ".whl":
            copy = folder / f"{one.stem}.zip"
            shutil.copyfile(one, copy)
        elif one.name.endswith(_ARCHIVES):
            copy = one.absolute()
        else:
            raise UserError(f"--package takes .whl, .zip, .tar.gz and .py, not {one}. Nothing was run.", exit_code=2)
        archives.append(f"{copy}#{name}")
        names.append(name)
    if not archives or is_local:
        # Workers on this machine run this very Python, with all that it has.
        return {}
    return {"spark.archives": ",".join(archives), "spark.executorEnv.PYTHONPATH": os.pathsep.join(names)}


@contextlib.contextmanager
def _redirect_stderr(path: Path) -> Iterator[None]:
    """Let processes that are started meanwhile write their standard error to the file, as long as they live."""
    sys.stderr.flush()
    private_files.make_folders(path.parent)
    kept = os.dup(2)
    try:
        with private_files.open_file(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
