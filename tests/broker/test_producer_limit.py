"""Clients that make up producer ids take a bounded part of the memory, and those that write go on."""

import asyncio
from pathlib import Path

from logmark.broker.producer_limit import PRODUCER_BYTES, ProducerLimit
from logmark.broker.server import Broker
from logmark.clock import ManualClock
from tests.log.directory_driver import NOW_MS, batch

COUNT_MAX = 20


def test_of_too_many_producers_those_are_forgotten_that_were_silent_for_longest(tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock(NOW_MS)
        broker = Broker(data_dir=str(tmp_path), durability="os", clock=clock)
        await broker.start()
        topic = await broker.logs.create_topic("clicks", 2, {})
        limit = ProducerLimit(broker.logs, broker.budget, clock, count_max=COUNT_MAX)
        used = broker.budget.used

        def write(producer_id: int, sequence: int = 0) -> None:
            made = batch(b"v", timestamp_ms=clock.now_ms(), producer=(producer_id, 0, sequence))
            topic.partitions[producer_id % 2].append(made, now_ms=clock.now_ms())
            clock.advance(seconds=0.001)

        for producer_id in range(COUNT_MAX):
            write(producer_id)
        limit.check()
        assert used + COUNT_MAX * PRODUCER_BYTES == broker.budget.used
        assert COUNT_MAX == sum(len(partition.producers) for partition in topic.partitions)
        for producer_id in range(COUNT_MAX, 3 * COUNT_MAX):
            write(producer_id)
        write(0, sequence=1)

        await limit.forget_silent()

        known = sorted(key for partition in topic.partitions for key, _ in partition.producers)
        newest = [0, *range(3 * COUNT_MAX + 1 - len(known), 3 * COUNT_MAX)]
        assert newest == known
        assert COUNT_MAX // 2 < len(known) <= COUNT_MAX
        limit.check()
        assert used + len(known) * PRODUCER_BYTES == broker.budget.used
        await broker.stop()

    asyncio.run(check())
