"""Turns what is read of one partition into copies for others; pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.replays.replay import Headers, Route, Stamp, hops_of, original_topic
from logmark.offsets.replays.runs import Run
from logmark.wire.columns import Columns

Copy = tuple[int, int, bytes | None, bytes | None, Headers]  # offset, time, key, value, headers

OWN_HEADERS = 6
COPY_BYTES = 220  # what these and a record's lengths take, about


@dataclass(slots=True)
class Gathered:
    """Copies by the partition that they go to, and what was passed over on the way."""

    copies: dict[TopicPartition, list[Copy]] = field(default_factory=dict)
    count: int = 0
    size_bytes: int = 0
    not_selected: int = 0
    hopped: int = 0
    unaddressed: int = 0


class Gatherer:
    """Selects, stamps and routes the records of one partition."""

    def __init__(self, run: Run, number: int, route_of: Callable[[str], Route]) -> None:
        """`route_of` is asked once for each topic that records go to."""
        request = run.request
        self._topic = request.topic
        self._number = number
        self._to_topic = request.to_topic
        self._names = [name.encode() for name in request.to_original]
        self._max_hops = request.max_hops
        self._selection = None if request.selection.is_everything else request.selection
        self._stamp = Stamp(run.id, request.topic, number, strip=[prefix.encode() for prefix in request.strip_headers])
        self._takes_all = self._selection is None and not self._names
        self._route_of = route_of
        self._routes: dict[str, Route] = {}
        self._gathered = Gathered()

    @property
    def count(self) -> int:
        """How many copies were not taken away yet."""
        return self._gathered.count

    @property
    def size_bytes(self) -> int:
        """About as much as the copies take that were not taken away yet."""
        return self._gathered.size_bytes

    def take(self, found: Columns, *, left: int | None) -> int | None:
        """Adds the wanted records, `left` of them at most; with the last of those it stops and returns what follows."""
        offsets, times, keys, values = found.offsets, found.timestamps_ms, found.keys(), found.values()
        # The usual case, without a step in Python for each record.
        if self._takes_all and left is None and not (found.header_list_offsets or (0,))[-1]:
            self._count(found, found.count)
            self._add(
                self._to_topic, list(zip(offsets, times, keys, values, self._stamp.bare(offsets, times), strict=True))
            )
            return None
        now = self._gathered
        room = None if left is None else left - now.count
        after = None
        copies: list[Copy] = []
        topics: list[str] = []
        for offset, timestamp, key, value, headers in zip(offsets, times, keys, values, found.headers(), strict=True):
            topic = self._wanted(offset, key, value, headers)
            if topic is None:
                continue
            topics.append(topic)
            copies.append((offset, timestamp, key, value, self._stamp.headers(offset, timestamp, headers)))
            if len(copies) == room:
                after = int(offset) + 1
                break
        self._count(found, len(copies))
        for topic in dict.fromkeys(topics):
            self._add(topic, [copy for copy, own in zip(copies, topics, strict=True) if own == topic])
        return after

    def _wanted(self, offset: int, key: bytes | None, value: bytes | None, headers: Headers) -> str | None:
        """The topic that a record goes to, or None for one that is left out and counted."""
        now = self._gathered
        if self._selection is not None and not self._selection.takes(key, value, headers):
            now.not_selected += 1
            return None
        if headers and hops_of(headers) >= self._max_hops:
            now.hopped += 1
            return None
        if not self._names:
            return self._to_topic
        topic = original_topic(headers, self._names)
        if topic == self._topic:
            raise UserError(f"The record at offset {offset} of {topic}-{self._number} names this topic as its own.")
        now.unaddressed += topic is None
        return topic

    def _count(self, found: Columns, copies: int) -> None:
        if copies:
            held = len(found.key_bytes) + len(found.value_bytes) + len(found.header_value_bytes or b"")
            self._gathered.size_bytes += held + copies * COPY_BYTES

    def drain(self) -> Gathered:
        """What was gathered since the last time."""
        gathered, self._gathered = self._gathered, Gathered()
        return gathered

    def _add(self, topic: str, copies: list[Copy]) -> None:
        if not copies:
            return
        route = self._routes.get(topic)
        if route is None:
            try:
                route = self._routes[topic] = self._route_of(topic)
            except UserError as error:
                raise UserError(
                    f"The record at offset {copies[0][0]} of {self._topic}-{self._number} cannot go to {topic}: {error}"
                ) from None
        now = self._gathered
        now.count += len(copies)
        if route.is_direct:
            place = TopicPartition(topic, route.to(self._number, None))
            now.copies.setdefault(place, []).extend(copies)
            return
        for copy in copies:
            place = TopicPartition(topic, route.to(self._number, copy[2]))
            now.copies.setdefault(place, []).append(copy)
