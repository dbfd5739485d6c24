"""`logmark pipelines replay`, `versions`, `take-back` and `drop`, with queries on paper instead of Spark's."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from logmark.cli.main import app
from logmark.cli.pipelines import known_pipeline as known
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.pipeline_files import load
from logmark.spark.pipelines.query import Brokers
from logmark.spark.pipelines.replay import in_place as rereading
from logmark.spark.pipelines.replay import plan as plans
from logmark.spark.pipelines.replay import publication as releasing
from logmark.spark.pipelines.replay import runner as replaying
from logmark.spark.pipelines.supervisor import Job, described
from tests.harness.brokers import BrokerUnderTest
from tests.spark.pipelines.fake_queries import Paper
from tests.spark.pipelines.number_pipelines import Numbers

FILE = """
from logmark.spark.pipelines.pipeline import Pipeline, Table, Topic

sink = {sink}
pipeline = Pipeline(name={name!r}, topics={topic!r}, transform=lambda records: records, sink=sink)
"""


class Scene:
    """A pipeline that has run from a file, and the commands about it."""

    def __init__(self, broker: BrokerUnderTest, folder: Path, client: Client, mode: str) -> None:
        self.numbers = Numbers(broker, folder)
        self.paper = Paper(self.numbers)
        self.client = client
        self.name = broker.group({"replace": "rows", "complete": "counts"}.get(mode, "fraud"))
        table = f"Table({str(self.numbers.table)!r}, mode={mode!r})"
        sink = f"Topic({self.numbers.alerts!r})" if mode == "topic" else table
        self.root = folder / "home"
        file = folder / "pipeline.py"
        file.write_text(FILE.format(name=self.name, topic=self.numbers.topic, sink=sink))
        [loaded] = load([file])
        brokers = Brokers(bootstrap_servers=broker.bootstrap_servers)
        self.job = Job(pipeline=loaded.pipeline, brokers=brokers, home=Home(self.root, self.name), file=str(file))
        self.numbers.send(20)
        self.go_on()
        self.numbers.label = "new"

    def go_on(self) -> None:
        self.job.home.change(lambda record: replace(record, **described(self.job), begun=record.live))
        self.paper.run_live(self.job, self.client)

    def __call__(self, command: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["pipelines", command, self.name, "--home", str(self.root), *arguments])


@pytest.fixture
def client(our_broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(our_broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, our_broker: BrokerUnderTest, tmp_path: Path, client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:  # fmt: skip
    scene = Scene(our_broker, tmp_path, client, request.param)
    for module in (replaying, rereading):
        monkeypatch.setattr(module, "run", scene.paper.run)
    monkeypatch.setattr(replaying, "run_until_close", scene.paper.run)

    @contextmanager
    def no_spark(*given: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(known, "_started", no_spark)
    return scene


with_state = pytest.mark.parametrize("scene", ["complete"], indirect=True)
without_state = pytest.mark.parametrize("scene", ["replace"], indirect=True)


@with_state
def test_a_version_is_built_shown_taken_back_and_dropped(scene: Scene) -> None:
    done = scene("replay", "--yes")
    assert 0 == done.exit_code, done.output
    assert "version 2 is built beside the live version and takes its place" in done.stdout
    assert "In total: 40 records to read." in done.stdout
    assert f"version 2 of {scene.name} is live" in done.stderr
    scene.go_on()
    assert ({"new"}, 40) == scene.numbers.counted()

    listed = json.loads(scene("versions", "--output", "json").stdout)
    assert [(1, False, True), (2, True, False)] == [
        (one["version"], one["live"], one["can_be_taken_back"]) for one in listed
    ]
    assert {"0": 20, "1": 20} == listed[1]["stands"][scene.numbers.topic]
    assert "kept" in scene("versions").stdout

    assert 0 == scene("take-back", "--yes").exit_code
    assert 1 == scene.job.home.record().live
    assert ({"old"}, 40) == scene.numbers.counted()
    assert 0 == scene("drop", "2", "--yes").exit_code
    assert [1] == [one["version"] for one in json.loads(scene("versions", "-o", "json").stdout)]


@with_state
def test_a_dry_run_changes_nothing(scene: Scene) -> None:
    before = scene.job.home.record()
    shown = scene("replay", "--dry-run", "--output", "json")

    fields = json.loads(shown.stdout)
    assert ("swap", 2, 40, True) == (fields["kind"], fields["version"], fields["records"], fields["stateful"])
    assert before == scene.job.home.record()
    assert "This was a dry run" in shown.stderr


@with_state
def test_a_dry_run_of_giving_up_says_what_it_would_and_gives_nothing_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_by(monkeypatch, scene)
    folder = scene.job.home.folder

    def there() -> tuple[object, ...]:
        return scene.job.home.record(), (folder / "replay.json").read_text(), scene.client.committed(scene.name)

    before = there()
    monkeypatch.setenv("LOGMARK_READ_ONLY", "1")
    shown = scene("replay", "--abandon", "--dry-run", "--output", "json")

    assert (0, {"version": 2, "kind": "swap"}) == (shown.exit_code, json.loads(shown.stdout))
    assert f"Version 2 of {scene.name} would be given up" in shown.stderr
    assert before == there()


@with_state
def test_a_dry_run_ends_as_the_real_one_would(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["take-back", "7"], ["take-back", "1"], ["replay", "--abandon"]):
        real, dry = scene(*arguments, "--yes"), scene(*arguments, "--dry-run")
        assert (real.exit_code, real.stderr) == (dry.exit_code, dry.stderr), arguments
        assert 0 != dry.exit_code
    assert 0 == scene("replay", "--yes").exit_code
    scene.go_on()
    assert 0 == scene("take-back", "--dry-run").exit_code
    assert 2 == scene.job.home.record().live


def stopped_by(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    """A replay was begun, and stopped while its version was built."""

    def fails(*given: object, **named: object) -> None:
        raise UserError("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(replaying, "run_until_close", fails)
        stopped = scene("replay", "--yes")
    assert (1, True) == (stopped.exit_code, "The disk is full." in stopped.stderr)
    assert 2 == scene.job.home.record().building


@with_state
def test_without_a_terminal_and_without_yes_nothing_is_done(scene: Scene) -> None:
    for arguments in ((), ("--output", "json")):
        refused = scene("replay", *arguments)
        assert (2, True) == (refused.exit_code, "Nothing was changed" in refused.stderr)
    assert None is scene.job.home.record().building


@with_state
def test_a_replay_that_was_stopped_is_gone_on_with_or_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_by(monkeypatch, scene)

    refused = scene("replay", "--from", "earliest", "--yes")
    assert (1, True) == (refused.exit_code, "was begun and is not done" in refused.stderr)
    assert "Going on with version 2" in scene("replay", "--yes").stderr
    assert 2 == scene.job.home.record().live
    nothing = scene("replay", "--abandon", "--yes")
    assert (3, True) == (nothing.exit_code, "has begun. Nothing was changed" in nothing.stderr)


@with_state
def test_a_file_that_is_named_is_replayed_where_the_pipeline_ran(scene: Scene) -> None:
    file = scene.job.file
    assert file is not None

    done = scene("replay", "--file", file, "--yes")

    assert 0 == done.exit_code, done.output
    assert ({"new"}, 40) == scene.numbers.counted()


@with_state
def test_what_makes_no_sense_is_a_sentence(scene: Scene) -> None:
    for arguments, sentence in (
        (["replay", "--to", "3d", "--yes"], "Leave --to away"),
        (["replay", "--from", "latest", "--yes"], "--drop-older"),
        (["replay", "--from", "soon", "--yes"], "is not understood"),
        (["replay", "--without-id", "maybe", "--yes"], "is skip or send"),
        (["take-back", "7", "--yes"], "was not kept"),
        (["take-back", "1", "--yes"], "is live already"),
        (["drop", "1", "--yes"], "is live"),
    ):
        refused = scene(arguments[0], *arguments[1:])
        assert refused.exit_code in (1, 2, 3), arguments
        assert sentence in refused.stderr, refused.stderr
        assert "Nothing was" in refused.stderr
    assert 1 == scene.job.home.record().live


@without_state
def test_a_pipeline_without_state_is_moved_back_live(scene: Scene) -> None:
    refused = scene("replay", "--yes")
    assert (2, True) == (refused.exit_code, "Say where to begin" in refused.stderr)
    offsets = json.dumps({scene.numbers.topic: {"0": 5, "1": 20}})
    done = scene("replay", "--from", offsets, "--yes")

    assert 0 == done.exit_code, done.output
    assert "15 rows of the table came from there and will be replaced." in done.stdout
    assert "15 records were read again" in done.stderr
    labels = scene.numbers.labels()
    assert {"new"} == {labels[0, offset] for offset in range(5, 20)}
    assert {"old"} == {label for (partition, offset), label in labels.items() if partition or offset < 5}
    assert 3 == scene("replay", "--from", "latest", "--yes").exit_code


@without_state
def test_a_live_replay_tells_programs_what_it_did(scene: Scene) -> None:
    offsets = json.dumps({scene.numbers.topic: {"0": 0, "1": 0}})
    stop = json.dumps({scene.numbers.topic: {"0": 4, "1": 2}})
    done = scene("replay", "--from", offsets, "--to", stop, "--yes", "--output", "json", "--reason", "a bug")

    fields = json.loads(done.stdout)
    assert ("live", 6, {"0": 4, "1": 2}) == (
        fields["kind"], fields["rows_to_replace"], fields["stops"][scene.numbers.topic]
    )  # fmt: skip
    assert fields["applied"] and fields["change"]
    assert 6 == list(scene.numbers.labels().values()).count("new")


@pytest.mark.parametrize("scene", ["topic"], indirect=True)
def test_rows_without_ids_are_a_sentence_and_gone_on_with_once_somebody_says_what_to_do(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark would be asked for the columns; these rows have the column, and nothing in it.
    monkeypatch.setattr(plans, "check_ids", lambda *given, **named: None)
    monkeypatch.setattr(releasing, "id_of", lambda record: None)
    refused = scene("replay", "--yes")
    assert (1, True) == (refused.exit_code, "7 of the records in" in refused.stderr), refused.output
    assert "--without-id skip or --without-id send" in refused.stderr

    done = scene("replay", "--yes", "--without-id", "skip", "--output", "json")

    fields = json.loads(done.stdout)
    assert (2, 0, 7) == (fields["version"], fields["released"], fields["without_id"])
    assert 2 == scene.job.home.record().live


@pytest.mark.parametrize("scene", ["topic"], indirect=True)
@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_rows_without_ids_leave_the_live_version_as_it_was_and_the_replay_can_be_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_rebuilt: bool
) -> None:
    monkeypatch.setattr(plans, "check_ids", lambda *given, **named: None)
    alerts = scene.numbers.alerted()
    scene.numbers.divisors = [2, 3]
    with monkeypatch.context() as patch:
        patch.setattr(releasing, "id_of", lambda record: None)
        if is_rebuilt:
            shutil.rmtree(scene.job.home.checkpoint(1))
            with scene.job.home.live(), pytest.raises(UserError, match="Nothing was sent"):
                replaying.rebuild(scene.job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
        else:
            assert "Nothing was sent" in scene("replay", "--yes").stderr
    assert alerts == scene.numbers.alerted()

    given_up = scene("replay", "--abandon", "--yes")
    assert 0 == given_up.exit_code, given_up.stderr
    scene.numbers.send(4)
    if is_rebuilt:  # the mended code gives ids
        with scene.job.home.live():
            replaying.rebuild(scene.job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
    else:
        scene.numbers.divisors = [3]
    scene.go_on()
    assert scene.numbers.due(*scene.numbers.divisors) == scene.numbers.alerted()


@pytest.mark.parametrize("scene", ["topic"], indirect=True)
def test_a_rebuilt_version_of_rows_without_ids_is_finished_by_whoever_says_what_becomes_of_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(scene.job.home.checkpoint(1))
    with monkeypatch.context() as patch:
        patch.setattr(releasing, "id_of", lambda record: None)
        with scene.job.home.live(), pytest.raises(UserError, match="--without-id skip"):
            replaying.rebuild(scene.job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
        done = scene("replay", "--yes", "--without-id", "skip")

    assert 0 == done.exit_code, done.output
    assert not scene.job.home.has_lost_checkpoint()
    scene.numbers.send(4)
    scene.go_on()
    assert scene.numbers.due(3) == scene.numbers.alerted()
