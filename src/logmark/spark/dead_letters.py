"""Sends dead letters: from the task that finds a bad record into the dead-letter topic, at least once."""

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType

from logmark.client.client import Client
from logmark.errors import ErrorCode, UserError
from logmark.offsets.dead_letters.dead_letter import (
    ERROR_BYTES_MAX,
    DeadLetter,
    Headers,
    dead_letter_headers,
)
from logmark.spark.sink.delivery import DeliveryPlan
from logmark.spark.sink.options import STREAM_PATIENCE_S, SinkOptions
from logmark.spark.sink.outbox import Attempt, Outbox, connect_sink

_SPARE_BYTES = 2 * ERROR_BYTES_MAX  # for the headers of a dead letter that is about as large as its topic takes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterTarget:
    """Where dead letters go, and the pipeline that they name."""

    bootstrap_servers: str
    topic: str
    pipeline: str = ""
    client_id: str = "logmark-spark"
    client: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = STREAM_PATIENCE_S

    def sink_options(self) -> SinkOptions:
        """Return the same as options of a sink."""
        return SinkOptions(
            bootstrap_servers=self.bootstrap_servers,
            topic=self.topic,
            is_once=False,
            patience_s=self.patience_s,
            client_id=self.client_id,
            client=self.client,
        )


class DeadLetterSender(AbstractContextManager["DeadLetterSender"]):
    """Sends the dead letters of one task; it connects with the first one, which most tasks never have."""

    def __init__(self, target: DeadLetterTarget) -> None:
        self.target = target
        self._client: Client | None = None
        self._outbox: Outbox | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the dead letters that were sent are in the log."""
        if self._client is not None:
            self._client.close()
        self._client = self._outbox = None

    def send(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Send dead letters and wait until they are acknowledged; retries as long as the sink would."""
        now_ms = time.time_ns() // 1_000_000
        try:
            outbox = self._outbox or self._open()
            room = outbox.message_bytes_max(self.target.topic) * 15 // 16 - _SPARE_BYTES
            for dead_letter in dead_letters:
                outbox.put(
                    self.target.topic,
                    None,
                    dead_letter.dead_letter_key.encode(),
                    *_fit_content(dead_letter, room),
                    now_ms,
                )
            outbox.close()
        except BaseException:
            # Whoever tries again sends all of them again.
            self.close()
            raise

    def _open(self) -> Outbox:
        options = self.target.sink_options()
        client = self._client = connect_sink(options)
        self._outbox = Outbox(client, options, DeliveryPlan(), Attempt(query="dead letters", batch=0, task=0))
        return self._outbox


def _fit_content(letter: DeadLetter, room: int) -> "tuple[bytes | None, Headers]":
    """Return value and headers; without the value if the topic does not take a dead letter of that size."""
    headers = dead_letter_headers(letter)
    if len(letter.value or b"") + _size(headers) <= room:
        return letter.value, headers
    missing = f"The value has {len(letter.value or b'')} bytes, too many for this topic (max.message.bytes)."
    bare = replace(letter, value=None, missing=missing)
    headers = dead_letter_headers(bare)
    return None, headers if _size(headers) <= room else dead_letter_headers(replace(bare, key=None, headers=()))


def _size(headers: "Headers") -> int:
    return sum(len(name) + len(content or b"") + 10 for name, content in headers)


def check_dead_letter_topic(client: Client, topic: str, *, reads: Collection[str] = ()) -> None:
    """Raise UserError unless the topic is there for dead letters, and is none that `reads` names."""
    if topic in reads:
        raise UserError(
            f"Topic {topic} is read, and is its own dead-letter topic: each dead letter would be read and refused "
            "again. Nothing was read. Name another dead-letter topic."
        )
    found = client.metadata([topic])
    if found.partitions(topic):
        return
    if found.errors.get(topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise UserError(f"You are not allowed to see the dead-letter topic {topic}. Nothing was read.")
    raise UserError(
        f"There is no dead-letter topic {topic}. Nothing was read. `logmark topics create {topic}` creates it."
    )
