"""A replay: which records of a topic are copied, to which partition, and what travels with them. All of it is pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.client.errors import OffsetOutOfRange
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets import letters
from logmark.offsets.partitioning import partition_of_key
from logmark.offsets.positions import Position, parse_position

Headers = Sequence[tuple[bytes, bytes | None]]
Places = Position | Mapping[int, Position]

PREFIX = b"logmark.replay."
ID = PREFIX + b"id"
TOPIC = PREFIX + b"topic"
PARTITION = PREFIX + b"partition"
OFFSET = PREFIX + b"offset"
TIMESTAMP = PREFIX + b"timestamp"
HOPS = PREFIX + b"hops"
ORIGIN = PREFIX + b"origin"
# Who writes dead letters names their topic in one of these: our pipelines, Spring, Kafka Connect, a replay.
ORIGINAL_TOPIC_HEADERS = (letters.TOPIC, b"kafka_dlt-original-topic", b"__connect.errors.topic", TOPIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The records that are wanted: one of the keys, every header, and the text in the value; nothing named is all."""

    keys: frozenset[bytes] = frozenset()
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    value_contains: bytes | None = None

    @property
    def is_everything(self) -> bool:
        return not self.keys and not self.headers and self.value_contains is None

    def takes(self, key: bytes | None, value: bytes | None, headers: Headers) -> bool:
        """Whether a record is wanted; a header without a value in the selection only has to be there."""
        if self.keys and key not in self.keys:
            return False
        for name, wanted in self.headers:
            if not any(found == name and wanted in (None, content) for found, content in headers):
                return False
        return self.value_contains is None or (value is not None and self.value_contains in value)


def parse_keys(texts: Sequence[str], *, is_hex: bool) -> frozenset[bytes]:
    """Keys as they are written after --key: text, or with --key-hex the bytes in hexadecimal."""
    if not is_hex:
        return frozenset(text.encode() for text in texts)
    try:
        return frozenset(bytes.fromhex(text.removeprefix("0x")) for text in texts)
    except ValueError:
        raise UserError(
            f"--key {' '.join(texts)!r} is not hexadecimal: with --key-hex write two digits for each byte (00ff10).",
            exit_code=2,
        ) from None


def parse_headers(texts: Sequence[str]) -> tuple[tuple[bytes, bytes | None], ...]:
    """Headers as they are written after --header: NAME, or NAME=VALUE."""
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise UserError(f"--header {text!r} names no header: write NAME or NAME=VALUE.", exit_code=2)
        found.append((name.encode(), value.encode() if equals else None))
    return tuple(found)


# Where it begins and ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a partition holds for a reader of committed records; the times are the offsets found for --from and --to."""

    start: int
    end: int
    at_from_time: int = -1
    at_to_time: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A bounded range of one partition: `stop` is the first offset that is not in it."""

    partition: int
    start: int
    stop: int
    note: str = ""

    @property
    def offsets(self) -> int:
        """How many offsets there are; compaction and transactions may leave fewer records."""
        return self.stop - self.start


def parse_places(text: str, *, now_ms: int) -> Places:
    """One position for all partitions, or one for each that is named: 0:100,1:200."""
    if not re.match(r"\d+:", text):
        return parse_position(text, now_ms=now_ms)
    found: dict[int, Position] = {}
    for part in text.split(","):
        number, colon, place = part.strip().partition(":")
        if not colon or not re.fullmatch(r"\d{1,9}", number, re.ASCII):
            raise UserError(f"{part!r} names no partition and place: write 0:100,1:200.", exit_code=2)
        if int(number) in found:
            raise UserError(f"{text!r} names partition {int(number)} twice.", exit_code=2)
        found[int(number)] = parse_position(place, now_ms=now_ms)
    return found


def place_in(places: Places, partition: int) -> Position | None:
    """The position for a partition; None where others are named and this one is not."""
    return places if isinstance(places, Position) else places.get(partition)


def plan_spans(topic: str, logs: Mapping[int, Log], begin: Places, end: Places) -> list[Span]:
    """The ranges between two places, in order of partition; a partition that `begin` does not name is left out.

    An offset that lies outside of some logs is moved to their nearer end and noted; one that lies outside of all of
    them is refused, and so is an end before the beginning.
    """
    begins = {number: place for number in logs if (place := place_in(begin, number)) is not None}
    ends = {number: place_in(end, number) or Position(is_latest=True) for number in begins}
    for places in (begins, ends):
        _refuse_if_outside(topic, logs, places)
    spans, is_backward = [], bool(begins)
    for number in sorted(begins):
        log = logs[number]
        start, start_note = _offset_of(begins[number], log, log.at_from_time)
        stop, stop_note = _offset_of(ends[number], log, log.at_to_time)
        is_backward = is_backward and stop < start
        notes = [note for note in (start_note, stop_note) if note]
        spans.append(Span(partition=number, start=start, stop=max(start, stop), note="; ".join(notes)))
    if is_backward:
        raise UserError("--to lies before --from, so there is nothing between them. Nothing was copied.")
    return spans


def _refuse_if_outside(topic: str, logs: Mapping[int, Log], places: Mapping[int, Position]) -> None:
    named = {number: place.offset for number, place in places.items() if place.offset is not None}
    outside = {n: offset for n, offset in named.items() if not logs[n].start <= offset <= logs[n].end}
    if named and len(outside) == len(named):
        number, offset = min(outside.items())
        raise OffsetOutOfRange(
            TopicPartition(topic, number), offset, log_start=logs[number].start, log_end=logs[number].end
        )


def _offset_of(place: Position, log: Log, at_time: int) -> tuple[int, str]:
    if place.is_earliest:
        return log.start, ""
    if place.offset is not None:
        if place.offset < log.start:
            return log.start, f"{place.offset} is below the log start"
        if place.offset > log.end:
            return log.end, f"{place.offset} is beyond the end"
        return place.offset, ""
    if place.before_end is not None:
        return max(log.start, log.end - place.before_end), ""
    if place.timestamp_ms is not None:
        return min(max(at_time, log.start), log.end) if at_time >= 0 else log.end, ""
    return log.end, ""


# Where to


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
        """The partition of a record that goes back: the one it was in, where there is one of that number."""
        if self.fixed is not None:
            return self.fixed
        if partition < self.target_partitions or key is None:
            return partition % self.target_partitions
        return partition_of_key(key, self.target_partitions)

    def to(self, partition: int, key: bytes | None) -> int:
        """The target's partition: as Java's producer places a key; without one, the old number modulo the new count."""
        if self.fixed is not None:
            return self.fixed
        if self.source_partitions == self.target_partitions:
            return partition
        return partition % self.target_partitions if key is None else partition_of_key(key, self.target_partitions)


def original_topic(headers: Headers, names: Sequence[bytes]) -> str | None:
    """The topic that a dead letter comes from: the first of these headers that it has."""
    for wanted in names:
        for name, content in headers:
            if name == wanted and content:
                return content.decode("utf-8", "replace")
    return None


# What travels with it


def hops_of(headers: Headers) -> int:
    """How many replays a record has been through."""
    for name, content in reversed(headers):
        if name == HOPS:
            return int(content) if content and content.isdigit() and len(content) < 10 else 1
    return int(any(name == ID for name, _ in headers))


class Stamp:
    """Makes the headers of the copies of one partition; those of an earlier replay go.

    The headers name where this copy was made from. From the second replay on, `origin` keeps the first place of all.
    """

    def __init__(self, run_id: str, topic: str, partition: int, *, strip: Sequence[bytes] = ()) -> None:
        self._prefixes = (PREFIX, *strip)
        self._first = ((ID, run_id.encode()), (TOPIC, topic.encode()), (PARTITION, b"%d" % partition))

    def headers(self, offset: int, timestamp_ms: int, headers: Headers) -> Headers:
        """The headers of the copy of a record: its own, and where it comes from."""
        kept = [header for header in headers if not header[0].startswith(self._prefixes)]
        hops = hops_of(headers)
        place = (OFFSET, b"%d" % offset), (TIMESTAMP, b"%d" % timestamp_ms), (HOPS, b"%d" % (hops + 1))
        origin = ((ORIGIN, _origin(headers)),) if hops else ()
        return [*kept, *self._first, *place, *origin]

    def bare(self, offsets: Sequence[int], timestamps_ms: Sequence[int]) -> list[Headers]:
        """The headers of the copies of many records that had none."""
        first, once = self._first, (HOPS, b"1")
        return [
            (*first, (OFFSET, b"%d" % offset), (TIMESTAMP, b"%d" % timestamp), once)
            for offset, timestamp in zip(offsets, timestamps_ms, strict=True)
        ]


def _origin(headers: Headers) -> bytes:
    found = dict(headers)
    known = found.get(ORIGIN)
    if known is not None:
        return known
    return b"%s-%s@%s" % tuple(found.get(name) or b"?" for name in (TOPIC, PARTITION, OFFSET))


def copied_from(headers: Headers, run_id: bytes) -> tuple[int, int] | None:
    """The partition and offset that this run copied a record from, or None if it is not of this run."""
    found = dict(headers)
    partition, offset = found.get(PARTITION), found.get(OFFSET)
    if found.get(ID) != run_id or not partition or not offset or not partition.isdigit() or not offset.isdigit():
        return None
    return int(partition), int(offset)
