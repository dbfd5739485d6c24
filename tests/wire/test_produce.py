"""Produce requests are read in place, and their answers say what each version can say."""

from random import Random

import pytest

from logmark.errors import Malformed
from logmark.wire.produce import (
    VERSIONS,
    PartitionAnswer,
    PartitionData,
    ProduceRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

BATCH = bytes(range(200))
REQUEST = ProduceRequest(
    None,
    -1,
    30_000,
    [
        ("clicks", [PartitionData(0, memoryview(BATCH)), PartitionData(7, None)]),
        ("orders", [PartitionData(1, memoryview(b""))]),
    ],
)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_comes_back(version: int) -> None:
    one = [PartitionData(3, memoryview(BATCH))]
    for request in (
        REQUEST,
        REQUEST._replace(transactional_id="tx"),
        REQUEST._replace(topics=[]),
        REQUEST._replace(topics=[("clicks", [])]),
        REQUEST._replace(topics=[("clicks", one)]),
        REQUEST._replace(topics=[("c" * 200, one)]),
        REQUEST._replace(topics=[("clicks", one)], transactional_id="tx"),
        REQUEST._replace(topics=[("clicks", [PartitionData(3, None)])]),
    ):
        frame = b"header" + encode_request(version, request)

        assert request == decode_request(version, memoryview(frame), 6)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_slices_of_the_request_that_can_be_written(version: int) -> None:
    frame = bytearray(encode_request(version, REQUEST))
    at = frame.index(BATCH)
    records = decode_request(version, memoryview(frame), 0).topics[0][1][0].records
    assert records is not None

    records[:4] = b"here"

    assert b"here" == frame[at : at + 4]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_of_a_request_is_malformed(version: int) -> None:
    frame = encode_request(version, REQUEST)
    for size in range(len(frame)):
        with pytest.raises(Malformed):
            decode_request(version, memoryview(frame)[:size], 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_after_a_request_are_ignored_as_kafka_ignores_them(version: int) -> None:
    usual = REQUEST._replace(topics=[("clicks", [PartitionData(0, memoryview(BATCH))])])
    for request in (REQUEST, usual):
        frame = encode_request(version, request)
        assert request == decode_request(version, memoryview(frame + b"\0\1\2"), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_after_a_response_are_malformed(version: int) -> None:
    with pytest.raises(Malformed, match="1 bytes follow"):
        decode_response(version, encode_response(version, []) + b"\0")


@pytest.mark.parametrize("version", VERSIONS)
def test_wounded_requests_and_responses_give_a_value_or_malformed(version: int) -> None:
    random = Random(version)
    answers = [PartitionAnswer(0, 87, 1, 2, 3, ((0, "no"), (1, None)), "wrong")] * 2
    sources = (encode_request(version, REQUEST), encode_response(version, [("clicks", answers)]))
    for _ in range(1_500):
        wounded = [bytearray(source) for source in sources]
        for body in wounded:
            at = random.randrange(len(body))
            body[at : at + random.randrange(5)] = random.choice(
                (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0", random.randbytes(2))
            )
        for decode, body in ((lambda v, b: decode_request(v, b, 0), wounded[0]), (decode_response, wounded[1])):
            try:
                decode(version, memoryview(body))
            except Malformed:
                continue


@pytest.mark.parametrize("version", [3, 9])
def test_counts_are_checked_before_anything_is_built(version: int) -> None:
    claims = {
        3: (b"\xff\xff\0\1\0\0\0\0" + b"\x7f\xff\xff\xff", b"\xff\xff\0\1\0\0\0\0" + b"\xff\xff\xff\xff"),
        9: (b"\0\0\1\0\0\0\0" + b"\xff\xff\xff\xff\x07", b"\0\0\1\0\0\0\0" + b"\0"),
    }
    for claim in claims[version]:
        with pytest.raises(Malformed, match="cannot fit"):
            decode_request(version, memoryview(claim + bytes(50)), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_may_not_ask_for_more_objects_than_its_budget(version: int) -> None:
    frame = memoryview(encode_request(version, REQUEST))

    assert REQUEST == decode_request(version, frame, 0, budget=5)
    with pytest.raises(Malformed, match="too many objects"):
        decode_request(version, frame, 0, budget=4)


def test_other_versions_are_malformed() -> None:
    for version in (-1, 2, 13):
        with pytest.raises(Malformed, match="no version"):
            decode_request(version, memoryview(bytes(20)), 0)
        with pytest.raises(Malformed, match="no version"):
            decode_response(version, bytes(20))
        with pytest.raises(ValueError, match="no version"):
            encode_request(version, REQUEST)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_says_what_its_version_can_say(version: int) -> None:
    fine = PartitionAnswer(3, 0, 259_000_000_000, -1, 5)
    wrong = PartitionAnswer(4, 87, -1, 1_700_000_000_000, 5, ((2, "no key"),), "a record was wrong")

    (topic,) = decode_response(version, encode_response(version, [("clicks", [fine, wrong])])).topics

    without_start = [answer._replace(log_start_offset=-1 if version < 5 else 5) for answer in (fine, wrong)]
    if version < 8:
        without_start[1] = without_start[1]._replace(record_errors=(), error_message=None)
    assert ("clicks", without_start) == topic


@pytest.mark.parametrize("version", range(10, 13))
def test_a_new_leader_in_the_tagged_fields_of_a_response_is_skipped(version: int) -> None:
    body = encode_response(version, [("t", [PartitionAnswer(0, 6, -1, -1, -1)])])
    # The partition's tagged fields: the leader's id and epoch under tag 0.
    at = len(body) - 7
    assert b"\0\0\0\0\0\0\0" == body[at:]
    leader = b"\1\0\11" + bytes(8) + b"\0"

    (topic,) = decode_response(version, body[:at] + leader + body[at + 1 :]).topics

    assert ("t", [PartitionAnswer(0, 6, -1, -1, -1)]) == topic


@pytest.mark.parametrize("version", VERSIONS)
def test_long_names_and_many_partitions_need_longer_lengths(version: int) -> None:
    answers = [PartitionAnswer(number, 0, number, -1, 0 if version >= 5 else -1) for number in range(300)]
    topics = [("t" * 249, answers)] * 3

    assert topics == decode_response(version, encode_response(version, topics)).topics
    many = REQUEST._replace(topics=[("t" * 249, [PartitionData(n, memoryview(BATCH)) for n in range(300)])])
    assert many == decode_request(version, memoryview(encode_request(version, many)), 0)
