"""Nobody is told what a crash could take back: answers wait for the disk, and a failed disk answers nobody."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from logmark.broker.event_loop_turns import run_at_once
from logmark.broker.group_runtime import GroupRuntime
from logmark.clock import ManualClock
from logmark.coordination.commands import CommitOffsets, Heartbeat, Join, Joined, OffsetToCommit, Protocol, Sync
from logmark.coordination.settings import GroupSettings
from logmark.errors import ErrorCode, Malformed, Refused
from tests.coordination.coordinator_driver import GROUP, subscription
from tests.coordination.fakes import FakeInternalLog, FakeTimers

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)


class RuntimeDriver:
    """One shard on a fake journal."""

    def __init__(self, journal: FakeInternalLog, *, topics: set[str] | None = None) -> None:
        self.journal = journal
        self.timers = FakeTimers(ManualClock())
        self.topics = {"clicks"} if topics is None else topics
        self.runtime = self.new_runtime()

    def new_runtime(self) -> GroupRuntime:
        return GroupRuntime(
            0,
            self.journal,
            settings=SETTINGS,
            clock=self.timers.clock,
            timers=self.timers,
            has_topic=lambda name: name in self.topics,
        )

    def commit(self, offset: int, topic: str = "clicks", group: str = GROUP) -> asyncio.Future[Any]:
        command = CommitOffsets(group=group, offsets=(OffsetToCommit(topic, 0, offset),))
        return self.runtime.ask(lambda at, ticket, now: at.commit_offsets(command, ticket, now_ms=now))

    def join(self, member_id: str = "") -> asyncio.Future[Any]:
        command = Join(
            group=GROUP, member_id=member_id, client_id="app", protocol_type="consumer",
            protocols=(Protocol("range", subscription("clicks")),), session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000, must_know_its_id=False,
        )
        return self.runtime.ask(lambda at, ticket, now: at.join(command, ticket, now_ms=now))

    def sync(self, joined: Joined) -> asyncio.Future[Any]:
        command = Sync(
            group=GROUP, generation=joined.generation, member_id=joined.member_id,
            assignments={joined.member_id: b"P0"},
        )
        return self.runtime.ask(lambda at, ticket, now: at.sync(command, ticket, now_ms=now))

    def heartbeat(self, joined: Joined) -> asyncio.Future[Any]:
        command = Heartbeat(group=GROUP, generation=joined.generation, member_id=joined.member_id)
        return self.runtime.ask(lambda at, ticket, now: at.heartbeat(command, ticket, now_ms=now))

    def offsets(self, group: str = GROUP) -> asyncio.Future[dict[tuple[str, int], int]]:
        return self.runtime.read(lambda at: {key: stored.offset for key, stored in at.committed_offsets(group).items()})


def on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 10))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def breathe() -> None:
    """Everything that follows at once happens."""
    for _ in range(6):
        await asyncio.sleep(0)


def code_of(future: asyncio.Future[Any]) -> ErrorCode:
    error = future.exception()
    assert isinstance(error, Refused)
    return error.code


def loaded(journal: FakeInternalLog, **more: Any) -> RuntimeDriver:
    driver = RuntimeDriver(journal, **more)
    driver.runtime.load_now()
    return driver


@on_a_loop
async def test_a_commit_is_answered_when_it_is_on_disk() -> None:
    driver = loaded(FakeInternalLog(is_held=True))
    answer = driver.commit(5)
    await breathe()
    assert not answer.done()

    driver.journal.sync()

    assert (ErrorCode.NONE,) == (await answer).errors


@on_a_loop
async def test_a_reader_waits_for_what_it_would_be_shown() -> None:
    driver = loaded(FakeInternalLog(is_held=True))
    driver.commit(5)
    seen = driver.offsets()
    await breathe()
    assert not seen.done()

    driver.journal.sync()

    assert {("clicks", 0): 5} == await seen


@on_a_loop
async def test_a_reader_with_nothing_to_wait_for_is_answered_at_once() -> None:
    driver = loaded(FakeInternalLog(is_held=True))
    driver.commit(5)
    driver.journal.sync()

    assert driver.offsets().done()


@on_a_loop
async def test_later_commits_are_decided_before_earlier_ones_are_durable() -> None:
    driver = loaded(FakeInternalLog(is_held=True))
    first, second = driver.commit(5), driver.commit(6)

    driver.journal.sync(batches=1)
    await breathe()
    assert (True, False) == (first.done(), second.done())

    driver.journal.sync()
    await second
    assert {("clicks", 0): 6} == await driver.offsets()


@on_a_loop
async def test_an_assignment_is_given_when_it_is_on_disk() -> None:
    driver = loaded(FakeInternalLog(is_held=True))
    joining = driver.join()
    driver.journal.sync()
    driver.timers.advance(0)
    synced = driver.sync(await joining)
    await breathe()
    assert not synced.done()

    driver.journal.sync()

    assert b"P0" == (await synced).assignment


@on_a_loop
async def test_a_failed_sync_answers_everybody_with_an_error_and_loads_again() -> None:
    driver = loaded(FakeInternalLog(is_held=True))
    driver.commit(5)
    driver.journal.sync()
    lost, reading = driver.commit(6), driver.offsets()

    driver.journal.fail()
    await breathe()

    assert (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR) == (code_of(lost), code_of(reading))
    assert {("clicks", 0): 5} == await driver.offsets()


@on_a_loop
async def test_a_failed_write_answers_with_an_error_and_leaves_no_trace() -> None:
    driver = loaded(FakeInternalLog())
    await driver.commit(5)
    driver.journal.fails_next_write = True

    lost = driver.commit(6)
    await breathe()

    assert ErrorCode.NOT_COORDINATOR == code_of(lost)
    assert {("clicks", 0): 5} == await driver.offsets()


@on_a_loop
async def test_a_member_that_waits_is_told_when_the_disk_fails() -> None:
    driver = loaded(FakeInternalLog())
    first = driver.join()
    driver.timers.advance(0)
    joined = await first
    await driver.sync(joined)
    waiting = driver.join()

    driver.journal.fails_next_write = True
    driver.commit(1, group="other")
    await breathe()

    assert ErrorCode.NOT_COORDINATOR == code_of(waiting)


@on_a_loop
async def test_a_failed_journal_takes_no_commands_but_is_still_read() -> None:
    driver = loaded(FakeInternalLog())
    await driver.commit(5)
    driver.journal.fail()

    with pytest.raises(Refused) as refused:
        driver.commit(6)

    assert ErrorCode.NOT_COORDINATOR is refused.value.code
    assert {("clicks", 0): 5} == await driver.offsets()
    assert not driver.runtime.is_available


@on_a_loop
async def test_groups_that_were_loaded_while_their_log_was_stopped_change_again_when_it_is_healed() -> None:
    driver = loaded(FakeInternalLog(), topics={"clicks", "orders"})
    await driver.commit(5)
    await driver.commit(3, "orders")
    driver.journal.fails_next_write = True
    lost = driver.commit(6)
    await breathe()
    assert ErrorCode.NOT_COORDINATOR == code_of(lost)
    assert {("clicks", 0): 5, ("orders", 0): 3} == await driver.offsets(), "it was loaded again from what is durable"
    driver.topics.remove("orders")
    run_at_once(driver.runtime.forget_topics({"orders"}))

    driver.journal.heal()

    assert (ErrorCode.NONE,) == (await driver.commit(7)).errors
    assert {("clicks", 0): 7} == await driver.offsets(), "and what went meanwhile is forgotten"


@on_a_loop
async def test_groups_that_could_not_be_loaded_while_their_log_was_stopped_are_loaded_when_it_is_healed() -> None:
    driver = loaded(FakeInternalLog())
    await driver.commit(5)
    driver.journal.fails_next_write = driver.journal.fails_reads = True
    driver.commit(6)
    for _ in range(2):
        await breathe()
        with pytest.raises(Refused) as refused:
            driver.offsets()
        assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS is refused.value.code

    driver.journal.heal()
    await breathe()

    assert {("clicks", 0): 5} == await driver.offsets()
    assert (ErrorCode.NONE,) == (await driver.commit(7)).errors


@on_a_loop
async def test_groups_whose_log_could_not_be_read_once_are_loaded_when_the_disk_works_again_without_a_restart() -> None:
    before = loaded(FakeInternalLog())
    await before.commit(5)
    journal = FakeInternalLog(before.journal.entries)
    journal.read_error = OSError(errno.EIO, "Input/output error")
    driver = loaded(journal)
    with pytest.raises(Refused) as refused:
        driver.offsets()
    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS is refused.value.code, "clients ask again"

    journal.read_error = None
    driver.timers.clock.advance(seconds=1)
    with pytest.raises(Refused):
        driver.offsets()
    await breathe()

    assert {("clicks", 0): 5} == await driver.offsets()
    assert (ErrorCode.NONE,) == (await driver.commit(7)).errors


@on_a_loop
async def test_a_load_that_fails_after_one_that_succeeded_is_tried_again_as_soon_as_the_first() -> None:
    journal = FakeInternalLog()
    journal.read_error = OSError(errno.EIO, "Input/output error")
    driver = loaded(journal)

    async def is_loaded_after_a_second() -> bool:
        journal.read_error = None
        driver.timers.clock.advance(seconds=1)
        with pytest.raises(Refused):
            driver.offsets()
        await breathe()
        return driver.runtime.is_loaded

    assert await is_loaded_after_a_second()
    journal.fails_next_write, journal.read_error = True, OSError(errno.EIO, "Input/output error")
    lost = driver.commit(5)
    journal.heal()
    await breathe()

    assert ErrorCode.NOT_COORDINATOR is code_of(lost)
    assert not driver.runtime.is_loaded
    assert await is_loaded_after_a_second()


@on_a_loop
async def test_a_log_that_stays_unreadable_is_read_again_less_and_less_often_however_often_clients_ask() -> None:
    journal = FakeInternalLog()
    journal.read_error = OSError(errno.EIO, "Input/output error")
    driver = loaded(journal)

    async def reads_in(seconds: int) -> int:
        before = journal.reads
        for _ in range(seconds * 10):
            driver.timers.clock.advance(seconds=0.1)
            with pytest.raises(Refused):
                driver.offsets()
            await breathe()
        return journal.reads - before

    assert 6 >= await reads_in(60)
    assert 1 >= await reads_in(30)


def test_a_damaged_log_is_one_event_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    @on_a_loop
    async def load() -> None:
        journal = FakeInternalLog()
        journal.read_error = Malformed("the CRC of the batch is wrong")
        driver = loaded(journal)
        for _ in range(3):
            with pytest.raises(Refused):
                driver.offsets()
            await breathe()

    load()

    (event,) = (record for record in caplog.records if record.name.startswith("logmark"))
    assert (None, "KAFKA_STORAGE_ERROR: cannot be read") == (event.exc_info, event.__dict__["error"])


@on_a_loop
async def test_while_it_loads_a_shard_says_so() -> None:
    before = loaded(FakeInternalLog())
    for offset in range(20):
        await before.commit(offset)
    driver = RuntimeDriver(FakeInternalLog(before.journal.entries))

    with pytest.raises(Refused) as refused:
        driver.commit(6)
    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS is refused.value.code
    assert driver.runtime.is_available

    await driver.runtime.load()
    assert {("clicks", 0): 19} == await driver.offsets()


@on_a_loop
async def test_a_load_yields_to_others() -> None:
    before = loaded(FakeInternalLog())
    for offset in range(30):
        await before.commit(offset)
    driver = RuntimeDriver(FakeInternalLog(before.journal.entries))

    loading = driver.runtime.load()
    await asyncio.sleep(0)

    assert not loading.done()
    await loading


@on_a_loop
async def test_a_broken_record_makes_its_groups_unavailable_not_wrong() -> None:
    driver = loaded(FakeInternalLog([(b"\x00\x01broken", b"")]))

    with pytest.raises(Refused) as refused:
        driver.offsets()

    assert ErrorCode.NOT_COORDINATOR is refused.value.code
    assert not driver.runtime.is_available


@on_a_loop
async def test_offsets_of_topics_that_are_gone_are_forgotten_at_load() -> None:
    before = loaded(FakeInternalLog(), topics={"clicks", "orders"})
    await before.commit(5, "clicks")
    await before.commit(6, "orders")

    driver = loaded(FakeInternalLog(before.journal.entries), topics={"orders"})

    assert {("orders", 0): 6} == await driver.offsets()
    assert len(driver.journal.entries) == 3


@on_a_loop
async def test_a_topic_deleted_and_made_again_during_a_load_starts_without_offsets() -> None:
    before = loaded(FakeInternalLog())
    await before.commit(5)
    driver = RuntimeDriver(FakeInternalLog(before.journal.entries))
    loading = driver.runtime.load()

    run_at_once(driver.runtime.forget_topics({"clicks"}))
    await loading

    assert {} == await driver.offsets()


@pytest.mark.parametrize("days", [-2, 2])
def test_a_session_ends_neither_sooner_nor_later_if_somebody_sets_the_clock(days: int) -> None:
    async def is_member(after_ms: int) -> bool:
        driver = loaded(FakeInternalLog())
        joining = driver.join()
        driver.timers.advance(0)
        joined = await joining
        await driver.sync(joined)
        driver.timers.advance(5_000)
        assert ErrorCode.NONE is (await driver.heartbeat(joined)).error
        clock = driver.timers.clock
        clock.set_time(clock.now_ms() + days * 86_400_000)
        driver.timers.advance(after_ms)
        try:
            return ErrorCode.NONE is (await driver.heartbeat(joined)).error
        except Refused as refused:
            assert ErrorCode.UNKNOWN_MEMBER_ID is refused.code
            return False

    @on_a_loop
    async def check() -> None:
        assert [True, False] == [await is_member(9_999), await is_member(10_000)]

    check()


@on_a_loop
async def test_a_session_ends_by_the_clock_alone() -> None:
    driver = loaded(FakeInternalLog())
    joining = driver.join()
    driver.timers.advance(0)
    joined = await joining
    await driver.sync(joined)

    driver.timers.advance(9_999)
    assert ErrorCode.NONE is (await driver.heartbeat(joined)).error
    driver.timers.advance(10_000)

    with pytest.raises(Refused) as refused:
        await driver.heartbeat(joined)
    assert ErrorCode.UNKNOWN_MEMBER_ID is refused.value.code


@on_a_loop
async def test_closing_sends_those_who_wait_away_and_answers_what_becomes_durable() -> None:
    driver = loaded(FakeInternalLog(is_held=True))
    joining = driver.join()
    committing = driver.commit(5, group="other")

    driver.runtime.close()
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == code_of(joining)
    driver.journal.sync()

    assert (ErrorCode.NONE,) == (await committing).errors
    with pytest.raises(Refused):
        driver.commit(6)


@on_a_loop
async def test_a_client_that_went_away_disturbs_nobody() -> None:
    driver = loaded(FakeInternalLog(is_held=True))
    gone, there = driver.commit(5), driver.commit(6)
    gone.cancel()

    driver.journal.sync()

    assert (ErrorCode.NONE,) == (await there).errors


@on_a_loop
async def test_a_bug_in_a_decision_costs_its_request_and_nothing_else() -> None:
    driver = loaded(FakeInternalLog())
    await driver.commit(5)

    def broken(*_: object) -> Any:
        raise AssertionError("a bug")

    lost = driver.runtime.ask(broken)
    await breathe()

    assert ErrorCode.NOT_COORDINATOR == code_of(lost)
    assert {("clicks", 0): 5} == await driver.offsets()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_groups_that_could_not_be_loaded_for_lack_of_descriptors_or_memory_are_loaded_later(number: int) -> None:
    class Unopened(FakeInternalLog):
        is_short = True

        def read(self) -> Iterator[Sequence[tuple[bytes | None, bytes | None]]]:
            if self.is_short:
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR) from OSError(number, "short")
            return super().read()

    async def test() -> None:
        journal = Unopened()
        driver = RuntimeDriver(journal)
        for _ in range(3):
            with pytest.raises(Refused) as refused:
                driver.commit(1)
            assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS == refused.value.code
            await breathe()
        journal.is_short = False
        with pytest.raises(Refused):
            driver.commit(1)
        await breathe()

        await driver.commit(2)

        assert {("clicks", 0): 2} == await driver.offsets()

    on_a_loop(test)()
