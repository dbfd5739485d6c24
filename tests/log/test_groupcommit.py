"""Group commit by itself: one round per log at a time, and every wish answered."""

import asyncio
import threading

import pytest

from logmark.errors import LogmarkError
from logmark.log.groupcommit import GroupCommit, Round


class Counter:
    """A log that counts its rounds; its sync can be made to wait or fail."""

    def __init__(self) -> None:
        self.written = 0
        self.durable = 0
        self.rounds = 0
        self.together = 0
        self.together_max = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.changed = asyncio.Event()

    def sync(self) -> None:
        self.together += 1
        self.together_max = max(self.together_max, self.together)
        assert self.gate.wait(10)
        self.together -= 1
        if self.error is not None:
            raise self.error

    def begin_round(self) -> Round | None:
        if self.durable == self.written:
            return None
        return Round(self, [self.sync], self.written)

    def end_round(self, done: Round) -> None:
        self.rounds += 1
        if done.error is None:
            self.durable = done.point
        self.changed.set()


def run(scenario) -> None:
    async def main() -> None:
        committer = GroupCommit(asyncio.get_running_loop(), threads_max=2)
        try:
            await scenario(committer)
        finally:
            committer.close()

    asyncio.run(main())


def test_many_marks_of_one_turn_are_one_round() -> None:
    async def scenario(committer: GroupCommit) -> None:
        log = Counter()
        for _ in range(100):
            log.written += 1
            committer.mark(log)
        await log.changed.wait()
        assert (1, 100) == (log.rounds, log.durable)

    run(scenario)


def test_what_arrives_during_a_round_is_the_next_round() -> None:
    async def scenario(committer: GroupCommit) -> None:
        log = Counter()
        log.gate.clear()
        log.written = 1
        committer.mark(log)
        await asyncio.sleep(0)
        for _ in range(50):
            log.written += 1
            committer.mark(log)
        log.gate.set()
        await log.changed.wait()
        assert 1 == log.durable
        log.changed.clear()
        await log.changed.wait()
        assert (2, 51) == (log.rounds, log.durable)

    run(scenario)


def test_more_logs_than_threads_are_all_synced_and_none_twice_at_once() -> None:
    async def scenario(committer: GroupCommit) -> None:
        logs = [Counter() for _ in range(20)]
        for _ in range(5):
            for log in logs:
                log.written += 1
                committer.mark(log)
            await asyncio.sleep(0)
        for log in logs:
            while log.durable < 5:
                log.changed.clear()
                await log.changed.wait()
        assert {1} == {log.together_max for log in logs}

    run(scenario)


def test_an_error_of_any_kind_reaches_the_log_and_the_thread_lives_on() -> None:
    async def scenario(committer: GroupCommit) -> None:
        bad, good = Counter(), Counter()
        bad.error = ValueError("not an OSError")
        bad.written = good.written = 1
        committer.mark(bad)
        await bad.changed.wait()
        assert (1, 0) == (bad.rounds, bad.durable)
        committer.mark(good)
        await good.changed.wait()
        assert 1 == good.durable

    run(scenario)


def test_finish_waits_for_the_round_of_one_log() -> None:
    async def scenario(committer: GroupCommit) -> None:
        log = Counter()
        log.written = 1
        committer.mark(log)
        await asyncio.sleep(0)
        committer.finish(log)
        assert 1 == log.durable

    run(scenario)


def test_there_are_two_kinds_of_durability() -> None:
    loop = asyncio.new_event_loop()
    assert GroupCommit(loop, durability="sync").is_sync
    assert not GroupCommit(loop, durability="os").is_sync
    with pytest.raises(LogmarkError):
        GroupCommit(loop, durability="perhaps")  # type: ignore[arg-type]
    loop.close()
