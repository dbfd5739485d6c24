"""The limit on idempotent producers that the broker remembers.

A partition knows the last batches of every producer that wrote to it within a day, so that none is written twice. A
client can make up a new producer id for each batch. So there is a limit for all partitions together: beyond it the
producers that have been silent for longest are forgotten, as after `producer.id.expiration.ms`.
"""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial

from logmark.broker.event_loop_turns import Pace
from logmark.broker.logs import Logs
from logmark.broker.memory_budget import MemoryBudget
from logmark.clock import Clock
from logmark.log.partition import Partition

# What one takes in memory, about.
PRODUCER_BYTES = 512
# Looking at so many takes as long as a step.
PRODUCERS_IN_A_STEP = 100
# A few more are forgotten than must be, or the next look would have to forget again.
KEPT_SHARE = 0.9

log = logging.getLogger(__name__)


class ProducerLimit:
    """Counts the producers of all partitions in the memory budget, and forgets silent ones if there are too many."""

    def __init__(self, logs: Logs, budget: MemoryBudget, clock: Clock, *, count_max: int) -> None:
        self.count_max = count_max
        self._logs = logs
        self._budget = budget
        self._clock = clock
        self._held_bytes = 0
        self._forgetting: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Count them, and begin to forget some if need be; on the event loop."""
        count = sum(len(partition.producers) for partition in self._partitions())
        self._budget.hold(count * PRODUCER_BYTES - self._held_bytes)
        self._held_bytes = count * PRODUCER_BYTES
        if count > self.count_max and self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().create_task(self.forget_silent())
            self._forgetting.add_done_callback(self._end)

    def _end(self, _: object) -> None:
        self._forgetting = None

    def _partitions(self) -> Iterator[Partition]:
        return (partition for topic in self._logs.topics() for partition in topic.partitions)

    async def forget_silent(self) -> None:
        """Forget those that have been silent for longest."""
        now_ms, pace, seen_ms = self._clock.now_ms(), Pace(), list[int]()
        for partition in list(self._partitions()):
            seen_ms += [producer.seen_ms for _, producer in partition.producers]
            await pace.step(1 + len(partition.producers) // PRODUCERS_IN_A_STEP)
        kept = int(self.count_max * KEPT_SHARE)
        newest_first = await asyncio.get_running_loop().run_in_executor(None, partial(sorted, seen_ms, reverse=True))
        if len(newest_first) <= kept:
            return
        silent_ms, forgotten = now_ms - newest_first[kept], 0
        for partition in list(self._partitions()):
            forgotten += partition.expire_producers(now_ms=now_ms, expiration_ms=silent_ms)
            await pace.step(1 + len(partition.producers) // PRODUCERS_IN_A_STEP)
        log.warning(
            "Clients have written with too many producer ids: those that were silent for longest are forgotten, and a "
            "batch that one of them sends again would be written twice.",
            extra={"forgotten": forgotten, "silent_ms": silent_ms, "producers_max": self.count_max},
        )
