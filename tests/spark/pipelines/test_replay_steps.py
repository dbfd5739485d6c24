"""A replay killed at each of its steps, resumed or dropped: with fake queries, on both brokers."""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.reset.targets import ToEarliest
from logmark.spark.checkpoint import resume_position
from logmark.spark.errors import LiveVersionReplaced
from logmark.spark.pipelines import live_query, versions
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.live_query import start_live_query
from logmark.spark.pipelines.replay import publication, runner
from logmark.spark.pipelines.replay.build import is_nearly_caught_up
from logmark.spark.pipelines.replay.fence import claim_group, restore_group
from logmark.spark.pipelines.replay.plan import check_older_records, choose_kind, plan_version
from logmark.spark.pipelines.replay.runner import (
    ReplayCallbacks,
    ReplayOptions,
    ReplayResult,
    ReplayRunner,
    abandon_replay,
    rebuild_live_version,
    save_planned_replay,
    save_planned_rollback,
)
from logmark.spark.pipelines.replay.state import ReplayKind, ReplayStep, load_state
from logmark.spark.pipelines.replay.targets import parse_target
from logmark.spark.pipelines.versions import drop_version, list_versions, previous_version
from logmark.spark.tables.versions import list_versions as list_table_versions
from tests.harness.brokers import BrokerUnderTest
from tests.spark.pipelines.fake_queries import FakeQueries, QueryDied, Superseded
from tests.spark.pipelines.number_pipelines import NumberPipelines


class Killed(BaseException):
    """The process is gone: nothing after this is done by it."""


class ReplayScenario:
    """A pipeline whose queries are fake, and whose process dies without a word."""

    def __init__(self, numbers: NumberPipelines, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers = numbers
        self.queries = FakeQueries(numbers)
        self.client = numbers.broker.closing(Client(numbers.servers, timeout_s=20.0))
        self.job: Job = numbers.job(kind)
        self.to_topic = kind != "counts"
        monkeypatch.setattr(ReplayRunner, "_restore_group", lambda replay: None)
        monkeypatch.setattr(runner, "run_version", self.queries.run)
        monkeypatch.setattr(runner, "build_version", self.queries.run)

    def run_live(self) -> None:
        """The live version reads all there is."""
        self.queries.run_live(self.job, self.client)

    def start(self, kind: ReplayKind = ReplayKind.SWAP, **options: bool) -> None:
        plan = plan_version(self.job, self.client, ToEarliest(), kind=kind, is_stateful=True)
        save_planned_replay(self.job, self.client, plan, ReplayOptions(**options))  # type: ignore[arg-type]

    @contextmanager
    def running(self) -> Iterator[threading.Thread]:
        """The live version runs in a thread until another query has its group."""
        is_over = threading.Event()

        def run() -> None:
            with self.job.home.live(), Client(self.numbers.broker.bootstrap_servers) as client, suppress(Superseded):
                while not is_over.wait(0.05):
                    self.queries.run_live(self.job, client)

        thread = threading.Thread(target=run)
        thread.start()
        self.numbers.wait(self.job.home.is_live, "the pipeline runs")
        yield thread
        is_over.set()
        thread.join()

    def run_replay(
        self, *, killed_at: ReplayStep | None = None, hooks: Mapping[ReplayStep, Callable[[], None]] | None = None
    ) -> ReplayResult:
        """Does what is left of the replay, or dies once a step is done; a hook is called when its step is."""

        def on_step(step: ReplayStep) -> None:
            (hooks or {}).get(step, lambda: None)()
            if step == killed_at:
                raise Killed

        state = load_state(self.job.home)
        assert state is not None
        callbacks = ReplayCallbacks(say=lambda text: None, on_step=on_step)
        with self.job.home.replaying():
            return ReplayRunner(self.job, lambda: None, self.client, state, callbacks=callbacks).run()  # type: ignore[arg-type, return-value]

    def check(self, *, is_new: bool) -> None:
        """All that was sent is counted or alerted once, by the version that is live."""
        if self.to_topic:
            assert self.numbers.due(*([2, 3] if is_new else [3])) == self.numbers.alerted()
        else:
            assert ({"new"} if is_new else {"old"}, 2 * self.numbers.sent) == self.numbers.counted()


@pytest.fixture
def client(our_broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(our_broker.bootstrap_servers, timeout_s=20.0) as client:
        yield client


def make_scenario(
    broker: BrokerUnderTest, folder: Path, monkeypatch: pytest.MonkeyPatch, *, to_topic: bool
) -> ReplayScenario:
    """A pipeline of either kind that has read its first numbers, and the code that shall read them again."""
    scenario = ReplayScenario(NumberPipelines(broker, folder), "fraud" if to_topic else "counts", monkeypatch)
    scenario.numbers.send(20)
    scenario.run_live()
    scenario.numbers.label, scenario.numbers.divisors = "new", [2, 3]
    return scenario


@pytest.fixture(params=[False, True], ids=["table", "topic"])
def scenario(
    request: pytest.FixtureRequest, our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ReplayScenario:
    return make_scenario(our_broker, tmp_path, monkeypatch, to_topic=request.param)


@pytest.fixture(params=[False, True], ids=["table", "topic"])
def scenario_on_both(
    request: pytest.FixtureRequest, broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ReplayScenario:
    return make_scenario(broker, tmp_path, monkeypatch, to_topic=request.param)


def test_a_replay_that_is_killed_at_any_step_is_resumed(scenario_on_both: ReplayScenario) -> None:
    scenario = scenario_on_both
    for step in ReplayStep:
        before = scenario.job.home.record().live
        scenario.start()
        with pytest.raises(Killed):
            scenario.run_replay(killed_at=step)
        scenario.numbers.send(4)
        state, record = load_state(scenario.job.home), scenario.job.home.record()
        is_in_place = record.live != before
        if state is not None and not state.is_irrevocable and not is_in_place:
            # The runner takes the group back, and the version that was live runs on.
            restore_group(scenario.client, scenario.job)
        if state is not None and state.is_irrevocable and not is_in_place:
            with pytest.raises(Superseded):
                scenario.run_live()
        else:
            scenario.run_live()
        scenario.numbers.send(2)
        if state is not None:
            scenario.run_replay()
        scenario.run_live()

        scenario.check(is_new=True)
        record = scenario.job.home.record()
        assert (before + 1, None) == (record.live, record.building), f"after a kill at step {step}"
        assert load_state(scenario.job.home) is None


def test_a_replay_that_is_abandoned_leaves_no_trace(scenario: ReplayScenario) -> None:
    for step in list(ReplayStep)[:5]:
        scenario.start()
        with pytest.raises(Killed):
            scenario.run_replay(killed_at=step)
        scenario.numbers.label, scenario.numbers.divisors = "old", [3]

        number = abandon_replay(scenario.job, scenario.client)

        scenario.numbers.send(4)
        scenario.run_live()
        scenario.check(is_new=False)
        assert (1, None) == (scenario.job.home.record().live, scenario.job.home.record().building)
        assert not scenario.job.home.checkpoint(number).exists()
        assert f"{scenario.job.pipeline.group}.v{number}" not in [one.group for one in scenario.client.list_groups()]
        assert [1] == [one.number for one in list_versions(scenario.job)]
        scenario.numbers.label, scenario.numbers.divisors = "new", [2, 3]


@pytest.mark.parametrize("step", [ReplayStep.FENCED, ReplayStep.CAUGHT_UP])
def test_the_version_that_runs_is_superseded_and_runs_on_if_the_replay_is_killed(
    scenario: ReplayScenario, step: ReplayStep
) -> None:
    scenario.start()
    with scenario.running() as thread, pytest.raises(Killed):
        scenario.run_replay(killed_at=step)
    assert not thread.is_alive()
    scenario.numbers.label, scenario.numbers.divisors = "old", [3]
    with pytest.raises(Superseded):
        scenario.run_live()

    assert restore_group(scenario.client, scenario.job)

    scenario.numbers.send(4)
    scenario.run_live()
    scenario.check(is_new=False)


def test_a_version_that_runs_is_superseded_by_the_new_one(scenario: ReplayScenario) -> None:
    scenario.start()
    with scenario.running() as thread:
        scenario.run_replay()
        thread.join(60)
        assert not thread.is_alive()
    scenario.numbers.send(4)
    scenario.run_live()

    scenario.check(is_new=True)


def test_what_the_live_version_read_last_is_not_sent_or_counted_again(scenario: ReplayScenario) -> None:
    scenario.start()

    def read_on() -> None:
        scenario.numbers.send(6)
        scenario.numbers.label, scenario.numbers.divisors = "old", [3]
        scenario.run_live()
        scenario.numbers.label, scenario.numbers.divisors = "new", [2, 3]

    scenario.run_replay(hooks={ReplayStep.BUILT: read_on})
    scenario.run_live()

    scenario.check(is_new=True)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_batch_that_was_planned_when_the_driver_died_is_finished_by_the_version_that_comes_back(
    scenario: ReplayScenario, is_given_up: bool
) -> None:
    scenario.numbers.label, scenario.numbers.divisors = "old", [3]
    scenario.numbers.send(4)
    scenario.queries.dies_in_the_batch = True
    with pytest.raises(QueryDied):
        scenario.run_live()
    scenario.queries.dies_in_the_batch = False
    scenario.start()
    if is_given_up:
        with pytest.raises(Killed):
            scenario.run_replay(
                killed_at=ReplayStep.CAUGHT_UP, hooks={ReplayStep.CAUGHT_UP: lambda: claim_by_version_2(scenario)}
            )
        abandon_replay(scenario.job, scenario.client)
    else:
        scenario.run_replay()
        scenario.run_live()
        save_planned_rollback(scenario.job, scenario.client, 1, ReplayOptions())
        scenario.run_replay()

    scenario.numbers.send(2)
    scenario.run_live()

    assert 1 == scenario.job.home.record().live
    scenario.check(is_new=False)


def test_a_planned_batch_of_the_old_version_is_not_sent_again_by_a_start_after_the_publication(
    our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = make_scenario(our_broker, tmp_path, monkeypatch, to_topic=True)
    scenario.numbers.send(4)
    scenario.queries.dies_in_the_batch = True
    with pytest.raises(QueryDied):
        scenario.run_live()
    scenario.queries.dies_in_the_batch = False
    scenario.start()
    with pytest.raises(Killed):
        scenario.run_replay(killed_at=ReplayStep.PUBLISHED)
    monkeypatch.setattr(live_query, "start_query", lambda *given, **named: scenario.run_live())

    with pytest.raises(
        LiveVersionReplaced, match=f"A replay is publishing version 2 of {scenario.job.pipeline.name}"
    ):
        start_live_query(scenario.job, None, available_now=True)  # type: ignore[arg-type]
    scenario.check(is_new=True)
    scenario.run_replay()
    scenario.run_live()

    scenario.check(is_new=True)


def test_rows_without_ids_are_found_before_the_live_version_is_disturbed(
    our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = make_scenario(our_broker, tmp_path, monkeypatch, to_topic=True)
    monkeypatch.setattr(publication, "record_id", lambda record: None)
    scenario.start()
    with scenario.running() as thread:
        with pytest.raises(UserError, match=r"of the records in .* have no id"):
            scenario.run_replay()
        assert thread.is_alive()


def test_rows_without_ids_that_come_at_last_leave_the_way_back_open(
    our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = make_scenario(our_broker, tmp_path, monkeypatch, to_topic=True)
    scenario.start()

    def lose_ids() -> None:
        scenario.numbers.send(6)
        monkeypatch.setattr(publication, "record_id", lambda record: None)

    with pytest.raises(UserError, match=r"^4 of the records in "):  # the others were looked at before
        scenario.run_replay(hooks={ReplayStep.FENCED: lose_ids})
    monkeypatch.undo()

    abandon_replay(scenario.job, scenario.client)
    scenario.numbers.divisors = [3]
    scenario.run_live()
    scenario.check(is_new=False)


def test_a_replay_that_was_killed_while_it_published_reads_nothing_more_before_it_is_done(
    scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.start()
    with monkeypatch.context() as patch:
        patch.setattr(ReplayRunner, "_publish", lambda replay: _die())
        with pytest.raises(Killed):
            scenario.run_replay()
    scenario.numbers.send(4)
    runs = scenario.queries.runs

    scenario.run_replay()

    assert runs == scenario.queries.runs, "what it had found then could not be given up any more"
    scenario.run_live()
    scenario.check(is_new=True)


def claim_by_version_2(scenario: ReplayScenario) -> None:
    position = resume_position(scenario.job.home.checkpoint(2))
    assert position is not None
    claim_group(scenario.client, scenario.job.pipeline.group, position)


@pytest.mark.parametrize("step", [ReplayStep.PUBLISHED, ReplayStep.GROUP_MOVED])
def test_what_is_being_published_is_not_abandoned(scenario: ReplayScenario, step: ReplayStep) -> None:
    scenario.start()
    with pytest.raises(Killed):
        scenario.run_replay(killed_at=step)

    with pytest.raises(UserError, match="cannot be abandoned"):
        abandon_replay(scenario.job, scenario.client)
    assert not restore_group(scenario.client, scenario.job)


def test_the_old_version_is_rolled_back_and_the_new_one_again(scenario_on_both: ReplayScenario) -> None:
    scenario = scenario_on_both
    scenario.start()
    scenario.run_replay()
    scenario.run_live()
    scenario.numbers.send(4)
    scenario.numbers.label, scenario.numbers.divisors = "old", [3]
    assert 1 == previous_version(scenario.job.home)

    for number in (1, 2, 1):
        save_planned_rollback(scenario.job, scenario.client, number, ReplayOptions())
        scenario.run_replay()
        scenario.numbers.send(4)
        scenario.run_live()

        assert number == scenario.job.home.record().live
        if scenario.to_topic:
            # What the new version sent stays sent; the rest follows the code of now.
            alerted = scenario.numbers.alerted()
            assert scenario.numbers.due(3) == alerted & scenario.numbers.due(3)
            assert {1} == set(alerted.values()), "an alert was sent twice"
        else:
            scenario.check(is_new=False)


@pytest.mark.parametrize("step", [ReplayStep.BUILT, ReplayStep.CAUGHT_UP])
def test_what_a_version_made_while_it_was_rolled_back_is_published_though_that_was_abandoned_once(
    scenario: ReplayScenario, step: ReplayStep
) -> None:
    scenario.start()
    scenario.run_replay()
    scenario.run_live()
    scenario.numbers.label, scenario.numbers.divisors = "old", [3, 5]
    scenario.numbers.send(6)
    save_planned_rollback(scenario.job, scenario.client, 1, ReplayOptions())
    with suppress(Killed):
        scenario.run_replay(killed_at=step if scenario.to_topic else ReplayStep.FENCED)
    abandon_replay(scenario.job, scenario.client)

    save_planned_rollback(scenario.job, scenario.client, 1, ReplayOptions())
    scenario.run_replay()
    scenario.run_live()

    assert 1 == scenario.job.home.record().live
    if scenario.to_topic:
        assert {"number-21", "number-24", "number-25"} <= set(scenario.numbers.alerted())
        assert {1} == set(scenario.numbers.alerted().values()), "an alert was sent twice"
        assert f"{scenario.numbers.alerts}.v1" not in scenario.client.metadata().topics
    else:
        scenario.check(is_new=False)


def test_a_version_that_was_not_kept_cannot_be_rolled_back(scenario: ReplayScenario) -> None:
    scenario.start(keep_old=False)
    scenario.run_replay()
    scenario.run_live()

    with pytest.raises(UserError, match="was not kept"):
        save_planned_rollback(scenario.job, scenario.client, 1, ReplayOptions())
    with pytest.raises(UserError, match="is live already"):
        save_planned_rollback(scenario.job, scenario.client, 2, ReplayOptions())
    scenario.check(is_new=True)
    assert [2] == [one.number for one in list_versions(scenario.job)]


def test_an_old_version_that_is_not_kept_is_removed_also_by_a_replay_that_is_resumed(
    scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.start(keep_old=False)
    with pytest.raises(Killed):
        scenario.run_replay(killed_at=ReplayStep.LIVE)
    scenario.run_live()

    with monkeypatch.context() as patch:
        patch.setattr(versions, "remove_folder", lambda path: _die())
        with pytest.raises(Killed):
            scenario.run_replay()
    assert 2 == scenario.job.home.record().live
    scenario.run_replay()

    assert [2] == [one.number for one in list_versions(scenario.job)]
    assert not scenario.job.home.checkpoint(1).exists()
    if not scenario.to_topic:
        assert [2] == [one.number for one in list_table_versions(scenario.numbers.table)]
    with pytest.raises(UserError, match="was not kept"):
        save_planned_rollback(scenario.job, scenario.client, 1, ReplayOptions())
    scenario.check(is_new=True)


def _die() -> None:
    raise Killed


def test_a_kept_version_can_be_dropped_and_the_live_one_cannot(scenario: ReplayScenario) -> None:
    scenario.start()
    scenario.run_replay()
    scenario.run_live()
    assert [(1, False, True), (2, True, False)] == [
        (one.number, one.is_live, one.can_roll_back) for one in list_versions(scenario.job)
    ]

    drop_version(scenario.job, scenario.client, 1)

    assert [2] == [one.number for one in list_versions(scenario.job)]
    if not scenario.to_topic:
        assert [2] == [one.number for one in list_table_versions(scenario.numbers.table)]
    for number, message in ((2, "is live"), (7, "There is no version 7")):
        with pytest.raises(UserError, match=message):
            drop_version(scenario.job, scenario.client, number)


def test_a_side_topic_and_a_group_of_a_version_are_gone_in_the_end(scenario: ReplayScenario) -> None:
    scenario.start()
    scenario.run_replay()

    assert f"{scenario.numbers.alerts}.v2" not in scenario.client.metadata().topics
    assert f"{scenario.job.pipeline.group}.v2" not in [one.group for one in scenario.client.list_groups()]


def test_a_lost_checkpoint_is_built_again_as_a_new_version(scenario: ReplayScenario) -> None:
    shutil.rmtree(scenario.job.home.checkpoint(1))
    scenario.numbers.send(4)
    told: list[str] = []

    with scenario.job.home.live():
        assert 2 == rebuild_live_version(scenario.job, None, is_stateful=True, say=told.append)  # type: ignore[arg-type]

    scenario.numbers.send(2)
    scenario.run_live()
    scenario.check(is_new=True)
    assert [
        f"{scenario.job.pipeline.name}: the checkpoint of version 1 is missing; rebuilding it as version 2 from "
        "the beginning of the logs"
    ] == told


def test_a_version_that_loses_its_own_checkpoint_is_built_from_its_beginning_again(
    scenario_on_both: ReplayScenario,
) -> None:
    scenario = scenario_on_both
    for number, step in ((2, ReplayStep.BUILT), (3, ReplayStep.CAUGHT_UP)):
        scenario.start()
        with pytest.raises(Killed):
            scenario.run_replay(killed_at=step)
        shutil.rmtree(scenario.job.home.checkpoint(number))
        scenario.numbers.send(4)

        assert number == scenario.run_replay().version
        scenario.numbers.send(2)
        scenario.run_live()
        scenario.check(is_new=True)


def test_what_a_version_sent_before_it_lost_its_checkpoint_is_not_published(
    our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = make_scenario(our_broker, tmp_path, monkeypatch, to_topic=True)
    scenario.numbers.divisors = [2, 3, 5]
    scenario.start()
    with pytest.raises(Killed):
        scenario.run_replay(killed_at=ReplayStep.BUILT)
    shutil.rmtree(scenario.job.home.checkpoint(2))
    scenario.numbers.divisors = [2, 3]

    scenario.run_replay()
    scenario.check(is_new=True)


def test_a_version_that_loses_its_checkpoint_when_it_is_published_is_live_and_built_again(
    scenario: ReplayScenario,
) -> None:
    for step in (ReplayStep.PUBLISHED, ReplayStep.GROUP_MOVED):
        scenario.start()
        number = scenario.job.home.record().building
        assert number is not None
        with pytest.raises(Killed):
            scenario.run_replay(killed_at=step)
        shutil.rmtree(scenario.job.home.checkpoint(number))
        scenario.numbers.send(4)

        assert number == scenario.run_replay().version
        if scenario.job.home.has_lost_checkpoint():
            with scenario.job.home.live():
                rebuild_live_version(scenario.job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
        scenario.numbers.send(2)
        scenario.run_live()
        scenario.check(is_new=True)


def test_a_rebuilt_topic_without_state_continues_where_its_group_was_and_sends_nothing_twice(
    our_broker: BrokerUnderTest, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = NumberPipelines(our_broker, tmp_path)
    queries, job = FakeQueries(numbers), numbers.job("forwards")
    monkeypatch.setattr(runner, "run_version", queries.run)
    monkeypatch.setattr(runner, "build_version", queries.run)
    numbers.send(20)
    queries.run_live(job, client)
    # What was sent last was not committed when the checkpoint was lost.
    client.commit(job.pipeline.group, {TopicPartition(numbers.topic, 0): 5, TopicPartition(numbers.topic, 1): 20})
    shutil.rmtree(job.home.checkpoint(1))
    numbers.send(4)

    with job.home.live():
        rebuild_live_version(job, None, is_stateful=False, say=lambda text: None)  # type: ignore[arg-type]
    queries.run_live(job, client)

    # Partition p has p, p + 2, ... and then the same once more, for each call of `send`.
    values = {at: [*range(at, 20, 2)] * 2 + [*range(20 + at, 24, 2)] * 2 for at in (0, 1)}
    due = Counter(f"{at}/{offset}" for at in values for offset, value in enumerate(values[at]) if value % 3 == 0)
    assert due == numbers.alerted()


def test_a_table_is_not_rebuilt_where_its_first_records_are_gone(our_broker: BrokerUnderTest, tmp_path: Path) -> None:
    numbers = NumberPipelines(our_broker, tmp_path)
    job = numbers.job("counts")
    numbers.send(20)
    our_broker.delete_records(numbers.topic, 5)

    with job.home.live(), pytest.raises(UserError, match="no longer hold the first 5 records"):
        rebuild_live_version(job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
    assert None is job.home.record().building


def test_a_table_without_state_is_rebuilt_as_a_version_on_request(
    our_broker: BrokerUnderTest, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = NumberPipelines(our_broker, tmp_path)
    queries, job = FakeQueries(numbers), numbers.job("rows")
    monkeypatch.setattr(runner, "run_version", queries.run)
    monkeypatch.setattr(runner, "build_version", queries.run)
    numbers.send(20)
    queries.run_live(job, client)
    numbers.label = "new"
    kind = choose_kind(job, is_stateful=False, rebuild=True, has_stop=False)
    with job.home.replaying():
        plan = plan_version(job, client, ToEarliest(), kind=kind, is_stateful=False)
        state = save_planned_replay(job, client, plan, ReplayOptions())
        ReplayRunner(job, lambda: None, client, state, callbacks=ReplayCallbacks(say=lambda text: None)).run()  # type: ignore[arg-type, return-value]
    numbers.send(4)
    queries.run_live(job, client)

    assert ({"new"}, 48) == (set(numbers.labels().values()), len(numbers.labels()))


def test_what_a_table_would_lack_is_said_and_refused(our_broker: BrokerUnderTest, tmp_path: Path) -> None:
    numbers = NumberPipelines(our_broker, tmp_path)
    job = numbers.job("counts")
    numbers.send(20)
    our_broker.delete_records(numbers.topic, 5)
    with job.connect() as client:
        plan = plan_version(job, client, ToEarliest(), kind=ReplayKind.SWAP, is_stateful=True)
        assert {TopicPartition(numbers.topic, 0): 5, TopicPartition(numbers.topic, 1): 0} == plan.starts
        assert (5, 35) == (plan.dropped, plan.records)
        with pytest.raises(UserError, match="would lack 5 older records"):
            check_older_records(plan, drop_older=False)
        check_older_records(plan, drop_older=True)
        other = plan_version(numbers.job("fraud"), client, ToEarliest(), kind=ReplayKind.SWAP, is_stateful=True)
        check_older_records(other, drop_older=False)


def test_a_version_reads_what_lies_before_its_beginning_unless_that_is_to_be_dropped(
    our_broker: BrokerUnderTest, tmp_path: Path
) -> None:
    numbers = NumberPipelines(our_broker, tmp_path)
    numbers.send(20)
    first, second = TopicPartition(numbers.topic, 0), TopicPartition(numbers.topic, 1)
    aim = parse_target(json.dumps({numbers.topic: {"0": 8, "1": 3}}), group="", now_ms=0)
    for kind in ("counts", "fraud"):
        job = numbers.job(kind)
        with job.connect() as client:
            whole = plan_version(job, client, aim, kind=ReplayKind.SWAP, is_stateful=True)
            later = plan_version(job, client, aim, kind=ReplayKind.SWAP, is_stateful=True, drop_older=True)

        assert ({first: 0, second: 0}, {first: 8, second: 3}) == (whole.starts, later.starts)
        assert ["The version reads 11 records before the start as well: what comes after depends on the state they "
                "leave."] == whole.notes  # fmt: skip
        assert (0, 11 if kind == "counts" else 0) == (whole.dropped, later.dropped)


@pytest.mark.parametrize(
    ("to_topic", "is_stateful", "rebuild", "has_stop", "kind"),
    [
        (False, True, False, False, ReplayKind.SWAP),
        (True, True, False, False, ReplayKind.SWAP),
        (True, False, False, True, ReplayKind.BACKFILL),
        (True, False, True, False, ReplayKind.SWAP),
        (False, True, False, True, None),
    ],
)
def test_state_and_sink_decide_how_a_pipeline_is_replayed(
    our_broker: BrokerUnderTest, tmp_path: Path, to_topic: bool, is_stateful: bool, rebuild: bool, has_stop: bool,
    kind: ReplayKind | None,
) -> None:  # fmt: skip
    numbers = NumberPipelines(our_broker, tmp_path)
    job = numbers.job("fraud") if to_topic else numbers.job("counts")
    given = {"is_stateful": is_stateful, "rebuild": rebuild, "has_stop": has_stop}
    if kind is None:
        with pytest.raises(UserError, match="cannot end earlier"):
            choose_kind(job, **given)
    else:
        assert kind is choose_kind(job, **given)


@pytest.mark.parametrize(
    ("before", "left", "took_s", "is_near"),
    [
        (1_000_000, 50_000, 100.0, False),  # five seconds are left, and it is shrinking
        (1_000_000, 20_000, 100.0, True),  # two seconds are left
        (2_000, 1_500, 30.0, True),  # no run will catch up with what comes meanwhile
        (2_000, 0, 30.0, True),
        (0, 0, 5.0, True),
    ],
)
def test_a_version_is_built_until_another_run_is_not_worth_it(
    before: int, left: int, took_s: float, is_near: bool
) -> None:
    assert is_near is is_nearly_caught_up(left, before=before, took_s=took_s)
