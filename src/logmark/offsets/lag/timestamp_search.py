"""The time of an offset, found with ListOffsets alone: it takes no right to read the records.

ListOffsets answers the first offset at or after a time, and the time of that record. So each answer says on which side
of a time an offset lies, and some answers name the very offset. Where times are out of order, what is found is the
latest time up to the offset: a record can seem younger than it is, never older.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logmark.client.client import Client
from logmark.client.errors import ClientError
from logmark.names import TopicPartition

_CLOSE_MS = 1_000
_CLOSE_PART = 0.01


class FoundTime(NamedTuple):
    """A time in milliseconds since 1970, give or take the bound."""

    timestamp_ms: int
    bound_ms: int


@dataclass(slots=True)
class _Search:
    """What is known of the time of one offset: at least `low_ms`, below `high_ms`."""

    offset: int
    now_ms: int
    low_ms: int | None = None
    low_offset: int = 0
    high_ms: int | None = None
    high_offset: int = -1
    exact_ms: int | None = None
    asked: int = 0
    is_over: bool = False

    def next_ms(self) -> int:
        """Return the time to query next: first both ends, then in turn an interpolated time and the middle."""
        self.asked += 1
        if self.low_ms is None:
            return 0
        if self.high_ms is None:
            return self.now_ms + 1
        span, part = self.high_ms - self.low_ms, 0.5
        if self.asked % 2 and self.high_offset > self.low_offset:
            part = (self.offset - self.low_offset) / (self.high_offset - self.low_offset)
        return self.low_ms + min(max(round(span * part), 1), span - 1)

    def learn(self, asked_ms: int, offset: int, timestamp_ms: int) -> None:
        """Narrows the search by the first record at or after a time; offset -1 when there is none."""
        if offset == self.offset or (asked_ms == 0 and offset > self.offset):
            # The very record; or the first one of the log, when what is wanted was compacted away in front of it.
            self.exact_ms = timestamp_ms
        elif 0 <= offset < self.offset:
            latest = max(asked_ms, timestamp_ms)
            if self.low_ms is None or latest > self.low_ms:
                self.low_ms, self.low_offset = latest, offset
        elif self.high_ms is None or asked_ms < self.high_ms:
            self.high_ms, self.high_offset = asked_ms, offset
        self.is_over = self._is_over()

    def _is_over(self) -> bool:
        if self.exact_ms is not None or self.high_ms == 0:
            return True  # A high of 0: no record of the log has a time.
        if self.low_ms is None:
            return False
        if self.high_ms is None:
            return self.low_ms > self.now_ms  # A producer's clock is ahead of ours.
        return self.high_ms - self.low_ms <= max(_CLOSE_MS, _CLOSE_PART * (self.now_ms - self.low_ms))

    @property
    def found(self) -> FoundTime | None:
        if self.exact_ms is not None:
            return FoundTime(self.exact_ms, 0)
        if self.low_ms is None or (self.high_ms is None and self.low_ms <= self.now_ms):
            return None
        if self.high_ms is None:
            return FoundTime(self.low_ms, 0)
        bound = max(self.high_ms - self.low_ms, 0) // 2
        return FoundTime(self.low_ms + bound, bound)


def search_times(
    client: Client, wanted: Sequence[tuple[TopicPartition, int]], *, now_ms: int, steps_max: int
) -> dict[tuple[TopicPartition, int], FoundTime]:
    """Return the times of the records at these offsets, in at most so many steps; a step asks every leader once."""
    searches: dict[TopicPartition, list[_Search]] = {}
    for partition, offset in wanted:
        searches.setdefault(partition, []).append(_Search(offset, now_ms))
    for _ in range(steps_max):
        # A request may name a partition once: its offsets take turns, and share the answers.
        turns = {partition: turn for partition, all_ in searches.items() if (turn := _turn(all_))}
        if not turns:
            break
        asked = {partition: search.next_ms() for partition, search in turns.items()}
        try:
            answers = client.try_offsets(asked)
        except ClientError:
            break
        for partition, answer in answers.items():
            if not isinstance(answer, tuple):
                del searches[partition]
                continue
            for search in searches[partition]:
                search.learn(asked[partition], *answer)
    return {
        (partition, search.offset): found
        for partition, all_ in searches.items()
        for search in all_
        if (found := search.found) is not None
    }


def _turn(searches: Sequence[_Search]) -> _Search | None:
    """Return the search with the fewest queries so far."""
    return min((one for one in searches if not one.is_over), key=lambda one: one.asked, default=None)
