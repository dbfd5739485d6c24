"""Opening a log after a stop, a kill, a torn tail and damage."""

import logging
import random

import pytest

from logmark.errors import ErrorCode, Refused
from logmark.log import checkpoints
from logmark.log.sealed_offsets import BESIDE_WAL
from logmark.log.segment import Segment
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, LogDriver, batch, settings, values

SMALL = settings(segment_bytes=600, index_interval_bytes=200)


def fill(driver: LogDriver, count: int = 30, *, config=SMALL):
    """One record per batch, all of one size."""
    partition = driver.create(config=config)
    for number in range(count):
        driver.append(partition, b"value-%03d" % number, producer=(PRODUCER_ID, 0, number))
    return partition


def all_values(count: int = 30) -> dict[int, bytes]:
    return {number: b"value-%03d" % number for number in range(count)}


def flip(path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def lose_an_index(driver: LogDriver) -> None:
    """Make the next start check every batch of a log that was stopped cleanly."""
    next(driver.folder().glob("*.index")).unlink()


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_finds_everything_that_was_acknowledged(driver: LogDriver, clean: bool) -> None:
    fill(driver)

    partition = driver.reopen(clean=clean, config=SMALL)

    assert all_values() == values(partition)
    assert (0, 30, 30) == (partition.log_start_offset, partition.high_watermark, partition.log_end_offset)
    assert 30 == driver.append(partition, b"next").base_offset
    assert [] == partition.damage


def test_a_clean_start_reads_no_more_than_the_end(driver: LogDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = fill(driver, 200, config=settings(segment_bytes=8000, index_interval_bytes=200))
    sizes = partition.size_bytes
    driver.stop()
    read: list[int] = []
    whole = Segment.read
    monkeypatch.setattr(Segment, "read", lambda self, at, size: read.append(size) or whole(self, at, size))
    monkeypatch.setattr("logmark.log.loader.TAIL_BYTES", 500)

    partition = driver.reopen(config=settings(segment_bytes=8000, index_interval_bytes=200))

    assert sizes == partition.size_bytes
    assert 200 == partition.log_end_offset
    assert sum(read) < sizes / 4


@pytest.mark.parametrize("torn", [1, 30, 60, 61, 70])
def test_a_torn_tail_is_cut(driver: LogDriver, torn: int) -> None:
    partition = fill(driver)
    driver.stop(clean=False)
    tail = bytes(batch(b"torn" * 10).data)[:torn]
    with (driver.folder() / f"{partition.segments[-1].base_offset:020d}.log").open("ab") as file:
        file.write(tail)

    again = driver.reopen(config=SMALL)

    assert all_values() == values(again)
    assert [] == again.damage
    assert 30 == driver.append(again, b"next").base_offset
    assert {**all_values(), 30: b"next"} == values(again)


def test_garbage_at_the_end_is_cut(driver: LogDriver) -> None:
    partition = fill(driver)
    driver.stop(clean=False)
    with (driver.folder() / f"{partition.segments[-1].base_offset:020d}.log").open("ab") as file:
        file.write(random.Random(1).randbytes(5000) + bytes(100))

    assert all_values() == values(driver.reopen(config=SMALL))


def test_a_half_written_batch_is_cut_at_every_byte(fast_driver: LogDriver) -> None:
    """Without a WAL, as with durability=os, Kafka's rule holds: the log ends at the first bad batch."""
    driver = fast_driver
    partition = fill(driver, 8)
    driver.stop(clean=False)
    path = driver.folder() / f"{partition.segments[-1].base_offset:020d}.log"
    data = path.read_bytes()
    count = len(data) // (partition.size_bytes // 8)
    size = len(data) // count
    (driver.path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)

    for cut in range(len(data), -1, -7):
        path.write_bytes(data[:cut])
        again = driver.reopen(clean=False, config=SMALL)
        assert all_values(8 - count + cut // size) == values(again)


def test_a_record_that_was_written_but_never_reached_the_wal_is_cut(driver: LogDriver) -> None:
    partition = fill(driver)
    partition.append(batch(b"not acknowledged"), now_ms=NOW_MS)

    again = driver.reopen(clean=False, config=SMALL)

    assert all_values() == values(again)
    assert [] == again.damage
    assert 30 == driver.append(again, b"next", producer=(PRODUCER_ID, 0, 30)).base_offset


def test_a_sector_that_a_crash_took_out_of_records_that_were_never_acknowledged_is_no_damage(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"acknowledged")
    sizes = [partition.size_bytes]
    for number in range(4):
        partition.append(batch(b"%d" % number * 2000), now_ms=NOW_MS)
        sizes.append(partition.size_bytes)
    driver.stop(clean=False)
    with (driver.folder() / "00000000000000000000.log").open("r+b") as file:
        # It is no page, and what lies behind it is sound.
        file.seek(sizes[1] + 512)
        file.write(bytes(512))

    again = driver.reopen()

    assert ([], {0: b"acknowledged"}) == (again.damage, values(again))
    assert 1 == driver.append(again, b"next").base_offset
    for clean in (True, False):
        assert {0: b"acknowledged", 1: b"next"} == values(driver.reopen(clean=clean))


def test_a_record_that_reached_the_wal_stays_although_it_was_the_last(driver: LogDriver) -> None:
    partition = fill(driver)
    partition.append(batch(b"in the WAL"), now_ms=NOW_MS)
    driver.committer.settle()
    partition.append(batch(b"cut"), now_ms=NOW_MS)

    assert {**all_values(), 30: b"in the WAL"} == values(driver.reopen(clean=False, config=SMALL))


@pytest.mark.parametrize("kept", [0, 1, 100])
def test_what_the_segments_have_lost_behind_the_recovery_point_comes_back_from_the_wal(
    driver: LogDriver,
    kept: int,
) -> None:
    with driver.files.hold_syncs("clicks-0"):
        partition = fill(driver)
        assert 0 == partition.recovery_point
        driver.committer.settle()
    driver.files.fail_syncs("clicks-0")
    driver.stop(clean=False)
    driver.files.heal()
    for path in driver.folder().glob("*.log"):
        path.write_bytes(path.read_bytes()[:kept])
    for path in driver.folder().glob("*.index"):
        path.unlink()

    again = driver.reopen(config=SMALL)

    assert (all_values(), []) == (values(again), again.damage)
    assert 30 == driver.append(again, b"next", producer=(PRODUCER_ID, 0, 30)).base_offset


def test_what_is_found_after_a_kill_is_synced_before_it_is_shown(driver: LogDriver) -> None:
    partition = fill(driver, 3)
    partition.append(batch(b"in memory only"), now_ms=NOW_MS)
    driver.stop(clean=False)
    driver.files.syncs_done.clear()

    driver.reopen(config=SMALL)

    assert any(path.endswith("00000000000000000000.log") for path in driver.files.syncs_done)


TAILS = {
    "one byte": b"\0",
    "zeros": bytes(100),
    "a page of zeros": bytes(4096),
    "no batch": bytes(range(7, 107)),
    "a batch of another offset": bytes(batch(b"before").data),
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_records_behind_damage_at_the_end_of_a_clean_log_are_kept(driver: LogDriver, tail: bytes) -> None:
    partition = driver.create()
    for value in (b"a", b"b", b"c"):
        driver.append(partition, value)
    driver.stop()
    with (driver.folder() / f"{0:020}.log").open("ab") as file:
        file.write(tail)

    partition = driver.reopen()
    assert 3 == driver.append(partition, b"d").base_offset
    assert {3: b"d"} == values(partition, 3)
    expected = {0: b"a", 1: b"b", 2: b"c", 3: b"d"}
    for clean in (True, False, True):
        partition = driver.reopen(clean=clean)
        expected[driver.append(partition, b"e").base_offset] = b"e"
        assert expected == values(partition)


def test_the_offset_of_a_log_without_a_sound_batch_is_not_given_out_again(driver: LogDriver) -> None:
    driver.append(driver.create(), b"a")
    driver.stop()
    path = driver.folder() / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (driver.path / checkpoints.RECOVERY_POINTS).write_bytes(b"")

    partition = driver.reopen()
    assert 1 == driver.append(partition, b"b").base_offset
    assert {1: b"b"} == values(driver.reopen(clean=False), 1)


def test_damage_before_the_tail_is_reported_and_everything_else_is_served(
    driver: LogDriver, caplog: pytest.LogCaptureFixture
) -> None:
    partition = fill(driver)
    size = partition.size_bytes // 30
    path = driver.folder() / f"{partition.segments[1].base_offset:020d}.log"
    broken = partition.segments[1].base_offset + 2
    driver.stop()
    lose_an_index(driver)
    flip(path, size * 2 + 65)

    with caplog.at_level(logging.WARNING):
        again = driver.reopen(config=SMALL)

    assert str(path) in caplog.text and f"byte {size * 2}" in caplog.text
    assert [(str(path), size * 2, size, broken, broken + 1)] == [
        (found.path, found.position, found.size_bytes, found.first_offset, found.next_offset) for found in again.damage
    ]
    assert 30 == again.log_end_offset
    assert broken - 1 == max(values_until_refused(again, 0))
    assert {offset: value for offset, value in all_values().items() if offset > broken} == values(again, broken + 1)
    with pytest.raises(Refused) as refused:
        again.read(broken, bytes_max=1000)
    assert ErrorCode.CORRUPT_MESSAGE == refused.value.code
    assert 30 == driver.append(again, b"next", producer=(PRODUCER_ID, 0, 30)).base_offset


def values_until_refused(partition, start: int) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    offset = start
    while True:
        try:
            found[offset] = values_at(partition, offset)
        except Refused as refused:
            assert ErrorCode.CORRUPT_MESSAGE == refused.code
            return found
        if offset + 1 == partition.high_watermark:
            return found
        offset += 1


def values_at(partition, offset: int) -> bytes | None:
    from logmark.wire import batches

    records = batches.unpack(partition.read(offset, bytes_max=1))
    return next(record.value for record in records if record.offset == offset)


@pytest.mark.parametrize("clean", [True, False])
def test_no_flipped_bit_is_ever_served(driver: LogDriver, clean: bool) -> None:
    """Each read after one flipped byte is right or refused; only the batch it hit may be refused."""
    config = settings(segment_bytes=450, index_interval_bytes=100)
    partition = fill(driver, 12, config=config)
    sizes = {segment.base_offset: segment.size for segment in partition.segments}
    size = partition.size_bytes // 12
    driver.stop(clean=clean)
    marker = driver.path / ".kafka_cleanshutdown"
    originals = {path: path.read_bytes() for path in driver.folder().iterdir()}
    choose = random.Random(7)

    for _ in range(120):
        base = choose.choice(sorted(sizes))
        path = driver.folder() / f"{base:020d}.log"
        at = choose.randrange(sizes[base])
        # The CRC does not cover the leader epoch, and nothing depends on it.
        if 12 <= at % size < 16:
            continue
        flip(path, at)
        if clean:
            marker.write_bytes(b"{}")
        hit = base + at // size

        again = driver.open().open_partition("clicks", 0, bytes(range(16)), config)

        assert 12 == again.high_watermark, "the recovery point or the WAL says where the log ends"
        for offset in range(again.high_watermark):
            try:
                assert b"value-%03d" % offset == values_at(again, offset)
            except Refused as refused:
                assert ErrorCode.CORRUPT_MESSAGE == refused.code
                assert offset == hit, f"byte {at} of {path.name} hit {hit}, but {offset} was refused"
        driver.stop(clean=False)
        for name in driver.folder().iterdir():
            name.unlink()
        for name, data in originals.items():
            name.write_bytes(data)


@pytest.mark.parametrize("clean", [True, False])
def test_a_shortened_file_loses_no_offset_and_no_other_record(driver: LogDriver, clean: bool) -> None:
    partition = fill(driver)
    size = partition.size_bytes // 30
    first, second = partition.segments[0], partition.segments[1]
    driver.stop(clean=clean)
    path = driver.folder() / f"{first.base_offset:020d}.log"
    path.write_bytes(path.read_bytes()[: size * 2 + 10])
    if not clean:
        (driver.path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)

    again = driver.reopen(config=SMALL)

    assert all_values(2) == values_until_refused(again, 0)
    for offset in range(2, second.base_offset):
        with pytest.raises(Refused) as refused:
            again.read(offset, bytes_max=100)
        assert ErrorCode.CORRUPT_MESSAGE == refused.value.code
    assert all_values()[second.base_offset] == values_at(again, second.base_offset)
    assert again.damage


def test_durable_records_missing_at_the_end_are_reported_and_their_offsets_never_given_again(driver: LogDriver) -> None:
    partition = fill(driver)
    last = partition.segments[-1]
    driver.stop()
    path = driver.folder() / f"{last.base_offset:020d}.log"
    path.write_bytes(path.read_bytes()[:-100])

    again = driver.reopen(config=SMALL)

    assert 30 == again.log_end_offset
    assert again.damage
    assert 30 == driver.append(again, b"next").base_offset
    assert b"next" == values_at(again, 30)
    with pytest.raises(Refused) as refused:
        again.read(29, bytes_max=100)
    assert ErrorCode.CORRUPT_MESSAGE == refused.value.code


def test_a_write_that_the_power_took_is_not_called_damage(driver: LogDriver) -> None:
    """A later write reached the disk, an earlier one did not: neither was acknowledged, so both are cut."""
    partition = fill(driver, 3)
    driver.directory.write_checkpoints()
    driver.stop(clean=False)
    size = partition.size_bytes // 3
    path = driver.folder() / "00000000000000000000.log"
    later = batch(b"value-004")
    from logmark.wire import batches

    batches.assign_offset(later, 4)
    path.write_bytes(path.read_bytes() + bytes(size) + bytes(later.data))

    again = driver.reopen(config=SMALL)

    assert all_values(3) == values(again)
    assert [] == again.damage
    assert 3 == driver.append(again, b"next", producer=(PRODUCER_ID, 0, 3)).base_offset


def test_a_value_that_looks_like_a_batch_is_not_taken_for_one(driver: LogDriver) -> None:
    from logmark.wire import batches

    inner = batches.build([(None, b"forged")], timestamp_ms=NOW_MS, base_offset=1)
    partition = driver.create()
    driver.append(partition, b"0")
    driver.append(partition, bytes(inner))
    driver.append(partition, b"2")
    size = batches.read_header(partition.read(0, bytes_max=1)).size
    driver.stop()
    lose_an_index(driver)
    flip(driver.folder() / "00000000000000000000.log", size + 40)

    again = driver.reopen()

    assert {0: b"0"} == values_until_refused(again, 0)
    assert {2: b"2"} == values(again, 2)


def test_a_log_whose_checkpointed_start_lies_above_its_end_begins_there(driver: LogDriver) -> None:
    fill(driver, 3)
    driver.stop(clean=False)
    (driver.path / "log-start-offset-checkpoint").write_text("0\n1\nclicks 0 50\n")
    # Else a recovery believes this file, which has a checksum.
    (driver.path / BESIDE_WAL).unlink()

    again = driver.reopen(config=SMALL)

    assert (50, 50) == (again.log_start_offset, again.log_end_offset)
    assert 50 == driver.append(again, b"x").base_offset
    assert {50: b"x"} == values(driver.reopen(clean=False, config=SMALL))


def test_left_overs_of_a_crash_are_removed(driver: LogDriver) -> None:
    fill(driver, 3)
    driver.stop(clean=False)
    for name in ("00000000000000000000.log.deleted", "00000000000000000009.log.cleaned", "leader-epoch-checkpoint.tmp"):
        (driver.folder() / name).write_bytes(b"?")

    again = driver.reopen(config=SMALL)

    assert all_values(3) == values(again)
    assert {"partition.metadata", "leader-epoch-checkpoint"} == {
        path.name for path in driver.folder().iterdir() if not path.name.startswith("0000")
    }
    assert [] == [path for path in driver.folder().iterdir() if path.suffix in (".deleted", ".cleaned", ".tmp")]


def test_only_snapshots_of_segments_and_the_newest_one_stay(driver: LogDriver) -> None:
    config = settings(segment_bytes=10_000)
    partition = fill(driver, 2, config=config)
    for _ in range(3):
        partition = driver.reopen(config=config)
        driver.append(partition, b"x")
    driver.reopen(config=config)

    assert ["00000000000000000005.snapshot"] == sorted(path.name for path in driver.folder().glob("*.snapshot"))


def test_an_unclean_start_checks_from_the_recovery_point_only(driver: LogDriver) -> None:
    """Damage in a segment that was durable long ago is found when it is read."""
    partition = fill(driver)
    driver.finish(partition)
    path = driver.folder() / f"{partition.segments[0].base_offset:020d}.log"
    driver.directory.write_checkpoints()
    driver.stop(clean=False)
    flip(path, 70)

    again = driver.reopen(config=SMALL)

    assert [] == again.damage
    with pytest.raises(Refused) as refused:
        again.read(0, bytes_max=100)
    assert ErrorCode.CORRUPT_MESSAGE == refused.value.code
    assert 1 == len(again.damage)
    assert {offset: value for offset, value in all_values().items() if offset} == values(again, 1)
