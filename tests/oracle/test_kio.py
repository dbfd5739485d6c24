"""Every message of ours and kio's message of the same version are the same bytes, both ways."""

import dataclasses
import datetime
import io
import uuid
from importlib import import_module
from random import Random
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest
from kio.serial import entity_reader, entity_writer

from logmark.wire import fetch, frames, produce
from logmark.wire.fields import Message
from logmark.wire.messages import NO_UUID, decode_request, decode_response, encode_request, encode_response
from tests.wire.random_messages import EVERY_VERSION, SCHEMAS, name_of, random_message

# What we speak and kio does not: versions of these are checked by nobody but us.
LACKING_IN_KIO: set[tuple[str, int]] = set()

MESSAGES_PER_VERSION = 12
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)


def kio_class(api: str, side: str, version: int) -> Any:
    module = import_module(f"kio.schema.{api}.v{version}.{side.lower()}")
    return getattr(module, "".join(part.title() for part in api.split("_")) + side)


def read(cls: Any, data: bytes) -> Any:
    """The entity that kio finds in all of `data`."""
    entity, size = entity_reader(cls)(data, 0)
    assert len(data) == size
    return entity


def write(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def plain(value: Any) -> Any:
    """kio's value as tuples of plain values, in the order of the fields."""
    if dataclasses.is_dataclass(value):
        return tuple(_plain_field(value, field) for field in dataclasses.fields(value))
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value


def _plain_field(entity: Any, field: Any) -> Any:
    value = getattr(entity, field.name)
    match field.metadata.get("kafka_type"):
        case "error_code":
            return int(value)
        case "timedelta_i32" | "timedelta_i64":
            return value // MILLISECOND
        case "datetime_i64":
            return -1 if value is None else (value - EPOCH) // MILLISECOND
        case "uuid":
            return NO_UUID if value is None else plain(value)
        case _:
            return plain(value)


def ours_plain(value: Any, version: int) -> Any:
    """Our value in the same shape."""
    if isinstance(value, Message):
        fields = (field for field in value.FIELDS if field.is_in(version))
        return tuple(ours_plain(getattr(value, field.name), version) for field in fields)
    if isinstance(value, list):
        return [ours_plain(item, version) for item in value]
    return value


def without_unit(name: str) -> str:
    """kio's name for a field that holds a time."""
    return name.removesuffix("_ms")


def nested(cls: Any, name: str) -> Any:
    """The class of kio's structs in this field, or None."""
    hint = get_type_hints(cls)[name]
    hints = [hint, *get_args(hint)]
    hints += [inner for outer in hints for inner in get_args(outer)]
    return next((hint for hint in hints if dataclasses.is_dataclass(hint)), None)


def assert_same_fields(ours: type[Message], theirs: Any, version: int) -> None:
    fields = [field for field in ours.FIELDS if field.is_in(version)]
    their_fields = dataclasses.fields(theirs)
    assert [without_unit(field.name) for field in fields] == [without_unit(field.name) for field in their_fields]
    for field, their_field in zip(fields, their_fields, strict=True):
        assert field.tag == their_field.metadata.get("tag")
        default = their_field.default
        if default is not dataclasses.MISSING:
            assert field.fresh_default() == _plain_default(default, their_field)
        struct = field.struct or (field.element and field.element.struct)
        if struct:
            assert_same_fields(struct, nested(theirs, their_field.name), version)


def _plain_default(default: Any, field: Any) -> Any:
    if isinstance(default, datetime.timedelta):
        return default // MILLISECOND
    if default is None and field.metadata.get("kafka_type") in ("uuid", "datetime_i64"):
        return NO_UUID if field.metadata["kafka_type"] == "uuid" else -1
    return plain(default)


def test_kio_has_every_version_that_we_have() -> None:
    lacking = set()
    for module, side, version in EVERY_VERSION:
        api = module.__name__.rpartition(".")[2]
        try:
            kio_class(api, side, version)
        except ModuleNotFoundError:
            lacking.add((api, version))

    assert LACKING_IN_KIO == lacking


@pytest.mark.parametrize("module", SCHEMAS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_keys_and_flexible_versions_are_kio_s(module: ModuleType) -> None:
    api = module.__name__.rpartition(".")[2]
    kio = [kio_class(api, "Request", version) for version in module.VERSIONS]

    assert {module.KEY} == {int(cls.__api_key__) for cls in kio}
    flexible = [module.FLEXIBLE_FROM is not None and version >= module.FLEXIBLE_FROM for version in module.VERSIONS]
    assert flexible == [cls.__flexible__ for cls in kio]


@pytest.mark.parametrize("case", EVERY_VERSION, ids=name_of)
def test_names_defaults_and_tags_of_fields_are_kio_s(case: tuple[ModuleType, str, int]) -> None:
    module, side, version = case

    assert_same_fields(getattr(module, side), kio_class(module.__name__.rpartition(".")[2], side, version), version)


@pytest.mark.parametrize("case", EVERY_VERSION, ids=name_of)
def test_messages_are_the_same_bytes(case: tuple[ModuleType, str, int]) -> None:
    module, side, version = case
    cls = kio_class(module.__name__.rpartition(".")[2], side, version)
    encode, decode = (encode_request, decode_request) if side == "Request" else (encode_response, decode_response)
    random = Random(name_of(case))

    for _ in range(MESSAGES_PER_VERSION):
        message = random_message(random, getattr(module, side), version)
        data = encode(module, version, message)
        entity = read(cls, data)
        assert ours_plain(message, version) == plain(entity)
        theirs = write(entity)
        assert message == decode(module, version, theirs)
        assert theirs == data


@pytest.mark.parametrize("version", produce.VERSIONS)
def test_produce_requests_are_the_same_bytes(version: int) -> None:
    random = Random(version)
    cls = kio_class("produce", "Request", version)
    for topic_count in range(4):
        topics = [
            (
                f"topic-{number}",
                [
                    produce.PartitionData(index, random.choice((None, memoryview(random.randbytes(index * 90)))))
                    for index in range(number)
                ],
            )
            for number in range(topic_count)
        ]
        request = produce.ProduceRequest(random.choice((None, "tx")), -1, 30_000, topics)
        data = produce.encode_request(version, request)

        entity = read(cls, data)
        assert (request.transactional_id, -1, 30_000) == plain(entity)[:3]
        assert topics == [
            (topic.name, [(part.index, part.records) for part in topic.partition_data]) for topic in entity.topic_data
        ]
        assert request == produce.decode_request(version, memoryview(b"header" + write(entity)), 6)


@pytest.mark.parametrize("version", produce.VERSIONS)
def test_produce_responses_are_the_same_bytes(version: int) -> None:
    cls = kio_class("produce", "Response", version)
    answers = [
        produce.PartitionAnswer(0, 0, 1_000, -1, 5),
        produce.PartitionAnswer(1, 87, -1, 1_700_000_000_123, 0, ((3, "no key"), (4, None)), "a record was wrong"),
        produce.PartitionAnswer(2, 3, -1, -1, -1, (), None),
    ]
    topics = [("clicks", answers), ("ø" * 90, answers[:1]), ("none", [])]
    data = produce.encode_response(version, topics, throttle_time_ms=7)

    entity = read(cls, data)
    shown = 4 if version < 5 else 5 if version < 8 else 7
    assert [(name, [_first_fields(answer, shown) for answer in parts]) for name, parts in topics] == [
        (topic.name, [_as_answer(part)[:shown] for part in topic.partition_responses]) for topic in entity.responses
    ]
    theirs = write(entity)
    assert data == theirs
    decoded = produce.decode_response(version, theirs)
    assert 7 == decoded.throttle_time_ms
    assert [(name, [_first_fields(answer, shown) for answer in parts]) for name, parts in topics] == [
        (name, [_first_fields(answer, shown) for answer in parts]) for name, parts in decoded.topics
    ]


def _first_fields(answer: produce.PartitionAnswer, fields: int) -> tuple[Any, ...]:
    return tuple(answer)[:fields]


def _as_answer(entity: Any) -> tuple[Any, ...]:
    values = plain(entity)
    return (*values[:5], *((tuple(values[5]), values[6]) if len(values) > 5 else ()))


@pytest.mark.parametrize("version", fetch.VERSIONS)
def test_fetch_requests_are_the_same_bytes(version: int) -> None:
    cls = kio_class("fetch", "Request", version)
    partitions = [fetch.FetchPartition(index, -1, index * 10**10, -1, -1, 1 << 20) for index in range(3)]
    if version >= 5:
        partitions = [partition._replace(log_start_offset=7) for partition in partitions]
    if version >= 9:
        partitions = [partition._replace(current_leader_epoch=4) for partition in partitions]
    if version >= 12:
        partitions = [partition._replace(last_fetched_epoch=3) for partition in partitions]
    request = fetch.FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=52_428_800,
        isolation_level=1,
        session_id=77 if version >= 7 else 0,
        session_epoch=2 if version >= 7 else -1,
        topics=[("clicks", partitions), ("orders", [])],
        forgotten=[("old", [0, 5]), ("older", [])] if version >= 7 else [],
        rack_id="r1" if version >= 11 else "",
    )
    data = fetch.encode_request(version, request)

    entity = read(cls, data)
    assert request.topics[0][0] == entity.topics[0].topic
    assert [partition.fetch_offset for partition in partitions] == [
        partition.fetch_offset for partition in entity.topics[0].partitions
    ]
    theirs = write(entity)
    assert data == theirs
    assert request == fetch.decode_request(version, memoryview(theirs), 0)


@pytest.mark.parametrize("version", fetch.VERSIONS)
def test_fetch_responses_are_the_same_bytes(version: int) -> None:
    cls = kio_class("fetch", "Response", version)
    start = 5 if version >= 5 else -1
    replica = 9 if version >= 11 else -1
    answers = [
        fetch.FetchAnswer(0, 0, 100, 90, start, b"", (), replica),
        fetch.FetchAnswer(1, 0, 10**12, 10**12, start, b"r" * 5_000, ((4_000, 17), (4_001, 18)), replica),
        fetch.FetchAnswer(2, 1, -1, -1, start, b"", (), -1),
    ]
    topics = [("clicks", answers), ("orders", answers[:1]), ("none", [])]
    session = {"error_code": 0, "session_id": 12} if version >= 7 else {"error_code": 0, "session_id": 0}
    buffers = fetch.encode_response(version, throttle_time_ms=3, topics=topics, **session)
    data = b"".join(buffers)

    entity = read(cls, data)
    assert [answer.records for answer in answers] == [part.records for part in entity.responses[0].partitions]
    assert [list(answer.aborted_transactions) for answer in answers] == [
        plain(part.aborted_transactions) for part in entity.responses[0].partitions
    ]
    theirs = write(entity)
    assert data == theirs
    assert fetch.FetchResponse(3, 0, session["session_id"], topics) == fetch.decode_response(version, theirs)


@pytest.mark.parametrize("flexible", [False, True])
def test_headers_are_the_same_bytes(flexible: bool) -> None:
    request = import_module(f"kio.schema.request_header.v{1 + flexible}.header").RequestHeader
    response = import_module(f"kio.schema.response_header.v{int(flexible)}.header").ResponseHeader
    frame = frames.request_frame(3, 9, 42, "client-ü", flexible=flexible, body=b"")

    assert len(frame) - 4 == int.from_bytes(frame[:4], "big")
    assert (3, 9, 42, "client-ü") == plain(read(request, frame[4:]))
    theirs = write(read(request, frame[4:]))
    header = frames.read_request_header(memoryview(theirs), lambda key: 9 if flexible else None)
    assert (3, 9, 42, "client-ü", len(theirs)) == header
    assert (42,) == plain(read(response, frames.response_header(42, flexible=flexible)))
    answer = write(read(response, frames.response_header(42, flexible=flexible)))
    assert (42, len(answer)) == frames.read_response_header(memoryview(answer), flexible=flexible)
