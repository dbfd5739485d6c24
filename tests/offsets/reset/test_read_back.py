"""What became of a committed offset that was set, by what is read back."""

import pytest

from logmark.client.answers import Committed
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.reset.read_back import ReadBack, classify_read_back


def by(query: str, generation: int, offset: int, *, at: int | None = None) -> Committed:
    """A commit of a query; `at` is where a tool has moved it since and kept the mark."""
    metadata = CommitMetadata(query=query, generation=generation, offset=offset).to_text()
    return Committed(offset=offset if at is None else at, metadata=metadata)


MARKED = by("q", 5, 100)
SET = by("q", 5, 100, at=30)  # a reset to 30 that kept the mark


@pytest.mark.parametrize(
    ("replaced", "after", "now", "seen", "why"),
    [
        (MARKED, SET, SET, ReadBack.THERE, "nobody has committed"),
        (None, Committed(offset=3), Committed(offset=3), ReadBack.THERE, "nobody has committed, and nothing was there"),
        (MARKED, None, None, ReadBack.THERE, "the commit was taken away"),
        (
            MARKED,
            SET,
            Committed(offset=30, leader_epoch=2, metadata=SET.metadata),
            ReadBack.THERE,
            "only an epoch differs",
        ),
        (MARKED, SET, by("q", 6, 30), ReadBack.PICKED_UP, "the query stands there, in a new generation"),
        (MARKED, SET, by("q", 6, 37), ReadBack.PICKED_UP, "the query has read on from there"),
        (MARKED, SET, by("q", 6, 5), ReadBack.PICKED_UP, "the query has seen it, and another move after it"),
        (MARKED, SET, by("q", 5, 107), ReadBack.OVERWRITTEN, "the query committed a batch that it had begun"),
        (MARKED, SET, by("q", 5, 100), ReadBack.OVERWRITTEN, "the query committed the same once more"),
        (MARKED, SET, Committed(offset=107), ReadBack.OVERWRITTEN, "somebody without a mark committed"),
        (MARKED, SET, None, ReadBack.OVERWRITTEN, "somebody took the commit away"),
        (MARKED, None, by("q", 5, 107), ReadBack.OVERWRITTEN, "a query does not notice that its commit is gone"),
        (
            by("q", 5, 100, at=50),
            SET,
            by("q", 6, 50),
            ReadBack.OVERWRITTEN,
            "it has seen the move before this one only",
        ),
        (
            by("q", 5, 100, at=50),
            SET,
            by("q", 6, 30),
            ReadBack.PICKED_UP,
            "it has seen this move and not the one before",
        ),
        (Committed(offset=50), SET, by("q", 6, 57), ReadBack.OVERWRITTEN, "a tool had wiped the mark: no proof"),
        (
            Committed(offset=50),
            SET,
            by("q", 6, 30),
            ReadBack.PICKED_UP,
            "a tool had wiped the mark, but it is the same offset",
        ),
        (None, Committed(offset=3), by("q", 6, 3), ReadBack.PICKED_UP, "a new query began there"),
        (MARKED, SET, by("other", 6, 30), ReadBack.PICKED_UP, "another query took the group over there"),
        (MARKED, SET, by("other", 6, 37), ReadBack.OVERWRITTEN, "another query: where it began is not known"),
        (MARKED, SET, by("other", 4, 37), ReadBack.OVERWRITTEN, "a query that had lost the group"),
    ],
)
def test_the_marks_tell_who_has_seen_a_move(
    replaced: Committed | None, after: Committed | None, now: Committed | None, seen: ReadBack, why: str
) -> None:
    assert seen == classify_read_back(replaced=replaced, after=after, now=now), why
