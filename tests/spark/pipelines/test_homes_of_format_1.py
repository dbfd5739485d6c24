"""Homes of pipelines as Logmark wrote them before a replay had one persisted step: they open, resume and replay.

`homes_of_format_1.tar.gz` was written by that code. Each of its folders is a pipeline whose replay was killed: a home,
a table, and in `broker.json` what the topics and the groups held. The name says what was replayed, where its rows go,
and the last step that was done.
"""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.spark.pipelines.replay.fence import restore_group
from logmark.spark.pipelines.replay.runner import abandon_replay
from logmark.spark.pipelines.replay.state import check_live_may_run, load_state
from logmark.spark.pipelines.status import read_status
from logmark.wire import batches
from tests.harness.brokers import BrokerUnderTest
from tests.spark.pipelines.fake_queries import Superseded
from tests.spark.pipelines.number_pipelines import NumberPipelines
from tests.spark.pipelines.test_replay_steps import ReplayScenario

ARCHIVE = Path(__file__).with_name("homes_of_format_1.tar.gz")
NEW, OLD = ("new", [2, 3]), ("old", [3])
EARLY_SWAPS = [f"swap-{sink}-{step}" for sink in ("table", "topic") for step in range(1, 6)]
LATE_SWAPS = [f"swap-{sink}-{step}" for sink in ("table", "topic") for step in ("handing-over", 6, 7)]
SWAPPED = ["swap-table-8", "swap-topic-8"]
ROLLBACKS = [
    *(f"back-table-{step}" for step in (1, 4, 6, 8)),
    *(f"back-topic-{step}" for step in (1, 3, 5, 6)),
]  # fmt: skip
COPIES = [f"copy-topic-{step}" for step in (1, 2, 3, 6)]

Restore = Callable[[str], tuple[ReplayScenario, dict[str, Any]]]


@pytest.fixture
def restore(our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Restore:
    """Puts the pipeline of one folder of the archive on a broker that holds what the folder says."""

    def restored(name: str) -> tuple[ReplayScenario, dict[str, Any]]:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(tmp_path, [one for one in archive if one.name.startswith(f"./{name}/")], filter="data")
        held = json.loads((tmp_path / name / "broker.json").read_text())
        with Client(our_broker.bootstrap_servers, timeout_s=20.0) as client:
            _fill(client, held)
        monkeypatch.setattr(our_broker, "_suffix", name)
        kind = "counts" if "-table-" in name else "forwards" if name in COPIES else "fraud"
        scenario = ReplayScenario(NumberPipelines(our_broker, tmp_path / name, sent=held["sent"]), kind, monkeypatch)
        scenario.numbers.label, scenario.numbers.divisors = OLD if name in ROLLBACKS else NEW
        return scenario, held

    return restored


def _fill(client: Client, held: dict[str, Any]) -> None:
    gone = [topic for topic in held["topics"] if topic in client.metadata().topics]
    client.delete_topics(gone)
    client.delete_groups(list(held["groups"]))
    for topic, partitions in held["topics"].items():
        client.create_topic(topic, partitions=len(partitions), config={"retention.ms": "-1"})
        for number, records in enumerate(partitions):
            for key, value, headers, timestamp_ms in records:
                written = batches.build(
                    [(key and key.encode(), value.encode())],
                    timestamp_ms=timestamp_ms,
                    headers=[[(header, text.encode()) for header, text in headers]],
                )
                client.produce(TopicPartition(topic, number), written)
    for group, commits in held["groups"].items():
        client.commit(
            group,
            {TopicPartition(topic, number): Committed(offset=to, metadata=text) for topic, number, to, text in commits},
        )


def replay_once_more(scenario: ReplayScenario) -> None:
    """Builds another version of the pipeline and swaps it in."""
    before = scenario.job.home.record().live
    scenario.start()
    scenario.run_replay()
    scenario.run_live()
    assert before < scenario.job.home.record().live
    assert load_state(scenario.job.home) is None


@pytest.mark.parametrize("name", [*EARLY_SWAPS, *LATE_SWAPS, *SWAPPED])
def test_a_swap_of_format_1_is_resumed_and_the_pipeline_replayed_again(name: str, restore: Restore) -> None:
    scenario, held = restore(name)
    state = load_state(scenario.job.home)
    assert state is not None
    assert (held["version"], "swap") == (state.version, state.kind)
    assert (name not in SWAPPED) == (1 == scenario.job.home.record().live)
    last = read_status(scenario.job.home.status_file)
    assert last is not None
    assert "Version 2 is being put in place." == last.error
    scenario.numbers.send(4)

    scenario.run_replay()
    scenario.run_live()

    assert (2, None) == (scenario.job.home.record().live, scenario.job.home.record().building)
    scenario.check(is_new=True)
    replay_once_more(scenario)
    scenario.check(is_new=True)


@pytest.mark.parametrize("name", EARLY_SWAPS)
def test_a_swap_of_format_1_that_is_not_in_place_can_be_abandoned_and_the_live_version_runs_on(
    name: str, restore: Restore
) -> None:
    scenario, _ = restore(name)
    scenario.numbers.label, scenario.numbers.divisors = OLD
    check_live_may_run(scenario.job.home)
    restore_group(scenario.client, scenario.job)
    scenario.numbers.send(4)
    scenario.run_live()
    scenario.check(is_new=False)

    assert 2 == abandon_replay(scenario.job, scenario.client)

    assert (1, None) == (scenario.job.home.record().live, scenario.job.home.record().building)
    assert not scenario.job.home.checkpoint(2).exists()
    scenario.numbers.label, scenario.numbers.divisors = NEW
    replay_once_more(scenario)
    scenario.check(is_new=True)


@pytest.mark.parametrize("name", LATE_SWAPS)
def test_a_swap_of_format_1_that_is_being_published_keeps_the_old_version_from_running(
    name: str, restore: Restore
) -> None:
    scenario, _ = restore(name)

    assert not restore_group(scenario.client, scenario.job)

    with pytest.raises(Exception, match="must not run any more"):
        check_live_may_run(scenario.job.home)
    with pytest.raises(Exception, match="cannot be abandoned"):
        abandon_replay(scenario.job, scenario.client)
    with pytest.raises(Superseded):
        scenario.run_live()


@pytest.mark.parametrize("name", ROLLBACKS)
def test_a_rollback_of_format_1_is_resumed_and_the_pipeline_replayed_again(name: str, restore: Restore) -> None:
    scenario, held = restore(name)
    state = load_state(scenario.job.home)
    assert state is not None
    assert (held["version"], "rollback") == (state.version, state.kind)
    scenario.numbers.send(4)

    scenario.run_replay()
    scenario.run_live()

    assert (1, None) == (scenario.job.home.record().live, scenario.job.home.record().building)
    if not scenario.to_topic:
        scenario.check(is_new=False)
    scenario.numbers.label, scenario.numbers.divisors = NEW
    replay_once_more(scenario)
    scenario.check(is_new=True)


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_format_1_is_resumed_and_sends_nothing_twice(name: str, restore: Restore) -> None:
    scenario, held = restore(name)
    state = load_state(scenario.job.home)
    assert state is not None
    assert (held["version"], "backfill") == (state.version, state.kind)

    scenario.run_replay()
    scenario.run_live()

    assert (1, None) == (scenario.job.home.record().live, scenario.job.home.record().building)
    assert load_state(scenario.job.home) is None
    alerted = scenario.numbers.alerted()
    wanted = [number for number in range(20) if number % 2 == 0 or number % 3 == 0]
    assert 2 * len(wanted) == len(alerted)
    assert {1} == set(alerted.values()), "an alert was sent twice"
