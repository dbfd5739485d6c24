"""The sparse indexes: which batches get entries, what they hold, and what happens when they lie."""

import struct

import pytest

from logmark.log.index import OffsetIndex, TimeIndex
from tests.log.directory_driver import NOW_MS, LogDriver, settings, values


def test_an_entry_is_the_last_offset_of_a_batch_and_where_it_starts() -> None:
    index = OffsetIndex(100)
    index.append(104, 4097)
    index.append(110, 9000)

    assert struct.pack(">iiii", 4, 4097, 10, 9000) == bytes(index.data)
    assert None is index.at_or_before(103)
    assert (104, 4097) == index.at_or_before(104) == index.at_or_before(109)
    assert (110, 9000) == index.at_or_before(10**9)


def test_a_time_entry_is_written_only_for_a_later_timestamp() -> None:
    index = TimeIndex(100)
    for timestamp, offset in ((NOW_MS, 101), (NOW_MS, 102), (NOW_MS - 5, 103), (NOW_MS + 5, 104)):
        index.append_if_later(timestamp, offset)

    assert struct.pack(">qiqi", NOW_MS, 1, NOW_MS + 5, 4) == bytes(index.data)
    assert None is index.at_or_before(NOW_MS - 1)
    assert (NOW_MS, 101) == index.at_or_before(NOW_MS + 4)


def fill(driver: LogDriver, partition) -> int:
    """Twenty batches of two records and one size, which is returned; each has a later timestamp but every third."""
    for number in range(20):
        at = NOW_MS + (number if number % 3 else 0)
        driver.append(partition, b"a" * 50, b"b%03d" % number, timestamp_ms=[at, at - 1])
    return partition.size_bytes // 20


def test_the_files_hold_what_kafka_would_have_written(driver: LogDriver) -> None:
    partition = driver.create(config=settings(index_interval_bytes=400))
    size = fill(driver, partition)
    driver.stop()

    offsets = list(struct.iter_unpack(">ii", (driver.folder() / "00000000000000000000.index").read_bytes()))
    times = list(struct.iter_unpack(">qi", (driver.folder() / "00000000000000000000.timeindex").read_bytes()))

    # An entry for each batch before which more than 400 bytes were written since the last entry.
    step = 400 // size + 1
    batches = range(step, 20, step)
    assert [(number * 2 + 1, number * size) for number in batches] == offsets
    latest = [max((n for n in range(number + 1) if n % 3), default=0) for number in batches]
    expected = [(NOW_MS + n, n * 2 + 1) for n in dict.fromkeys([*latest, 19])]
    assert expected == times


def test_rolling_trims_the_indexes_and_adds_the_largest_timestamp(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=400, index_interval_bytes=10**6))
    for number in range(9):
        driver.append(partition, b"x" * 20, timestamp_ms=NOW_MS + 100 - number)

    old = partition.segments[0]

    assert struct.pack(">qi", NOW_MS + 100, 0) == (driver.folder() / "00000000000000000000.timeindex").read_bytes()
    assert b"" == (driver.folder() / "00000000000000000000.index").read_bytes()
    assert NOW_MS + 100 == old.max_timestamp


def test_recovery_builds_the_same_indexes_as_appending(driver: LogDriver) -> None:
    config = settings(index_interval_bytes=400, segment_bytes=1500)
    partition = driver.create(config=config)
    fill(driver, partition)
    driver.stop()
    names = [path for path in sorted(driver.folder().iterdir()) if path.suffix in (".index", ".timeindex")]
    expected = {path.name: path.read_bytes() for path in names}

    for path in names:
        path.unlink()
    driver.reopen(config=config)
    driver.stop()

    assert expected == {path.name: path.read_bytes() for path in names}


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("change", ["flip", "cut", "empty", "zeros", "gone"])
def test_a_wrong_index_never_makes_a_wrong_answer(driver: LogDriver, suffix: str, change: str) -> None:
    config = settings(index_interval_bytes=100, segment_bytes=1500)
    partition = driver.create(config=config)
    fill(driver, partition)
    expected = values(partition)
    times = {at: partition.offset_for_timestamp(NOW_MS + at) for at in range(-1, 22)}
    latest = partition.max_timestamp()
    driver.stop()
    path = driver.folder() / f"00000000000000000000.{suffix}"
    data = path.read_bytes()
    for at in range(len(data)) if change == "flip" else (0,):
        flipped = bytearray(data)
        flipped[at] ^= 0x11
        if change == "gone":
            path.unlink()
        else:
            path.write_bytes({"flip": flipped, "cut": data[:-3], "empty": b"", "zeros": bytes(120)}[change])

        partition = driver.reopen(config=config)

        assert expected == {offset: values(partition, offset)[offset] for offset in expected}
        assert times == {later: partition.offset_for_timestamp(NOW_MS + later) for later in times}, at
        assert latest == partition.max_timestamp()
        driver.stop()
        path.write_bytes(data)
