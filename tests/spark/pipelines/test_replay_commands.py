"""`logmark pipelines replay`, `versions`, `rollback` and `drop`, with fake queries instead of Spark's."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from logmark.cli.main import app
from logmark.cli.pipelines import known_pipeline
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.pipeline_files import load_pipelines
from logmark.spark.pipelines.query import Brokers
from logmark.spark.pipelines.replay import in_place, publication, runner, session
from tests.harness.brokers import BrokerUnderTest
from tests.spark.pipelines.fake_queries import FakeQueries
from tests.spark.pipelines.number_pipelines import NumberPipelines

FILE = """
from logmark.spark.pipelines.pipeline import Pipeline
from logmark.spark.pipelines.declaration import Table, Topic

sink = {sink}
pipeline = Pipeline(name={name!r}, topics={topic!r}, transform=lambda records: records, sink=sink)
"""


class ReplayScenario:
    """A pipeline that has run from a file, and the commands about it."""

    def __init__(self, broker: BrokerUnderTest, folder: Path, client: Client, mode: str) -> None:
        self.numbers = NumberPipelines(broker, folder)
        self.queries = FakeQueries(self.numbers)
        self.client = client
        self.name = broker.group({"replace": "rows", "complete": "counts"}.get(mode, "fraud"))
        table = f"Table({str(self.numbers.table)!r}, mode={mode!r})"
        sink = f"Topic({self.numbers.alerts!r})" if mode == "topic" else table
        self.root = folder / "home"
        file = folder / "pipeline.py"
        file.write_text(FILE.format(name=self.name, topic=self.numbers.topic, sink=sink))
        [loaded] = load_pipelines([file])
        brokers = Brokers(bootstrap_servers=broker.bootstrap_servers)
        self.job = Job(pipeline=loaded.pipeline, brokers=brokers, home=Home(self.root, self.name), file=str(file))
        self.numbers.send(20)
        self.run_live()
        self.numbers.label = "new"

    def run_live(self) -> None:
        self.job.save_description()
        self.job.home.change(lambda record: replace(record, begun=record.live))
        self.queries.run_live(self.job, self.client)

    def __call__(self, command: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["pipelines", command, self.name, "--home", str(self.root), *arguments])


@pytest.fixture
def client(our_broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(our_broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def scenario(
    request: pytest.FixtureRequest, our_broker: BrokerUnderTest, tmp_path: Path, client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> ReplayScenario:  # fmt: skip
    scenario = ReplayScenario(our_broker, tmp_path, client, request.param)
    for module in (runner, in_place):
        monkeypatch.setattr(module, "run_version", scenario.queries.run)
    monkeypatch.setattr(runner, "build_version", scenario.queries.run)

    @contextmanager
    def no_spark(*given: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(known_pipeline, "_start_spark", no_spark)
    return scenario


with_state = pytest.mark.parametrize("scenario", ["complete"], indirect=True)
without_state = pytest.mark.parametrize("scenario", ["replace"], indirect=True)


@with_state
def test_a_version_is_built_shown_rolled_back_and_dropped(scenario: ReplayScenario) -> None:
    done = scenario("replay", "--yes")
    assert 0 == done.exit_code, done.output
    assert "version 2 is built beside the live version and replaces it" in done.stdout
    assert "In total: 40 records to read." in done.stdout
    assert f"version 2 of {scenario.name} is live" in done.stderr
    scenario.run_live()
    assert ({"new"}, 40) == scenario.numbers.counted()

    listed = json.loads(scenario("versions", "--output", "json").stdout)
    assert [(1, False, True), (2, True, False)] == [
        (one["version"], one["live"], one["can_roll_back"]) for one in listed
    ]
    assert {"0": 20, "1": 20} == listed[1]["next_offsets"][scenario.numbers.topic]
    assert "kept" in scenario("versions").stdout

    assert 0 == scenario("rollback", "--yes").exit_code
    assert 1 == scenario.job.home.record().live
    assert ({"old"}, 40) == scenario.numbers.counted()
    assert 0 == scenario("drop", "2", "--yes").exit_code
    assert [1] == [one["version"] for one in json.loads(scenario("versions", "-o", "json").stdout)]


@with_state
def test_a_dry_run_changes_nothing(scenario: ReplayScenario) -> None:
    before = scenario.job.home.record()
    shown = scenario("replay", "--dry-run", "--output", "json")

    fields = json.loads(shown.stdout)
    assert ("swap", 2, 40, True) == (fields["kind"], fields["version"], fields["records"], fields["stateful"])
    assert before == scenario.job.home.record()
    assert "This was a dry run" in shown.stderr


@with_state
def test_a_dry_run_of_abandoning_says_what_it_would_and_gives_nothing_up(
    scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_by(monkeypatch, scenario)
    folder = scenario.job.home.folder

    def there() -> tuple[object, ...]:
        return (
            scenario.job.home.record(),
            (folder / "replay.json").read_text(),
            scenario.client.committed(scenario.name),
        )

    before = there()
    monkeypatch.setenv("LOGMARK_READ_ONLY", "1")
    shown = scenario("replay", "--abandon", "--dry-run", "--output", "json")

    assert (0, {"version": 2, "kind": "swap"}) == (shown.exit_code, json.loads(shown.stdout))
    assert f"Version 2 of {scenario.name} would be removed" in shown.stderr
    assert before == there()


@with_state
def test_a_dry_run_ends_as_the_real_one_would(scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["rollback", "7"], ["rollback", "1"], ["replay", "--abandon"]):
        real, dry = scenario(*arguments, "--yes"), scenario(*arguments, "--dry-run")
        assert (real.exit_code, real.stderr) == (dry.exit_code, dry.stderr), arguments
        assert 0 != dry.exit_code
    assert 0 == scenario("replay", "--yes").exit_code
    scenario.run_live()
    assert 0 == scenario("rollback", "--dry-run").exit_code
    assert 2 == scenario.job.home.record().live


def stopped_by(monkeypatch: pytest.MonkeyPatch, scenario: ReplayScenario) -> None:
    """A replay was begun, and stopped while its version was built."""

    def fails(*given: object, **named: object) -> None:
        raise UserError("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(runner, "build_version", fails)
        stopped = scenario("replay", "--yes")
    assert (1, True) == (stopped.exit_code, "The disk is full." in stopped.stderr)
    assert 2 == scenario.job.home.record().building


@with_state
def test_without_a_terminal_and_without_yes_nothing_is_done(scenario: ReplayScenario) -> None:
    for arguments in ((), ("--output", "json")):
        refused = scenario("replay", *arguments)
        assert (2, True) == (refused.exit_code, "Nothing was changed" in refused.stderr)
    assert None is scenario.job.home.record().building


@with_state
def test_a_replay_that_was_stopped_is_resumed_or_abandoned(
    scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_by(monkeypatch, scenario)

    refused = scenario("replay", "--from", "earliest", "--yes")
    assert (1, True) == (refused.exit_code, "was started and is not finished" in refused.stderr)
    unsaid = scenario("replay", "--yes")
    assert (1, True) == (unsaid.exit_code, "--resume" in unsaid.stderr)
    resumed = scenario("replay", "--resume", "--yes")
    assert "to version 2, which is prepared" in resumed.stderr
    assert 2 == scenario.job.home.record().live
    nothing = scenario("replay", "--abandon", "--yes")
    assert (3, True) == (nothing.exit_code, "was started. Nothing was changed" in nothing.stderr)


@with_state
def test_a_file_that_is_named_is_replayed_where_the_pipeline_ran(scenario: ReplayScenario) -> None:
    file = scenario.job.file
    assert file is not None

    done = scenario("replay", "--file", file, "--yes")

    assert 0 == done.exit_code, done.output
    assert ({"new"}, 40) == scenario.numbers.counted()


@with_state
def test_what_makes_no_sense_is_an_error(scenario: ReplayScenario) -> None:
    for arguments, message in (
        (["replay", "--to", "3d", "--yes"], "Leave out --to"),
        (["replay", "--from", "latest", "--yes"], "--drop-older"),
        (["replay", "--from", "soon", "--yes"], "is no start or end of a replay"),
        (["replay", "--missing-id", "maybe", "--yes"], "is skip or send"),
        (["rollback", "7", "--yes"], "was not kept"),
        (["rollback", "1", "--yes"], "is live already"),
        (["drop", "1", "--yes"], "is live"),
    ):
        refused = scenario(arguments[0], *arguments[1:])
        assert refused.exit_code in (1, 2, 3), arguments
        assert message in refused.stderr, refused.stderr
        assert "Nothing was" in refused.stderr
    assert 1 == scenario.job.home.record().live


@without_state
def test_a_pipeline_without_state_is_moved_back_live(scenario: ReplayScenario) -> None:
    refused = scenario("replay", "--yes")
    assert (2, True) == (refused.exit_code, "needs a start" in refused.stderr)
    offsets = json.dumps({scenario.numbers.topic: {"0": 5, "1": 20}})
    done = scenario("replay", "--from", offsets, "--yes")

    assert 0 == done.exit_code, done.output
    assert "15 rows of the table came from these offsets and will be replaced." in done.stdout
    assert "15 records were read again" in done.stderr
    labels = scenario.numbers.labels()
    assert {"new"} == {labels[0, offset] for offset in range(5, 20)}
    assert {"old"} == {label for (partition, offset), label in labels.items() if partition or offset < 5}
    assert 3 == scenario("replay", "--from", "latest", "--yes").exit_code


@without_state
def test_a_live_replay_tells_programs_what_it_did(scenario: ReplayScenario) -> None:
    offsets = json.dumps({scenario.numbers.topic: {"0": 0, "1": 0}})
    stop = json.dumps({scenario.numbers.topic: {"0": 4, "1": 2}})
    done = scenario("replay", "--from", offsets, "--to", stop, "--yes", "--output", "json", "--reason", "a bug")

    fields = json.loads(done.stdout)
    assert ("in-place", 6, {"0": 4, "1": 2}) == (
        fields["kind"], fields["rows_to_replace"], fields["stops"][scenario.numbers.topic]
    )  # fmt: skip
    assert fields["applied"] and fields["change"]
    assert 6 == list(scenario.numbers.labels().values()).count("new")


@pytest.mark.parametrize("scenario", ["topic"], indirect=True)
def test_rows_without_ids_are_an_error_and_resumed_once_somebody_says_what_to_do(
    scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark would be asked for the columns; these rows have the column, and nothing in it.
    monkeypatch.setattr(session, "check_id_column", lambda *given, **named: None)
    monkeypatch.setattr(publication, "record_id", lambda record: None)
    refused = scenario("replay", "--yes")
    assert (1, True) == (refused.exit_code, "7 of the records in" in refused.stderr), refused.output
    assert "--missing-id skip or --missing-id send" in refused.stderr

    done = scenario("replay", "--resume", "--yes", "--missing-id", "skip", "--output", "json")

    fields = json.loads(done.stdout)
    assert (2, 0, 7) == (fields["version"], fields["sent"], fields["missing_id"])
    assert 2 == scenario.job.home.record().live


@pytest.mark.parametrize("scenario", ["topic"], indirect=True)
@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_rows_without_ids_leave_the_live_version_as_it_was_and_the_replay_can_be_abandoned(
    scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch, is_rebuilt: bool
) -> None:
    monkeypatch.setattr(session, "check_id_column", lambda *given, **named: None)
    alerts = scenario.numbers.alerted()
    scenario.numbers.divisors = [2, 3]
    with monkeypatch.context() as patch:
        patch.setattr(publication, "record_id", lambda record: None)
        if is_rebuilt:
            shutil.rmtree(scenario.job.home.checkpoint(1))
            with scenario.job.home.live(), pytest.raises(UserError, match="Nothing was sent"):
                runner.rebuild_live_version(scenario.job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
        else:
            assert "Nothing was sent" in scenario("replay", "--yes").stderr
    assert alerts == scenario.numbers.alerted()

    given_up = scenario("replay", "--abandon", "--yes")
    assert 0 == given_up.exit_code, given_up.stderr
    scenario.numbers.send(4)
    if is_rebuilt:  # the mended code gives ids
        with scenario.job.home.live():
            runner.rebuild_live_version(scenario.job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
    else:
        scenario.numbers.divisors = [3]
    scenario.run_live()
    assert scenario.numbers.due(*scenario.numbers.divisors) == scenario.numbers.alerted()


@pytest.mark.parametrize("scenario", ["topic"], indirect=True)
def test_a_rebuilt_version_of_rows_without_ids_is_finished_by_whoever_says_what_becomes_of_them(
    scenario: ReplayScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(scenario.job.home.checkpoint(1))
    with monkeypatch.context() as patch:
        patch.setattr(publication, "record_id", lambda record: None)
        with scenario.job.home.live(), pytest.raises(UserError, match=r"missing id \(skip or send\)"):
            runner.rebuild_live_version(scenario.job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
        done = scenario("replay", "--resume", "--yes", "--missing-id", "skip")

    assert 0 == done.exit_code, done.output
    assert not scenario.job.home.has_lost_checkpoint()
    scenario.numbers.send(4)
    scenario.run_live()
    assert scenario.numbers.due(3) == scenario.numbers.alerted()
