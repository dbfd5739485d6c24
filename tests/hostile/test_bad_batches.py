"""A batch that is cut, too large, damaged or impossible is refused with its reason, and not a byte of it is written."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logmark.errors import ErrorCode
from logmark.testing import Broker
from logmark.wire import batches, columns
from tests.harness import wire
from tests.hostile.test_bad_input import resident_mb, snapshot

TOPIC = "orders"
CORRUPT, INVALID = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker in a process of its own, with one batch of three records."""
    with Broker(subprocess=True) as broker:
        broker.create_topic(TOPIC)
        answer = wire.produce(broker.bootstrap_servers, TOPIC, bytes(good()))
        assert (ErrorCode.NONE, 0) == (answer.error_code, answer.base_offset)
        yield broker


def good() -> bytearray:
    return batches.build([(b"key", b"value")] * 3, timestamp_ms=1_700_000_000_000)


def with_field(form: str, at: int, value: int, *, sealed: bool = True) -> Callable[[bytearray], bytes]:
    """Another value in the header, under a right checksum if `sealed`: whoever sends it can compute one."""

    def change(batch: bytearray) -> bytes:
        struct.pack_into(form, batch, at, value)
        if sealed:
            struct.pack_into(">I", batch, 17, columns.crc32c(batch, 21, len(batch) - 21))
        return bytes(batch)

    return change


def with_byte(at: int, value: int) -> Callable[[bytearray], bytes]:
    return with_field(">B", at, value)


BAD: dict[str, tuple[Callable[[bytearray], bytes], ErrorCode]] = {
    "nothing": (lambda _: b"", INVALID),
    "half a header": (lambda batch: bytes(batch[:30]), INVALID),
    "a header alone": (lambda batch: bytes(batch[:61]), INVALID),
    "all but a byte": (lambda batch: bytes(batch[:-1]), INVALID),
    "a length beyond the request": (with_field(">i", 8, 2**31 - 1, sealed=False), INVALID),
    "a length of nothing": (with_field(">i", 8, 0, sealed=False), CORRUPT),
    "a negative length": (with_field(">i", 8, -1, sealed=False), CORRUPT),
    "a flipped bit": (lambda batch: bytes(batch[:-3]) + bytes([batch[-3] ^ 1]) + bytes(batch[-2:]), CORRUPT),
    "a wrong checksum": (with_field(">I", 17, 7, sealed=False), CORRUPT),
    "an unknown magic": (with_byte(16, 9), CORRUPT),
    "an old magic": (with_byte(16, 1), INVALID),
    "two thousand million records": (with_field(">i", 57, 2**31 - 1), INVALID),
    "no records": (with_field(">i", 57, 0), INVALID),
    "minus one record": (with_field(">i", 57, -1), INVALID),
    "fewer records than there are": (with_field(">i", 57, 2), INVALID),
    "offsets that end before they begin": (with_field(">i", 23, -1), INVALID),
    "a record longer than its batch": (with_byte(61, 0x7E), INVALID),
    "a record of negative length": (with_byte(61, 0x01), INVALID),
    "a key longer than its record": (with_byte(65, 0x7E), INVALID),
    "an unknown codec": (with_field(">h", 21, 7), INVALID),
    "gzip that is none": (with_field(">h", 21, 1), INVALID),
    "snappy that is none": (with_field(">h", 21, 2), INVALID),
    "lz4 that is none": (with_field(">h", 21, 3), INVALID),
    "zstd that is none": (with_field(">h", 21, 4), INVALID),
    "a control batch": (with_field(">h", 21, 0x20), INVALID),
    "two batches": (lambda batch: bytes(batch) * 2, INVALID),
    "an offset of its own choice": (with_field(">q", 0, 5, sealed=False), INVALID),
    "more than the topic takes": (
        lambda _: bytes(batches.build([(None, bytes(1_100_000))], timestamp_ms=1)), ErrorCode.MESSAGE_TOO_LARGE
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_is_refused_with_its_reason_and_leaves_nothing(broker: Broker, name: str) -> None:
    change, expected = BAD[name]
    assert broker.pid is not None
    log = Path(broker.data_dir) / f"{TOPIC}-0"
    before, memory_mb = snapshot(log), resident_mb(broker.pid)

    answer = wire.produce(broker.bootstrap_servers, TOPIC, change(good()))

    assert expected == answer.error_code
    assert answer.error_message, "no reason was given"
    assert before == snapshot(log)
    assert resident_mb(broker.pid) - memory_mb < 20
    # The next good batch gets the next offset, and its copy the one after: nothing was counted.
    good_answer = wire.produce(broker.bootstrap_servers, TOPIC, bytes(good()))
    assert ErrorCode.NONE == good_answer.error_code
    assert 0 == good_answer.base_offset % 3
