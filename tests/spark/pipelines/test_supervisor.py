"""One pipeline in a run, with queries that are only played: started, failed, started again, superseded, stopped."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from logmark.cli.remedies import next_step
from logmark.client.errors import BrokerUnreachable
from logmark.clock import ManualClock
from logmark.errors import UserError
from logmark.spark import Pipeline, Table
from logmark.spark.errors import BuildInterrupted
from logmark.spark.pipelines import live_query
from logmark.spark.pipelines import supervisor as supervisor_module
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.live_query import start_live_query
from logmark.spark.pipelines.query import Brokers
from logmark.spark.pipelines.replay.state import ReplayKind, ReplayState, ReplayStep, delete_state, save_state
from logmark.spark.pipelines.runner import PipelineRunner
from logmark.spark.pipelines.status import RunState, read_status
from logmark.spark.pipelines.supervisor import ATTEMPTS_MAX, Supervisor
from tests.spark.pipelines.test_failures import A_DEAD_WORKER, IN_CODE, ours
from tests.spark.pipelines.test_status import report

TAKEN_OVER = ours("spark.errors.Superseded", "Group billing was taken over by the query q7.")
NO_TOPIC = ours("errors.UserError", "There is no topic clicks. Nothing was read.")


@dataclass
class FakeQuery:
    """What a supervisor sees of a query of Spark."""

    version: int
    isActive: bool = True
    failure: str | None = None
    reports: list[dict[str, Any]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.reports[-1] if self.reports else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return self.reports

    def exception(self) -> str | None:
        return self.failure

    def stop(self) -> None:
        self.isActive = False
        self.reports += self.late

    def fail(self, failure: str) -> None:
        self.isActive, self.failure = False, failure

    def end(self) -> None:
        self.isActive = False


class NoSpark:
    """A Spark that nothing is asked of but its scheduler."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.pools: list[str] = []

    def setLocalProperty(self, name: str, value: str) -> None:
        self.pools.append(value)


class SupervisorDriver:
    """A pipeline, the queries that were started for it, and what was said."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.said: list[str] = []
        self.queries: list[FakeQuery] = []
        self.options: list[dict[str, str]] = []
        self.refusals: list[Exception] = []
        self.home = Home(folder / "pipelines", "billing")
        sink = Table(folder / "table")
        self.pipeline = Pipeline(name="billing", topics="clicks", transform=lambda frame: frame, sink=sink)
        brokers = Brokers(bootstrap_servers="kafka:9092")
        self.job = Job(pipeline=self.pipeline, brokers=brokers, home=self.home)
        self.spark: Any = NoSpark()
        monkeypatch.setattr(live_query, "start_query", self._start)
        monkeypatch.setattr(Supervisor, "_restore_group", lambda supervisor: None)
        self.committed: list[int] = []
        monkeypatch.setattr(
            supervisor_module,
            "commit_stopped_query",
            lambda pipeline, version, brokers: self.committed.append(version.number),
        )

    def _start(self, pipeline: Pipeline, version: Any, *_: Any, options: dict[str, str], **__: Any) -> FakeQuery:
        if self.refusals:
            raise self.refusals.pop()
        self.options.append(options)
        version.checkpoint.mkdir(parents=True, exist_ok=True)
        (version.checkpoint / "metadata").write_text("{}")  # as Spark does before it asks a source for anything
        self.queries.append(FakeQuery(version.number))
        return self.queries[-1]

    def supervisor(self, *, available_now: bool = False) -> Supervisor:
        return Supervisor(
            self.job,
            self.spark,
            available_now=available_now,
            clock=self.clock,
            random=lambda: 0.5,
            say=self.said.append,
            next_step=next_step,
        )

    def checkpoint(self, *, planned: int, finished: int) -> None:
        """The batches that the checkpoint of version 1 knows."""
        for kind, count in (("offsets", planned), ("commits", finished)):
            (self.home.checkpoint(1) / kind).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (self.home.checkpoint(1) / kind / str(number)).write_text(
                    'v1\n{}\n{"f": {"clicks": {"0": 0}}, "g": 1, "group": "billing", "q": "q", '
                    f'"t": {{"clicks": {{"0": {10 * number + 10}}}}}}}\n'
                )


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SupervisorDriver:
    return SupervisorDriver(tmp_path, monkeypatch)


def test_a_pipeline_that_runs_is_remembered_locked_and_shown(driver: SupervisorDriver) -> None:
    driver.job = replace(driver.job, file="/home/ann/billing.py")
    supervisor = driver.supervisor()
    supervisor.poll()
    driver.queries[0].reports.append(report(0, 0, 40))
    supervisor.poll()

    record, status = driver.home.record(), read_status(driver.home.status_file)
    assert driver.home.is_live()
    assert ("billing", "clicks", "kafka:9092", "/home/ann/billing.py") == (
        record.group, record.topics, record.bootstrap_servers, record.file,
    )  # fmt: skip
    assert 1 == record.begun
    assert status is not None
    assert (RunState.RUNNING, 1, 40) == (status.state, status.version, status.records)
    assert ["billing: version 1 runs as group billing"] == driver.said
    assert ["billing"] == driver.spark.pools, "a long batch of one pipeline would hold up the others"


def test_a_setting_that_the_checkpoint_overrules_is_told_at_the_start(driver: SupervisorDriver) -> None:
    driver.checkpoint(planned=1, finished=1)
    offsets = driver.home.checkpoint(1) / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace("{}", '{"conf": {"spark.sql.shuffle.partitions": "2"}}', 1))
    conf = {"spark.sql.shuffle.partitions": 8, "spark.sql.ansi.enabled": False}
    driver.job = replace(driver.job, pipeline=replace(driver.pipeline, conf=conf))
    driver.supervisor().poll()

    assert [
        "billing: version 1 runs as group billing",
        "billing: version 1 keeps spark.sql.shuffle.partitions=2, with which it began; a replay builds a new version "
        "with the setting of now",
    ] == driver.said


def test_no_batch_is_missed_between_two_looks(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    driver.queries[0].reports += [report(number, 10 * number, 10 * number + 10) for number in range(7)]
    supervisor.poll()

    assert (7, 70) == (supervisor.status.batches, supervisor.status.records)


def test_what_is_transient_is_started_again_after_a_pause_that_doubles(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    for pause_s in (1, 2, 4):
        driver.queries[-1].fail(A_DEAD_WORKER)
        supervisor.poll()
        assert RunState.RESTARTING is supervisor.status.state
        assert driver.home.is_live(), "a pipeline that waits for its next try is still run by us"
        before = len(driver.queries)
        driver.clock.advance(seconds=pause_s - 0.1)
        supervisor.poll()
        assert before == len(driver.queries), f"it was started again before {pause_s} s had passed"
        driver.clock.advance(seconds=0.1)
        supervisor.poll()
        assert before + 1 == len(driver.queries)

    assert 3 == supervisor.status.restarts
    assert "Python worker exited unexpectedly" in str(supervisor.status.error)


def test_a_start_that_fails_is_tried_again_too(driver: SupervisorDriver) -> None:
    driver.refusals.append(BrokerUnreachable("Nobody answers at kafka:9092."))
    supervisor = driver.supervisor()
    supervisor.poll()
    assert "restarting" == supervisor.status.state

    driver.clock.advance(seconds=2)
    supervisor.poll()

    assert RunState.RUNNING is supervisor.status.state
    assert "billing: failed and restarts in 1 s: Nobody answers at kafka:9092." == driver.said[0]


def test_what_stays_ends_the_pipeline_at_once_with_its_error(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    driver.queries[0].fail(NO_TOPIC)
    supervisor.poll()

    assert RunState.FAILED is supervisor.status.state
    assert "billing: There is no topic clicks. Nothing was read." == driver.said[-1]
    assert not driver.home.is_live()
    assert 1 == len(driver.queries)


def test_a_pipeline_that_somebody_else_runs_is_not_run(driver: SupervisorDriver) -> None:
    with driver.home.live():
        supervisor = driver.supervisor()
        supervisor.poll()

    assert RunState.FAILED is supervisor.status.state
    assert [] == driver.queries
    assert "The pipeline billing runs already" in driver.said[-1]


@pytest.mark.parametrize("took_s", [0, 15 * 60])
def test_a_run_that_is_to_end_does_not_try_for_ever(driver: SupervisorDriver, took_s: int) -> None:
    supervisor = driver.supervisor(available_now=True)
    supervisor.poll()
    for _ in range(ATTEMPTS_MAX + 1):
        driver.clock.advance(seconds=took_s)  # a query waits for so long for a broker that is away
        supervisor.poll()
        driver.queries[-1].fail(A_DEAD_WORKER)
        supervisor.poll()
        driver.clock.advance(seconds=80)
        supervisor.poll()

    assert RunState.FAILED is supervisor.status.state
    assert ATTEMPTS_MAX + 1 == len(driver.queries)


def test_a_run_that_is_to_end_continues_for_as_long_as_it_finishes_batches(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor(available_now=True)
    supervisor.poll()
    for number in range(2 * ATTEMPTS_MAX):
        driver.clock.advance(seconds=3 * 60)
        driver.queries[-1].reports.append(report(number, 10 * number, 10 * number + 10))
        supervisor.poll()
        driver.queries[-1].fail(A_DEAD_WORKER)
        supervisor.poll()
        driver.clock.advance(seconds=2)
        supervisor.poll()

    assert (RunState.RUNNING, 2 * ATTEMPTS_MAX) == (supervisor.status.state, supervisor.status.restarts)


def test_a_run_that_is_to_end_is_done_when_its_query_is(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor(available_now=True)
    supervisor.poll()
    driver.queries[0].reports.append(report(0, 0, 40))
    driver.queries[0].end()
    supervisor.poll()

    assert RunState.DONE is supervisor.status.state
    assert "billing: all is read: 40 records in 1 batch" == driver.said[-1]
    assert not driver.home.is_live()


STATE_CHANGED = (
    "[STREAM_FAILED] Query [id = 256cfe58, runId = 43440fd3] terminated with exception: "
    "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing state value schema.\n"
    "Existing value_schema=StructType(StructField(sum,LongType,true)). SQLSTATE: XXKST SQLSTATE: XXKST\n"
    "=== Streaming Query ===\nIdentifier: [id = 256cfe58, runId = 43440fd3]\n"
)
NEVER_SEEN = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: A bug. SQLSTATE: XXKST"


@pytest.mark.parametrize("available_now", [True, False])
def test_a_changed_query_on_old_state_ends_at_once_and_names_the_replay(
    driver: SupervisorDriver, available_now: bool
) -> None:
    supervisor = driver.supervisor(available_now=available_now)
    supervisor.poll()
    driver.queries[0].fail(STATE_CHANGED)
    supervisor.poll()

    assert (RunState.FAILED, 1) == (supervisor.status.state, len(driver.queries))
    assert driver.said[-1].startswith("billing: The query was changed, and the state in its checkpoint does not fit")
    assert "(STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE)" in driver.said[-1]
    assert "`logmark pipelines replay billing` builds a new version with the code of now" in driver.said[-1]


def _fail_for(driver: SupervisorDriver, supervisor: Supervisor, *, seconds: int) -> int:
    """Let every try of the query fail in the same unknown way for so long; return how many did."""
    until_ms, count = driver.clock.now_ms() + 1000 * seconds, 0
    while driver.clock.now_ms() < until_ms and not supervisor.status.state.is_over:
        supervisor.poll()
        if supervisor.status.state is RunState.RUNNING:
            driver.queries[-1].fail(NEVER_SEEN)
            supervisor.poll()
            count += 1
        driver.clock.advance(seconds=1)
    return count


def test_an_unknown_error_is_final_once_one_batch_failed_five_times_over_ten_minutes(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    driver.checkpoint(planned=4, finished=3)

    assert _fail_for(driver, supervisor, seconds=590) > 5
    assert RunState.FAILED is not supervisor.status.state
    _fail_for(driver, supervisor, seconds=90)

    assert RunState.FAILED is supervisor.status.state
    assert "Batch 3 failed " in driver.said[-1]
    assert "A bug." in driver.said[-1]
    assert not driver.home.is_live()


def test_an_unknown_error_in_another_batch_is_another_failure(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    for number in range(1, 5):
        driver.checkpoint(planned=number + 1, finished=number)
        _fail_for(driver, supervisor, seconds=400)

    assert RunState.FAILED is not supervisor.status.state


def test_a_transient_failure_is_tried_for_ever(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    driver.checkpoint(planned=4, finished=3)
    for _ in range(30):
        driver.queries[-1].fail(A_DEAD_WORKER)
        supervisor.poll()
        driver.clock.advance(seconds=80)
        supervisor.poll()

    assert (RunState.RUNNING, 30) == (supervisor.status.state, supervisor.status.restarts)


def test_a_pipeline_is_superseded_by_the_version_that_a_replay_swaps_in(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    with driver.home.replaying():
        driver.queries[0].fail(TAKEN_OVER)
        supervisor.poll()
        assert RunState.SUPERSEDED is supervisor.status.state
        with driver.home.live():  # the replay has the lock now
            supervisor.poll()
            driver.home.change(lambda record: replace(record, live=2, last=2))
    supervisor.poll()

    assert (RunState.RUNNING, 2) == (supervisor.status.state, supervisor.status.version)
    assert [1, 2] == [query.version for query in driver.queries]
    assert supervisor.status.error is None
    assert driver.home.is_live()


def test_a_version_that_was_swapped_in_is_run_by_the_code_that_its_file_has_now(
    driver: SupervisorDriver, tmp_path: Path
) -> None:
    file = tmp_path / "worked.py"
    text = (
        "from logmark.spark import Pipeline, Table\n"
        "p = Pipeline(name='billing', topics='clicks', transform=lambda f: f, sink=Table('t'), every='1 second')\n"
    )
    file.write_text(text)
    driver.job = replace(driver.job, file=str(file))
    supervisor = driver.supervisor()
    supervisor.poll()
    file.write_text(text.replace("1 second", "2 seconds"))
    driver.queries[0].fail(TAKEN_OVER)
    supervisor.poll()
    driver.home.change(lambda record: replace(record, live=2, last=2))
    supervisor.poll()

    assert "2 seconds" == supervisor.job.pipeline.every


def test_a_pipeline_continues_when_a_replay_was_broken_off_and_gave_its_group_back(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    driver.queries[0].fail(TAKEN_OVER)
    supervisor.poll()
    supervisor.poll()

    assert (RunState.RUNNING, 1) == (supervisor.status.state, supervisor.status.version)
    assert [1, 1] == [query.version for query in driver.queries]


def test_a_pipeline_whose_group_stays_taken_ends_with_the_name_of_the_new_owner(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    for _ in range(2):
        driver.queries[-1].fail(TAKEN_OVER)
        supervisor.poll()
        supervisor.poll()

    assert RunState.FAILED is supervisor.status.state
    assert driver.said[-1].startswith("billing: Group billing was taken over by the query q7. `logmark pipelines run ")
    assert "`logmark pipelines start billing --takeover`" in driver.said[-1]
    assert 2 == len(driver.queries)


def test_an_unfinished_replay_is_named_to_whoever_lost_the_group_to_it(driver: SupervisorDriver) -> None:
    driver.home.change(lambda record: replace(record, building=2))
    supervisor = driver.supervisor()
    supervisor.poll()
    for _ in range(2):
        driver.queries[-1].fail(TAKEN_OVER)
        supervisor.poll()
        supervisor.poll()

    assert "version 2 is not finished. Resume it with `logmark pipelines replay billing --resume`" in driver.said[-1]


def test_what_ends_a_pipeline_is_told_with_what_its_user_may_do(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    driver.queries[-1].fail("logmark.spark.errors.TableGone: The table t holds nothing of this query.\n\tat Scala")
    supervisor.poll()

    assert RunState.FAILED is supervisor.status.state
    assert [
        "billing: The table t holds nothing of this query. `logmark offsets reset billing --all-topics --to-earliest` "
        "resets the group."
    ] == driver.said[1:]
    assert supervisor.status.error in driver.said[-1]


def save_publishing_replay(driver: SupervisorDriver, number: int = 2) -> None:
    """A replay was killed between the release of what its version made and the turn of that version."""
    save_state(driver.home, ReplayState(version=number, kind=ReplayKind.SWAP, step=ReplayStep.PUBLISHING))
    driver.home.change(lambda record: replace(record, building=number, last=number))


def test_a_version_that_is_being_replaced_is_not_started_any_more(driver: SupervisorDriver) -> None:
    save_publishing_replay(driver)
    supervisor = driver.supervisor()
    for _ in range(3):
        supervisor.poll()

    assert [] == driver.queries, "it would repeat the batch that it had planned"
    assert RunState.FAILED is supervisor.status.state
    assert not driver.home.is_live()
    assert [
        "billing: A replay is publishing version 2 of billing and is not finished: version 1 must not run any more, "
        "because it would repeat what was published already. Nothing was read or written. Resume the replay with "
        "`logmark pipelines replay billing --resume`, and start the pipeline then."
    ] == driver.said
    with pytest.raises(UserError, match="version 1 must not run any more"):
        start_live_query(driver.job, driver.spark, available_now=True)
    assert [] == driver.queries
    assert not driver.home.is_live()


def test_a_run_that_comes_while_a_version_is_published_waits_and_runs_that_one(driver: SupervisorDriver) -> None:
    save_publishing_replay(driver)
    supervisor = driver.supervisor()
    with driver.home.replaying():
        supervisor.poll()
        supervisor.poll()
        assert RunState.SUPERSEDED is supervisor.status.state
        driver.home.change(lambda record: replace(record, live=2, building=None))
        delete_state(driver.home)
    supervisor.poll()

    assert [2] == [query.version for query in driver.queries]
    assert (RunState.RUNNING, ["billing: version 2 runs as group billing"]) == (supervisor.status.state, driver.said)


def test_a_version_that_is_in_place_runs_though_its_replay_has_not_cleaned_up(driver: SupervisorDriver) -> None:
    save_publishing_replay(driver)
    driver.home.change(lambda record: replace(record, live=2))
    driver.supervisor().poll()

    assert [2] == [query.version for query in driver.queries]


def test_the_record_that_the_pipelines_code_fails_on_is_looked_for_and_named(
    driver: SupervisorDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        supervisor_module, "describe_failed_record", lambda *_, **__: "It fails on the record clicks-0 offset 7."
    )
    supervisor = driver.supervisor()
    supervisor.poll()
    driver.queries[0].fail(IN_CODE)
    _poll_until(supervisor, lambda: supervisor.status.state.is_over)

    assert RunState.FAILED is supervisor.status.state
    assert "ValueError: boom b'v1'" in driver.said[-1]
    assert "It fails on the record clicks-0 offset 7." in driver.said[-1]


def test_a_version_has_begun_before_its_first_batch_is_done(driver: SupervisorDriver) -> None:
    driver.supervisor().poll()

    assert 1 == driver.home.record().begun, "a driver that dies in its first batch may have written rows"


@pytest.mark.parametrize("needs", [True, False])
def test_a_lost_checkpoint_is_built_again_where_the_table_alone_does_not_know_what_was_read(
    driver: SupervisorDriver, monkeypatch: pytest.MonkeyPatch, needs: bool
) -> None:
    def rebuild(job: Job, *_: Any, **__: Any) -> int:
        job.home.change(lambda record: replace(record, live=2, last=2, begun=2))
        (job.home.checkpoint(2) / "offsets").mkdir(parents=True)
        (job.home.checkpoint(2) / "offsets" / "0").write_text("")
        return 2

    monkeypatch.setattr(supervisor_module, "rebuild_live_version", rebuild)
    monkeypatch.setattr(supervisor_module, "needs_versions", lambda *_: needs)
    monkeypatch.setattr(supervisor_module, "make_rows", lambda *_: None)
    monkeypatch.setattr(supervisor_module, "keeps_state", lambda rows: True)
    driver.home.change(lambda record: replace(record, begun=1))
    supervisor = driver.supervisor()
    _poll_until(supervisor, lambda: supervisor.status.state is RunState.RUNNING)

    assert [2 if needs else 1] == [query.version for query in driver.queries]


def test_a_version_whose_building_is_interrupted_is_resumed_after_a_pause(
    driver: SupervisorDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def rebuild(job: Job, *_: Any, **__: Any) -> int:
        tries.append(len(tries))
        if len(tries) == 1:
            raise BuildInterrupted("Python supervisor failed to connect back.")
        job.home.change(lambda record: replace(record, live=2, last=2, begun=2))
        return 2

    monkeypatch.setattr(supervisor_module, "rebuild_live_version", rebuild)
    monkeypatch.setattr(supervisor_module, "needs_versions", lambda *_: True)
    monkeypatch.setattr(supervisor_module, "make_rows", lambda *_: None)
    monkeypatch.setattr(supervisor_module, "keeps_state", lambda rows: True)
    driver.home.change(lambda record: replace(record, begun=1))
    (driver.home.checkpoint(2) / "offsets").mkdir(parents=True)
    (driver.home.checkpoint(2) / "offsets" / "0").write_text("")
    supervisor = driver.supervisor()
    _poll_until(supervisor, lambda: supervisor.status.state is RunState.RESTARTING)
    driver.clock.advance(seconds=2)
    _poll_until(supervisor, lambda: supervisor.status.state is RunState.RUNNING)

    assert [2] == [query.version for query in driver.queries]
    assert 2 == len(tries)


def test_a_query_is_stopped_between_two_batches(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    assert supervisor.is_between_batches(), "nothing was planned yet"
    driver.checkpoint(planned=3, finished=2)
    assert not supervisor.is_between_batches()
    driver.checkpoint(planned=3, finished=3)
    assert supervisor.is_between_batches()
    driver.queries[0].late.append(report(2, 20, 30))

    supervisor.stop()

    assert not driver.queries[0].isActive
    assert [1] == driver.committed, "its group would seem to be a batch behind"
    assert "billing: stopped; batch 2 is done, and the next offsets are clicks-0: 30" == driver.said[-1]
    status = read_status(driver.home.status_file)
    assert status is not None
    assert RunState.STOPPED is status.state
    assert 10 == status.records, "Spark reports a batch a moment after it is done"
    assert not driver.home.is_live()


def test_one_pipeline_that_fails_leaves_the_others_alone_and_is_told_by_the_exit(driver: SupervisorDriver) -> None:
    other = replace(
        driver.job, pipeline=replace(driver.pipeline, name="fraud", group="fraud"), home=Home(driver.home.root, "fraud")
    )
    runner = PipelineRunner(
        [driver.job, other], driver.spark, available_now=True, say=driver.said.append, clock=driver.clock
    )

    def play(supervisors: Any) -> None:
        if len(driver.queries) == 2:
            driver.queries[0].fail(NO_TOPIC)
            driver.queries[1].end()

    assert not runner.run(watch=play)
    assert [RunState.FAILED, RunState.DONE] == [supervisor.status.state for supervisor in runner.supervisors]


def test_a_wish_to_stop_ends_a_run_and_is_no_failure(driver: SupervisorDriver) -> None:
    runner = PipelineRunner([driver.job], driver.spark, say=driver.said.append, clock=driver.clock)
    wishes = [0]

    def play(supervisors: Any) -> None:
        wishes[0] = 1

    assert runner.run(count_stops=lambda: wishes[0], watch=play)
    assert RunState.STOPPED is runner.supervisors[0].status.state


def test_a_second_wish_does_not_wait_for_the_batch(driver: SupervisorDriver) -> None:
    driver.checkpoint(planned=2, finished=1)
    runner = PipelineRunner([driver.job], driver.spark, say=driver.said.append, clock=driver.clock)
    wishes = [0]

    def play(supervisors: Any) -> None:
        wishes[0] = 2

    assert runner.run(count_stops=lambda: wishes[0], watch=play)
    assert not driver.queries[0].isActive


def test_a_query_that_another_hand_stopped_is_not_started_again(driver: SupervisorDriver) -> None:
    supervisor = driver.supervisor()
    supervisor.poll()
    driver.queries[0].end()
    supervisor.poll()

    assert RunState.STOPPED is supervisor.status.state
    assert "somebody stopped its query" in driver.said[-1]


def test_spark_that_died_ends_every_pipeline_with_an_error(
    driver: SupervisorDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    gone = Py4JError("An error occurred while calling o65.isActive")
    runner = PipelineRunner([driver.job], driver.spark, say=driver.said.append, clock=driver.clock)

    def play(supervisors: Any) -> None:
        monkeypatch.setattr(FakeQuery, "exception", lambda query: _raise(gone))
        monkeypatch.setattr(NoSpark, "_jvm", property(lambda spark: _raise(ConnectionRefusedError())), raising=False)
        driver.queries[0].end()

    assert not runner.run(watch=play)
    assert "Spark itself has ended" in driver.said[-1]
    status = read_status(driver.home.status_file)
    assert status is not None
    assert (RunState.FAILED, driver.said[-1]) == (status.state, f"billing: {status.error}")
    assert not driver.home.is_live()


def _raise(error: Exception) -> None:
    raise error


def test_the_status_is_written_at_most_once_a_second_and_at_every_batch(
    driver: SupervisorDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(supervisor_module, "write_status", lambda path, status: written.append(status))
    supervisor = driver.supervisor()
    for _ in range(20):
        supervisor.poll()
        driver.clock.advance(seconds=0.1)
    assert 2 == len(written)

    driver.queries[0].reports.append(report(0, 0, 40))
    supervisor.poll()
    assert 3 == len(written)


def test_a_bad_record_file_is_an_error_and_nothing_is_started(driver: SupervisorDriver) -> None:
    driver.home.folder.mkdir(parents=True)
    (driver.home.folder / "record.json").write_text("{")
    with pytest.raises(UserError, match="the live version of billing is unknown"):
        driver.supervisor().poll()
    assert [] == driver.queries


def _poll_until(supervisor: Supervisor, reached: Callable[[], bool]) -> None:
    """Looks until what another thread does is done."""
    from tests.harness.node import wait_until

    def polled() -> bool:
        supervisor.poll()
        return reached()

    wait_until(polled, "the background task is done", deadline_s=60)
