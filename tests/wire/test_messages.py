"""Messages go to bytes and back, and no bytes do more than be refused."""

import contextlib
import json
import subprocess
import sys
import tracemalloc
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logmark.errors import Malformed
from logmark.wire.messages import (
    Message,
    array,
    boolean,
    data,
    decode,
    decode_request,
    decode_response,
    encode,
    encode_request,
    encode_response,
    float64,
    int8,
    int16,
    int32,
    int64,
    is_flexible,
    string,
    struct,
    uuid,
)
from logmark.wire.schema import (
    api_versions,
    create_topics,
    heartbeat,
    join_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    sasl_authenticate,
)
from tests.harness.searches import examples
from tests.wire.random_messages import EVERY_VERSION, SCHEMAS, name_of, random_message

Case = tuple[ModuleType, str, int]


def encoded(case: Case, message: Any) -> bytes:
    module, side, version = case
    return (encode_request if side == "Request" else encode_response)(module, version, message)


def decoded(case: Case, body: bytes | memoryview) -> Any:
    module, side, version = case
    return (decode_request if side == "Request" else decode_response)(module, version, body)


class Inner(Message):
    number: int = int32()
    label: str | None = string(default=None, since=2, nullable_since=2, tag=3)


class Everything(Message):
    FLEXIBLE_FROM = 2
    yes: bool = boolean(default=True)
    tiny: int = int8()
    small: int = int16()
    medium: int = int32(default=-1)
    large: int = int64()
    real: float = float64()
    name: bytes = uuid()
    text: str | None = string(nullable_since=1)
    blob: bytes | None = data(nullable_since=1)
    inner: Inner = struct(Inner)
    inners: list[Inner] | None = array(Inner, nullable_since=1)
    numbers: list[int] = array(int32())
    flags: list[bool] = array(boolean())
    texts: list[str] = array(string())
    names: list[bytes] = array(uuid())
    late: int = int16(default=7, since=1)
    early: int = int16(default=8, until=1)
    rare: Inner = struct(Inner, since=2, tag=0)
    rare_numbers: list[int] = array(int64(), since=2, tag=200)


FULL: dict[str, Any] = {
    "yes": False,
    "tiny": -128,
    "small": 32_767,
    "medium": -(2**31),
    "large": 2**63 - 1,
    "real": 1.5,
    "name": bytes(range(16)),
    "text": "grün",
    "blob": b"\x00\xff",
    "inner": Inner(number=4),
    "inners": [Inner(number=1), Inner(number=2)],
    "numbers": [1, -2, 3],
    "flags": [True, False],
    "texts": ["", "a"],
    "names": [bytes(16), b"x" * 16],
}


@pytest.mark.parametrize("case", EVERY_VERSION, ids=name_of)
def test_every_message_of_every_version_comes_back(case: Case) -> None:
    module, side, version = case
    random = Random(name_of(case) + " comes back")
    for _ in range(8):
        message = random_message(random, getattr(module, side), version)
        body = encoded(case, message)

        assert message == decoded(case, body)
        assert message == decoded(case, memoryview(bytearray(body)))


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_kind_of_field_comes_back(version: int) -> None:
    values = dict(FULL)
    if version >= 1:
        values |= {"late": 70}
    if version < 2:
        values |= {"early": 80}
    if version >= 2:
        rare = Inner(number=9, label="rare")
        values |= {"rare": rare, "rare_numbers": [5], "inners": [rare], "inner": Inner(number=1, label="")}
    message = Everything(**values)

    assert message == decode(Everything, version, encode(Everything, version, message))


def test_the_caller_may_say_which_versions_are_flexible() -> None:
    class Value(Message):
        group: str = string()

    assert b"\0\1g" == encode(Value, 1, Value(group="g"))
    assert b"\2g\0" == encode(Value, 1, Value(group="g"), flexible=True)
    assert Value(group="g") == decode(Value, 1, b"\2g\0", flexible=True)


def test_a_field_that_the_version_lacks_is_left_out_and_has_its_default() -> None:
    asked = list_offsets.Request(
        replica_id=-1,
        isolation_level=1,
        topics=[
            list_offsets.RequestTopic(
                name="t",
                partitions=[list_offsets.RequestPartition(partition_index=1, current_leader_epoch=5, timestamp=-1)],
            )
        ],
    )

    got = decode_request(list_offsets, 1, encode_request(list_offsets, 1, asked))

    assert 0 == got.isolation_level
    assert -1 == got.topics[0].partitions[0].current_leader_epoch
    assert -1 == got.topics[0].partitions[0].timestamp


def test_every_field_has_a_default_and_no_two_messages_share_a_list() -> None:
    first, second = offset_commit.Request(), offset_commit.Request()
    first.topics.append(offset_commit.RequestTopic())

    assert [] == second.topics
    assert -1 == second.generation_id_or_member_epoch
    assert second.group_instance_id is None
    decoded_twice = [decode_response(metadata, 0, bytes(8)) for _ in range(2)]
    assert decoded_twice[0].topics is not decoded_twice[1].topics


def test_a_message_takes_no_field_that_it_has_not() -> None:
    with pytest.raises(TypeError):
        heartbeat.Request(group="g")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        heartbeat.Request().group = "g"  # type: ignore[attr-defined]


def test_messages_are_equal_by_their_fields_and_show_them() -> None:
    beat = heartbeat.Request(group_id="g", generation_id=3)

    assert heartbeat.Request(group_id="g", generation_id=3) == beat
    assert heartbeat.Request(group_id="g", generation_id=4) != beat
    assert heartbeat.Response() != beat
    assert repr(beat) == "heartbeat.Request(group_id='g', generation_id=3, member_id='', group_instance_id=None)"


def test_tagged_fields_are_written_only_when_they_differ_from_their_default() -> None:
    plain = api_versions.Response()
    finalized = api_versions.ResponseFinalizedFeature(name="group.version", max_version_level=1, min_version_level=1)
    featured = api_versions.Response(finalized_features=[finalized], finalized_features_epoch=0)

    assert b"\0\0\1\0\0\0\0\0" == encode_response(api_versions, 3, plain)
    body = encode_response(api_versions, 3, featured)
    assert b"\2\1\10" + bytes(8) + b"\2\24\2\16group.version\0\1\0\1\0" == body[7:]
    assert featured == decode_response(api_versions, 3, body)


def test_unknown_tagged_fields_are_skipped() -> None:
    body = encode_request(heartbeat, 4, heartbeat.Request(group_id="g"))
    assert body.endswith(b"\0")

    assert heartbeat.Request(group_id="g") == decode_request(heartbeat, 4, body[:-1] + b"\2\5\3abc\xc8\1\0")


def test_a_null_array_is_not_written_where_null_is_illegal() -> None:
    for message, version in ((metadata.Request(topics=None), 0), (offset_fetch.Request(topics=None), 1)):
        module = metadata if version == 0 else offset_fetch
        with pytest.raises(ValueError, match="cannot hold this"):
            encode_request(module, version, message)
    assert b"\xff\xff\xff\xff" == encode_request(metadata, 1, metadata.Request(topics=None))


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (heartbeat.Request(group_id=None), 0),  # type: ignore[arg-type]
        (heartbeat.Request(generation_id=2**31), 0),
        (heartbeat.Request(group_id="x" * 32_768), 0),
        (heartbeat.Request(group_id="x" * 32_768), 4),
        (heartbeat.Request(), 5),
        (heartbeat.Response(), 0),
    ],
)
def test_what_a_version_cannot_say_is_an_error_of_the_caller(message: Message, version: int) -> None:
    with pytest.raises(ValueError):
        encode_request(heartbeat, version, message)


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b"", 0),
        (b"\0\5gro", 0),
        (b"\xff\xff" + bytes(6), 0),
        (b"\xff\xfe" + bytes(6), 0),
        (b"\x80\0" + bytes(6), 0),
        (b"\0\1\xff\0\0\0\0\0\0", 0),
        (b"\0" + bytes(7), 4),
        (b"\xff\xff\xff\xff\xff\xff" + bytes(9), 4),
        (b"\xff\xff\xff\xff\x0f" + bytes(9), 4),
        (b"\x81\x80\x02" + bytes(40_000), 4),
        (b"", 99),
        (b"", -1),
    ],
)
def test_broken_bytes_are_malformed(body: bytes, version: int) -> None:
    with pytest.raises(Malformed):
        decode_request(heartbeat, version, body)


def test_bytes_after_a_request_are_ignored_as_kafka_ignores_them() -> None:
    """librdkafka 2.16 asks for the metadata of all topics with three bytes too many."""
    assert decode_request(metadata, 12, bytes.fromhex("00000000010000")).topics is None


def test_bytes_after_a_response_are_malformed() -> None:
    with pytest.raises(Malformed, match="1 bytes follow"):
        decode_response(heartbeat, 0, b"\0\0!")


def test_an_array_is_counted_against_the_bytes_left_before_anything_is_built() -> None:
    join = encode_request(join_group, 0, join_group.Request())
    assert join.endswith(bytes(4))
    for count in (1, 2**31 - 1, -1, -(2**31)):
        with pytest.raises(Malformed, match="cannot fit"):
            decode_request(join_group, 0, join[:-4] + count.to_bytes(4, "big", signed=True))


def test_tagged_fields_are_counted_against_the_bytes_left() -> None:
    body = encode_request(heartbeat, 4, heartbeat.Request())
    with pytest.raises(Malformed, match="cannot fit"):
        decode_request(heartbeat, 4, body[:-1] + b"\xff\xff\xff\xff\x07" + bytes(100))


def test_a_message_may_not_ask_for_more_objects_than_its_budget() -> None:
    names = [metadata.RequestTopic(name="t")] * 11
    body = encode_request(metadata, 9, metadata.Request(topics=names))
    tags = encode_request(heartbeat, 4, heartbeat.Request())[:-1] + b"\13" + b"\7\0" * 11

    assert names == decode_request(metadata, 9, body, budget=11).topics
    with pytest.raises(Malformed, match="too many objects"):
        decode_request(metadata, 9, body, budget=10)
    assert heartbeat.Request() == decode_request(heartbeat, 4, tags, budget=11)
    with pytest.raises(Malformed, match="too many objects"):
        decode_request(heartbeat, 4, tags, budget=10)


def test_a_budget_holds_for_the_whole_message() -> None:
    topics = [
        offset_commit.RequestTopic(name="t", partitions=[offset_commit.RequestPartition() for _ in range(4)])
        for _ in range(3)
    ]
    body = encode_request(offset_commit, 8, offset_commit.Request(topics=topics))

    decode_request(offset_commit, 8, body, budget=15)
    with pytest.raises(Malformed, match="too many objects"):
        decode_request(offset_commit, 8, body, budget=14)


def test_a_known_tagged_field_ends_where_it_says() -> None:
    body = encode_response(api_versions, 3, api_versions.Response(finalized_features_epoch=1))
    assert body.endswith(b"\1\1\10" + (1).to_bytes(8, "big"))

    for size in (7, 9):
        with pytest.raises(Malformed):
            decode_response(api_versions, 3, body[:-9] + bytes([size]) + (1).to_bytes(8, "big") + b"\0")


def test_bytes_come_back_as_copies() -> None:
    frame = bytearray(encode_request(sasl_authenticate, 2, sasl_authenticate.Request(auth_bytes=b"secret")))
    request = decode_request(sasl_authenticate, 2, memoryview(frame))
    frame[:] = bytes(len(frame))

    assert b"secret" == request.auth_bytes


def test_flexible_versions_are_those_of_the_schema() -> None:
    assert [False, True] == [is_flexible(create_topics, version) for version in (4, 5)]


def mutated(random: Random, body: bytes) -> bytes:
    """The bytes with a few wounds: lengths that lie, cuts, insertions, flips."""
    wounded = bytearray(body)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(wounded) + 1)
        match random.randrange(5):
            case 0:
                del wounded[at:]
            case 1:
                wounded[at:at] = random.randbytes(random.choice((1, 2, 4, 9)))
            case 2:
                wounded[at : at + 4] = random.choice(
                    (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\xff\xff")
                )
            case 3:
                wounded[at : at + 1] = random.choice(
                    (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff", b"\0", b"\x7f", b"\xff")
                )
            case _:
                wounded[at : at + 1] = bytes([random.randrange(256)])
    return bytes(wounded)


def message_or_malformed(case: Case, body: bytes) -> None:
    try:
        message = decoded(case, body)
    except Malformed:
        return
    assert isinstance(message, Message)
    # What was read can be written, and is then read as the same.
    assert message == decoded(case, encoded(case, message))


@pytest.mark.parametrize("case", EVERY_VERSION, ids=name_of)
def test_wounded_bytes_give_a_message_or_malformed(case: Case) -> None:
    module, side, version = case
    random = Random(name_of(case) + " is wounded")
    for _ in range(6):
        body = encoded(case, random_message(random, getattr(module, side), version))
        for _ in range(12):
            message_or_malformed(case, mutated(random, body))
    for size in range(24):
        message_or_malformed(case, random.randbytes(size))
        message_or_malformed(case, bytes(random.choices((0, 1, 2, 0x7F, 0xFF), k=size)))


@settings(max_examples=examples(400, soak=20_000))
@given(case=st.sampled_from(EVERY_VERSION), body=st.binary(max_size=200))
def test_any_bytes_give_a_message_or_malformed(case: Case, body: bytes) -> None:
    message_or_malformed(case, body)


@settings(max_examples=examples(400, soak=20_000))
@given(case=st.sampled_from(EVERY_VERSION), seed=st.integers(0, 2**32), changes=st.data())
def test_any_change_of_a_message_gives_a_message_or_malformed(case: Case, seed: int, changes: st.DataObject) -> None:
    module, side, version = case
    body = bytearray(encoded(case, random_message(Random(seed), getattr(module, side), version)))
    start = changes.draw(st.integers(0, len(body)))
    stop = changes.draw(st.integers(start, min(len(body), start + 8)))
    body[start:stop] = changes.draw(st.binary(max_size=8))

    message_or_malformed(case, bytes(body))


def test_hostile_lengths_take_no_memory() -> None:
    random = Random("hostile")
    peak = 0
    for module in SCHEMAS:
        case = (module, "Request", module.VERSIONS[-1])
        body = encoded(case, random_message(random, module.Request, module.VERSIONS[-1]))
        message_or_malformed(case, body)
        for at in range(min(len(body), 60)):
            for claim in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"):
                hostile = body[:at] + claim + body[at + 4 :]
                tracemalloc.start()
                with contextlib.suppress(Malformed):
                    decoded(case, hostile)
                peak = max(peak, tracemalloc.get_traced_memory()[1] - 4 * len(hostile))
                tracemalloc.stop()

    assert peak < 200_000


def test_importing_the_messages_imports_nothing_heavy() -> None:
    program = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        "import logmark.wire.messages, logmark.wire.schema.metadata, logmark.wire.produce, logmark.wire.fetch\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)

    heavy = {"dataclasses", "inspect", "asyncio", "ast", "logging", "socket", "uuid", "datetime"}
    assert set() == heavy & set(json.loads(run.stdout))
