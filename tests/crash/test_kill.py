"""kill -9 of the broker under load, again and again."""

import random
from collections.abc import Callable

import pytest

from logmark.testing import Broker
from tests.crash.load import Load, committed_offsets, value_of, whole_log
from tests.harness.node import wait_until

TOPIC, PARTITIONS = "clicks", 3


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.soak)])
def test_no_acknowledged_record_or_commit_is_lost_by_kill_9(
    rounds: int, record_property: Callable[[str, object], None]
) -> None:
    choose = random.Random(rounds)
    with Broker(subprocess=True, durability="sync") as broker:
        broker.create_topic(TOPIC, PARTITIONS, {"segment.bytes": "1048576"})
        with Load(broker.bootstrap_servers, TOPIC, PARTITIONS) as load:
            history = load.history
            for number in range(rounds):
                enough = history.acknowledged_count + choose.randint(500, 5000)
                wait_until(lambda enough=enough: history.acknowledged_count >= enough, f"round {number} has its load")
                broker.kill()
                promised = history.committed[:]
                broker.start()
                kept = committed_offsets(broker.bootstrap_servers, TOPIC, PARTITIONS)
                assert all(before <= after for before, after in zip(promised, kept, strict=True)), (promised, kept)
            wait_until(lambda: all(history.committed), "every partition has a commit")

        # The last word is a broker that came back from a kill, not one that was stopped with care.
        broker.kill()
        broker.start()
        kept = committed_offsets(broker.bootstrap_servers, TOPIC, PARTITIONS)
        logs = [whole_log(broker.bootstrap_servers, TOPIC, partition) for partition in range(PARTITIONS)]

    assert [] == history.failures
    for promised, offset, attempted in zip(history.committed, kept, history.attempted, strict=True):
        assert promised <= offset <= attempted
    for partition, records in enumerate(logs):
        # Dense, in order, each once: the n-th record sent is the n-th record there, and acknowledged as such.
        assert [(number, value_of(number)) for number in range(history.sent[partition])] == records
        assert dict(records) == history.acknowledged[partition]
    record_property("kills", rounds + 1)
    record_property("records acknowledged", history.acknowledged_count)
    record_property("commits answered", history.commit_count)
    record_property("lost", 0)
    record_property("doubled", 0)
