"""The folder of a backup as the operating system sees it: plain files in plain directories, and nothing else.

Anybody with write access can put a symbolic link, a named pipe or a device instead of a file. A run would
then read, write or remove something elsewhere, or wait for ever. So each file is looked at before it is opened.
"""

import os
import stat

from logmark.errors import UserError

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}


def check_file(path: str) -> None:
    """Refuse a path that leads to anything but a plain file."""
    _check(path, stat.S_IFREG)


def check_directory(path: str) -> None:
    """Refuse a path that leads to anything but a directory; a link to a directory is refused too."""
    _check(path, stat.S_IFDIR)


def check_tree(path: str) -> None:
    """Refuse a directory of stored segments in which anything but directories of plain files lies."""
    check_directory(path)
    for folder in _list(path):
        check_directory(folder)
        for file in _list(folder):
            check_file(file)


def is_link(path: str) -> bool:
    """Return whether a path is a symbolic link, wherever it leads."""
    return os.path.islink(path)


def free_bytes(path: str) -> int:
    """Return how much may be written on the disk on which a path is, or will be."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _list(path: str) -> list[str]:
    try:
        return sorted(entry.path for entry in os.scandir(path))
    except FileNotFoundError:
        return []


def _check(path: str, wanted: int) -> None:
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except FileNotFoundError:
        # The reader of the file reports that it is missing; a simulated disk has no links.
        return
    if kind != wanted:
        raise UserError(
            f"{path} is {_KINDS.get(kind, 'of an unknown kind')} and must be {_KINDS[wanted]}: a backup never follows "
            "links and holds only plain files and directories. Nothing was changed. Put back what belongs there, or "
            "use another backup."
        )
