"""Looking records up by their timestamps."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable

import pytest

from logmark.log import timestamp_lookup
from logmark.log.partition import Partition
from logmark.wire import batches, codecs
from tests.log.directory_driver import NOW_MS, LogDriver, batch, settings

SMALL = {"segment_bytes": 400, "index_interval_bytes": 150}


@pytest.mark.parametrize("codec", range(5))
def test_the_first_record_not_older_than_a_timestamp_is_found_inside_its_batch(driver: LogDriver, codec: int) -> None:
    partition = driver.create(config=settings(**SMALL))
    for number in range(0, 60, 3):
        driver.append(
            partition, b"a", b"b", b"c", timestamp_ms=[NOW_MS + number * 10 + at * 10 for at in range(3)], codec=codec
        )

    assert len(partition.segments) > 3
    for offset in range(60):
        assert (offset, NOW_MS + offset * 10) == partition.offset_for_timestamp(NOW_MS + offset * 10 - 9)
        assert (offset, NOW_MS + offset * 10) == partition.offset_for_timestamp(NOW_MS + offset * 10)
    assert partition.offset_for_timestamp(NOW_MS + 591) is None


def test_the_first_in_the_log_is_found_when_timestamps_go_back_and_forth(driver: LogDriver) -> None:
    partition = driver.create(config=settings(**SMALL))
    stamps = [(number * 37) % 100 for number in range(100)]
    for stamp in stamps:
        driver.append(partition, b"x" * 30, timestamp_ms=NOW_MS + stamp)

    for target in range(100):
        first = next(offset for offset, stamp in enumerate(stamps) if stamp >= target)
        assert (first, NOW_MS + stamps[first]) == partition.offset_for_timestamp(NOW_MS + target)


def test_the_largest_timestamp_is_found_at_its_first_record(driver: LogDriver) -> None:
    partition = driver.create(config=settings(**SMALL))
    for stamps in ([5, 9, 2], [1, 9, 9], [30, 40, 40], [40, 3, 4], [7, 7, 7]):
        driver.append(partition, b"x" * 30, b"y", b"z", timestamp_ms=[NOW_MS + stamp for stamp in stamps])

    assert (7, NOW_MS + 40) == partition.max_timestamp()
    assert (7, NOW_MS + 40) == driver.reopen(config=settings(**SMALL)).max_timestamp()


def test_records_below_the_log_start_are_not_found(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"a", b"b", b"c", b"d", timestamp_ms=[NOW_MS + 3, NOW_MS + 9, NOW_MS + 1, NOW_MS + 5])
    partition.delete_records(2)

    assert (2, NOW_MS + 1) == partition.offset_for_timestamp(NOW_MS)
    assert (3, NOW_MS + 5) == partition.offset_for_timestamp(NOW_MS + 3)
    assert partition.offset_for_timestamp(NOW_MS + 6) is None


def test_a_record_that_is_not_durable_is_not_found(driver: LogDriver) -> None:
    partition = driver.create(config=settings(index_interval_bytes=0))
    driver.append(partition, b"x", timestamp_ms=NOW_MS)
    driver.append(partition, b"x", timestamp_ms=NOW_MS + 1)
    with driver.files.hold_syncs(".log"):
        for later in (5, 9):
            partition.append(batch(b"x", timestamp_ms=NOW_MS + later), now_ms=NOW_MS)

        assert (1, NOW_MS + 1) == partition.max_timestamp()
        assert (1, NOW_MS + 1) == partition.offset_for_timestamp(NOW_MS + 1)
        assert partition.offset_for_timestamp(NOW_MS + 2) is None
        assert partition.offset_for_timestamp(NOW_MS + 9) is None
    driver.settle(partition)
    assert (3, NOW_MS + 9) == partition.max_timestamp()


def test_log_append_time_is_the_batchs_time_for_every_record(driver: LogDriver) -> None:
    partition = driver.create(config=settings(message_timestamp_type="LogAppendTime"))
    from logmark.wire import batches

    for number in range(3):
        made = batches.own(
            batches.build([(None, b"x")] * 3, timestamp_ms=[NOW_MS, NOW_MS + 7, NOW_MS + 50 * number], attributes=8)
        )
        partition.append(made, now_ms=NOW_MS)
    driver.settle(partition)

    assert (6, NOW_MS + 100) == partition.offset_for_timestamp(NOW_MS + 51)


async def turns_of_the_loop(work: Awaitable[object]) -> tuple[int, float, object]:
    """How often the loop came round while some work was done beside it, the longest it had to wait, and the result."""
    turns, longest_s, is_done = 0, 0.0, False

    async def turn() -> None:
        nonlocal turns, longest_s
        before = time.perf_counter()
        while not is_done:
            await asyncio.sleep(0)
            now = time.perf_counter()
            turns, longest_s, before = turns + 1, max(longest_s, now - before), now

    turning = asyncio.create_task(turn())
    await asyncio.sleep(0)
    found = await work
    is_done = True
    await turning
    return turns, longest_s, found


def with_large_batch(driver: LogDriver, codec: int, mebibytes: int) -> tuple[Partition, int]:
    """A partition with one batch, and the timestamp of its last record."""
    partition = driver.create()
    count = mebibytes * 1024
    times = [NOW_MS + number for number in range(count)]
    built = batches.build([(None, b"0123456789" * 102)] * count, timestamp_ms=times, codec=codec)
    partition.append(batches.own(built), now_ms=NOW_MS)
    return partition, times[-1]


@pytest.mark.parametrize("codec", range(1, 5))
def test_the_loop_goes_on_while_a_large_compressed_batch_is_looked_through(fast_driver: LogDriver, codec: int) -> None:
    partition, last_ms = with_large_batch(fast_driver, codec, 24)

    turns, _, found = fast_driver.loop.run_until_complete(turns_of_the_loop(partition.look_up(last_ms)))

    assert (24 * 1024 - 1, last_ms) == found
    assert turns > 24, "the loop waited for whole stretches of the batch to be decompressed"


@pytest.mark.soak
@pytest.mark.parametrize("codec", range(1, 5))
def test_the_loop_is_not_held_for_5_ms_by_a_look_up_in_a_maximal_batch(fast_driver: LogDriver, codec: int) -> None:
    partition, last_ms = with_large_batch(fast_driver, codec, 100)
    held_s, idle_s = [], []
    for _ in range(10):
        held_s.append(fast_driver.loop.run_until_complete(turns_of_the_loop(partition.look_up(last_ms)))[1])
        # Work of about that length which needs nothing of the loop: what the machine takes for itself and others.
        work = fast_driver.loop.run_in_executor(None, hashlib.sha256, bytes(100 << 20))
        idle_s.append(fast_driver.loop.run_until_complete(turns_of_the_loop(work))[1])

    most_s = max(0.005, 1.5 * sorted(idle_s)[5])
    assert min(held_s) < most_s, f"the loop was held for {min(held_s) * 1000:.1f} ms"


def test_a_look_up_decodes_one_batch_only(fast_driver: LogDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = fast_driver.create()
    for number in range(50):
        fast_driver.append(
            partition, b"a", b"b", timestamp_ms=[NOW_MS + 10 * number, NOW_MS + 10 * number + 5], codec=4
        )
    decoded: list[int] = []
    pieces = codecs.pieces
    monkeypatch.setattr(
        codecs, "pieces", lambda codec, data, **more: decoded.append(len(data)) or pieces(codec, data, **more)
    )

    assert (61, NOW_MS + 305) == fast_driver.loop.run_until_complete(partition.look_up(NOW_MS + 301))
    assert (99, NOW_MS + 495) == fast_driver.loop.run_until_complete(partition.look_up(None))

    assert 2 == len(decoded)


def test_a_search_goes_on_when_retention_takes_its_segment(fast_driver: LogDriver) -> None:
    partition = fast_driver.create(config=settings(**SMALL))
    for number in range(60):
        fast_driver.append(partition, b"%d" % number, timestamp_ms=NOW_MS + number)
    search = timestamp_lookup.first_at_or_after(list(partition.segments), NOW_MS + 59, log_start_offset=0)
    partition.delete_records(50)
    partition.apply_retention(NOW_MS)
    fast_driver.finish(partition)

    assert (59, NOW_MS + 59) == timestamp_lookup.run(search)


def test_a_marker_is_found_by_its_time_as_in_kafka(fast_driver: LogDriver) -> None:
    partition = fast_driver.create()
    fast_driver.append(partition, b"a", timestamp_ms=NOW_MS)
    partition.append_marker(2**40, 0, commit=True, now_ms=NOW_MS + 7)

    assert (1, NOW_MS + 7) == partition.offset_for_timestamp(NOW_MS + 1)
    assert (1, NOW_MS + 7) == partition.max_timestamp()
