"""Who owns a group: heartbeats in the metadata of its committed offsets, and what they say.

A query is no member of its group, so the broker knows nothing about it. It writes the time, by the clock of its driver,
into the metadata of each commit, and renews it in one partition every half minute (`heartbeat.py`). A new query may not
take over a group whose query has written such a heartbeat within the last two minutes.

A heartbeat never moves a group: it repeats an offset that the query has committed. A process that was about to write
one when another process of the same query began, or a newer query took over, may write it too late, over a newer
commit. `is_late` recognises that: another process made this commit after this one had first looked at the group.
"""

import os
import socket
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata, Heartbeat, QueryState
from logmark.spark.source.position import GroupCommit

HEARTBEAT_EVERY_MS = 30_000
HEARTBEAT_VALID_MS = 120_000

GroupCommits = Mapping[TopicPartition, GroupCommit]


def name_process() -> str:
    """Return a name for what reads in this process: machine, namespace and number of the process, and a random part."""
    return f"{_machine()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"


def is_on_this_machine(process: str) -> bool:
    """Return whether the named process runs, or ran, where this one could see it."""
    return process.rpartition("/")[0].rpartition("/")[0] == _machine()


def has_ended(process: str) -> bool:
    """Return whether the named process is known to have ended, which can be known only on its own machine."""
    number = process.rpartition("/")[0].rpartition("/")[2]
    if not is_on_this_machine(process) or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def find_owner(
    here: GroupCommits, in_group: GroupCommits, *, now_ms: int, owner: str | None = None
) -> CommitMetadata | None:
    """Return the mark of the running query that owns these partitions, with its newest heartbeat; None if none runs.

    `in_group` are the commits of all partitions of the group, because a heartbeat is renewed in only one of them.
    A query with the same `owner` does not count: the caller knows that it has ended.
    """
    newest: dict[str, CommitMetadata] = {}
    for one in in_group.values():
        mark = one.mark
        if mark is not None and mark.heartbeat is not None:
            known = newest.get(mark.query)
            if known is None or _heard_ms(known) < mark.heartbeat.at_ms:
                newest[mark.query] = mark
    queries = {one.mark.query for one in here.values() if one.mark is not None}
    running = [
        mark
        for query, mark in newest.items()
        if query in queries and mark.heartbeat is not None and _is_valid(mark.heartbeat, now_ms, owner)
    ]
    return max(running, key=lambda mark: mark.generation, default=None)


def _is_valid(beat: Heartbeat, now_ms: int, owner: str | None) -> bool:
    if beat.state is QueryState.STOPPED or now_ms - beat.at_ms >= HEARTBEAT_VALID_MS:
        return False
    return not (owner and beat.owner == owner) and not has_ended(beat.process)


def is_late(now: GroupCommit, first_seen: GroupCommit | None, *, process: str) -> bool:
    """Return whether a commit is one that another process had begun before this process first saw the partition.

    Such a commit repeats what its query had committed: the same query and generation, its own offset, and a newer
    heartbeat. A commit that a tool has restored has no newer heartbeat than the group had then.
    """
    mark, before = now.mark, first_seen.mark if first_seen is not None else None
    if mark is None or mark.heartbeat is None or before is None or before.heartbeat is None:
        return False
    is_same = (mark.query, mark.generation, mark.offset) == (before.query, before.generation, now.offset)
    return is_same and mark.heartbeat.process != process and mark.heartbeat.at_ms > before.heartbeat.at_ms


def describe_owner(group: str, mark: CommitMetadata, *, now_ms: int) -> str:
    """Return why a new query must not take the group, what that means for the data, and what to do."""
    assert mark.heartbeat is not None
    since = format_moment(mark.generation)
    age_ms = now_ms - mark.heartbeat.at_ms
    heard = (
        f"{age_ms / 1000:.0f} s ago"
        if age_ms >= 0
        else f"{-age_ms / 1000:.0f} s ahead of the clock of this machine, so that the clocks differ"
    )
    machine, _, number = mark.heartbeat.process.rpartition("/")[0].rpartition("/")
    where = f" in process {number} on {machine.partition('/')[0]}" if number else ""
    return (
        f"Group {group} is in use by the query {mark.query} (since {since}), which runs{where}: its last heartbeat was "
        f"{heard}. Nothing was read or committed, and that query runs on. Is it the right group.id? To take the group "
        "from it, stop that query, or set the option takeover to true: it then ends at its next trigger. If it was "
        f"killed, its heartbeat counts until {format_moment(mark.heartbeat.at_ms + HEARTBEAT_VALID_MS)}: start again "
        "after that."
    )


def format_moment(at_ms: int) -> str:
    """Return a time for people."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _heard_ms(mark: CommitMetadata) -> int:
    return mark.heartbeat.at_ms if mark.heartbeat is not None else 0


def _machine() -> str:
    # Containers that share a host's name do not share its process numbers.
    try:
        namespace = Path("/proc/self/ns/pid").readlink().name.removeprefix("pid:").strip("[]")
    except OSError:
        namespace = ""
    return f"{socket.gethostname().replace(' ', '-')}/{namespace}"
