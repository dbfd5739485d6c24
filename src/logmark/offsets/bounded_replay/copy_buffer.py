"""Turns what is read of one partition into copies for others; pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.bounded_replay.copy_headers import CopyHeaders, Headers, count_hops, original_topic
from logmark.offsets.bounded_replay.dead_letter_restore import DeadLetterRestorer, RestoredRecord, SkipReason
from logmark.offsets.bounded_replay.runs import ReplayRequest, ReplayRun
from logmark.offsets.dead_letters.dead_letter import parse_dead_letter
from logmark.offsets.partitioner import partition_for_key
from logmark.wire.columns import Columns

Copy = tuple[int, int, bytes | None, bytes | None, Headers]  # offset, time, key, value, headers

OWN_HEADERS = 6
COPY_BYTES = 220  # what these and a record's lengths take, about


@dataclass(slots=True)
class SkipCounts:
    """How many records were left out, by the reason; SourceProgress says what each means."""

    not_selected: int = 0
    hopped: int = 0
    unaddressed: int = 0
    repeated: int = 0
    valueless: int = 0


@dataclass(slots=True)
class BufferedCopies(SkipCounts):
    """Copies by the partition that they go to, and what was passed over on the way."""

    copies: dict[TopicPartition, list[Copy]] = field(default_factory=dict)
    count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RoutedRecord:
    """A record that is copied: its topic, key and headers; `back_to` is the partition that a dead letter came from."""

    topic: str
    timestamp_ms: int
    key: bytes | None
    headers: Headers
    back_to: int | None = None


class RecordRouter:
    """Decides about the records of one partition, one after the other; what is left out is counted in `counts`."""

    def __init__(self, request: ReplayRequest, number: int, counts: SkipCounts) -> None:
        self.counts = counts
        self.restorer = DeadLetterRestorer(pipeline=request.pipeline) if request.restores else None
        self._topic = request.topic
        self._number = number
        self._to_topic = request.to_topic
        self._names = [name.encode() for name in request.to_original]
        self._max_hops = request.max_hops
        self._only_dead_letters = request.pipeline is not None
        self._selection = None if request.selection.is_everything else request.selection

    @property
    def takes_all(self) -> bool:
        """Whether nothing has to be decided about a record without headers."""
        return self._selection is None and not self._names and self.restorer is None

    def sort(
        self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> RoutedRecord | None:
        """How a record goes out, or None for one that is left out and counted."""
        counts = self.counts
        letter = parse_dead_letter(value, headers) if self.restorer is not None and headers else None
        if letter is not None:
            key = letter.key
        if (letter is None and self._only_dead_letters) or (
            self._selection is not None and not self._selection.takes(key, value, headers)
        ):
            counts.not_selected += 1
            return None
        # A dead letter of ours counts its attempts, and only a user who sends it back each time makes it go round.
        if letter is None and headers and count_hops(headers) >= self._max_hops:
            counts.hopped += 1
            return None
        topic = self._topic_of(offset, headers)
        if topic is None:
            counts.unaddressed += 1
            return None
        if letter is None or self.restorer is None:
            return RoutedRecord(topic, timestamp_ms, key, headers)
        restored = self.restorer.restore(letter, timestamp_ms)
        match restored:
            case SkipReason.OTHER_PIPELINE:
                counts.not_selected += 1
            case SkipReason.REPEATED:
                counts.repeated += 1
            case SkipReason.VALUELESS:
                counts.valueless += 1
            case RestoredRecord():
                return RoutedRecord(topic, restored.timestamp_ms, restored.key, restored.headers, restored.partition)
        return None

    def _topic_of(self, offset: int, headers: Headers) -> str | None:
        if not self._names:
            return self._to_topic
        topic = original_topic(headers, self._names)
        if topic == self._topic:
            raise UserError(f"The record at offset {offset} of {topic}-{self._number} names this topic as its own.")
        return topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way of a record: a fixed partition, its own number where both topics have as many, else by its key."""

    source_partitions: int
    target_partitions: int
    fixed: int | None = None

    @property
    def is_direct(self) -> bool:
        """Whether all records of a partition go to one partition."""
        return self.fixed is not None or self.source_partitions == self.target_partitions

    def back_to(self, partition: int, key: bytes | None) -> int:
        """Return the partition of a record that goes back: its old one, if a partition of that number exists."""
        if self.fixed is not None:
            return self.fixed
        if partition < self.target_partitions or key is None:
            return partition % self.target_partitions
        return partition_for_key(key, self.target_partitions)

    def to(self, partition: int, key: bytes | None) -> int:
        """Return the target partition as Java's producer maps a key.

        Without a key, the old number modulo the new count.
        """
        if self.fixed is not None:
            return self.fixed
        if self.source_partitions == self.target_partitions:
            return partition
        return partition % self.target_partitions if key is None else partition_for_key(key, self.target_partitions)


class CopyBuffer:
    """Selects, stamps and routes the records of one partition."""

    def __init__(self, run: ReplayRun, number: int, route_of: Callable[[str], Route]) -> None:
        """`route_of` is asked once for each topic that records go to."""
        request = run.request
        self._topic = request.topic
        self._number = number
        self._to_topic = request.to_topic
        self._gathered = BufferedCopies()
        self._sorter = RecordRouter(request, number, self._gathered)
        self._stamp = CopyHeaders(
            run.id, request.topic, number, strip=[prefix.encode() for prefix in request.strip_headers]
        )
        self._route_of = route_of
        self._routes: dict[str, Route] = {}

    def pass_over(self, found: Columns) -> None:
        """Knows of records that the run has gathered before it was interrupted."""
        if self._sorter.restorer is not None:
            for value, headers in zip(found.values(), found.headers(), strict=True):
                self._sorter.restorer.pass_over(value, headers)

    @property
    def count(self) -> int:
        """How many copies were not taken away yet."""
        return self._gathered.count

    @property
    def size_bytes(self) -> int:
        """About as much as the copies take that were not taken away yet."""
        return self._gathered.size_bytes

    def take(self, found: Columns, *, left: int | None) -> int | None:
        """Add the selected records, at most `left`; return the offset after the last one if that limit is reached."""
        offsets, times, keys, values = found.offsets, found.timestamps_ms, found.keys(), found.values()
        # The usual case, without a step in Python for each record.
        if self._sorter.takes_all and left is None and not (found.header_list_offsets or (0,))[-1]:
            self._count(found, found.count)
            self._add(
                self._to_topic, list(zip(offsets, times, keys, values, self._stamp.bare(offsets, times), strict=True))
            )
            return None
        room = None if left is None else left - self._gathered.count
        after = None
        copies: list[Copy] = []
        ways: list[RoutedRecord] = []
        for offset, timestamp, key, value, headers in zip(offsets, times, keys, values, found.headers(), strict=True):
            way = self._sorter.sort(offset, timestamp, key, value, headers)
            if way is None:
                continue
            ways.append(way)
            stamped = self._stamp.headers(offset, timestamp, way.headers)
            copies.append((offset, way.timestamp_ms, way.key, value, stamped))
            if len(copies) == room:
                after = int(offset) + 1
                break
        self._count(found, len(copies))
        for topic in dict.fromkeys(way.topic for way in ways):
            some = [(copy, way.back_to) for copy, way in zip(copies, ways, strict=True) if way.topic == topic]
            self._add(topic, [copy for copy, _ in some], [back_to for _, back_to in some])
        return after

    def _count(self, found: Columns, copies: int) -> None:
        if copies:
            held = len(found.key_bytes) + len(found.value_bytes) + len(found.header_value_bytes or b"")
            self._gathered.size_bytes += held + copies * COPY_BYTES

    def drain(self) -> BufferedCopies:
        """Return the copies since the last call, and empty the buffer."""
        gathered, self._gathered = self._gathered, BufferedCopies()
        self._sorter.counts = self._gathered
        return gathered

    def _add(self, topic: str, copies: list[Copy], back_to: Sequence[int | None] = ()) -> None:
        """Add copies for a topic; each of its partitions gets them in this order."""
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
        if route.is_direct and not any(number is not None for number in back_to):
            target = TopicPartition(topic, route.to(self._number, None))
            now.copies.setdefault(target, []).extend(copies)
            return
        for copy, number in zip(copies, back_to or repeat(None), strict=False):
            found = route.to(self._number, copy[2]) if number is None else route.back_to(number, copy[2])
            now.copies.setdefault(TopicPartition(topic, found), []).append(copy)
