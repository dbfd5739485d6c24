"""Headers and usual Produce requests are read as the general readers read them, or left to these."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.errors import Malformed
from logmark.wire import fast_requests, frames, produce
from logmark.wire.produce import PartitionAnswer, PartitionData, ProduceRequest

BATCH = bytes(range(200))
# APIs with tagged fields in their headers from a version on, and one without.
HEADERS: dict[int, int | None] = {0: 9, 1: 12, 2: None}


def frame(
    version: int, request: ProduceRequest, client_id: str | None = "client", correlation_id: int = 7
) -> bytearray:
    body = produce.encode_request(version, request)
    flexible = version >= produce.FLEXIBLE_FROM
    return bytearray(frames.request_frame(0, version, correlation_id, client_id, flexible=flexible, body=body)[4:])


def one(name: str = "clicks", partition: int = 3, records: bytes | None = BATCH, acks: int = -1) -> ProduceRequest:
    data = None if records is None else memoryview(records)
    return ProduceRequest(None, acks, 30_000, [(name, [PartitionData(partition, data)])])


def read_generally(data: bytearray) -> ProduceRequest:
    version = int.from_bytes(data[2:4], "big")
    return produce.decode_request(version, memoryview(data), body_at(data))._replace(timeout_ms=0)


def body_at(data: bytearray) -> int:
    return frames.read_request_header(memoryview(data), lambda _: produce.FLEXIBLE_FROM).body_at


def read_fast(data: bytearray) -> ProduceRequest | None:
    found = fast_requests.read_produce(data, body_at(data))
    if found is None:
        return None
    acks, name_at, name_size, partition, at, size = found
    name = data[name_at : name_at + name_size].decode()
    return one(name, partition, bytes(data[at : at + size]), acks)._replace(timeout_ms=0)


def read_header_generally(data: bytearray) -> tuple[int, int, int, str | None, int] | None:
    try:
        return tuple(frames.read_request_header(memoryview(data), HEADERS.get))
    except Malformed:
        return None


@given(
    key=st.integers(0, 2**15 - 1) | st.sampled_from((0, 1)),
    version=st.integers(0, 12),
    client_id=st.none() | st.text(st.characters(codec="ascii"), max_size=200),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
)
def test_a_header_is_read_as_the_general_reader_reads_it(
    key: int, version: int, client_id: str | None, correlation_id: int
) -> None:
    flexible = key in HEADERS and HEADERS[key] is not None and version >= HEADERS[key]
    data = bytearray(frames.request_frame(key, version, correlation_id, client_id, flexible=flexible, body=b"body")[4:])

    found = fast_requests.read_header(data, HEADERS)

    assert (key, version, correlation_id, client_id, len(data) - 4) == found == read_header_generally(data)


@pytest.mark.parametrize("client_id", ["clïent", "c" * 2**14])
def test_a_strange_client_id_is_left_to_the_general_reader_or_read_alike(client_id: str) -> None:
    data = frame(9, one(), client_id)

    found = fast_requests.read_header(data, HEADERS)

    assert found in (None, read_header_generally(data))


def test_no_cut_and_no_changed_byte_of_a_header_is_read_as_anything_else() -> None:
    choose = Random(6)
    whole = frame(12, one())
    for _ in range(20_000):
        data = bytearray(whole)
        for _ in range(choose.randint(1, 3)):
            data[choose.randrange(20)] = choose.randrange(256)
        if choose.random() < 0.5:
            del data[choose.randrange(24) :]
        found = fast_requests.read_header(data, HEADERS)
        assert found is None or found == read_header_generally(data), bytes(data)


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

    assert read_generally(data) == read_fast(data)


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
    assert read_fast(frame(9, request_)) is None


def test_other_buffers_are_left_to_the_general_reader() -> None:
    data = frame(9, one())

    assert fast_requests.read_produce(bytes(data), body_at(data)) is None


@pytest.mark.parametrize("at", [-1, 10_000, 2**40])
def test_a_body_outside_of_the_request_is_not_read(at: int) -> None:
    assert fast_requests.read_produce(frame(9, one()), at) is None


def test_no_cut_and_no_changed_byte_is_read_as_anything_but_what_the_general_reader_reads() -> None:
    choose = Random(5)
    whole = frame(12, one())
    read = 0
    for _ in range(20_000):
        data = bytearray(whole)
        for _ in range(choose.randint(1, 3)):
            data[choose.randrange(60)] = choose.randrange(256)
        if choose.random() < 0.3:
            del data[choose.randrange(len(data)) :]
        data[0:2], data[2:4] = b"\0\0", b"\0\x0c"
        try:
            found = read_fast(data)
        except Malformed:
            continue  # of the header
        if found is None:
            continue
        read += 1
        try:
            expected = read_generally(data)
        except Malformed as error:
            pytest.fail(f"{bytes(data)!r} was read, although {error}")
        assert expected == found
    assert read > 100, "too few of the changed requests were usual ones"


@pytest.mark.parametrize("version", range(9, 13))
def test_the_answer_is_the_general_writers(version: int) -> None:
    data = frame(version, one("orders", 5))
    found = fast_requests.read_produce(data, body_at(data))
    assert found is not None
    _, name_at, name_size, *_ = found

    answer = fast_requests.produced(data, name_at, name_size, -2, 5, 2**40 + 3, -1, 2**33)

    body = produce.encode_response(version, [("orders", [PartitionAnswer(5, 0, 2**40 + 3, -1, 2**33)])])
    header = frames.response_header(-2, flexible=True)
    assert (len(header) + len(body)).to_bytes(4, "big") + header + body == answer
