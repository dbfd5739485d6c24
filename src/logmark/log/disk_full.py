"""What a full or broken disk does to a log: the errors that say so, and the cut back to what is durable.

A write that finds the disk full is refused and leaves nothing behind, so the next one may succeed. The same holds while
the process has no descriptor or no memory left: that says nothing of the disk, and it passes. If an entry of the
write-ahead log finds it full, nothing of that round was acknowledged: `write_recovery` cuts the logs of the round back
to what was, and loads them as after a crash, once there is space. `write_recovery` also says what a failed flush means.
The write-ahead log itself is full when a broken disk keeps its files from being used again.
"""

import errno
from collections.abc import Mapping, Sequence

from logmark.disk.descriptors import OUT_OF_DESCRIPTORS
from logmark.disk.file_system import FileSystem
from logmark.errors import LogFailed
from logmark.log.segment import LOG, file_name
from logmark.names import OFFSETS_TOPIC

FULL = (errno.ENOSPC, errno.EDQUOT)
# How many logs an event names.
NAMED_MAX = 5
SHORT = (*OUT_OF_DESCRIPTORS, errno.ENOMEM)
PAGE_BYTES = 4096


class WalFull(OSError):
    """The WAL has reached its limit, and no flush could free a file of it: the disk itself may have space.

    It may pass as a full disk may, so it has the same number.
    """

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, "the write-ahead log is full, and no flush could free a file of it")


def is_full(error: BaseException | None) -> bool:
    """Return whether the disk, or this user's share of it, has no space left: that may pass."""
    return isinstance(error, OSError) and error.errno in FULL


def is_passing(error: BaseException | None) -> bool:
    """Return whether the disk is full, or the process lacks descriptors or memory: the operation may succeed later."""
    return isinstance(error, OSError) and error.errno in (*FULL, *SHORT)


def is_unopened(error: BaseException | None) -> bool:
    """Return whether the process had no descriptor to open a file with: the files are as they were."""
    return isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS


def _describe_shortage(error: BaseException) -> str:
    if is_unopened(error):
        return f"The broker has no file descriptor left ({error}). Close connections or raise its limit (ulimit -n)"
    return f"The machine has no memory left ({error}). Free some"


def describe_refused_write(name: str, error: OSError) -> LogFailed:
    """Return the error for a write that found the disk full, or no descriptor or memory, and was undone."""
    if not is_full(error):
        return LogFailed(
            f"{_describe_shortage(error)}: the log of {name} did not take the records, and takes records again by "
            "itself after that. Nothing that was acknowledged is lost."
        )
    return LogFailed(
        f"The disk is full, so the log of {name} did not take the records ({error}). Nothing that was acknowledged is "
        "lost, and it can be read. Free some space: the log then takes records again by itself."
    )


def describe_failed_log(name: str, error: BaseException) -> LogFailed:
    """Return the error of a log that the disk failed: what was not acknowledged may be lost."""
    if isinstance(error, WalFull):
        return LogFailed(
            f"The write-ahead log is full, so the log of {name} did not take the records. The disk fails the files of "
            "a partition, or those of the write-ahead log, and what only the write-ahead log holds could not be saved "
            "elsewhere: earlier messages name the file. Nothing that was acknowledged is lost, and it can be read. "
            "Repair the disk: the log then takes records again by itself."
        )
    if is_full(error):
        return LogFailed(
            f"The disk was too full to sync the log of {name} ({error}). Nothing that was acknowledged is lost, and it "
            "can be read. Free some space: the log then comes back by itself, without what was not acknowledged."
        )
    if is_passing(error):
        return LogFailed(
            f"{_describe_shortage(error)}: the log of {name} takes no records now, and comes back by itself after "
            "that, without what was not acknowledged. Nothing that was acknowledged is lost."
        )
    groups = " Its consumer groups cannot commit until then." if name.startswith(OFFSETS_TOPIC) else ""
    return LogFailed(
        f"The disk failed the log of {name} ({error}). It takes no more records; what was acknowledged is kept. The "
        f"broker tries to write it again; if the disk stays broken, repair it and restart the broker.{groups}"
    )


def describe_failed_round(names: Sequence[str], error: BaseException) -> LogFailed:
    """Return the event of an entry of the WAL, for these logs, that could not be written for a reason that passes."""
    logs = ", ".join(names[:NAMED_MAX]) + (f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else "")
    if isinstance(error, WalFull):
        reason = (
            "The write-ahead log is full: the disk fails the files of a partition, or those of the write-ahead log, "
            "and what only the write-ahead log holds could not be saved elsewhere. Earlier lines name the file. Repair "
            "the disk"
        )
    elif is_full(error):
        reason = f"The disk was too full for the write-ahead log ({error}). Free some space"
    else:
        reason = _describe_shortage(error)
    return LogFailed(
        f"{reason}. Until then these logs take no records: {logs}. What was not acknowledged is dropped; everything "
        "else is kept and can be read."
    )


def mark_reported(error: BaseException) -> None:
    """Note that an event was logged for a failed operation: everything else that it stops logs none."""
    error.__dict__["is_reported"] = True


def is_reported(error: BaseException) -> bool:
    """Return whether an event was logged for the failed operation."""
    return bool(error.__dict__.get("is_reported"))


def describe_failed_wal(error: BaseException) -> LogFailed:
    """Return the error for everything that is appended after the WAL has failed."""
    return LogFailed(
        f"The disk failed the write-ahead log ({error}). The broker takes no more records; what was acknowledged is "
        "kept and readable. Repair the disk, then restart the broker."
    )


def cut_back(folder: str, sizes: Mapping[int, int], end: int, files: FileSystem) -> None:
    """Cut a log back to its durable end: remove segments that begin behind it, and truncate the others.

    The load that follows checks what is left and syncs it.
    """
    for name in files.listdir(folder):
        if name[:20].isdigit() and int(name[:20]) > end:
            files.remove(f"{folder}/{name}")
    for offset, size in sizes.items():
        path = f"{folder}/{file_name(offset, LOG)}"
        if offset <= end and files.exists(path):
            _cut(path, size, files)


def _cut(path: str, size: int, files: FileSystem) -> None:
    file = files.open(path)
    try:
        if file.size() > size:
            file.truncate(size)
        # The last page was durable once, and then part of the write that failed: it is written again.
        start = max(0, size - 1) // PAGE_BYTES * PAGE_BYTES
        if size:
            file.pwrite(file.pread(size - start, start), start)
    finally:
        file.close()
