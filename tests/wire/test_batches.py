"""A produced batch is accepted or refused as Kafka's leader does it; what is stored can be read by anybody.

The codes in the tables were compared with the validator of Apache Kafka 4.3.1. Where that one fails by accident
(UNKNOWN_SERVER_ERROR: a stream that cannot be decompressed, a varint too long) the code here is INVALID_RECORD.
"""

import random
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.errors import ErrorCode, Malformed, Refused
from logmark.wire import batch_header, batches, codecs
from logmark.wire.batches import BatchRules
from tests.oracle import records as oracle
from tests.oracle.records import NOW_MS, Batch, Record, varint

CODECS = range(5)
THREE = [Record(key=b"k", value=b"v", offset_delta=i) for i in range(3)]
INVALID, CORRUPT, TIMESTAMP = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_TIMESTAMP


def check(data: bytes | bytearray, *, version: int = 9, **rules: object) -> batches.ProducedBatch:
    return batches.check_produced(
        memoryview(bytearray(data)),
        BatchRules(**rules),  # type: ignore[arg-type]
        now_ms=NOW_MS,
        produce_version=version,
    )


def refusal(data: bytes | bytearray, *, version: int = 9, **rules: object) -> Refused:
    with pytest.raises(Refused) as refused:
        check(data, version=version, **rules)
    return refused.value


def three(**fields: object) -> Batch:
    return Batch(records=THREE, **fields)  # type: ignore[arg-type]


def patched(data: bytes | bytearray, form: str, at: int, value: int) -> bytearray:
    """The batch with one field changed and the CRC as it was."""
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    return changed


# ---- accepted


@pytest.mark.parametrize("codec", CODECS)
def test_an_honest_batch_is_taken_as_it_came(codec: int) -> None:
    data = oracle.encode_batch(three(codec=codec, producer_id=2**40, producer_epoch=3, base_sequence=2**31 - 2))

    batch = check(data)

    assert data == batch.data
    assert (3, 2, codec, NOW_MS, NOW_MS) == (
        batch.record_count, batch.last_offset_delta, batch.attributes, batch.base_timestamp, batch.max_timestamp,
    )  # fmt: skip
    assert (2**40, 3, 2**31 - 2, 0) == (
        batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence,
    )  # fmt: skip
    assert (False, len(data)) == (batch.is_transactional, batch.size)


def test_the_memory_of_the_request_is_not_copied() -> None:
    request = bytearray(b"before") + oracle.encode_batch(three()) + b"after"

    batch = batches.check_produced(memoryview(request)[6:], BatchRules(), now_ms=NOW_MS, produce_version=9)
    batches.assign_offset(batch, 77)

    assert 77 == struct.unpack_from(">q", request, 6)[0]
    assert request.endswith(b"after")


def test_placing_writes_the_offset_and_the_epoch_and_keeps_the_crc_right() -> None:
    batch = check(patched(oracle.encode_batch(three()), ">i", 12, -1))

    batches.assign_offset(batch, 259_000_000_000)

    header = batches.read_header(batch.data)
    assert (259_000_000_000, 259_000_000_002, 259_000_000_003, 0) == (
        header.base_offset, header.last_offset, header.next_offset, header.leader_epoch,
    )  # fmt: skip
    assert batches.crc_is_right(batch.data, 0, batch.size)


@pytest.mark.parametrize("rest", [1, 11, 12, 16, 50])
def test_a_piece_of_a_second_batch_is_cut_off(rest: int) -> None:
    data = oracle.encode_batch(three())

    assert data == check(data + data[:rest]).data


def test_a_max_timestamp_that_is_not_the_largest_is_corrected_with_a_new_crc() -> None:
    records = [Record(timestamp_delta=delta, offset_delta=i) for i, delta in enumerate((0, 9, -4))]
    honest = oracle.encode_batch(Batch(records=records))

    batch = check(oracle.encode_batch(Batch(records=records, max_timestamp=NOW_MS + 1)))

    assert (honest, NOW_MS + 9) == (batch.data, batch.max_timestamp)


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_stamped_with_a_new_crc(codec: int) -> None:
    batch = check(oracle.encode_batch(three(codec=codec, base_timestamp=5)), is_log_append_time=True)

    assert (codec | 8, NOW_MS, 5) == (batch.attributes, batch.max_timestamp, batch.base_timestamp)
    assert [(NOW_MS, 1)] * 3 == [row[1:3] for row in oracle.decode(bytes(batch.data))]


def test_a_producers_log_append_time_bit_is_cleared_where_the_topic_has_create_time() -> None:
    batch = check(oracle.encode_batch(three(attributes=8, max_timestamp=NOW_MS + 5)))

    assert (0, NOW_MS + 5) == (batch.attributes, batch.max_timestamp)
    assert 3 == len(oracle.decode(bytes(batch.data)))


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
@pytest.mark.parametrize("is_log_append_time", [False, True])
def test_a_topics_own_codec_is_used_to_store(source: int, target: int, is_log_append_time: bool) -> None:
    data = oracle.encode_batch(three(codec=source, producer_id=7, producer_epoch=1, base_sequence=4))

    batch = check(data, compression_type=codecs.NAMES[target], is_log_append_time=is_log_append_time)

    assert (target, 7, 4, 3) == (batch.attributes & 7, batch.producer_id, batch.base_sequence, batch.record_count)
    assert [row[3:] for row in oracle.decode(bytes(data))] == [row[3:] for row in oracle.decode(bytes(batch.data))]
    assert len(batch.data) == batch.size == batches.read_header(batch.data).size
    if source == target and not is_log_append_time:
        assert data == batch.data


def test_a_batch_that_grows_over_the_limit_when_it_is_stored_is_too_large() -> None:
    data = oracle.encode_batch(Batch(codec=codecs.GZIP, records=[Record(value=bytes(1000))]))

    refused = refusal(data, compression_type="uncompressed", max_message_bytes=200)

    assert ErrorCode.MESSAGE_TOO_LARGE == refused.code


@pytest.mark.parametrize("deltas", [(0, 0, 0), (2, 1, 0), (5, 9, 11), (-1, 0, 1)])
def test_wrong_offset_deltas_of_plain_records_are_put_right(deltas: Sequence[int]) -> None:
    records = [
        Record(key=b"k", value=bytes([delta & 7]), headers=[(b"h", None)], offset_delta=delta, timestamp_delta=3 - i)
        for i, delta in enumerate(deltas)
    ]

    found = oracle.decode(bytes(check(oracle.encode_batch(Batch(records=records))).data))

    assert [0, 1, 2] == [row[0] for row in found]
    assert [(NOW_MS + 3 - i, 0, b"k", bytes([d & 7]), [(b"h", None)]) for i, d in enumerate(deltas)] == [
        row[1:] for row in found
    ]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_wrong_offset_deltas_of_compressed_records_are_refused(codec: int) -> None:
    records = [Record(offset_delta=delta) for delta in (0, 0)]

    assert INVALID == refusal(oracle.encode_batch(Batch(records=records, codec=codec))).code


@pytest.mark.parametrize("attributes", [0x10, 0x40, 0x80, 0x7F00])
def test_other_attribute_bits_are_let_pass(attributes: int) -> None:
    data = oracle.encode_batch(three(attributes=attributes))

    batch = check(data)

    assert (data, attributes == 0x10) == (batch.data, batch.is_transactional)


# ---- refused by the header

MAGIC_AT, CRC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, COUNT_AT = 16, 17, 21, 23, 57
HEADERS: list[tuple[str, ErrorCode, Callable[[bytearray], bytes | bytearray]]] = [
    ("nothing at all", INVALID, lambda data: b""),
    ("less than a length", INVALID, lambda data: data[:11]),
    ("less than a magic", INVALID, lambda data: data[:16]),
    ("half a batch", INVALID, lambda data: data[:-1]),
    ("two batches", INVALID, lambda data: data + data),
    ("a negative length", CORRUPT, lambda data: patched(data, ">i", 8, -1)),
    ("a length below any header", CORRUPT, lambda data: patched(data, ">i", 8, 13)),
    ("a length below this header", CORRUPT, lambda data: patched(data, ">i", 8, 48)),
    ("a length beyond the request", INVALID, lambda data: patched(data, ">i", 8, 2**31 - 1)),
    ("zeros after the batch", CORRUPT, lambda data: data + bytes(12)),
    ("magic 0", INVALID, lambda data: patched(data, ">B", MAGIC_AT, 0)),
    ("magic 1", INVALID, lambda data: patched(data, ">B", MAGIC_AT, 1)),
    ("magic 3", CORRUPT, lambda data: patched(data, ">B", MAGIC_AT, 3)),
    ("magic -1", CORRUPT, lambda data: patched(data, ">B", MAGIC_AT, 255)),
    ("a base offset of 1000", INVALID, lambda data: patched(data, ">q", 0, 1000)),
    ("a wrong CRC", CORRUPT, lambda data: patched(data, ">I", CRC_AT, 1)),
    ("a flipped bit", CORRUPT, lambda data: patched(data, ">B", len(data) - 1, 1)),
    ("a negative last delta", INVALID, lambda data: oracle.seal(patched(data, ">i", LAST_DELTA_AT, -1))),
    ("no records", INVALID, lambda data: oracle.seal(patched(data, ">i", COUNT_AT, 0))),
    ("a negative count", INVALID, lambda data: oracle.seal(patched(data, ">i", COUNT_AT, -3))),
    ("fewer than it holds", INVALID, lambda data: oracle.encode_batch(three(record_count=2))),
    ("more than it holds", INVALID, lambda data: oracle.encode_batch(three(record_count=4))),
    ("two billion records", INVALID, lambda data: oracle.encode_batch(three(record_count=2**31 - 1))),
    ("a count unlike the deltas", INVALID, lambda data: oracle.seal(patched(data, ">i", LAST_DELTA_AT, 5))),
    ("control records", INVALID, lambda data: oracle.encode_batch(three(attributes=0x20))),
    ("a producer without sequence", INVALID, lambda data: oracle.encode_batch(three(producer_id=0, producer_epoch=0))),
    ("an unknown codec", INVALID, lambda data: oracle.seal(patched(data, ">h", ATTRIBUTES_AT, 5))),
    ("a header and nothing more", INVALID, lambda data: oracle.seal(data[:61])),
]


@pytest.mark.parametrize(("code", "spoil"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS])
def test_a_batch_with_a_bad_header_is_refused(code: ErrorCode, spoil: Callable[[bytearray], bytes | bytearray]) -> None:
    assert code == refusal(spoil(oracle.encode_batch(three()))).code


def test_null_records_are_refused() -> None:
    with pytest.raises(Refused) as refused:
        batches.check_produced(None, BatchRules(), now_ms=NOW_MS, produce_version=9)

    assert INVALID == refused.value.code


def test_the_largest_batch_is_taken_and_one_byte_more_is_not() -> None:
    data = oracle.encode_batch(three())

    assert data == check(data, max_message_bytes=len(data)).data
    assert ErrorCode.MESSAGE_TOO_LARGE == refusal(data, max_message_bytes=len(data) - 1).code
    # The size is looked at before the CRC, the base offset before the size.
    assert ErrorCode.MESSAGE_TOO_LARGE == refusal(patched(data, ">I", CRC_AT, 1), max_message_bytes=80).code
    assert INVALID == refusal(patched(data, ">q", 0, 1), max_message_bytes=80).code


def test_zstd_needs_produce_7() -> None:
    data = oracle.encode_batch(three(codec=codecs.ZSTD))

    assert 3 == check(data, version=7).record_count
    assert ErrorCode.UNSUPPORTED_COMPRESSION_TYPE == refusal(data, version=6).code
    assert ErrorCode.UNSUPPORTED_COMPRESSION_TYPE == refusal(patched(data, ">I", CRC_AT, 1), version=6).code


# ---- refused by a record


def spoiled(
    *,
    size: bytes | None = None,
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    headers: bytes = b"\0",
    after: bytes = b"",
) -> bytes:
    """A record from its encoded parts, each of which may be wrong."""
    body = b"\0\0\0" + key + value + headers + after
    return (varint(len(body)) if size is None else size) + body


SIX_BYTES = b"\x80\x80\x80\x80\x80\x00"
BROKEN = {
    "a size too small": spoiled(size=varint(3)),
    "a size too large": spoiled(size=varint(9)),
    "a size of 0": spoiled(size=varint(0)),
    "a negative size": spoiled(size=varint(-1)),
    "a size of 2 GiB": spoiled(size=varint(2**31 - 1)),
    "a size of six bytes": spoiled(size=SIX_BYTES),
    "a size without end": b"\x80",
    "a key beyond the record": spoiled(key=varint(100)),
    "a key size of six bytes": spoiled(key=SIX_BYTES),
    "a key size of 2 GiB": spoiled(key=varint(2**31 - 1)),
    "a value beyond the record": spoiled(value=varint(100) + b"v"),
    "a value beyond the record by one": spoiled(value=varint(3) + b"v"),
    "a negative number of headers": spoiled(headers=varint(-1)),
    "a header too many": spoiled(headers=varint(1)),
    "a hundred headers too many": spoiled(headers=varint(100)),
    "two billion headers": spoiled(headers=varint(2**31 - 1)),
    "a header with a null key": spoiled(headers=varint(1) + varint(-1) + varint(0)),
    "a header key beyond the record": spoiled(headers=varint(1) + varint(9) + b"h" + varint(-1)),
    "a header value beyond the record": spoiled(headers=varint(1) + varint(1) + b"h" + varint(9)),
    "bytes after the headers": spoiled(after=b"xx"),
    "only attributes": varint(1) + b"\0",
    "nothing after the deltas": varint(3) + b"\0\0\0",
    "a time delta of eleven bytes": varint(18) + b"\0" + b"\x80" * 10 + b"\0" + b"\0\x02k\x02v\0",
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("position", ["only", "first", "last"])
def test_a_batch_with_a_right_crc_and_a_broken_record_is_refused(codec: int, broken: bytes, position: str) -> None:
    good = oracle.encode_record(THREE[0])
    body = {"only": broken, "first": broken + good, "last": good + broken}[position]
    count = 1 if position == "only" else 2

    refused = refusal(oracle.encode_batch(Batch(codec=codec, record_count=count, records=[]), body=body))

    assert INVALID == refused.code


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_after_the_last_record_are_refused(codec: int) -> None:
    body = oracle.encode_record(THREE[0]) + b"\0"

    assert INVALID == refusal(oracle.encode_batch(Batch(codec=codec, record_count=1, records=[]), body=body)).code


FINE = {
    "lengths of five bytes": spoiled(size=b"\x98\x80\x80\x80\x00", key=b"\x82\x80\x80\x80\x00k"),
    "lengths below -1 for null": spoiled(key=varint(-5), value=varint(-9)),
    "nothing but nulls": spoiled(key=varint(-1), value=varint(-1)),
    "empty key and value": spoiled(key=varint(0), value=varint(0)),
    "a header that is no text": spoiled(headers=varint(1) + varint(1) + b"\xff" + varint(-1)),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("record", FINE.values(), ids=FINE.keys())
def test_odd_records_that_kafka_takes_are_taken(codec: int, record: bytes) -> None:
    assert 1 == check(oracle.encode_batch(Batch(codec=codec, record_count=1, records=[]), body=record)).record_count


@pytest.mark.parametrize("codec", CODECS)
def test_records_without_a_key_are_refused_by_a_compacted_topic_one_by_one(codec: int) -> None:
    records = [Record(key=key, value=b"v", offset_delta=i) for i, key in enumerate((b"k", None, b"", None))]
    data = oracle.encode_batch(Batch(records=records, codec=codec))

    refused = refusal(data, keys_required=True)

    assert (INVALID, [1, 3]) == (refused.code, [index for index, _ in refused.record_errors])
    assert 4 == check(data).record_count


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("delta", "is_taken"), [(-1000, True), (-1001, False), (500, True), (501, False)])
def test_the_time_of_a_record_lies_within_the_topics_bounds(codec: int, delta: int, is_taken: bool) -> None:
    records = [Record(), Record(offset_delta=1, timestamp_delta=delta)]
    data = oracle.encode_batch(Batch(records=records, codec=codec))
    bounds = {"timestamp_before_max_ms": 1000, "timestamp_after_max_ms": 500}

    if is_taken:
        assert 2 == check(data, **bounds).record_count
    else:
        refused = refusal(data, **bounds)
        assert (TIMESTAMP, [1]) == (refused.code, [index for index, _ in refused.record_errors])
    assert 2 == check(data, is_log_append_time=True, **bounds).record_count


def test_a_record_without_a_time_is_taken_whatever_the_bounds() -> None:
    assert -1 == check(oracle.encode_batch(three(base_timestamp=-1)), timestamp_before_max_ms=0).max_timestamp


def test_a_bad_time_outranks_a_missing_key() -> None:
    records = [Record(key=None), Record(key=b"k", offset_delta=1, timestamp_delta=2**40)]

    refused = refusal(oracle.encode_batch(Batch(records=records)), keys_required=True)

    assert (TIMESTAMP, [0, 1]) == (refused.code, [index for index, _ in refused.record_errors])


@pytest.mark.parametrize("codec", CODECS)
def test_a_producer_must_not_set_log_append_time_itself(codec: int) -> None:
    data = oracle.encode_batch(three(attributes=8, codec=codec))
    without_time = oracle.encode_batch(three(attributes=8, codec=codec, max_timestamp=-1))

    for refused in (refusal(data, is_log_append_time=True), refusal(without_time)):
        assert (TIMESTAMP, [0, 1, 2]) == (refused.code, [index for index, _ in refused.record_errors])


def test_the_answer_to_a_flood_of_bad_records_is_bounded() -> None:
    records = [Record(offset_delta=i) for i in range(3000)]

    assert 1000 == len(refusal(oracle.encode_batch(Batch(records=records)), keys_required=True).record_errors)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_that_decompresses_to_more_than_the_limit_is_too_large(codec: int) -> None:
    data = oracle.encode_batch(Batch(codec=codec, records=[Record(value=bytes(10_000))]))

    assert 1 == check(data, decompressed_bytes_max=10_020).record_count
    assert ErrorCode.MESSAGE_TOO_LARGE == refusal(data, decompressed_bytes_max=9_999).code


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_stream_that_cannot_be_decompressed_is_refused(codec: int) -> None:
    whole = oracle.encode_batch(three(codec=codec))

    for broken in (whole[:61], whole[:-1], whole[:70], whole[:61] + b"\xff" * 40):
        assert INVALID == refusal(oracle.seal(broken)).code


@pytest.mark.parametrize("codec", CODECS)
def test_mutated_batches_with_a_right_crc_are_taken_or_refused_and_nothing_else(codec: int) -> None:
    chance = random.Random(codec)
    seed = bytes(oracle.encode_batch(three(codec=codec)))
    outcomes = set()

    for _ in range(4000):
        data = bytearray(seed)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(12, len(data))] = chance.randrange(256)
        if chance.random() < 0.2:
            del data[chance.randrange(61, len(data)) :]
        try:
            batch = check(oracle.seal(data), keys_required=chance.random() < 0.5)
            batches.unpack(batch.data)
            outcomes.add(ErrorCode.NONE)
        except Refused as refused:
            outcomes.add(refused.code)

    assert {ErrorCode.NONE, INVALID, CORRUPT, TIMESTAMP} <= outcomes


# ---- built, read back, walked


contents = st.none() | st.binary(max_size=200)


@given(
    st.lists(st.tuples(contents, contents, st.integers(0, 10**9)), min_size=1, max_size=20),
    st.sampled_from(CODECS),
    st.integers(0, 2**40),
)
def test_what_is_built_is_read_back_by_another_decoder(
    rows: list[tuple[bytes | None, bytes | None, int]], codec: int, base_offset: int
) -> None:
    headers = [[("name", row[0])] * (row[2] % 3) for row in rows]
    times = [NOW_MS - row[2] for row in rows]
    data = batches.build(
        [row[:2] for row in rows], timestamp_ms=times, headers=headers, codec=codec, base_offset=base_offset
    )

    assert [
        (base_offset + i, time, 0, key, value, [(b"name", key)] * (age % 3))
        for i, ((key, value, age), time) in enumerate(zip(rows, times, strict=True))
    ] == oracle.decode(bytes(data))
    assert [
        batches.Record(row[0], row[1], row[3], row[4], row[5]) for row in oracle.decode(bytes(data))
    ] == batches.unpack(data)


def test_a_built_batch_is_our_own_without_a_check() -> None:
    data = batches.build([(b"k", b"v")] * 2, timestamp_ms=NOW_MS, producer_id=9, producer_epoch=1, base_sequence=5)

    batch = batches.own(bytes(data))
    batches.assign_offset(batch, 12)

    assert (2, 1, 9, 1, 5, 6, NOW_MS, len(data)) == (
        batch.record_count, batch.last_offset_delta, batch.producer_id, batch.producer_epoch, batch.base_sequence,
        batch.last_sequence, batch.max_timestamp, batch.size,
    )  # fmt: skip
    assert [12, 13] == [record.offset for record in batches.unpack(batch.data)]


def test_a_batch_of_nothing_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="at least one"):
        batches.build([], timestamp_ms=0)


def test_a_header_says_what_the_batch_is() -> None:
    header = batches.read_header(b"xx" + oracle.encode_batch(three(attributes=0x38, codec=3, base_offset=5)), 2)

    assert (5, 7, 8, 3, True, True, True, -1) == (
        header.base_offset, header.last_offset, header.next_offset, header.codec, header.is_control,
        header.is_transactional, header.is_log_append_time, header.last_sequence,
    )  # fmt: skip


@pytest.mark.parametrize("data", [b"", bytes(60), bytes(61), b"\0" * 8 + b"\xff" * 60])
def test_what_is_no_header_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        batches.read_header(data)


def log(*offsets: int) -> bytes:
    return b"".join(bytes(oracle.encode_batch(three(base_offset=offset))) for offset in offsets)


SIZE = len(oracle.encode_batch(three()))


def test_a_sound_log_is_sound_to_its_end_and_a_torn_batch_is_no_problem() -> None:
    data = log(0, 3, 10)

    assert (3 * SIZE, 13, None) == batches.sound_prefix(data, base=0)
    for cut in range(1, SIZE + 1):
        assert (2 * SIZE, 6, None) == batches.sound_prefix(data[:-cut], base=0)
    assert (0, 4, None) == batches.sound_prefix(b"", base=4)


@pytest.mark.parametrize(("end", "batch_count"), [(0, 0), (2, 0), (3, 1), (5, 1), (6, 2), (12, 2), (13, 3), (99, 3)])
def test_a_batch_that_reaches_past_the_end_is_left_out(end: int, batch_count: int) -> None:
    size, next_offset, problem = batches.sound_prefix(log(0, 3, 10), base=0, end=end)

    assert (batch_count * SIZE, [0, 3, 6, 13][batch_count], None) == (size, next_offset, problem)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda data: patched(data, ">B", 2 * SIZE - 1, 1), "CRC"),
        (lambda data: patched(data, ">q", SIZE, 2), "offsets"),
        (lambda data: patched(data, ">q", SIZE, -1), "offsets"),
        (lambda data: patched(data, ">i", SIZE + 23, -1), "offsets"),
        (lambda data: patched(data, ">B", SIZE + 16, 1), "magic"),
        (lambda data: patched(data, ">i", SIZE + 8, 3), "length"),
        (lambda data: data[:SIZE] + bytes(200), "length"),
    ],
)
def test_damage_is_found_where_it_is_and_named(damage: Callable[[bytes], bytes], word: str) -> None:
    size, next_offset, problem = batches.sound_prefix(damage(log(0, 3, 10)), base=0)

    assert (SIZE, 3) == (size, next_offset)
    assert word in str(problem)


def test_a_log_begins_at_its_base_or_above() -> None:
    assert (SIZE, 8, None) == batches.sound_prefix(log(5), base=4)
    assert (0, 6) == batches.sound_prefix(log(5), base=6)[:2]


def test_a_crc_outside_of_the_buffer_is_not_right() -> None:
    data = log(0)

    assert batches.crc_is_right(data, 0, SIZE)
    assert not batches.crc_is_right(data, 1, SIZE)
    assert not batches.crc_is_right(data, 0, 12)
    assert not batches.crc_is_right(data, -1, SIZE)


def test_the_compiled_modules_have_the_same_header_constants() -> None:
    source = Path(batch_header.__file__)
    compiled = dict(re.findall(r"^ +(\w+) = (\w+)$", source.with_suffix(".pxd").read_text(), re.MULTILINE))

    constants = {name: value for name, value in vars(batch_header).items() if name.isupper()}
    assert constants == {name: int(value, 0) for name, value in compiled.items()}
