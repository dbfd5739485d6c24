"""Files and folders that only their owner can read: whatever Logmark creates is created here.

Records, offsets and histories may hold what other users of the machine must not see. The modes do not depend on the
umask. Files and folders that are there already keep their mode.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def open_descriptor(path: str, flags: int) -> int:
    """Do what os.open does; a file that this creates is private. To be used as the `opener` of `open` too."""
    if flags & os.O_CREAT:
        try:
            descriptor = os.open(path, flags | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        else:
            _set_mode(descriptor, FILE_MODE, os.fchmod)
            return descriptor
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def open_file(path: str | Path, mode: str) -> IO[Any]:
    """Do what `open` does; a file that this creates is private."""
    return open(path, mode, opener=open_descriptor)


def create_file(path: str | Path) -> None:
    """Create an empty private file, unless there is one: for libraries that open it by themselves."""
    os.close(open_descriptor(str(path), os.O_RDWR | os.O_CREAT))


def make_folder(path: str | Path) -> None:
    """Create a private folder; raises FileExistsError if it is there."""
    os.mkdir(path, FOLDER_MODE)
    _set_mode(path, FOLDER_MODE, os.chmod)


def make_folders(path: str | Path) -> None:
    """Create a private folder and those above it, unless they are there."""
    path = Path(path)
    if path.is_dir():
        return
    if path.parent != path:
        make_folders(path.parent)
    try:
        make_folder(path)
    except FileExistsError:
        # Another process was faster, unless it is no folder.
        if not path.is_dir():
            raise


def _set_mode(created: Any, mode: int, change: Callable[[Any, int], None]) -> None:
    """Set the mode if the umask, or an access list of the folder, has left another one."""
    if os.stat(created).st_mode & 0o777 != mode:
        change(created, mode)
