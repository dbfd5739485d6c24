"""Whatever is killed, and whichever checkpoint is lost: charges are exact, and no alert or row is lost or doubled."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.brokers import own_broker
from tests.harness.searches import seed
from tests.spark.kills.rounds import BROKER, CHECKPOINT, CLICKS_PER_ROUND, DRIVER, WORKER, rounds

pytestmark = pytest.mark.spark

SEED = 20261116
# The topics of the examples have names of their own, so each test has a broker of its own.
KINDS = {
    "logmark": ((DRIVER, WORKER, BROKER, CHECKPOINT), (4, 3, 2, 1)),
    "kafka": ((DRIVER, WORKER, CHECKPOINT), (4, 4, 1)),
}


@pytest.mark.timeout(900)
def test_kills_of_a_worker_of_the_broker_and_of_the_driver_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    with own_broker("logmark", tmp_path) as broker, rounds(broker, tmp_path, seed=SEED, count=3) as played:
        for action in (WORKER, BROKER, DRIVER):
            played.play(action)
        played.finish()


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize(("kind", "count"), [("logmark", 100), pytest.param("kafka", 30, marks=pytest.mark.kafka)])
def test_kills_of_everything_at_any_moment_lose_nothing_and_double_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None], kind: str, count: int
) -> None:
    actions, weights = KINDS[kind]
    with own_broker(kind, tmp_path) as broker, rounds(broker, tmp_path, seed=seed(SEED), count=count) as played:
        for action in random.Random(seed(SEED)).choices(actions, weights, k=count):
            played.play(action)
        played.finish()
        for what, times in sorted(played.done.items()):
            record_property(f"{'lost' if ' ' in what else 'kills'}: {what}", times)
        record_property("clicks", count * CLICKS_PER_ROUND)
        record_property("alerts", len(played.examples.truth.alerts()))
