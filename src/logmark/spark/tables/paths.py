"""Which directory a path means, wherever a table or a checkpoint is named."""

import re
from pathlib import Path

from logmark.errors import UserError

# With one slash as well: that is what is left of a URI in a Path, and how Hadoop writes its own.
_LOCAL = re.compile(r"file:(?://)?(?=/(?!/))")
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | Path, what: str, *, below: Path | None = None) -> Path:
    """Return the directory, a relative one `below` another or the working one; raises UserError for a remote one."""
    found = _LOCAL.match(str(path))
    text = str(path)[found.end() :] if found else str(path)
    if _ELSEWHERE.match(text):
        raise UserError(f"The {what} {path} is not a directory of this machine. Give a local or mounted directory.")
    return (below or Path()).absolute() / text
