"""The token of a query: which host, process and call of `load()` its reader belongs to, and a random part."""

import os
import socket
import time
import uuid
from collections.abc import Iterable

from logmark.errors import UserError

# A query that was stopped may have a reader for a moment longer.
ENDS_WITHIN_S = 5.0
_POLL_EVERY_S = 0.1


def make_load_token() -> str:
    """Return a token for one call of `load()`, which the readers that Spark makes of it share."""
    return uuid.uuid4().hex[:8]


def make_query_token(load: str) -> str:
    """Return the token of a new query, whose reader is this process."""
    return f"{_host()}-{os.getpid()}-{load}-{uuid.uuid4().hex[:8]}"


def check_only_reader(tokens: Iterable[str], load: str, *, group: str) -> None:
    """Raise UserError if another live reader of the same `load()` has committed one of these tokens in the group.

    Spark makes two readers of one `load()` for a join of a DataFrame with itself: each would take the group from the
    other, and both would read everything.
    """
    rivals = {pid for token in tokens if (pid := _find_rival(token, load)) is not None}
    deadline = time.monotonic() + ENDS_WITHIN_S
    while any(map(_is_alive, rivals)):
        if time.monotonic() > deadline:
            raise UserError(
                f"Another reader of the same load() reads in the group {group}: either two queries use this "
                "DataFrame, or one query has it twice and Spark reads it twice, as in a join with itself. Nothing was "
                "read by this one. For one query, use the frame that share_source(frame) of logmark.spark returns; "
                "for two, call load() for each with a group.id of its own."
            )
        time.sleep(_POLL_EVERY_S)


def _find_rival(token: str, load: str) -> int | None:
    """Return the process of a reader of the same `load()` on this host, None for any other and for this one."""
    host, *rest = token.rsplit("-", 3)
    if not load or len(rest) != 3 or (host, rest[1]) != (_host(), load) or not rest[0].isdecimal():
        return None
    pid = int(rest[0])
    return pid if pid != os.getpid() else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _host() -> str:
    return socket.gethostname().replace(" ", "-")
