"""The folder of the file that declares a pipeline: a relative path of its table counts from there.

Commands that are started anywhere run, replay and show a pipeline; so do spark-submit and programs that import it. All
of them must mean the same table, and the one thing that they share is the file that declares it.
"""

import sys
import sysconfig
from pathlib import Path
from types import FrameType

import logmark

INSTALLED = frozenset({"site-packages", "dist-packages"})


def find_declaration_folder() -> Path:
    """Return the folder of the file whose top level is running, else the working directory.

    It is the file whose top level runs and not the caller: a function that makes pipelines may lie anywhere.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            # Not by the name of the code: that of a notebook's cell is no file of the user.
            file = frame.f_globals.get("__file__")
            return Path(file).absolute().parent if isinstance(file, str) and _is_own(Path(file)) else Path.cwd()
        frame = frame.f_back
    return Path.cwd()


def _is_own(file: Path) -> bool:
    """Return False for programs that run the files of users: commands, and modules of Python, Spark and Logmark."""
    if file.suffix != ".py" or any(part in INSTALLED for part in file.parts):
        return False
    libraries = (Path(sysconfig.get_paths()["stdlib"]), Path(logmark.__file__).parent)
    return not any(file.absolute().is_relative_to(one) for one in libraries)
