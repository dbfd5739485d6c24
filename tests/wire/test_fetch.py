"""Fetch requests are read without trust, and responses carry the log's own bytes."""

from random import Random

import pytest

from logmark.errors import Malformed
from logmark.wire.fetch import (
    VERSIONS,
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)


def request(version: int) -> FetchRequest:
    """A request that says all that this version can say."""
    partitions = [
        FetchPartition(
            partition=number,
            current_leader_epoch=4 if version >= 9 else -1,
            fetch_offset=259_000_000_000 + number,
            last_fetched_epoch=3 if version >= 12 else -1,
            log_start_offset=11 if version >= 5 else -1,
            bytes_max=1_048_576,
        )
        for number in range(3)
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=52_428_800,
        isolation_level=1,
        session_id=8 if version >= 7 else 0,
        session_epoch=1 if version >= 7 else -1,
        topics=[("clicks", partitions), ("orders", [])],
        forgotten=[("old", [0, 2]), ("older", [])] if version >= 7 else [],
        rack_id="rack" if version >= 11 else "",
    )


def answers(version: int) -> list[FetchAnswer]:
    start = 5 if version >= 5 else -1
    return [
        FetchAnswer(0, 0, 100, 90, start, b"batches of partition 0"),
        FetchAnswer(1, 1, -1, -1, start, b""),
        FetchAnswer(2, 0, 7, 7, start, memoryview(b"x" * 300), ((4_000, 2), (4_001, 3))),
    ]


def body(version: int, topics: list[tuple[str, list[FetchAnswer]]]) -> bytes:
    return b"".join(encode_response(version, throttle_time_ms=3, error_code=0, session_id=0, topics=topics))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_comes_back(version: int) -> None:
    for asked in (request(version), request(version)._replace(topics=[], forgotten=[])):
        assert asked == decode_request(version, memoryview(b"header" + encode_request(version, asked)), 6)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_comes_back(version: int) -> None:
    topics = [("clicks", answers(version)), ("orders", [])]

    assert FetchResponse(3, 0, 0, topics) == decode_response(version, body(version, topics))


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_sent_as_they_are(version: int) -> None:
    records = memoryview(bytearray(b"batches"))
    topics = [("t", [FetchAnswer(0, 0, 1, 1, 0, records), FetchAnswer(1, 0, 1, 1, 0, b"")])]

    buffers = encode_response(version, throttle_time_ms=0, error_code=0, session_id=0, topics=topics)

    assert [False, True, False] == [buffer is records for buffer in buffers]
    assert all(len(buffer) for buffer in buffers)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_never_null(version: int) -> None:
    data = body(version, [("t", [FetchAnswer(0, 3, -1, -1, -1, b"")])])

    assert data.endswith(b"\1\0\0\0" if version >= 12 else b"\0\0\0\0")
    assert b"" == decode_response(version, data).topics[0][1][0].records


@pytest.mark.parametrize("version", [4, 12])
def test_null_records_and_null_aborted_transactions_of_others_are_empty(version: int) -> None:
    data = body(version, [("t", [FetchAnswer(0, 0, 1, 1, -1, b"")])])
    nulls = data[:-8] + b"\xff" * 8 if version == 4 else data[:-9] + b"\x00\xff\xff\xff\xff\x00" + data[-3:]

    assert FetchAnswer(0, 0, 1, 1, -1, b"") == decode_response(version, nulls).topics[0][1][0]


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_a_response_are_slices_of_it(version: int) -> None:
    frame = bytearray(body(version, [("clicks", answers(version))]))
    records = decode_response(version, memoryview(frame)).topics[0][1][0].records

    frame[frame.index(b"batches")] = ord("B")

    assert b"Batches of partition 0" == records


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_is_malformed(version: int) -> None:
    asked = encode_request(version, request(version))
    for size in range(len(asked)):
        with pytest.raises(Malformed):
            decode_request(version, memoryview(asked)[:size], 0)
    answered = body(version, [("clicks", answers(version))])
    for size in range(len(answered)):
        with pytest.raises(Malformed):
            decode_response(version, memoryview(answered)[:size])
    with pytest.raises(Malformed, match="1 bytes follow"):
        decode_response(version, answered + b"\0")


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_after_a_request_are_ignored_as_kafka_ignores_them(version: int) -> None:
    assert request(version) == decode_request(
        version, memoryview(encode_request(version, request(version)) + b"\0!"), 0
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_wounded_requests_and_responses_give_a_value_or_malformed(version: int) -> None:
    random = Random(version)
    sources = (encode_request(version, request(version)), body(version, [("clicks", answers(version))]))
    for _ in range(1_500):
        wounded = [bytearray(source) for source in sources]
        for wound in wounded:
            at = random.randrange(len(wound))
            wound[at : at + random.randrange(5)] = random.choice(
                (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0", random.randbytes(2))
            )
        for decode, wound in ((lambda v, b: decode_request(v, b, 0), wounded[0]), (decode_response, wounded[1])):
            try:
                decode(version, memoryview(wound))
            except Malformed:
                continue


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_may_not_ask_for_more_objects_than_its_budget(version: int) -> None:
    frame = memoryview(encode_request(version, request(version)))
    objects = 5 if version < 7 else 9

    assert request(version) == decode_request(version, frame, 0, budget=objects)
    with pytest.raises(Malformed, match="too many objects"):
        decode_request(version, frame, 0, budget=objects - 1)


@pytest.mark.parametrize(
    ("version", "claim"), [(4, b"\x7f\xff\xff\xff"), (12, b"\xff\xff\xff\xff\x07"), (4, b"\xff" * 4)]
)
def test_counts_are_checked_before_anything_is_built(version: int, claim: bytes) -> None:
    fixed = 17 if version < 7 else 25
    with pytest.raises(Malformed, match="cannot fit"):
        decode_request(version, memoryview(bytes(fixed) + claim + bytes(60)), 0)


def test_unknown_and_unused_tagged_fields_are_skipped() -> None:
    asked = encode_request(12, request(12))
    # Tag 0 of the request is the id of the cluster.
    assert request(12) == decode_request(12, memoryview(asked[:-1] + b"\1\0\5\5abcd"), 0)
    answered = body(12, [("t", [FetchAnswer(0, 6, -1, -1, -1, b"")])])
    leader = b"\1\1\11" + bytes(8) + b"\0"
    assert answered.endswith(b"\0\0\0")

    got = decode_response(12, answered[:-3] + leader + answered[-2:])

    assert [("t", [FetchAnswer(0, 6, -1, -1, -1, b"")])] == got.topics


def test_other_versions_are_malformed() -> None:
    for version in (-1, 3, 13):
        with pytest.raises(Malformed, match="no version"):
            decode_request(version, memoryview(bytes(20)), 0)
        with pytest.raises(Malformed, match="no version"):
            decode_response(version, bytes(20))
        with pytest.raises(ValueError, match="no version"):
            encode_request(version, request(4))
