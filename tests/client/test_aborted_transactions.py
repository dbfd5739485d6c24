"""Batches of aborted transactions are left out by their headers."""

from logmark.client.aborted_transactions import without_aborted
from logmark.wire import columns
from logmark.wire.batches import build

TRANSACTIONAL, CONTROL = 0x10, 0x20


def batch(offset: int, *, producer: int = -1, attributes: int = 0, count: int = 2) -> bytes:
    return bytes(
        build(
            [(None, b"v")] * count,
            timestamp_ms=0,
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            attributes=attributes,
        )
    )


def marker(offset: int, producer: int) -> bytes:
    return batch(offset, producer=producer, attributes=TRANSACTIONAL | CONTROL, count=1)


def written(offset: int, producer: int) -> bytes:
    return batch(offset, producer=producer, attributes=TRANSACTIONAL)


def offsets(data: memoryview) -> list[int]:
    return list(columns.decode(data, start=0, stop=1000, decompressed_bytes_max=1000).offsets)


def test_transactions_that_interleave_are_told_apart() -> None:
    data = b"".join(
        [
            written(0, 7),
            written(2, 8),
            batch(4),
            written(6, 7),
            marker(8, 7),
            marker(9, 8),
            written(10, 7),
            marker(12, 7),
        ]
    )

    # The first transaction of producer 7 was aborted, its second and that of producer 8 were not.
    assert [2, 3, 4, 5, 10, 11] == offsets(without_aborted(memoryview(data), [(7, 0)]))
    assert [0, 1, 4, 5, 6, 7, 10, 11] == offsets(without_aborted(memoryview(data), [(8, 2)]))
    assert [2, 3, 4, 5] == offsets(without_aborted(memoryview(data), [(7, 10), (7, 0)]))


def test_a_transaction_that_began_before_the_fetch_is_left_out_too() -> None:
    assert [4, 5] == offsets(without_aborted(memoryview(written(2, 7) + batch(4) + marker(6, 7)), [(7, 0)]))


def test_records_without_a_transaction_are_kept_whoever_wrote_them() -> None:
    data = memoryview(batch(0, producer=7) + written(2, 7))

    assert [0, 1] == offsets(without_aborted(data, [(7, 0)]))


def test_nothing_is_copied_where_nothing_was_aborted() -> None:
    data = memoryview(written(0, 8) + marker(2, 8))

    assert without_aborted(data, [(7, 0)]) is data


def test_a_batch_that_was_cut_off_stays_cut_off() -> None:
    data = memoryview(written(0, 7) + written(2, 8) + written(4, 7)[:-1])

    assert [2, 3] == offsets(without_aborted(data, [(7, 0)]))
