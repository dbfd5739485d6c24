"""Dead letters on their way: from the task that finds a bad record into the topic of letters, at least once."""

import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from logmark.client.client import Client
from logmark.client.metadata import ClusterMetadata
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.dead_letters.dead_letter import (
    ERROR_BYTES_MAX,
    DeadLetter,
    Headers,
    dead_letter_for_record,
    dead_letter_headers,
)
from logmark.spark.sink.delivery import Plan
from logmark.spark.sink.options import STREAM_PATIENCE_S, SinkOptions
from logmark.spark.sink.outbox import Attempt, Outbox, connect
from logmark.wire.columns import Columns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from logmark.spark.source.json_values import JsonValues

_SPARE_BYTES = 2 * ERROR_BYTES_MAX  # for the headers of a letter that is about as large as its topic takes


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterBox:
    """Where letters go, and who says in them that it refused the record."""

    bootstrap_servers: str
    topic: str
    pipeline: str = ""
    client_id: str = "logmark-spark"
    client: "Mapping[str, str]" = field(default_factory=dict)
    patience_s: float = STREAM_PATIENCE_S

    def sink(self) -> SinkOptions:
        """The same as options of a sink."""
        return SinkOptions(
            bootstrap_servers=self.bootstrap_servers,
            topic=self.topic,
            is_once=False,
            patience_s=self.patience_s,
            client_id=self.client_id,
            client=self.client,
        )


class LetterSender(AbstractContextManager["LetterSender"]):
    """Sends the letters of one task; it connects with the first one, which most tasks never have."""

    def __init__(self, box: LetterBox) -> None:
        self.box = box
        self._client: Client | None = None
        self._outbox: Outbox | None = None

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: "TracebackType | None"
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the connection; letters that were sent are in the log."""
        if self._client is not None:
            self._client.close()
        self._client = self._outbox = None

    def send(self, letters: Iterable[DeadLetter]) -> None:
        """The letters are in the log, acknowledged; a broker that is away is waited for as long as the sink would."""
        now_ms = time.time_ns() // 1_000_000
        try:
            outbox = self._outbox or self._open()
            room = outbox.message_bytes_max(self.box.topic) * 15 // 16 - _SPARE_BYTES
            for letter in letters:
                outbox.put(self.box.topic, None, letter.dead_letter_key.encode(), *_content(letter, room), now_ms)
            outbox.close()
        except BaseException:
            # What is half sent here is made again by whoever tries again.
            self.close()
            raise

    def _open(self) -> Outbox:
        options = self.box.sink()
        client = self._client = connect(options)
        self._outbox = Outbox(client, options, Plan(), Attempt(query="letters", batch=0, task=0))
        return self._outbox


def _content(letter: DeadLetter, room: int) -> "tuple[bytes | None, Headers]":
    """The value and the headers; without the value where a letter with it is more than its topic takes."""
    headers = dead_letter_headers(letter)
    if len(letter.value or b"") + _size(headers) <= room:
        return letter.value, headers
    missing = f"The value has {len(letter.value or b'')} bytes, too many for this topic (max.message.bytes)."
    bare = replace(letter, value=None, missing=missing)
    headers = dead_letter_headers(bare)
    return None, headers if _size(headers) <= room else dead_letter_headers(replace(bare, key=None, headers=()))


def _size(headers: "Headers") -> int:
    return sum(len(name) + len(content or b"") + 10 for name, content in headers)


class GoodRows:
    """Typed rows of the values that fit; the others are letters, in the log before a row of the same part goes on."""

    def __init__(self, values: "JsonValues", letters: LetterSender, *, with_headers: bool) -> None:
        self._values = values
        self._letters = letters
        self._with_headers = with_headers

    def to_arrow(self, columns: Columns, place: TopicPartition) -> "pa.RecordBatch":
        """The good records as one batch; its part was decoded with headers."""
        rows, bad = self._values.good(columns, place)
        if bad:
            self._letters.send(_letters(columns, place, bad, self._letters.box.pipeline))
        return rows if self._with_headers else rows.drop_columns(["headers"])


def _letters(
    columns: Columns, place: TopicPartition, bad: Collection[tuple[int, str]], pipeline: str
) -> Iterable[DeadLetter]:
    keys, values, headers = columns.keys(), columns.values(), _HeadersOf(columns)
    for index, error in bad:
        yield dead_letter_for_record(
            place, columns.offsets[index], columns.timestamps_ms[index], keys[index], values[index], headers.at(index),
            error=error, pipeline=pipeline,
        )  # fmt: skip


class _HeadersOf:
    """The headers of single records, without making those of all."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._all: list[list[tuple[bytes, bytes | None]]] | None = None

    def at(self, index: int) -> Headers:
        ends = self._columns.header_list_offsets
        assert ends is not None, "decoded without headers"
        if ends[index] == ends[index + 1]:
            return ()
        if self._all is None:
            self._all = self._columns.headers()
        return self._all[index]


class Asked(Protocol):
    """The call of a client that a check takes."""

    def metadata(self, topics: list[str] | None = None) -> ClusterMetadata: ...


def check_letter_topic(client: Asked, topic: str, *, reads: Collection[str] = ()) -> None:
    """Raises a sentence unless letters can go to this topic, and nobody reads them as records."""
    if topic in reads:
        raise UserError(
            f"Topic {topic} is to take the dead letters of what is read from it: each letter would be read and refused "
            "again. Nothing was read. Name another topic for them."
        )
    found = client.metadata([topic])
    if found.partitions(topic):
        return
    if found.errors.get(topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise UserError(f"You are not allowed to see topic {topic}, which is to take dead letters. Nothing was read.")
    raise UserError(
        f"There is no topic {topic} to take dead letters. Nothing was read. `logmark topics create {topic}` creates it."
    )
