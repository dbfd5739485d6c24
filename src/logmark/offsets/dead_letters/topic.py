"""Reads a dead-letter topic: how many dead letters it has, about how many records, and the newest of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from logmark.client.client import Client
from logmark.client.errors import OffsetOutOfRange
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.dead_letters.dead_letter import DeadLetter, parse_dead_letter
from logmark.offsets.records import read_records
from logmark.offsets.suggestions import unknown_topic

LOOKED_AT_MAX = 100_000  # of each partition, by who asks for the newest of one pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDeadLetter:
    """A dead letter, and its own partition and offset in the dead-letter topic."""

    partition: TopicPartition
    offset: int
    at_ms: int
    dead_letter: DeadLetter


@dataclass(slots=True)
class DeadLetterCounts:
    """Counts over a dead-letter topic; dead letters are written at least once, so there may be more than records."""

    dead_letters: int = 0
    records: int = 0
    others: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def count_dead_letters(client: Client, topic: str) -> int:
    """Return the number of dead letters of all pipelines, by log start and end; 0 where there is no such topic."""
    partitions = client.metadata([topic]).partitions(topic)
    if not partitions:
        return 0
    starts, ends = client.earliest(partitions), client.latest(partitions)
    return sum(ends[partition] - starts[partition] for partition in partitions)


def tally_dead_letters(client: Client, topic: str, *, pipeline: str | None = None) -> DeadLetterCounts:
    """Read all dead letters, of one pipeline or of all, and count the records that they are about."""
    tally = DeadLetterCounts()
    seen: set[str] = set()
    for partition in _partitions(client, topic):
        start, end = client.earliest([partition])[partition], client.latest([partition])[partition]
        for kept in _read_range(client, partition, start, end):
            if kept is None:
                tally.others += 1
            elif pipeline in (None, kept.dead_letter.pipeline):
                tally.dead_letters += 1
                tally.errors[kept.dead_letter.error] += kept.dead_letter.dead_letter_key not in seen
                seen.add(kept.dead_letter.dead_letter_key)
    tally.records = len(seen)
    return tally


def newest_dead_letters(
    client: Client, topic: str, *, limit: int, pipeline: str | None = None
) -> list[StoredDeadLetter]:
    """Return the newest dead letters, of one pipeline or of all, the last written first."""
    found: list[StoredDeadLetter] = []
    for partition in _partitions(client, topic):
        found += _newest(client, partition, limit, pipeline)
    return sorted(found, key=lambda kept: (kept.at_ms, kept.offset), reverse=True)[:limit]


def _newest(client: Client, partition: TopicPartition, limit: int, pipeline: str | None) -> list[StoredDeadLetter]:
    start, end = client.earliest([partition])[partition], client.latest([partition])[partition]
    floor = max(start, end - LOOKED_AT_MAX)
    found: list[StoredDeadLetter] = []
    stop, size = end, limit
    while stop > floor and len(found) < limit:
        begin = max(floor, stop - size)
        some = [kept for kept in _read_range(client, partition, begin, stop) if kept is not None]
        found = [kept for kept in some if pipeline in (None, kept.dead_letter.pipeline)] + found
        stop, size = begin, size * 4
    return found[-limit:]


def _read_range(client: Client, partition: TopicPartition, start: int, stop: int) -> Iterator[StoredDeadLetter | None]:
    """Yield the dead letters of a range; None for a record that is none."""
    try:
        for record in read_records(client, partition, start, stop, read_committed=True):
            letter = parse_dead_letter(record.value, record.headers)
            if letter is None:
                yield None
            else:
                yield StoredDeadLetter(
                    partition=partition, offset=record.offset, at_ms=record.timestamp_ms, dead_letter=letter
                )
    except OffsetOutOfRange as error:
        if error.log_start <= start:
            raise
        # Retention was faster.
        yield from _read_range(client, partition, min(error.log_start, stop), stop)


def _partitions(client: Client, topic: str) -> list[TopicPartition]:
    partitions = client.metadata([topic]).partitions(topic)
    if not partitions:
        raise UserError(f"{unknown_topic(client, topic)} So there are no dead letters to look at.")
    return partitions
