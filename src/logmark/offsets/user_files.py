"""The user's own files: where settings and state are, and how a file is replaced as a whole."""

import contextlib
import os
import tempfile
from pathlib import Path

from logmark import private_files


def state_folder() -> Path:
    """Return the folder of the journal, the lag history and the replays; it need not exist yet."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "logmark"


def config_file() -> Path:
    """Return the file of named contexts; it need not exist."""
    named = os.environ.get("LOGMARK_CONFIG")
    return Path(named) if named else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "logmark.toml"


def replace_file(path: Path, text: str, *, mode: int = private_files.FILE_MODE) -> None:
    """Write a file so that a crash leaves either the old one or the new one; it is on disk when this returns."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
