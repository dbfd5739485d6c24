"""Idempotent producers: what is accepted, what is a duplicate, what is refused, and the snapshot's bytes."""

import struct

import google_crc32c
import pytest

from logmark.errors import ErrorCode, Malformed, Refused
from logmark.log.producers import SEQUENCE_MAX, Producers
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, WAL_FILES, LogDriver, batch, values

HOUR_MS = 3_600_000


def refusal(driver: LogDriver, partition, sequence: int, *, epoch: int = 0, count: int = 1) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        driver.append(partition, *[b"x"] * count, producer=(PRODUCER_ID, epoch, sequence))
    return refused.value.code


def test_a_batch_sent_again_is_answered_with_its_old_offset_and_written_once(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"before")
    first = driver.append(partition, b"a", b"b", timestamp_ms=NOW_MS + 3, producer=(PRODUCER_ID, 0, 0))

    again = driver.append(partition, b"a", b"b", timestamp_ms=NOW_MS + 3, producer=(PRODUCER_ID, 0, 0))

    assert (False, True) == (first.is_duplicate, again.is_duplicate)
    assert (1, 2, NOW_MS + 3) == (again.base_offset, again.last_offset, again.log_append_time_ms)
    assert {0: b"before", 1: b"a", 2: b"b"} == values(partition)


def test_the_last_five_batches_are_known_again_and_the_sixth_is_out_of_order(driver: LogDriver) -> None:
    partition = driver.create()
    for sequence in range(6):
        driver.append(partition, b"%d" % sequence, producer=(PRODUCER_ID, 0, sequence))

    for sequence in range(1, 6):
        assert sequence == driver.append(partition, b"?", producer=(PRODUCER_ID, 0, sequence)).base_offset
    assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER == refusal(driver, partition, 0)
    assert 6 == partition.log_end_offset


def test_a_duplicate_must_have_the_very_same_sequences(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"a", b"b", producer=(PRODUCER_ID, 0, 0))

    assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER == refusal(driver, partition, 0, count=1)
    assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER == refusal(driver, partition, 1, count=1)


@pytest.mark.parametrize(
    ("epoch", "sequence", "code"),
    [
        (0, 5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # a gap
        (1, 3, ErrorCode.INVALID_PRODUCER_EPOCH),  # an old epoch
        (3, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # a new epoch that does not begin at 0
    ],
)
def test_a_batch_out_of_line_is_refused_with_kafkas_code(
    driver: LogDriver, epoch: int, sequence: int, code: ErrorCode,
) -> None:
    partition = driver.create()
    known = 0 if epoch == 0 else 2
    for number in range(3):
        driver.append(partition, b"x", producer=(PRODUCER_ID, known, number))

    assert code == refusal(driver, partition, sequence, epoch=epoch)
    assert 3 == partition.log_end_offset


def test_a_new_epoch_begins_at_zero_and_forgets_the_old_batches(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"a", producer=(PRODUCER_ID, 0, 0))

    assert not driver.append(partition, b"b", producer=(PRODUCER_ID, 1, 0)).is_duplicate
    assert ErrorCode.INVALID_PRODUCER_EPOCH == refusal(driver, partition, 0, epoch=0)


def test_a_producer_that_is_not_known_may_begin_anywhere(driver: LogDriver) -> None:
    partition = driver.create()

    assert 0 == driver.append(partition, b"a", producer=(PRODUCER_ID, 0, 77)).base_offset
    assert 1 == driver.append(partition, b"b", producer=(PRODUCER_ID, 0, 78)).base_offset


def test_after_the_last_sequence_comes_zero(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"a", b"b", producer=(PRODUCER_ID, 0, SEQUENCE_MAX - 1))
    driver.append(partition, b"c", producer=(PRODUCER_ID, 0, 0))
    assert 2 == partition.append(batch(b"c", producer=(PRODUCER_ID, 0, 0)), now_ms=NOW_MS).base_offset


def test_a_batch_may_cross_the_last_sequence(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"a", b"b", b"c", producer=(PRODUCER_ID, 0, SEQUENCE_MAX))

    written = partition.producers.get(PRODUCER_ID).last

    assert (SEQUENCE_MAX, 1) == (written.base_sequence, written.last_sequence)
    assert 3 == driver.append(partition, b"d", producer=(PRODUCER_ID, 0, 2)).base_offset


def test_the_coordinators_batches_are_checked_by_epoch_only(driver: LogDriver) -> None:
    partition = driver.create()
    for sequence in (0, 0, 9):
        appended = partition.append(batch(b"x", producer=(PRODUCER_ID, 1, sequence)), now_ms=NOW_MS, from_client=False)
        assert not appended.is_duplicate

    with pytest.raises(Refused) as refused:
        partition.append(batch(b"x", producer=(PRODUCER_ID, 0, 0)), now_ms=NOW_MS, from_client=False)
    assert ErrorCode.INVALID_PRODUCER_EPOCH == refused.value.code


def test_a_duplicate_of_a_batch_that_is_not_durable_waits_for_it(driver: LogDriver) -> None:
    partition = driver.create()
    with driver.files.hold_syncs(f"{WAL_FILES}001"):
        driver.loop.call_soon(lambda: None)
        first = partition.append(batch(b"a", producer=(PRODUCER_ID, 0, 0)), now_ms=NOW_MS)
        driver.turn()
        again = partition.append(batch(b"a", producer=(PRODUCER_ID, 0, 0)), now_ms=NOW_MS)

        waiting = partition.durable(again.last_offset + 1)

        assert (True, first.last_offset) == (again.is_duplicate, again.last_offset)
        assert waiting is not None and not waiting.done()
    driver.loop.run_until_complete(waiting)


def test_a_producer_expires_when_it_was_not_heard_of(driver: LogDriver) -> None:
    partition = driver.create()
    old = NOW_MS - 1000 * HOUR_MS
    driver.append(partition, b"a", timestamp_ms=old, producer=(PRODUCER_ID, 0, 0))

    assert 0 == partition.expire_producers(now_ms=NOW_MS + HOUR_MS - 1, expiration_ms=HOUR_MS)
    assert 1 == partition.expire_producers(now_ms=NOW_MS + HOUR_MS, expiration_ms=HOUR_MS)
    assert PRODUCER_ID not in partition.producers


def test_the_snapshot_has_kafkas_bytes(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"of a producer without an id")
    driver.append(partition, b"a", b"b", b"c", timestamp_ms=NOW_MS + 9, producer=(PRODUCER_ID, 3, 10))
    driver.stop()

    data = (driver.folder() / "00000000000000000004.snapshot").read_bytes()

    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", PRODUCER_ID, 3, 12, 3, 2, NOW_MS + 9, -1, -1)
    assert struct.pack(">hI", 1, google_crc32c.value(body)) + body == data
    assert 56 == len(data)


@pytest.mark.parametrize("clean", [True, False])
def test_all_five_batches_are_known_again_after_a_restart(driver: LogDriver, clean: bool) -> None:
    partition = driver.create()
    for sequence in range(8):
        driver.append(partition, b"%d" % sequence, producer=(PRODUCER_ID, 0, sequence))

    partition = driver.reopen(clean=clean)

    for sequence in range(3, 8):
        again = driver.append(partition, b"%d" % sequence, producer=(PRODUCER_ID, 0, sequence))
        assert (True, sequence) == (again.is_duplicate, again.base_offset)
    assert 8 == driver.append(partition, b"8", producer=(PRODUCER_ID, 0, 8)).base_offset


@pytest.mark.parametrize("size", [0, 5, 9, 55, 57])
def test_a_snapshot_of_the_wrong_size_is_refused(size: int) -> None:
    producers = Producers()
    producers.record(batch(b"x", producer=(PRODUCER_ID, 0, 0)), last_offset=0, seen_ms=0)
    data = producers.encode() + b"?"

    with pytest.raises(Malformed):
        Producers.decode(data[:size], now_ms=0)


def test_a_flipped_bit_in_a_snapshot_is_found(driver: LogDriver) -> None:
    producers = Producers()
    producers.record(batch(b"x", producer=(PRODUCER_ID, 0, 0)), last_offset=0, seen_ms=0)
    data = producers.encode()

    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with pytest.raises(Malformed):
            Producers.decode(bytes(flipped), now_ms=0)


def test_a_damaged_snapshot_costs_a_replay_and_no_duplicate(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"a", producer=(PRODUCER_ID, 0, 0))
    driver.stop()
    path = driver.folder() / "00000000000000000001.snapshot"
    path.write_bytes(path.read_bytes()[:-1] + b"?")

    partition = driver.reopen()

    assert driver.append(partition, b"a", producer=(PRODUCER_ID, 0, 0)).is_duplicate
