"""Rounds of kills: the example pipelines run as a process, clicks arrive, and at a random moment something dies."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from logmark.client.client import Client
from logmark.client.errors import ClientError
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.spark.example_pipelines import NAMES, ExamplePipelines
from tests.spark.kills.processes import Program

DRIVER, WORKER, BROKER, CHECKPOINT = "driver", "worker", "broker", "checkpoint"
CLICKS_PER_ROUND = 600
DEADLINE_S = 900


class Rounds:
    """The pipelines, the broker that they read, and what was done to both."""

    def __init__(self, broker: BrokerUnderTest, folder: Path, *, seed: int, count: int) -> None:
        self.examples = ExamplePipelines(broker.bootstrap_servers, folder, seed=seed, clicks=count * CLICKS_PER_ROUND)
        self.done: Counter[str] = Counter()
        self._broker = broker
        self._seed = seed
        self._chance = random.Random(seed)
        self._driver: Program | None = None

    def play(self, action: str) -> None:
        """Clicks arrive, the pipelines get somewhere, and then it happens."""
        self.examples.publish(CLICKS_PER_ROUND)
        if self._driver is None:
            self._driver = self._started()
        # A worker that has nothing to do is missed by nobody.
        self._wait(self._is_in_a_batch if action == WORKER else self._gets_on(), f"it is time to kill the {action}")
        # Not only right after what can be seen from here: batches are planned, written and committed meanwhile.
        time.sleep(self._chance.random() * 0.3)
        getattr(self, f"_kill_{action}")()
        self.done[action] += 1

    def finish(self) -> None:
        """Another run has read all that is left, and everything is there once."""
        self._kill_driver()
        with self._started("--available-now") as program:
            code = program.wait(DEADLINE_S)
            assert 0 == code, f"{self._what()}: exit code {code}\n{program.output()}\n{self.examples.output()}"
        self.examples.check(self._what())

    def close(self) -> None:
        """Nothing of the rounds runs any more."""
        self._kill_driver()

    def _started(self, *more: str) -> Program:
        examples = self.examples
        return Program(examples.command(*more), examples.folder / "driver.log", examples.environment)

    def _kill_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None

    def _kill_worker(self) -> None:
        self._wait(lambda: self._driver is not None and self._driver.kill_workers(), "a Python worker of Spark runs")

    def _kill_broker(self) -> None:
        self._broker.control.kill()
        time.sleep(self._chance.random() * 2)
        self._broker.control.start()

    def _kill_checkpoint(self) -> None:
        self._kill_driver()
        name = self._chance.choice(NAMES)
        for checkpoint in (self.examples.home / name).glob("v[0-9]*"):
            shutil.rmtree(checkpoint)
        self.done[f"checkpoint of {name}"] += 1

    def _wait(self, is_true: Callable[[], object], what: str) -> None:
        driver = self._driver
        assert driver is not None

        def holds() -> object:
            assert driver.is_running(), "the pipelines ended by themselves"
            return is_true()

        try:
            wait_until(holds, what, deadline_s=DEADLINE_S)
        except AssertionError as error:
            raise AssertionError(f"{self._what()}: {error}\n{driver.output()}\n{self.examples.output()}") from None

    def _gets_on(self) -> Callable[[], bool]:
        """Whether the groups have got on by a random number of records from now on, or to the end."""
        enough = self._progress() + self._chance.randint(1, len(NAMES) * CLICKS_PER_ROUND)
        enough = min(enough, len(NAMES) * self.examples.truth.count)
        return lambda: self._progress() >= enough

    def _is_in_a_batch(self) -> bool:
        """Whether a batch is planned and not finished."""
        return any(
            {file.name for file in (version / "offsets").glob("[0-9]*")}
            > {file.name for file in (version / "commits").glob("[0-9]*")}
            for version in self.examples.home.glob("*/v*")
        )

    def _progress(self) -> int:
        """How far the groups are, all together."""
        try:
            with Client(self._broker.bootstrap_servers) as client:
                found = [client.committed(name) for name in NAMES]
        except ClientError:
            return 0
        return sum(commit.offset for each in found for commit in each.values())

    def _what(self) -> str:
        return f"seed {self._seed}, after {dict(self.done)}"


@contextmanager
def rounds(broker: BrokerUnderTest, folder: Path, *, seed: int, count: int) -> Iterator[Rounds]:
    """Rounds whose processes are gone in the end, whatever happens."""
    played = Rounds(broker, folder, seed=seed, count=count)
    try:
        yield played
    finally:
        played.close()
