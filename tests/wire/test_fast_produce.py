"""The usual Produce request is read as the general reader reads it, or left to it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.errors import Malformed
from logmark.wire import fast_produce, frames, produce
from logmark.wire.produce import PartitionAnswer, PartitionData, ProduceRequest

BATCH = bytes(range(200))


def frame(
    version: int, request: ProduceRequest, client_id: str | None = "client", correlation_id: int = 7
) -> bytearray:
    body = produce.encode_request(version, request)
    flexible = version >= produce.FLEXIBLE_FROM
    return bytearray(frames.request_frame(0, version, correlation_id, client_id, flexible=flexible, body=body)[4:])


def one(name: str = "clicks", partition: int = 3, records: bytes | None = BATCH, acks: int = -1) -> ProduceRequest:
    data = None if records is None else memoryview(records)
    return ProduceRequest(None, acks, 30_000, [(name, [PartitionData(partition, data)])])


def generally(data: bytearray) -> tuple[int, int, ProduceRequest]:
    header = frames.read_request_header(memoryview(data), lambda _: produce.FLEXIBLE_FROM)
    request = produce.decode_request(header.api_version, memoryview(data), header.body_at)
    return header.api_version, header.correlation_id, request


def as_read(data: bytearray, asked: tuple[int, ...]) -> tuple[int, int, ProduceRequest]:
    version, correlation_id, acks, name_at, name_size, partition, at, size = asked
    name = data[name_at : name_at + name_size].decode()
    return version, correlation_id, one(name, partition, bytes(data[at : at + size]), acks)._replace(timeout_ms=0)


@given(
    version=st.sampled_from(range(9, 13)),
    name=st.text(st.characters(codec="ascii"), min_size=1, max_size=126),
    client_id=st.none() | st.text(st.characters(codec="ascii"), max_size=200),
    partition=st.integers(-(2**31), 2**31 - 1),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    records=st.integers(2, 20_000).map(bytes),
    acks=st.sampled_from((-1, 0, 1)),
)
def test_a_usual_request_is_read_as_the_general_reader_reads_it(
    version: int, name: str, client_id: str | None, partition: int, correlation_id: int, records: bytes, acks: int
) -> None:
    data = frame(version, one(name, partition, records, acks), client_id, correlation_id)

    asked = fast_produce.read_produce(data)

    assert asked is not None
    version, correlation_id, request = generally(data)
    assert (version, correlation_id, request._replace(timeout_ms=0)) == as_read(data, asked)


@pytest.mark.parametrize(
    "request_",
    [
        one()._replace(transactional_id="tx"),
        one()._replace(topics=[]),
        one(records=None),
        one(name="ä"),
        one(name="c" * 127),
        one(acks=2),
        ProduceRequest(None, -1, 0, [("clicks", [])]),
        ProduceRequest(None, -1, 0, [("clicks", [PartitionData(n, memoryview(BATCH)) for n in range(2)])]),
        ProduceRequest(None, -1, 0, [(name, [PartitionData(0, memoryview(BATCH))]) for name in ("a", "b")]),
    ],
)
def test_any_other_request_is_left_to_the_general_reader(request_: ProduceRequest) -> None:
    assert fast_produce.read_produce(frame(9, request_)) is None


def test_other_versions_other_apis_and_other_buffers_are_left_to_the_general_reader() -> None:
    assert fast_produce.read_produce(frame(8, one())) is None
    fetch = bytearray(frames.request_frame(1, 12, 7, "c", flexible=True, body=bytes(99))[4:])
    assert fast_produce.read_produce(fetch) is None
    assert fast_produce.read_produce(bytes(frame(9, one()))) is None
    assert fast_produce.read_produce(frame(9, one(), "clïent")) is None


def test_no_cut_and_no_changed_byte_is_read_as_anything_but_what_the_general_reader_reads() -> None:
    choose = Random(5)
    whole = frame(12, one())
    for _ in range(20_000):
        data = bytearray(whole)
        for _ in range(choose.randint(1, 3)):
            data[choose.randrange(60)] = choose.randrange(256)
        if choose.random() < 0.3:
            del data[choose.randrange(len(data)) :]
        asked = fast_produce.read_produce(data)
        if asked is None:
            continue
        try:
            version, correlation_id, request = generally(data)
        except Malformed as error:
            pytest.fail(f"{bytes(data)!r} was read, although {error}")
        assert (version, correlation_id, request._replace(timeout_ms=0)) == as_read(data, asked)


@pytest.mark.parametrize("version", range(9, 13))
def test_the_answer_is_the_general_writers(version: int) -> None:
    data = frame(version, one("orders", 5))
    asked = fast_produce.read_produce(data)
    assert asked is not None

    answer = fast_produce.produced(data, asked[3], asked[4], -2, 5, 2**40 + 3, -1, 2**33)

    body = produce.encode_response(version, [("orders", [PartitionAnswer(5, 0, 2**40 + 3, -1, 2**33)])])
    header = frames.response_header(-2, flexible=True)
    assert (len(header) + len(body)).to_bytes(4, "big") + header + body == answer
