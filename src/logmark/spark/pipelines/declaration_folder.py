"""Where a pipeline is declared: the folder from which the relative path of its table counts.

A pipeline is run, replayed and looked at by commands that are started anywhere, by spark-submit, and by programs that
import it. All of them must mean the same table, and the one thing that they share is the file that declares it.
"""

import sys
import sysconfig
from pathlib import Path
from types import FrameType

import logmark

INSTALLED = frozenset({"site-packages", "dist-packages"})


def declaring_folder() -> Path:
    """The folder of the file whose top level is running, else the working directory.

    The file's top level and not its caller: a function that makes pipelines for several files may lie anywhere.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            # Not the name of the code: a cell of a notebook has one that is no file of the user's.
            file = frame.f_globals.get("__file__")
            return Path(file).absolute().parent if isinstance(file, str) and _is_own(Path(file)) else Path.cwd()
        frame = frame.f_back
    return Path.cwd()


def _is_own(file: Path) -> bool:
    """False for programs that run the files of others: commands, and modules of Python, of Spark and of Logmark."""
    if file.suffix != ".py" or any(part in INSTALLED for part in file.parts):
        return False
    libraries = (Path(sysconfig.get_paths()["stdlib"]), Path(logmark.__file__).parent)
    return not any(file.absolute().is_relative_to(one) for one in libraries)
