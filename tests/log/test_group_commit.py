"""Group commit: everything that is appended in one turn shares an entry of the WAL, and only what is in it is told."""

import asyncio
import errno
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from logmark.errors import LogFailed, LogmarkError, Refused
from logmark.log.group_commit import GroupCommit
from logmark.log.partition import Partition
from logmark.log.wal import log as wal
from logmark.log.wal.files import WalFile
from logmark.log.wal.log import WalLimits
from logmark.wire import batches
from tests.harness.patches import in_this_thread
from tests.log.directory_driver import NOW_MS, TOPIC_ID, WAL_FILES, LogDriver, batch, settings, values
from tests.log.stepped_workers import SteppedWorkers

LARGE = b"x" * 3000


@pytest.fixture
def workers() -> SteppedWorkers:
    return SteppedWorkers()


@pytest.fixture
def stepped(tmp_path: Path, workers: SteppedWorkers) -> Iterator[LogDriver]:
    """A durable data directory whose disk works only when the test says so."""
    made = LogDriver(tmp_path, worker=workers)
    yield made
    made.close()


@pytest.fixture
def small_entries(tmp_path: Path, workers: SteppedWorkers) -> Iterator[LogDriver]:
    """The same with entries of at most 8 KiB."""
    made = LogDriver(tmp_path, worker=workers, entry_bytes_max=8192)
    yield made
    made.close()


def test_a_batch_fits_into_the_memory_of_an_entry_that_was_used_before(
    stepped: LogDriver, workers: SteppedWorkers,
) -> None:
    log = stepped.create()
    for size in (10, 10, 3000, 3000, 10_000, 4 * 1024 * 1024, 20_000, 100_000):
        for _ in range(3):
            log.append(batch(b"x" * size), now_ms=NOW_MS)
            stepped.turn()
        stepped.committer.settle()

    assert (24, 24) == (log.high_watermark, stepped.wal_end(log))


def test_everything_that_is_appended_in_one_turn_shares_one_entry(stepped: LogDriver, workers: SteppedWorkers) -> None:
    logs = [stepped.create(index=index) for index in range(20)]
    for log in logs:
        log.append(batch(b"a"), now_ms=NOW_MS)
        log.append(batch(b"b"), now_ms=NOW_MS)
    stepped.turn()
    workers.writer.finish_job()

    assert {2} == {log.high_watermark for log in logs}
    assert 1 == stepped.read_wal().entry_count
    assert not workers.writer.is_busy


def test_what_is_appended_during_a_round_is_told_with_the_next_one(stepped: LogDriver, workers: SteppedWorkers) -> None:
    log = stepped.create()
    log.append(batch(b"a"), now_ms=NOW_MS)
    stepped.turn()
    workers.writer.step()
    for _ in range(50):
        log.append(batch(b"b"), now_ms=NOW_MS)
        stepped.turn()

    workers.writer.finish_job()
    assert 1 == log.high_watermark
    stepped.turn()
    workers.writer.finish_job()
    assert (51, 2) == (log.high_watermark, stepped.read_wal().entry_count)


def test_a_batch_that_has_no_room_in_an_entry_is_not_told_with_it(
    small_entries: LogDriver, workers: SteppedWorkers,
) -> None:
    """The entry that is closed for it has batches of the same log, which must not speak for this one."""
    log = small_entries.create()
    for _ in range(3):
        log.append(batch(LARGE), now_ms=NOW_MS)
    small_entries.turn()
    workers.writer.finish_job()

    assert 2 == small_entries.wal_end(log)
    assert 2 == log.high_watermark, "a record was acknowledged that is not in the WAL"
    small_entries.turn()
    workers.writer.finish_job()
    assert (3, 3) == (log.high_watermark, small_entries.wal_end(log))


@pytest.mark.parametrize("sizes", [[3000] * 40, [10, 5000, 10, 9000, 4000, 4096, 4095, 1] * 6, [40] * 300])
def test_nothing_is_told_that_is_not_in_the_wal(
    small_entries: LogDriver, workers: SteppedWorkers, sizes: list[int]
) -> None:
    logs = [small_entries.create(index=index) for index in range(3)]
    told: list[tuple[int, int]] = []
    for log in logs:
        log.change_listeners.add(lambda log=log: told.append((log.high_watermark, small_entries.wal_end(log))))
    for at, size in enumerate(sizes):
        logs[at % 3].append(batch(b"x" * size), now_ms=NOW_MS)
        if at % 7 == 6:
            small_entries.turn()
        if at % 5 == 4 and workers.writer.is_busy:
            workers.writer.step()
    small_entries.committer.settle()

    assert len(sizes) == sum(log.high_watermark for log in logs)
    assert [] == [each for each in told if each[0] > each[1]]


def test_an_error_of_any_kind_reaches_every_log_that_waits(stepped: LogDriver, workers: SteppedWorkers) -> None:
    first, second = stepped.create(index=0), stepped.create(index=1)
    first.append(batch(b"kept"), now_ms=NOW_MS)
    stepped.turn()
    workers.writer.finish()
    first.append(batch(b"a"), now_ms=NOW_MS)
    stepped.turn()
    second.append(batch(b"b"), now_ms=NOW_MS)
    waiting = [first.durable(2), second.durable(1)]
    stepped.files.fail_syncs(f"{WAL_FILES}001", errno.EIO, times=1)
    workers.writer.finish_job()

    for future in waiting:
        assert isinstance(future.exception(), LogFailed)
    assert {0: b"kept"} == values(first)
    assert not workers.writer.is_busy, "nothing is written after the WAL has failed"


def test_after_the_wal_has_failed_no_log_takes_records_until_a_restart(driver: LogDriver) -> None:
    failed, other = driver.create(index=0), driver.create(index=1)
    driver.append(failed, b"kept")
    driver.append(other, b"kept")
    driver.files.fail_syncs(f"{WAL_FILES}001", errno.EIO, times=1)
    failed.append(batch(b"lost"), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        driver.loop.run_until_complete(failed.durable(2))

    with pytest.raises(LogFailed) as refused:
        other.append(batch(b"refused"), now_ms=NOW_MS)
    assert "restart" in str(refused.value)
    assert {0: b"kept"} == values(other)
    assert not driver.stop()
    again = driver.reopen(index=1)
    assert {0: b"kept"} == values(again)
    driver.append(again, b"next")


def test_a_wal_that_was_taken_away_is_noticed_before_anything_is_told(driver: LogDriver) -> None:
    log = driver.create()
    driver.append(log, b"kept")
    (driver.path / wal.FOLDER).rename(driver.path / "elsewhere")
    log.append(batch(b"lost"), now_ms=NOW_MS)

    with pytest.raises(LogFailed) as failed:
        driver.loop.run_until_complete(log.durable(2))

    assert "write-ahead log" in str(driver.committer.failure) and "clicks-0" in str(failed.value)
    assert 1 == log.high_watermark


def test_closing_waits_for_what_was_added(stepped: LogDriver, workers: SteppedWorkers) -> None:
    log = stepped.create()
    for _ in range(3):
        log.append(batch(LARGE), now_ms=NOW_MS)
    stepped.committer.settle()

    assert 3 == log.high_watermark
    assert stepped.committer.is_idle


def test_there_are_two_kinds_of_durability() -> None:
    loop = asyncio.new_event_loop()
    assert GroupCommit(loop, durability="sync").is_sync
    assert not GroupCommit(loop, durability="os").is_sync
    with pytest.raises(LogmarkError):
        GroupCommit(loop, durability="perhaps")  # type: ignore[arg-type]
    loop.close()


def refuse_more_files(driver: LogDriver) -> None:
    """Let the disk be full for every file of the WAL but the first."""
    for number in range(2, 100):
        driver.files.fail_writes(f"{number:04d}.wal", errno.ENOSPC)


def size_of(path: Path) -> int:
    """Return the size of a file, 0 if a flush has removed or renamed it meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class TestWithSmallFiles:
    """The WAL has few files, each of a few entries."""

    @pytest.fixture(autouse=True)
    def small_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        block = 4096
        monkeypatch.setattr(WalLimits.__new__, "__defaults__", (12 * block, 4 * block, 4 * block))

    def test_a_wal_that_is_full_waits_for_a_flush_and_goes_on(self, driver: LogDriver) -> None:
        log = driver.create()
        for number in range(30):
            driver.append(log, b"%d" % number + LARGE)

        assert 30 == log.high_watermark
        assert 12 * 4096 >= sum(map(size_of, (driver.path / wal.FOLDER).glob("*.wal")))
        again = driver.reopen(clean=False)
        assert [b"%d" % number + LARGE for number in range(30)] == list(values(again).values())

    def test_a_stop_finishes_what_waits_for_a_file(self, driver: LogDriver) -> None:
        log = driver.create()
        for number in range(30):
            log.append(batch(b"%d" % number + LARGE), now_ms=NOW_MS)
            driver.turn()

        assert driver.stop()
        assert 30 == len(values(driver.reopen()))

    def test_those_who_wait_for_a_file_are_refused_when_none_can_be_made(self, driver: LogDriver) -> None:
        log = driver.create()
        driver.append(log, LARGE)
        refuse_more_files(driver)
        told = []
        for number in range(1, 4):
            log.append(batch(b"%d" % number + LARGE), now_ms=NOW_MS)
            waiting = log.durable(number + 1)
            with suppress(LogFailed):
                driver.loop.run_until_complete(waiting)
                told.append(number)
                continue
            break

        assert [1] == told
        assert log in driver.committer.flusher.troubled and driver.committer.failure is None
        driver.files.heal()
        driver.recover(log)
        assert 2 == driver.append(log, b"again").base_offset

    def test_a_stop_ends_although_no_file_can_be_made(self, driver: LogDriver) -> None:
        log = driver.create()
        refuse_more_files(driver)
        for number in range(5):
            log.append(batch(b"%d" % number + LARGE), now_ms=NOW_MS)
        waiting = log.durable(5)

        assert not driver.stop()
        assert isinstance(waiting.exception(), LogFailed)

    def test_a_log_that_failed_while_the_wal_was_full_frees_its_files_again(self, driver: LogDriver) -> None:
        """A log that has nothing in the WAL any more must not keep the files of others."""
        idle, busy = driver.create(index=0), driver.create(index=1)
        driver.append(idle, b"kept")
        driver.finish(idle)
        # Of the first file only: the next one is being made in the background.
        driver.files.fail_syncs(f"{WAL_FILES}001", errno.ENOSPC, times=1)
        idle.append(batch(b"lost"), now_ms=NOW_MS)
        with pytest.raises(LogFailed):
            driver.loop.run_until_complete(idle.durable(2))
        driver.recover(idle)
        driver.finish(idle)
        for number in range(30):
            driver.append(busy, b"%d" % number + LARGE)

        assert 30 == busy.high_watermark

    def test_a_log_that_cannot_be_flushed_fills_the_wal_and_the_others_are_refused_and_not_left_waiting(
        self, driver: LogDriver
    ) -> None:
        broken, other = driver.create("broken"), driver.create("other")
        driver.append(broken, b"kept")
        driver.files.fail_syncs("broken-0", errno.EIO)
        driver.committer.flusher.mark(broken)
        driver.committer.flusher.settle()
        assert broken.failure is not None

        count = 0
        with suppress(LogFailed):
            for _ in range(30):
                driver.append(other, LARGE)
                count += 1

        assert count < 30 and other.failure is not None
        assert count == len(values(other))
        driver.stop(clean=False)
        driver.files.heal()
        assert {0: b"kept"} == values(driver.reopen("broken"))


def test_what_the_wal_holds_of_a_log_that_a_flush_has_stopped_is_never_put_over_what_came_later(
    stepped: LogDriver, workers: SteppedWorkers
) -> None:
    """An entry becomes durable after its log was stopped; the log comes back, goes on, is flushed and is killed."""
    log, other = stepped.create(index=0), stepped.create(index=1)
    for each in (log, other):
        each.append(batch(b"kept"), now_ms=NOW_MS)
    stepped.turn()
    workers.writer.finish()
    workers.flusher.finish()
    other.append(batch(b"keeps the WAL"), now_ms=NOW_MS)
    stepped.turn()
    workers.writer.finish()

    log.append(batch(b"in", b"flight"), now_ms=NOW_MS)
    stepped.turn()
    stepped.files.fail_syncs("clicks-0", errno.ENOSPC)
    stepped.committer.flusher.mark(log)
    stepped.turn()
    workers.flusher.finish()
    assert log.failure is not None
    stepped.files.heal()
    workers.writer.finish()
    stepped.loop.run_until_complete(log.recover())
    assert log.failure is None
    log.append(batch(b"later"), now_ms=NOW_MS)
    stepped.turn()
    workers.writer.finish()
    stepped.committer.flusher.mark(log)
    stepped.committer.flusher.settle()
    acknowledged = values(log)

    assert log.high_watermark == log.recovery_point and b"later" in acknowledged.values()
    assert acknowledged == values(stepped.reopen(index=0, clean=False))


def test_a_log_comes_back_only_after_its_entries_are_written(stepped: LogDriver, workers: SteppedWorkers) -> None:
    log = stepped.create()
    log.append(batch(b"kept"), now_ms=NOW_MS)
    stepped.turn()
    workers.writer.finish()
    workers.flusher.finish()
    log.append(batch(LARGE), now_ms=NOW_MS)
    stepped.turn()
    log.append(batch(LARGE), now_ms=NOW_MS)
    stepped.files.fail_syncs("clicks-0", errno.ENOSPC)
    stepped.committer.flusher.mark(log)
    stepped.turn()
    workers.flusher.finish()
    stepped.files.heal()
    for _ in range(2):
        stepped.loop.run_until_complete(log.recover())
        assert log.failure is not None and log in stepped.committer.flusher.troubled, "an entry with it is under way"
        workers.writer.finish_job()
    stepped.loop.run_until_complete(log.recover())

    assert log.failure is None
    assert log.log_end_offset == log.high_watermark == len(values(log)) == stepped.wal_end(log) == 3


def round_of(driver: LogDriver, workers: SteppedWorkers, log: Partition, value: bytes) -> None:
    """Append a record and make it durable in an entry of its own."""
    log.append(batch(value), now_ms=NOW_MS)
    driver.turn()
    workers.writer.finish()


def damage_entry(driver: LogDriver, value: bytes) -> None:
    """Let the entry with a value rot in the WAL."""
    for path in (driver.path / wal.FOLDER).glob("*.wal"):
        content = path.read_bytes()
        path.write_bytes(content.replace(value, value[::-1]))


@pytest.mark.parametrize("is_flushed", [True, False], ids=["flushed before", "never flushed"])
@pytest.mark.parametrize("left", ["nothing", "a part", "zeros", "all"])
def test_no_offset_of_a_damaged_entry_is_given_out_twice(
    stepped: LogDriver, workers: SteppedWorkers, is_flushed: bool, left: str
) -> None:
    """A power loss takes a segment's tail; the only entry that had it has rotted, and another partition's follows."""
    log, other = stepped.create(index=0), stepped.create(index=1)
    round_of(stepped, workers, log, b"kept")
    if is_flushed:
        stepped.finish(log)
    path = stepped.folder() / "00000000000000000000.log"
    kept = path.stat().st_size
    round_of(stepped, workers, log, b"rotten entry")
    round_of(stepped, workers, other, b"other")
    assert (2, int(is_flushed)) == (log.high_watermark, log.recovery_point)
    workers.flusher.drop()
    stepped.stop(clean=False)
    damage_entry(stepped, b"rotten entry")
    whole = path.read_bytes()
    tail = {"nothing": b"", "a part": whole[kept:-5], "zeros": bytes(len(whole) - kept), "all": whole[kept:]}[left]
    path.write_bytes(whole[:kept] + tail)

    again = stepped.reopen(index=0)
    assert 2 == again.log_end_offset, "an offset that was acknowledged is given out again"
    if left == "all":
        assert ({0: b"kept", 1: b"rotten entry"}, []) == (values(again), again.damage)
    else:
        (damage,) = again.damage
        assert 1 == damage.first_offset and damage.next_offset in (2, None), "the missing range is not reported"
        with pytest.raises(Refused, match="damaged"):
            again.read(1, bytes_max=4096)
        assert b"kept" == batches.unpack(again.read(0, bytes_max=1))[0].value
    neighbour = stepped.directory.open_partition("clicks", 1, TOPIC_ID, settings())
    assert {0: b"other"} == values(neighbour)
    round_of(stepped, workers, again, b"next")
    assert {2: b"next"} == values(again, 2)


def test_a_log_of_which_only_the_end_is_known_goes_on_there(stepped: LogDriver, workers: SteppedWorkers) -> None:
    """The only entry of a partition has rotted, and a power loss took its folder."""
    log, other = stepped.create(index=0), stepped.create(index=1)
    round_of(stepped, workers, log, b"rotten entry")
    round_of(stepped, workers, other, b"other")
    workers.flusher.drop()
    stepped.stop(clean=False)
    damage_entry(stepped, b"rotten entry")
    shutil.rmtree(stepped.folder())

    again = stepped.reopen(index=0)

    assert 1 == again.log_end_offset, "an offset that was acknowledged is given out again"
    assert [(0, 1)] == [(each.first_offset, each.next_offset) for each in again.damage]
    round_of(stepped, workers, again, b"next")
    assert {1: b"next"} == values(again, 1)


def test_an_entry_of_a_file_that_cannot_be_looked_up_is_not_acknowledged_and_nothing_is_written_over_it(
    stepped: LogDriver, workers: SteppedWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stepped.create()
    log.append(batch(b"first"), now_ms=NOW_MS)
    stepped.turn()
    workers.writer.finish_job()
    log.append(batch(b"second"), now_ms=NOW_MS)
    stepped.turn()

    def refuse(self: WalFile) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(WalFile, "is_in_place", in_this_thread(refuse, WalFile.is_in_place))
        workers.writer.finish_job()

    assert 1 == log.high_watermark
    with pytest.raises(LogFailed):
        log.append(batch(b"third"), now_ms=NOW_MS)
