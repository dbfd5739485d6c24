"""A million random steps through the machine of a partition, and a million through that of a group's coordinator."""

import logging
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis.stateful import rule

from tests.crash.broker_logs import SMALL_WAL
from tests.harness.searches import seed
from tests.harness.walks import Draws, walk
from tests.log.directory_driver import LogDriver, MemoryLogDriver
from tests.log.test_partition_machine import PAGE_BYTES, PartitionMachine
from tests.machines.test_group_coordinator import PARTITIONS, GroupsUnderFaults

STEPS = 1_000_000
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Syncs that fail and starts after a crash are logged, hundreds of thousands of times."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


class PartitionInMemory(PartitionMachine):
    """The same machine on a disk in memory, whose jobs of the disk stop between any two operations."""

    def new_driver(self) -> LogDriver:
        self.memory_driver = MemoryLogDriver(page_bytes=PAGE_BYTES, wal_limits=SMALL_WAL, entry_bytes_max=8 * 1024)
        return self.memory_driver

    def teardown(self) -> None:
        self.driver.close()

    @rule()
    def begin_a_round_that_takes_long(self) -> None:
        self.driver.turn()
        self.memory_driver.step(len(self.values) % 4)


def counts_of(choose: random.Random) -> list[int]:
    return [choose.randint(1, 5) for _ in range(choose.randint(0, 6))]


PARTITION_DRAWS: Draws = {
    "counts": counts_of,
    "acknowledged": counts_of,
    "pending": counts_of,
    "codec": lambda choose: choose.randint(0, 4),
    "count": lambda choose: choose.randint(1, 3),
    "share": lambda choose: choose.randrange(2**20),
    "bytes_max": lambda choose: choose.randint(0, 3000),
    "seconds": lambda choose: choose.randint(0, 4),
    "seed": lambda choose: choose.randrange(2**32),
}
GROUP_DRAWS: Draws = {
    "client": lambda choose: choose.randint(0, 3),
    "wants_an_id": lambda choose: choose.random() < 0.5,
    "times": lambda choose: choose.randint(1, 4),
    "partition": lambda choose: choose.choice(PARTITIONS),
    "offset": lambda choose: choose.randint(0, 100),
    "ms": lambda choose: choose.choice([0, 100, 5_000, 10_000, 20_000, 60_000]),
    "batches": lambda choose: choose.randint(1, 3),
    "is_held": lambda choose: choose.random() < 0.5,
    "surviving": lambda choose: choose.randint(0, 3),
}


@pytest.mark.parametrize("steps", [500, pytest.param(STEPS, marks=pytest.mark.soak)])
def test_a_partition_is_what_a_list_would_be(steps: int, record_property: Callable[[str, object], None]) -> None:
    lives = walk(PartitionInMemory, PARTITION_DRAWS, random.Random(seed(7)), steps=steps, steps_per_life=50)
    record_property("steps", steps)
    record_property("partitions", lives)
    record_property("violations", 0)


@pytest.mark.parametrize("steps", [500, pytest.param(STEPS, marks=pytest.mark.soak)])
def test_no_answer_of_a_coordinator_contradicts_a_reload(
    steps: int, record_property: Callable[[str, object], None]
) -> None:
    lives = walk(GroupsUnderFaults, GROUP_DRAWS, random.Random(seed(7)), steps=steps, steps_per_life=80)
    record_property("steps", steps)
    record_property("groups", lives)
    record_property("violations", 0)
