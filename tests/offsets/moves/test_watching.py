"""What became of a place that was set, by what is read back."""

import pytest

from logmark.client.answers import Committed
from logmark.offsets.marks import Mark
from logmark.offsets.moves.watching import Seen, judge


def by(query: str, generation: int, offset: int, *, at: int | None = None) -> Committed:
    """A commit of a query; `at` is where a tool has moved it since and kept the mark."""
    metadata = Mark(query=query, generation=generation, offset=offset).to_metadata()
    return Committed(offset=offset if at is None else at, metadata=metadata)


MARKED = by("q", 5, 100)
SET = by("q", 5, 100, at=30)  # a reset to 30 that kept the mark


@pytest.mark.parametrize(
    ("replaced", "after", "now", "seen", "why"),
    [
        (MARKED, SET, SET, Seen.THERE, "nobody has committed"),
        (None, Committed(offset=3), Committed(offset=3), Seen.THERE, "nobody has committed, and nothing was there"),
        (MARKED, None, None, Seen.THERE, "the commit was taken away"),
        (MARKED, SET, Committed(offset=30, leader_epoch=2, metadata=SET.metadata), Seen.THERE, "only an epoch differs"),
        (MARKED, SET, by("q", 6, 30), Seen.TAKEN_UP, "the query stands there, in a new generation"),
        (MARKED, SET, by("q", 6, 37), Seen.TAKEN_UP, "the query has read on from there"),
        (MARKED, SET, by("q", 6, 5), Seen.TAKEN_UP, "the query has seen it, and another move after it"),
        (MARKED, SET, by("q", 5, 107), Seen.OVERWRITTEN, "the query committed a batch that it had begun"),
        (MARKED, SET, by("q", 5, 100), Seen.OVERWRITTEN, "the query committed the same once more"),
        (MARKED, SET, Committed(offset=107), Seen.OVERWRITTEN, "somebody without a mark committed"),
        (MARKED, SET, None, Seen.OVERWRITTEN, "somebody took the commit away"),
        (MARKED, None, by("q", 5, 107), Seen.OVERWRITTEN, "a query does not notice that its commit is gone"),
        (by("q", 5, 100, at=50), SET, by("q", 6, 50), Seen.OVERWRITTEN, "it has seen the move before this one only"),
        (by("q", 5, 100, at=50), SET, by("q", 6, 30), Seen.TAKEN_UP, "it has seen this move and not the one before"),
        (Committed(offset=50), SET, by("q", 6, 57), Seen.OVERWRITTEN, "a tool had wiped the mark: no proof"),
        (Committed(offset=50), SET, by("q", 6, 30), Seen.TAKEN_UP, "a tool had wiped the mark, but it is the place"),
        (None, Committed(offset=3), by("q", 6, 3), Seen.TAKEN_UP, "a new query began there"),
        (MARKED, SET, by("other", 6, 30), Seen.TAKEN_UP, "another query took the group over there"),
        (MARKED, SET, by("other", 6, 37), Seen.OVERWRITTEN, "another query: where it began is not known"),
        (MARKED, SET, by("other", 4, 37), Seen.OVERWRITTEN, "a query that had lost the group"),
    ],
)
def test_the_marks_tell_who_has_seen_a_move(
    replaced: Committed | None, after: Committed | None, now: Committed | None, seen: Seen, why: str
) -> None:
    assert seen == judge(replaced=replaced, after=after, now=now), why
