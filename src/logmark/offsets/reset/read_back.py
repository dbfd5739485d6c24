"""Whether an offset that was just committed stays: pure decisions about what is read back.

A running Logmark query is no member of its group and commits every batch. Between its look at the group and its commit
are milliseconds in which a reset is written over; otherwise it sees the reset, makes a new generation and continues
from there. Its metadata tells which of the two has happened.
"""

from enum import StrEnum

from logmark.client.answers import Committed
from logmark.offsets.commit_metadata import CommitMetadata


class ReadBack(StrEnum):
    """What became of an offset that was committed."""

    THERE = "there"  # it is as it was set
    PICKED_UP = "picked up"  # a query has seen it and continues from there
    OVERWRITTEN = "overwritten"  # somebody who had not seen it has committed


def classify_read_back(*, replaced: Committed | None, after: Committed | None, now: Committed | None) -> ReadBack:
    """Classify `now`, the offset committed after a reset to `after`, which replaced `replaced`.

    A query that has seen the move is in a higher generation than the mark that was replaced. That mark proves nothing
    where the replaced offset had been moved as well and the query may not have seen that yet (its offset is not the
    mark's), where there was no mark, or where another query speaks: there only the very offset counts, and what might
    have been seen is set again, which costs a few records read twice and loses none.
    """
    if now == after or (now is not None and after is not None and _is_same(now, after)):
        return ReadBack.THERE
    mark = CommitMetadata.parse(now.metadata) if now is not None else None
    if now is None or after is None or mark is None:
        return ReadBack.OVERWRITTEN
    was = CommitMetadata.parse(replaced.metadata) if replaced is not None else None
    is_newer = was is None or mark.generation > was.generation
    if is_newer and now.offset == after.offset:
        return ReadBack.PICKED_UP
    is_proof = was is not None and replaced is not None and was.offset == replaced.offset and was.query == mark.query
    return ReadBack.PICKED_UP if is_newer and is_proof else ReadBack.OVERWRITTEN


def _is_same(now: Committed, after: Committed) -> bool:
    # A broker of old versions of the protocol stores no leader epoch.
    return (now.offset, now.metadata) == (after.offset, after.metadata)
