"""Retention of many partitions: some at a time, with everybody else's turn in between."""

import asyncio
from pathlib import Path

from logmark.broker.logs import EMPTY_SHARE, SEEN_IN_A_TURN
from logmark.broker.server import Broker
from logmark.clock import ManualClock
from tests.log.directory_driver import NOW_MS, batch

PARTITIONS = 60


def test_partitions_without_records_are_looked_after_in_turns_too(tmp_path: Path) -> None:
    async def run() -> int:
        broker = Broker(data_dir=str(tmp_path), durability="os", clock=ManualClock(NOW_MS))
        await broker.start()
        await broker.logs.create_topic("t", 5000, {})
        turns = sum(1 for _ in broker.logs.look_after_in_turns())
        await broker.stop()
        return turns

    assert 5000 * EMPTY_SHARE // SEEN_IN_A_TURN <= asyncio.run(run()) + 1


def test_thousands_of_partitions_do_not_hold_up_the_loop_when_they_are_looked_after(tmp_path: Path) -> None:
    async def run() -> None:
        broker = Broker(data_dir=str(tmp_path), durability="os", clock=ManualClock(NOW_MS))
        await broker.start()
        topic = await broker.logs.create_topic("t", PARTITIONS, {"retention.ms": "1000"})
        for partition in topic.partitions:
            partition.append(batch(b"old"), now_ms=NOW_MS)

        broker.advance(seconds=600)

        def gone() -> int:
            return sum(partition.log_start_offset == 1 for partition in topic.partitions)

        # As many as fit into one turn at once, and the rest in the loop's next turns.
        assert SEEN_IN_A_TURN == gone()
        await asyncio.sleep(0)
        assert 2 * SEEN_IN_A_TURN == gone()
        await asyncio.sleep(0)
        assert PARTITIONS == gone()
        await broker.stop()

    asyncio.run(run())
