"""Dead letters as programs read them; `dataclasses.asdict` makes them JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

from logmark.escaping import json_text
from logmark.offsets.dead_letters.topic import DeadLetterCounts, StoredDeadLetter

Text = str | dict[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationView:
    """A partition and an offset in it."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterView:
    """The record that a dead letter is about, why it was refused, and where the dead letter itself is."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    error: str
    pipeline: str
    attempts: int
    origin: str
    key: Text
    value: Text
    bytes: int
    missing: str | None
    written_ms: int
    letter: LocationView


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterTallyView:
    """How many dead letters a pipeline has, about how many records, and how often for which error."""

    pipeline: str
    topic: str
    dead_letters: int
    records: int
    errors: Mapping[str, int]


def view_dead_letter(kept: StoredDeadLetter) -> DeadLetterView:
    """Return a dead letter in the form that programs read."""
    letter = kept.dead_letter
    return DeadLetterView(
        topic=letter.partition.topic,
        partition=letter.partition.partition,
        offset=letter.offset,
        timestamp_ms=letter.timestamp_ms,
        error=letter.error,
        pipeline=letter.pipeline,
        attempts=letter.attempts,
        origin=letter.origin or letter.dead_letter_key,
        key=json_text(letter.key),
        value=json_text(letter.value),
        bytes=len(letter.value or b""),
        missing=letter.missing or None,
        written_ms=kept.at_ms,
        letter=LocationView(topic=kept.partition.topic, partition=kept.partition.partition, offset=kept.offset),
    )


def view_tally(pipeline: str, topic: str, tally: DeadLetterCounts) -> DeadLetterTallyView:
    """Return the counts of a dead-letter topic, the most frequent error first."""
    return DeadLetterTallyView(
        pipeline=pipeline,
        topic=topic,
        dead_letters=tally.dead_letters,
        records=tally.records,
        errors=dict(tally.errors.most_common()),
    )
