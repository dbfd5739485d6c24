"""kill -9 of the broker under load, again and again."""

import random
from collections.abc import Callable

import pytest

from logmark.testing import Broker
from tests.crash.load import Load, committed_offsets, value_of, whole_logs
from tests.harness.node import wait_until
from tests.harness.searches import seed

TOPIC = "clicks"
LONG = [(80, 1), (70, 32), (50, 256)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("rounds", "partitions"), [(2, 3), *(pytest.param(*each, marks=pytest.mark.soak) for each in LONG)]
)
def test_no_acknowledged_record_or_commit_is_lost_by_kill_9(
    rounds: int, partitions: int, record_property: Callable[[str, object], None]
) -> None:
    choose = random.Random(seed(rounds))
    with Broker(subprocess=True, durability="sync") as broker:
        broker.create_topic(TOPIC, partitions, {"segment.bytes": "1048576"})
        with Load(broker.bootstrap_servers, TOPIC, partitions) as load:
            history = load.history
            for number in range(rounds):
                enough = history.acknowledged_count + choose.randint(500, 3000)
                wait_until(lambda enough=enough: history.acknowledged_count >= enough, f"round {number} has its load")
                broker.kill()
                promised = history.committed[:]
                broker.start()
                kept = committed_offsets(broker.bootstrap_servers, TOPIC, partitions)
                assert all(before <= after for before, after in zip(promised, kept, strict=True)), (promised, kept)
            wait_until(lambda: all(history.committed), "every partition has a commit")

        # The last word is a broker that came back from a kill, not one that was stopped with care.
        broker.kill()
        broker.start()
        kept = committed_offsets(broker.bootstrap_servers, TOPIC, partitions)
        logs = whole_logs(broker.bootstrap_servers, TOPIC, partitions)

    assert [] == history.failures
    for promised, offset, attempted in zip(history.committed, kept, history.attempted, strict=True):
        assert promised <= offset <= attempted
    for partition, records in enumerate(logs):
        # Dense, in order, each once: the n-th record sent is the n-th record there, and acknowledged as such.
        assert [(number, value_of(number)) for number in range(history.sent[partition])] == records
        assert dict(records) == history.acknowledged[partition]
    record_property("partitions", partitions)
    record_property("kills", rounds + 1)
    record_property("records acknowledged", history.acknowledged_count)
    record_property("commits answered", history.commit_count)
    record_property("lost", 0)
    record_property("doubled", 0)
