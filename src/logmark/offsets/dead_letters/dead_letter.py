"""Dead letters: a record that a pipeline refused, as it is kept in a topic, and how it becomes that record again.

The key names the record's topic, partition and offset. The value is the record's own, byte for byte, and so are the
headers, to which these are added, all of them text but the key:

    logmark.letter.error       why it was refused
    logmark.letter.pipeline    by whom
    logmark.letter.topic       where the record is, with .partition, .offset and .timestamp
    logmark.letter.key         the record's key; not there if it has none
    logmark.letter.attempts    how often it was refused: 1, unless it was sent back before
    logmark.letter.origin      where it was first, if it was sent back
    logmark.letter.missing     why the value is not here, where it is not

A record that is sent back carries `attempts` and `origin`, and nothing else of these.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from logmark.errors import UserError
from logmark.names import TopicPartition

Headers = Sequence[tuple[bytes, bytes | None]]

PREFIX = b"logmark.letter."
ERROR = PREFIX + b"error"
PIPELINE = PREFIX + b"pipeline"
TOPIC = PREFIX + b"topic"
PARTITION = PREFIX + b"partition"
OFFSET = PREFIX + b"offset"
TIMESTAMP = PREFIX + b"timestamp"
KEY = PREFIX + b"key"
ATTEMPTS = PREFIX + b"attempts"
ORIGIN = PREFIX + b"origin"
MISSING = PREFIX + b"missing"

ERROR_BYTES_MAX = 8 << 10  # a reason, not a document: it goes with every record


def origin_key(topic: str, partition: int, offset: int) -> str:
    """Return the key of a record that was made from another one: that one's topic, partition and offset."""
    return json.dumps([topic, partition, offset], ensure_ascii=False, separators=(",", ":"))


def parse_origin_key(key: str | bytes) -> tuple[TopicPartition, int]:
    """Return the topic-partition and offset that `origin_key` wrote."""
    try:
        topic, partition, offset = json.loads(key)
        return TopicPartition(str(topic), int(partition)), int(offset)
    except (ValueError, TypeError):
        raise UserError(f'{key!r} does not name a record. Such a key looks like ["clicks",0,42].') from None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that was refused, and why; `headers` are the record's own."""

    error: str
    pipeline: str
    partition: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    attempts: int = 1
    origin: str = ""
    missing: str = ""

    @property
    def dead_letter_key(self) -> str:
        """The key in the dead-letter topic: the same for every dead letter about this record."""
        return origin_key(*self.partition, self.offset)


def dead_letter_for_record(
    partition: TopicPartition, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers,
    *, error: str, pipeline: str,
) -> DeadLetter:  # fmt: skip
    """Return the dead letter about a record; one more attempt for a record that was sent back before."""
    known = dict(headers)
    return DeadLetter(
        error=error,
        pipeline=pipeline,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        key=key,
        value=value,
        headers=[header for header in headers if not header[0].startswith(PREFIX)],
        attempts=_number(known.get(ATTEMPTS), 0) + 1,
        origin=_text(known.get(ORIGIN)),
    )


def dead_letter_for_lost_record(
    partition: TopicPartition, offset: int, *, error: str, pipeline: str, missing: str
) -> DeadLetter:
    """Return the dead letter about a record that cannot be read any more."""
    return DeadLetter(
        error=error, pipeline=pipeline, partition=partition, offset=offset, timestamp_ms=-1, missing=missing
    )


def dead_letter_headers(letter: DeadLetter) -> list[tuple[bytes, bytes | None]]:
    """Return all headers of a dead letter: the record's own, then ours."""
    ours: list[tuple[bytes, bytes | None]] = [
        (ERROR, letter.error.encode("utf-8", "replace")[:ERROR_BYTES_MAX].decode("utf-8", "ignore").encode()),
        (PIPELINE, letter.pipeline.encode()),
        (TOPIC, letter.partition.topic.encode()),
        (PARTITION, b"%d" % letter.partition.partition),
        (OFFSET, b"%d" % letter.offset),
        (TIMESTAMP, b"%d" % letter.timestamp_ms),
        (ATTEMPTS, b"%d" % letter.attempts),
    ]
    if letter.key is not None:
        ours.append((KEY, letter.key))
    if letter.origin:
        ours.append((ORIGIN, letter.origin.encode()))
    if letter.missing:
        ours.append((MISSING, letter.missing.encode()))
    return [*letter.headers, *ours]


def parse_dead_letter(value: bytes | None, headers: Headers) -> DeadLetter | None:
    """Return the dead letter that a record of the dead-letter topic is; None if it is something else."""
    known = {name: content for name, content in headers if name.startswith(PREFIX)}
    topic = known.get(TOPIC)
    if not topic or ERROR not in known:
        return None
    return DeadLetter(
        error=_text(known[ERROR]),
        pipeline=_text(known.get(PIPELINE)),
        partition=TopicPartition(_text(topic), _number(known.get(PARTITION), 0)),
        offset=_number(known.get(OFFSET), 0),
        timestamp_ms=_number(known.get(TIMESTAMP), -1),
        key=known.get(KEY),
        value=value,
        headers=[header for header in headers if not header[0].startswith(PREFIX)],
        attempts=_number(known.get(ATTEMPTS), 1),
        origin=_text(known.get(ORIGIN)),
        missing=_text(known.get(MISSING)),
    )


def restored_headers(letter: DeadLetter) -> list[tuple[bytes, bytes | None]]:
    """Return the headers of a record that is sent back: its own, and how often it was refused."""
    origin = letter.origin or letter.dead_letter_key
    return [*letter.headers, (ATTEMPTS, b"%d" % letter.attempts), (ORIGIN, origin.encode())]


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")


def _number(content: bytes | None, default: int) -> int:
    return int(content) if content and len(content) < 20 and content.isdigit() else default
