"""Looks at a topic of dead letters: how many there are, about how many records, and the newest of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from logmark.client.client import Client
from logmark.client.errors import OffsetOutOfRange
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.letters import Letter, read_letter
from logmark.offsets.records import read_records
from logmark.offsets.spelling import unknown_topic

LOOKED_AT_MAX = 100_000  # of each partition, by who asks for the newest of one pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A letter where it is kept."""

    place: TopicPartition
    offset: int
    at_ms: int
    letter: Letter


@dataclass(slots=True)
class Tally:
    """What all letters of a topic come to; letters are written at least once, so there may be more than records."""

    letters: int = 0
    records: int = 0
    others: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def count_letters(client: Client, topic: str) -> int:
    """How many letters there are, of all pipelines, by the ends of the log; none where there is no such topic."""
    places = client.metadata([topic]).partitions(topic)
    if not places:
        return 0
    starts, ends = client.earliest(places), client.latest(places)
    return sum(ends[place] - starts[place] for place in places)


def tally_letters(client: Client, topic: str, *, pipeline: str | None = None) -> Tally:
    """Reads all letters, of one pipeline or of all, and counts the records that they are about."""
    tally = Tally()
    seen: set[str] = set()
    for place in _places(client, topic):
        start, end = client.earliest([place])[place], client.latest([place])[place]
        for kept in _letters(client, place, start, end):
            if kept is None:
                tally.others += 1
            elif pipeline in (None, kept.letter.pipeline):
                tally.letters += 1
                tally.errors[kept.letter.error] += kept.letter.letter_key not in seen
                seen.add(kept.letter.letter_key)
    tally.records = len(seen)
    return tally


def newest_letters(client: Client, topic: str, *, limit: int, pipeline: str | None = None) -> list[Kept]:
    """The newest letters, of one pipeline or of all, the last written first."""
    found: list[Kept] = []
    for place in _places(client, topic):
        found += _newest(client, place, limit, pipeline)
    return sorted(found, key=lambda kept: (kept.at_ms, kept.offset), reverse=True)[:limit]


def _newest(client: Client, place: TopicPartition, limit: int, pipeline: str | None) -> list[Kept]:
    start, end = client.earliest([place])[place], client.latest([place])[place]
    floor = max(start, end - LOOKED_AT_MAX)
    found: list[Kept] = []
    stop, size = end, limit
    while stop > floor and len(found) < limit:
        begin = max(floor, stop - size)
        some = [kept for kept in _letters(client, place, begin, stop) if kept is not None]
        found = [kept for kept in some if pipeline in (None, kept.letter.pipeline)] + found
        stop, size = begin, size * 4
    return found[-limit:]


def _letters(client: Client, place: TopicPartition, start: int, stop: int) -> Iterator[Kept | None]:
    """What is kept in a range; None for what is no letter."""
    try:
        for record in read_records(client, place, start, stop, read_committed=True):
            letter = read_letter(record.value, record.headers)
            if letter is None:
                yield None
            else:
                yield Kept(place=place, offset=record.offset, at_ms=record.timestamp_ms, letter=letter)
    except OffsetOutOfRange as error:
        if error.log_start <= start:
            raise
        # Retention was faster.
        yield from _letters(client, place, min(error.log_start, stop), stop)


def _places(client: Client, topic: str) -> list[TopicPartition]:
    places = client.metadata([topic]).partitions(topic)
    if not places:
        raise UserError(f"{unknown_topic(client, topic)} So there are no dead letters to look at.")
    return places
