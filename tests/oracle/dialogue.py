"""A dialogue: requests that a test sends to a broker, and its answers in a form that two brokers can be compared by.

What two brokers cannot have in common gets a name: an id is `<id 1 of 'it joins'>` after the step that brought it.
What differs by nature is masked: times, ports, messages for people. Everything else is compared as it was sent.
"""

import re
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from logmark.broker import api
from logmark.wire import batches, fetch, frames, messages, produce
from logmark.wire.fields import NO_UUID, Message
from logmark.wire.schema import create_topics, list_offsets

CLIENT_ID = "dialogue"
PATIENCE_S = 120.0

# The versions that our broker serves, by the module that knows the API's bytes.
SERVED: dict[ModuleType, range] = {module.schema: module.VERSIONS for module in api.MODULES}


class DialogueConnection:
    """One connection: requests go out, answers come back in order."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, port = bootstrap_servers.split(",")[0].rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent: list[tuple[int, ModuleType, int]] = []
        self._correlation_id = 0

    def send(self, schema: ModuleType, version: int, body: bytes) -> None:
        self._correlation_id += 1
        flexible = messages.is_flexible(schema, version)
        self._sent.append((self._correlation_id, schema, version))
        self._socket.sendall(
            frames.request_frame(schema.KEY, version, self._correlation_id, CLIENT_ID, flexible=flexible, body=body)
        )

    def receive(self) -> Any:
        """The answer to the oldest request without one; None when the broker hung up instead."""
        correlation_id, schema, version = self._sent.pop(0)
        head = self._exactly(4)
        if head is None:
            return None
        frame = self._exactly(struct.unpack(">i", head)[0])
        assert frame is not None, "half an answer"
        # The header of an answer to ApiVersions is plain in every version.
        flexible = messages.is_flexible(schema, version) and schema.KEY != 18
        answered_id, at = frames.read_response_header(memoryview(frame), flexible=flexible)
        assert correlation_id == answered_id
        decode = getattr(schema, "decode_response", None)
        body = memoryview(frame)[at:]
        return decode(version, body) if decode else messages.decode_response(schema, version, body)

    def send_frame(self, frame: bytes) -> bytes | None:
        """Sends bytes as they are; the answer's bytes without their length, None when the broker hung up."""
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        head = self._exactly(4)
        return None if head is None else self._exactly(struct.unpack(">i", head)[0])

    def expect_none(self) -> None:
        """The last request gets no answer, so the next answer belongs to the next request."""
        self._sent.pop()

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request and its answer, as it is compared."""

    label: str
    request: str
    answer: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A named script, and the APIs whose versions it runs through."""

    name: str
    rounds: tuple[Mapping[ModuleType, int], ...]
    speak: Callable[["Talk"], None]


DIALOGUES: dict[str, Dialogue] = {}


def dialogue(
    *subjects: ModuleType, since: int | Mapping[ModuleType, int] = 0
) -> Callable[[Callable[["Talk"], None]], Callable[["Talk"], None]]:
    """Enters a script that is spoken once for every version, from `since` on, of the APIs that it is about."""

    def enter(speak: Callable[["Talk"], None]) -> Callable[["Talk"], None]:
        entered = dialogue_of(*subjects, speak=speak, since=since)
        assert entered.name not in DIALOGUES, f"two dialogues are named {entered.name}"
        DIALOGUES[entered.name] = entered
        return speak

    return enter


def dialogue_of(
    *subjects: ModuleType, speak: Callable[["Talk"], None], since: int | Mapping[ModuleType, int] = 0
) -> Dialogue:
    """The script with a round for every version of its subjects; who has fewer versions repeats the last."""
    first = since if isinstance(since, Mapping) else dict.fromkeys(subjects, since)
    versions = {subject: [each for each in SERVED[subject] if each >= first[subject]] for subject in subjects}
    rounds = tuple(
        {subject: found[min(number, len(found) - 1)] for subject, found in versions.items()}
        for number in range(max(map(len, versions.values())))
    )
    return Dialogue(name=speak.__name__, rounds=rounds, speak=speak)


@dataclass(slots=True, kw_only=True)
class Talk:
    """One side of a dialogue: the requests to one broker and what was compared of its answers."""

    bootstrap_servers: str
    suffix: str
    versions: Mapping[ModuleType, int]
    now_ms: int
    steps: list[Step] = field(default_factory=list)
    _lines: dict[str, DialogueConnection] = field(default_factory=dict)
    _mask: "Mask" = field(default_factory=lambda: Mask())

    def version(self, schema: ModuleType) -> int:
        """The version spoken in this round: the one under test, or the newest."""
        return self.versions.get(schema, SERVED[schema][-1])

    def name(self, name: str) -> str:
        """A name that nobody else on this broker has, and the same on the other broker."""
        return f"{name}-{self.suffix}"

    def ask(self, label: str, request: Any, *, line: str = "main", mine_only: bool = False) -> Any:
        """Sends a request and notes the answer, which is returned as it came."""
        self.send(request, line=line)
        return self.hear(label, line=line, request=request, mine_only=mine_only)

    def do(self, request: Any, *, line: str = "quiet") -> Any:
        """Sends a request whose answer is not compared."""
        self.send(request, line=line)
        return self._receive(line, what=repr(request))

    def send(self, request: Any, *, line: str) -> None:
        """Sends a request; its answer is heard later."""
        schema, body = self._encoded(request)
        self._line(line).send(schema, self.version(schema), body)

    def send_for_nothing(self, request: Any, *, line: str = "main") -> None:
        """Sends a request that gets no answer."""
        self.send(request, line=line)
        self._line(line).expect_none()

    def ask_frame(self, label: str, frame: bytes) -> None:
        """Sends bytes as they are, on a connection of their own, and notes the first bytes of what comes back."""
        with closing(DialogueConnection(self.bootstrap_servers)) as line:
            answer = line.send_frame(frame)
        plain = "the connection was closed" if answer is None else answer[:6]
        self.steps.append(Step(label=label, request=repr(frame), answer=plain))

    def hear(self, label: str, *, line: str, request: Any = None, mine_only: bool = False) -> Any:
        """Notes the next answer on this line."""
        answer = self._receive(line, what=label)
        if mine_only:
            _forget_others(answer, self.suffix)
        plain = "the connection was closed" if answer is None else self._mask.plain(answer, step=label)
        shown = f"(sent before on line {line})" if request is None else repr(request)
        self.steps.append(Step(label=label, request=shown, answer=plain))
        return answer

    def note(self, label: str, answer: Any) -> None:
        """Notes something that a dialogue found out by itself."""
        self.steps.append(Step(label=label, request="", answer=self._mask.plain(answer, step=label)))

    def until(self, request: Any, is_there: Callable[[Any], bool]) -> Any:
        """Asks again until the answer is as expected: Apache Kafka learns of its own changes a little later."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_there(answer := self.do(request)):
            assert time.monotonic() < deadline, f"never as expected: {request} {answer}"
            time.sleep(0.002)
        return answer

    def topic(self, name: str = "topic", partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A new topic that can be produced to."""
        full = self.name(name)
        configs = [create_topics.RequestConfig(name=key, value=value) for key, value in (config or {}).items()]
        wanted = create_topics.RequestTopic(name=full, num_partitions=partitions, replication_factor=1, configs=configs)
        answer = self.do(create_topics.Request(topics=[wanted]))
        assert 0 == answer.topics[0].error_code, answer
        self.await_partitions(full, partitions)
        return full

    def await_partitions(self, topic: str, count: int) -> None:
        """The broker leads that many partitions of the topic."""
        asked = [list_offsets.RequestPartition(partition_index=index, timestamp=-1) for index in range(count)]
        self.until(
            list_offsets.Request(replica_id=-1, topics=[list_offsets.RequestTopic(name=topic, partitions=asked)]),
            lambda answer: all(each.error_code == 0 for each in answer.topics[0].partitions),
        )

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def _line(self, name: str) -> DialogueConnection:
        if name not in self._lines:
            self._lines[name] = DialogueConnection(self.bootstrap_servers)
        return self._lines[name]

    def _receive(self, line: str, *, what: str) -> Any:
        try:
            answer = self._line(line).receive()
        except TimeoutError:
            raise AssertionError(f"no answer from {self.bootstrap_servers} in {PATIENCE_S} s: {what}") from None
        if answer is None:
            self._lines.pop(line).close()
        return answer

    def _encoded(self, request: Any) -> tuple[ModuleType, bytes]:
        if isinstance(request, Message):
            schema = sys.modules[type(request).__module__]
            return schema, messages.encode_request(schema, self.version(schema), request)
        schema = produce if isinstance(request, produce.ProduceRequest) else fetch
        return schema, schema.encode_request(self.version(schema), request)


# -- comparing ---------------------------------------------------------------------------------

_MASKED = {
    "throttle_time_ms": "ms",
    "cluster_id": "cluster id",
    "port": "port",
    "log_append_time_ms": "time",
    "error_message": "sentence",
    "documentation": "sentence",
    "session_id": "session",
    "log_dir": "path",
    "total_bytes": "bytes",
    "usable_bytes": "bytes",
}
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NOTHING = (None, "", 0, -1)
# What an element of a list is known by: the order of answers means nothing to a client.
_KNOWN_BY = ("name", "topic", "group_id", "key", "partition_index", "partition", "resource_name", "group_instance_id")


class Mask:
    """Turns answers into plain data, with names for what is random."""

    def __init__(self) -> None:
        self._names: dict[str | bytes, str] = {}
        self._step = ""
        self._named_in_step = 0

    def plain(self, answer: Any, *, step: str) -> Any:
        """The answer as it is compared."""
        self._step, self._named_in_step = step, 0
        return self._plain(answer)

    def _plain(self, value: Any, attribute: str = "") -> Any:
        if attribute in _MASKED:
            return value if value in _NOTHING else f"<{_MASKED[attribute]}>"
        if attribute == "producer_id" and value >= 0:
            return "<producer id>"
        if attribute == "record_errors":
            return [index for index, _ in value]
        if isinstance(value, Message):
            # Success needs no message; Apache Kafka sometimes says NONE.
            if getattr(value, "error_code", 1) == 0 and hasattr(value, "error_message"):
                value.error_message = None
            return self._fields((each.name, getattr(value, each.name)) for each in value.FIELDS)
        if isinstance(value, produce.PartitionAnswer) and value.error_code:
            # Beside an error nobody looks at the log start, and Apache Kafka tells it with some errors only.
            value = value._replace(log_start_offset=-1)
        if hasattr(value, "_asdict"):
            return self._fields(value._asdict().items())
        if isinstance(value, bytes | memoryview):
            return self._bytes(bytes(value), attribute)
        if isinstance(value, str):
            return _UUID.sub(lambda found: self._named(found[0]), str(value))
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, list | tuple):
            # Produce and Fetch answer with pairs of a topic and its partitions, whose order says what is what.
            ordered = sorted(value, key=_known_by) if isinstance(value, list) else value
            plain = [self._plain(each) for each in ordered]
            return sorted(plain, key=repr) if isinstance(value, list) else plain
        return value

    def _fields(self, fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        # Single values first: the id of a member names it before the list of all members does.
        ordered = sorted(fields, key=lambda item: isinstance(item[1], list | tuple))
        return {name: self._plain(value, name) for name, value in ordered}

    def _named(self, value: str | bytes) -> str:
        if value not in self._names:
            self._named_in_step += 1
            self._names[value] = f"<id {self._named_in_step} of {self._step!r}>"
        return self._names[value]

    def _bytes(self, value: bytes, attribute: str) -> Any:
        if attribute == "topic_id":
            return "<no id>" if value == NO_UUID else self._named(value)
        if attribute == "records":
            return list(_batches(value))
        return value


def _batches(records: bytes) -> Iterator[str]:
    """Every whole batch in a line; Apache Kafka may cut off a last one, which clients drop, and we do not send it."""
    at = 0
    while len(records) - at >= batches.HEADER_BYTES:
        header = batches.read_header(records, at)
        if len(records) - at < header.size:
            return
        body = records[at + batches.HEADER_BYTES : at + header.size]
        # Whoever stamps batches with its own time gives them a CRC of its own.
        is_stamped = header.is_log_append_time
        until, crc = ("<time>", "<crc>") if is_stamped else (header.max_timestamp, header.crc)
        yield (
            f"at {header.base_offset}: {header.record_count} records to +{header.last_offset_delta}, "
            f"{header.size} bytes, crc {crc} {zlib.crc32(body)}, magic {header.magic}, attributes {header.attributes}, "
            f"leader epoch {header.leader_epoch}, times {header.base_timestamp} to {until}, "
            f"producer {header.producer_id}/{header.producer_epoch}/{header.base_sequence}"
        )
        at += header.size


def _known_by(element: Any) -> str:
    return repr([getattr(element, name, "") for name in _KNOWN_BY]) if hasattr(element, "FIELDS") else ""


def _forget_others(answer: Any, suffix: str) -> None:
    """Leaves only the topics and groups of this dialogue in an answer that lists everybody's."""
    for attribute, name in (("topics", "name"), ("groups", "group_id")):
        if hasattr(answer, attribute):
            setattr(answer, attribute, [each for each in getattr(answer, attribute) if suffix in getattr(each, name)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two answers part."""

    label: str
    path: str
    request: str
    ours: Any
    kafkas: Any

    def __str__(self) -> str:
        return (
            f"step {self.label!r}, at {self.path or 'the whole answer'}:\n"
            f"    logmark {self.ours!r}\n    kafka   {self.kafkas!r}\n    asked   {self.request}"
        )


def differences(ours: Sequence[Step], kafkas: Sequence[Step]) -> Iterator[Difference]:
    """Yield every difference between the two transcripts."""
    for own, other in zip(ours, kafkas, strict=False):
        for path, left, right in _parted(own.answer, other.answer, ""):
            label = own.label if own.label == other.label else f"{own.label} / {other.label}"
            yield Difference(label=label, path=path, request=own.request, ours=left, kafkas=right)
    if len(ours) != len(kafkas):
        yield Difference(label="the end", path="", request="", ours=len(ours), kafkas=len(kafkas))


def _parted(ours: Any, kafkas: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(kafkas, dict):
        for name in {**ours, **kafkas}:
            yield from _parted(ours.get(name), kafkas.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(ours, list) and isinstance(kafkas, list) and len(ours) == len(kafkas):
        for number, (left, right) in enumerate(zip(ours, kafkas, strict=True)):
            known_as = left.get("name") if isinstance(left, dict) else None
            yield from _parted(left, right, f"{path}[{known_as or number}]")
    # A message for people where Apache Kafka has none is no difference; the opposite is.
    elif ours != kafkas and not (not kafkas and path.endswith("error_message")):
        yield path, ours, kafkas
