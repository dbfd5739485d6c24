"""Pipelines without state, replayed: a table in place, a topic by a backfill; with fake queries, on both brokers."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.journal.journal import list_changes
from logmark.offsets.reset.plan import ResetPlan
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.replay import in_place, runner
from logmark.spark.pipelines.replay.in_place import plan_in_place, replay_in_place
from logmark.spark.pipelines.replay.plan import choose_kind, plan_version
from logmark.spark.pipelines.replay.runner import ReplayCallbacks, ReplayOptions, ReplayRunner, save_planned_replay
from logmark.spark.pipelines.replay.state import ReplayKind, load_state
from logmark.spark.pipelines.replay.targets import ReplayTarget, parse_target
from tests.harness.brokers import BrokerUnderTest
from tests.spark.pipelines.fake_queries import FakeQueries
from tests.spark.pipelines.number_pipelines import NumberPipelines


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers, timeout_s=20.0) as client:
        yield client


class ReplayScenario:
    """A table with a row for each of 2 x 20 records, made by the old code; 2 x 4 records are not read yet."""

    def __init__(self, broker: BrokerUnderTest, folder: Path, client: Client) -> None:
        self.numbers = NumberPipelines(broker, folder)
        self.queries = FakeQueries(self.numbers)
        self.client = client
        self.job: Job = self.numbers.job("rows")
        self.numbers.send(20)
        self.queries.run_live(self.job, client)
        self.numbers.send(4)
        self.numbers.label = "new"

    def target(self, text: str) -> ReplayTarget:
        offsets = text.replace("clicks", self.numbers.topic)
        return parse_target(offsets, group=self.job.pipeline.group, now_ms=0)

    def replay(self, from_: str, to: str | None = None, **more: bool) -> ResetPlan:
        """Reads again; the plan by which it was done."""
        plan = plan_in_place(self.job, self.client, self.target(from_), None if to is None else self.target(to))
        self.rows = plan.rows
        replay_in_place(self.job, lambda: None, self.client, plan, agree=lambda plan: None, **more)  # type: ignore[arg-type, return-value]
        return plan.reset

    def labels(self) -> list[Counter[str]]:
        """How many rows have which label, by partition."""
        found = self.numbers.labels()
        return [Counter(label for (at, _), label in found.items() if at == partition) for partition in (0, 1)]

    def committed(self) -> list[int]:
        found = self.client.committed(self.job.pipeline.group)
        return [found[TopicPartition(self.numbers.topic, number)].offset for number in (0, 1)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """The pipeline runs in a thread, as the runner runs it."""
        is_over = threading.Event()

        def run() -> None:
            with self.job.home.live(), Client(self.numbers.broker.bootstrap_servers) as client:
                while not is_over.wait(0.05):
                    self.queries.run_live(self.job, client)

        thread = threading.Thread(target=run)
        thread.start()
        self.numbers.wait(self.job.home.is_live, "the pipeline runs")
        yield
        is_over.set()
        thread.join()


@pytest.fixture
def scenario(
    broker: BrokerUnderTest, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> ReplayScenario:
    scenario = ReplayScenario(broker, tmp_path, client)
    monkeypatch.setattr(in_place, "run_version", scenario.queries.run)
    monkeypatch.setattr(runner, "run_version", scenario.queries.run)
    return scenario


FROM_5_AND_8 = '{"clicks": {"0": 5, "1": 8}}'


def test_rows_of_what_is_read_again_are_replaced_and_no_others(scenario: ReplayScenario) -> None:
    plan = scenario.replay(FROM_5_AND_8)

    assert (15 + 12, 15 + 12) == (plan.read_again, scenario.rows)
    assert [Counter(old=5, new=15 + 4), Counter(old=8, new=12 + 4)] == scenario.labels()
    assert [24, 24] == scenario.committed()


def test_a_replay_with_an_end_continues_where_it_was(scenario: ReplayScenario) -> None:
    scenario.replay(FROM_5_AND_8, '{"clicks": {"0": 10, "1": 20}}')

    assert 5 + 12 == scenario.rows
    assert [Counter(old=15, new=5), Counter(old=8, new=12)] == scenario.labels()
    assert [20, 20] == scenario.committed()
    scenario.queries.run_live(scenario.job, scenario.client)
    assert [Counter(old=15, new=5 + 4), Counter(old=8, new=12 + 4)] == scenario.labels()


def test_a_pipeline_that_runs_follows_by_itself(scenario: ReplayScenario) -> None:
    with scenario.running():
        scenario.numbers.wait(lambda: scenario.committed() == [24, 24], "the pipeline has read all there is")
        scenario.replay("earliest")
        assert [Counter(new=24), Counter(new=24)] == scenario.labels()


def test_a_pipeline_that_runs_continues_where_it_was_after_the_end(scenario: ReplayScenario) -> None:
    with scenario.running():
        scenario.numbers.wait(lambda: scenario.committed() == [24, 24], "the pipeline has read all there is")
        scenario.replay("earliest", '{"clicks": {"0": 3, "1": 3}}')
        scenario.numbers.send(2)
        scenario.numbers.wait(lambda: scenario.committed() == [26, 26], "the pipeline goes on")
    assert 2 * 26 == len(scenario.numbers.labels())


def test_the_move_is_in_the_journal(scenario: ReplayScenario) -> None:
    scenario.replay(FROM_5_AND_8)

    [change] = list_changes(scenario.client, scenario.job.pipeline.group)
    assert ("replay", "done", scenario.job.pipeline.name) == (change.action, change.state, change.details["pipeline"])


def test_nobody_can_leave_before_an_end_that_has_to_be_waited_for(scenario: ReplayScenario) -> None:
    with pytest.raises(UserError, match="cannot be detached"):
        scenario.replay("earliest", '{"clicks": {"0": 3, "1": 3}}', is_detached=True)
    assert [20, 20] == scenario.committed()


def test_what_was_not_sent_before_is_published_while_the_pipeline_runs_on(
    broker: BrokerUnderTest, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = NumberPipelines(broker, tmp_path)
    queries, job = FakeQueries(numbers), numbers.job("forwards")
    monkeypatch.setattr(runner, "run_version", queries.run)
    numbers.send(20)
    queries.run_live(job, client)
    numbers.send(10)
    numbers.divisors = [2, 3]
    start, stop = (
        parse_target(text.replace("clicks", numbers.topic), group=job.pipeline.group, now_ms=0)
        for text in ('{"clicks": {"0": 4, "1": 0}}', '{"clicks": {"0": 99, "1": 10}}'.replace("99", "25"))
    )
    kind = choose_kind(job, is_stateful=False, rebuild=False, has_stop=True)
    plan = plan_version(job, client, start, stop, kind=kind, is_stateful=False)
    assert {0: 20, 1: 10} == {partition.partition: offset for partition, offset in plan.stops.items()}
    with job.home.replaying():
        state = save_planned_replay(job, client, plan, ReplayOptions())
        queries.run_live(job, client)
        callbacks = ReplayCallbacks(say=lambda text: None)
        result = ReplayRunner(job, lambda: None, client, state, callbacks=callbacks).run()  # type: ignore[arg-type, return-value]

    def due(partition: int, offsets: range, *divisors: int) -> set[str]:
        # Partition p has p, p + 2, ... and then the same once more, for each call of `send`.
        values = [*range(partition, 20, 2)] * 2 + [*range(20 + partition, 30, 2)] * 2
        return {f"{partition}/{at}" for at in offsets if any(values[at] % one == 0 for one in divisors)}

    sent = due(0, range(20), 3) | due(1, range(20), 3) | due(0, range(20, 30), 2, 3) | due(1, range(20, 30), 2, 3)
    again = due(0, range(4, 20), 2, 3) | due(1, range(10), 2, 3)
    assert Counter(sent | again) == numbers.alerted()
    assert result.publication is not None
    assert (len(again - sent), len(again & sent)) == (result.publication.sent, result.publication.known)
    record = job.home.record()
    assert (1, None, None) == (record.live, record.building, load_state(job.home))
    # Apache Kafka tells of a deleted topic for a moment longer.
    numbers.wait(lambda: f"{numbers.alerts}.v2" not in client.metadata().topics, "the topic beside is gone")
    assert ReplayKind.BACKFILL is result.kind


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("earliest", "ToEarliest()"),
        ("latest", "ToLatest()"),
        ("3d", "ToTime(timestamp_ms=740800000)"),
        ("-2h", "ToTime(timestamp_ms=992800000)"),
        ("2h ago", "ToTime(timestamp_ms=992800000)"),
        ("2024-03-05T00:00Z", "ToTime(timestamp_ms=1709596800000)"),
    ],
)
def test_a_target_is_parsed_as_people_write_it(text: str, shown: str) -> None:
    assert shown == str(parse_target(text, group="g", now_ms=1_000_000_000))


@pytest.mark.parametrize("text", ["yesterday", '{"clicks": 3}', '{"clicks": {"0": -1}}', "{", "{}"])
def test_a_target_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(UserError, match="Nothing was changed"):
        parse_target(text, group="g", now_ms=0)
