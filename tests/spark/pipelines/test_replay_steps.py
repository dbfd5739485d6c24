"""A replay killed at each of its steps, gone on with or given up: with queries on paper, on both brokers."""

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
from logmark.spark.pipelines import supervisor as working
from logmark.spark.pipelines import versions as lineage
from logmark.spark.pipelines.replay import publication as releasing
from logmark.spark.pipelines.replay import runner as replaying
from logmark.spark.pipelines.replay.build import connect, is_close, standing
from logmark.spark.pipelines.replay.fence import claim, give_back
from logmark.spark.pipelines.replay.plan import check_older, kind_of, plan_version
from logmark.spark.pipelines.replay.runner import (
    Choices,
    Outcome,
    Replay,
    Telling,
    abandon,
    begin,
    begin_taking_back,
    rebuild,
)
from logmark.spark.pipelines.replay.state import Kind, read_work
from logmark.spark.pipelines.replay.targets import parse_aim
from logmark.spark.pipelines.supervisor import Job, start_live
from logmark.spark.pipelines.versions import drop, previous, versions_of
from logmark.spark.tables.versions import list_versions
from tests.harness.brokers import BrokerUnderTest
from tests.spark.pipelines.fake_queries import Died, Paper, Superseded
from tests.spark.pipelines.number_pipelines import Numbers


class Killed(BaseException):
    """The process is gone: nothing after this is done by it."""


class Scene:
    """A pipeline whose queries are on paper, and whose process dies without a word."""

    def __init__(self, numbers: Numbers, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers = numbers
        self.paper = Paper(numbers)
        self.client = numbers.broker.closing(Client(numbers.servers, timeout_s=20.0))
        self.job: Job = numbers.job(kind)
        self.to_topic = kind != "counts"
        monkeypatch.setattr(Replay, "_give_back", lambda replay: None)
        monkeypatch.setattr(replaying, "run", self.paper.run)
        monkeypatch.setattr(replaying, "run_until_close", self.paper.run)

    def go_on(self) -> None:
        """The live version reads all there is."""
        self.paper.run_live(self.job, self.client)

    def begin(self, kind: Kind = Kind.SWAP, **choices: bool) -> None:
        plan = plan_version(self.job, self.client, ToEarliest(), kind=kind, is_stateful=True)
        begin(self.job, self.client, plan, Choices(**choices))  # type: ignore[arg-type]

    @contextmanager
    def running(self) -> Iterator[threading.Thread]:
        """The live version runs in a thread until another query has its group."""
        is_over = threading.Event()

        def run() -> None:
            with self.job.home.live(), Client(self.numbers.broker.bootstrap_servers) as client, suppress(Superseded):
                while not is_over.wait(0.05):
                    self.paper.run_live(self.job, client)

        thread = threading.Thread(target=run)
        thread.start()
        self.numbers.wait(self.job.home.is_live, "the pipeline runs")
        yield thread
        is_over.set()
        thread.join()

    def carry_out(
        self, *, killed_at: int | None = None, hooks: Mapping[int, Callable[[], None]] | None = None
    ) -> Outcome:
        """Does what is left of the replay, or dies once a step is done; a hook is called when its step is."""

        def reached(step: int) -> None:
            (hooks or {}).get(step, lambda: None)()
            if step == killed_at:
                raise Killed

        work = read_work(self.job.home)
        assert work is not None
        telling = Telling(say=lambda text: None, reached=reached)
        with self.job.home.replaying():
            return Replay(self.job, lambda: None, self.client, work, telling=telling).carry_out()  # type: ignore[arg-type, return-value]

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


def staged(broker: BrokerUnderTest, folder: Path, monkeypatch: pytest.MonkeyPatch, *, to_topic: bool) -> Scene:
    """A pipeline of either kind that has read its first numbers, and the code that shall read them again."""
    scene = Scene(Numbers(broker, folder), "fraud" if to_topic else "counts", monkeypatch)
    scene.numbers.send(20)
    scene.go_on()
    scene.numbers.label, scene.numbers.divisors = "new", [2, 3]
    return scene


@pytest.fixture(params=[False, True], ids=["table", "topic"])
def scene(
    request: pytest.FixtureRequest, our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    return staged(our_broker, tmp_path, monkeypatch, to_topic=request.param)


@pytest.fixture(params=[False, True], ids=["table", "topic"])
def scene_on_both(
    request: pytest.FixtureRequest, broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    return staged(broker, tmp_path, monkeypatch, to_topic=request.param)


def test_a_replay_that_is_killed_at_any_step_is_gone_on_with(scene_on_both: Scene) -> None:
    scene = scene_on_both
    for step in range(1, 10):
        before = scene.job.home.record().live
        scene.begin()
        with pytest.raises(Killed):
            scene.carry_out(killed_at=step)
        scene.numbers.send(4)
        work, record = read_work(scene.job.home), scene.job.home.record()
        is_in_place = record.live != before
        if work is not None and not work.is_handing_over and not is_in_place:
            # The runner takes the group back, and the version that was live runs on.
            give_back(scene.client, scene.job)
        if work is not None and work.is_handing_over and not is_in_place:
            with pytest.raises(Superseded):
                scene.go_on()
        else:
            scene.go_on()
        scene.numbers.send(2)
        if work is not None:
            scene.carry_out()
        scene.go_on()

        scene.check(is_new=True)
        record = scene.job.home.record()
        assert (before + 1, None) == (record.live, record.building), f"after a kill at step {step}"
        assert read_work(scene.job.home) is None


def test_a_replay_that_is_given_up_leaves_no_trace(scene: Scene) -> None:
    for step in range(1, 6):
        scene.begin()
        with pytest.raises(Killed):
            scene.carry_out(killed_at=step)
        scene.numbers.label, scene.numbers.divisors = "old", [3]

        number = abandon(scene.job, scene.client)

        scene.numbers.send(4)
        scene.go_on()
        scene.check(is_new=False)
        assert (1, None) == (scene.job.home.record().live, scene.job.home.record().building)
        assert not scene.job.home.checkpoint(number).exists()
        assert f"{scene.job.pipeline.group}.v{number}" not in [one.group for one in scene.client.list_groups()]
        assert [1] == [one.number for one in versions_of(scene.job)]
        scene.numbers.label, scene.numbers.divisors = "new", [2, 3]


@pytest.mark.parametrize("step", [4, 5])
def test_the_version_that_runs_makes_way_and_runs_on_if_the_replay_is_killed(scene: Scene, step: int) -> None:
    scene.begin()
    with scene.running() as thread, pytest.raises(Killed):
        scene.carry_out(killed_at=step)
    assert not thread.is_alive()
    scene.numbers.label, scene.numbers.divisors = "old", [3]
    with pytest.raises(Superseded):
        scene.go_on()

    assert give_back(scene.client, scene.job)

    scene.numbers.send(4)
    scene.go_on()
    scene.check(is_new=False)


def test_a_version_that_runs_makes_way_for_the_new_one(scene: Scene) -> None:
    scene.begin()
    with scene.running() as thread:
        scene.carry_out()
        thread.join(60)
        assert not thread.is_alive()
    scene.numbers.send(4)
    scene.go_on()

    scene.check(is_new=True)


def test_what_the_live_version_read_last_is_not_sent_or_counted_again(scene: Scene) -> None:
    scene.begin()

    def read_on() -> None:
        scene.numbers.send(6)
        scene.numbers.label, scene.numbers.divisors = "old", [3]
        scene.go_on()
        scene.numbers.label, scene.numbers.divisors = "new", [2, 3]

    scene.carry_out(hooks={3: read_on})
    scene.go_on()

    scene.check(is_new=True)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_batch_that_was_planned_when_the_driver_died_is_finished_by_the_version_that_comes_back(
    scene: Scene, is_given_up: bool
) -> None:
    scene.numbers.label, scene.numbers.divisors = "old", [3]
    scene.numbers.send(4)
    scene.paper.dies_in_the_batch = True
    with pytest.raises(Died):
        scene.go_on()
    scene.paper.dies_in_the_batch = False
    scene.begin()
    if is_given_up:
        with pytest.raises(Killed):
            scene.carry_out(killed_at=5, hooks={5: lambda: claim_by_version_2(scene)})
        abandon(scene.job, scene.client)
    else:
        scene.carry_out()
        scene.go_on()
        begin_taking_back(scene.job, scene.client, 1, Choices())
        scene.carry_out()

    scene.numbers.send(2)
    scene.go_on()

    assert 1 == scene.job.home.record().live
    scene.check(is_new=False)


def test_a_planned_batch_of_the_old_version_is_not_sent_again_by_a_start_after_the_release(
    our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = staged(our_broker, tmp_path, monkeypatch, to_topic=True)
    scene.numbers.send(4)
    scene.paper.dies_in_the_batch = True
    with pytest.raises(Died):
        scene.go_on()
    scene.paper.dies_in_the_batch = False
    scene.begin()
    with pytest.raises(Killed):
        scene.carry_out(killed_at=6)
    monkeypatch.setattr(working, "start_query", lambda *given, **named: scene.go_on())

    with pytest.raises(UserError, match=f"Go on with `logmark pipelines replay {scene.job.pipeline.name}`"):
        start_live(scene.job, None, available_now=True)  # type: ignore[arg-type]
    scene.check(is_new=True)
    scene.carry_out()
    scene.go_on()

    scene.check(is_new=True)


def test_rows_without_ids_are_found_before_the_live_version_is_disturbed(
    our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = staged(our_broker, tmp_path, monkeypatch, to_topic=True)
    monkeypatch.setattr(releasing, "id_of", lambda record: None)
    scene.begin()
    with scene.running() as thread:
        with pytest.raises(UserError, match=r"of the records in .* have no id"):
            scene.carry_out()
        assert thread.is_alive()


def test_rows_without_ids_that_come_at_last_leave_the_way_back_open(
    our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = staged(our_broker, tmp_path, monkeypatch, to_topic=True)
    scene.begin()

    def lose_ids() -> None:
        scene.numbers.send(6)
        monkeypatch.setattr(releasing, "id_of", lambda record: None)

    with pytest.raises(UserError, match=r"^4 of the records in "):  # the others were looked at before
        scene.carry_out(hooks={4: lose_ids})
    monkeypatch.undo()

    abandon(scene.job, scene.client)
    scene.numbers.divisors = [3]
    scene.go_on()
    scene.check(is_new=False)


def test_a_replay_that_was_killed_while_it_handed_over_reads_nothing_more_before_it_is_done(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.begin()
    with monkeypatch.context() as patch:
        patch.setattr(Replay, "_hand_over", lambda replay: _die())
        with pytest.raises(Killed):
            scene.carry_out()
    scene.numbers.send(4)
    runs = scene.paper.runs

    scene.carry_out()

    assert runs == scene.paper.runs, "what it had found then could not be given up any more"
    scene.go_on()
    scene.check(is_new=True)


def claim_by_version_2(scene: Scene) -> None:
    position = standing(scene.job.home.checkpoint(2))
    assert position is not None
    claim(scene.client, scene.job.pipeline.group, position)


@pytest.mark.parametrize("step", [6, 7])
def test_what_is_being_put_in_place_is_not_given_up(scene: Scene, step: int) -> None:
    scene.begin()
    with pytest.raises(Killed):
        scene.carry_out(killed_at=step)

    with pytest.raises(UserError, match="is being put in place already"):
        abandon(scene.job, scene.client)
    assert not give_back(scene.client, scene.job)


def test_the_old_version_is_taken_back_and_the_new_one_again(scene_on_both: Scene) -> None:
    scene = scene_on_both
    scene.begin()
    scene.carry_out()
    scene.go_on()
    scene.numbers.send(4)
    scene.numbers.label, scene.numbers.divisors = "old", [3]
    assert 1 == previous(scene.job.home)

    for number in (1, 2, 1):
        begin_taking_back(scene.job, scene.client, number, Choices())
        scene.carry_out()
        scene.numbers.send(4)
        scene.go_on()

        assert number == scene.job.home.record().live
        if scene.to_topic:
            # What the new version sent stays sent; the rest follows the code of now.
            alerted = scene.numbers.alerted()
            assert scene.numbers.due(3) == alerted & scene.numbers.due(3)
            assert {1} == set(alerted.values()), "an alert was sent twice"
        else:
            scene.check(is_new=False)


@pytest.mark.parametrize("step", [3, 5])
def test_what_a_version_made_while_it_was_taken_back_is_released_though_that_was_given_up_once(
    scene: Scene, step: int
) -> None:
    scene.begin()
    scene.carry_out()
    scene.go_on()
    scene.numbers.label, scene.numbers.divisors = "old", [3, 5]
    scene.numbers.send(6)
    begin_taking_back(scene.job, scene.client, 1, Choices())
    with suppress(Killed):
        scene.carry_out(killed_at=step if scene.to_topic else 4)
    abandon(scene.job, scene.client)

    begin_taking_back(scene.job, scene.client, 1, Choices())
    scene.carry_out()
    scene.go_on()

    assert 1 == scene.job.home.record().live
    if scene.to_topic:
        assert {"number-21", "number-24", "number-25"} <= set(scene.numbers.alerted())
        assert {1} == set(scene.numbers.alerted().values()), "an alert was sent twice"
        assert f"{scene.numbers.alerts}.v1" not in scene.client.metadata().topics
    else:
        scene.check(is_new=False)


def test_a_version_that_was_not_kept_cannot_be_taken_back(scene: Scene) -> None:
    scene.begin(keep=False)
    scene.carry_out()
    scene.go_on()

    with pytest.raises(UserError, match="was not kept"):
        begin_taking_back(scene.job, scene.client, 1, Choices())
    with pytest.raises(UserError, match="is live already"):
        begin_taking_back(scene.job, scene.client, 2, Choices())
    scene.check(is_new=True)
    assert [2] == [one.number for one in versions_of(scene.job)]


def test_an_old_version_that_is_not_kept_is_removed_also_by_a_replay_that_is_gone_on_with(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.begin(keep=False)
    with pytest.raises(Killed):
        scene.carry_out(killed_at=8)
    scene.go_on()

    with monkeypatch.context() as patch:
        patch.setattr(lineage, "remove_folder", lambda path: _die())
        with pytest.raises(Killed):
            scene.carry_out()
    assert 2 == scene.job.home.record().live
    scene.carry_out()

    assert [2] == [one.number for one in versions_of(scene.job)]
    assert not scene.job.home.checkpoint(1).exists()
    if not scene.to_topic:
        assert [2] == [one.number for one in list_versions(scene.numbers.table)]
    with pytest.raises(UserError, match="was not kept"):
        begin_taking_back(scene.job, scene.client, 1, Choices())
    scene.check(is_new=True)


def _die() -> None:
    raise Killed


def test_a_kept_version_can_be_dropped_and_the_live_one_cannot(scene: Scene) -> None:
    scene.begin()
    scene.carry_out()
    scene.go_on()
    assert [(1, False, True), (2, True, False)] == [
        (one.number, one.is_live, one.can_be_taken_back) for one in versions_of(scene.job)
    ]

    drop(scene.job, scene.client, 1)

    assert [2] == [one.number for one in versions_of(scene.job)]
    if not scene.to_topic:
        assert [2] == [one.number for one in list_versions(scene.numbers.table)]
    for number, sentence in ((2, "is live"), (7, "There is no version 7")):
        with pytest.raises(UserError, match=sentence):
            drop(scene.job, scene.client, number)


def test_a_side_topic_and_a_group_of_a_version_are_gone_in_the_end(scene: Scene) -> None:
    scene.begin()
    scene.carry_out()

    assert f"{scene.numbers.alerts}.v2" not in scene.client.metadata().topics
    assert f"{scene.job.pipeline.group}.v2" not in [one.group for one in scene.client.list_groups()]


def test_a_lost_checkpoint_is_built_again_as_a_new_version(scene: Scene) -> None:
    shutil.rmtree(scene.job.home.checkpoint(1))
    scene.numbers.send(4)
    told: list[str] = []

    with scene.job.home.live():
        assert 2 == rebuild(scene.job, None, is_stateful=True, say=told.append)  # type: ignore[arg-type]

    scene.numbers.send(2)
    scene.go_on()
    scene.check(is_new=True)
    assert [
        f"{scene.job.pipeline.name}: the checkpoint of version 1 is gone; version 2 is built from the beginning"
    ] == told


def test_a_version_that_loses_its_own_checkpoint_is_built_from_its_beginning_again(scene_on_both: Scene) -> None:
    scene = scene_on_both
    for number, step in ((2, 3), (3, 5)):
        scene.begin()
        with pytest.raises(Killed):
            scene.carry_out(killed_at=step)
        shutil.rmtree(scene.job.home.checkpoint(number))
        scene.numbers.send(4)

        assert number == scene.carry_out().number
        scene.numbers.send(2)
        scene.go_on()
        scene.check(is_new=True)


def test_what_a_version_sent_before_it_lost_its_checkpoint_is_not_released(
    our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = staged(our_broker, tmp_path, monkeypatch, to_topic=True)
    scene.numbers.divisors = [2, 3, 5]
    scene.begin()
    with pytest.raises(Killed):
        scene.carry_out(killed_at=3)
    shutil.rmtree(scene.job.home.checkpoint(2))
    scene.numbers.divisors = [2, 3]

    scene.carry_out()
    scene.check(is_new=True)


def test_a_version_that_loses_its_checkpoint_when_it_is_handed_over_is_live_and_built_again(scene: Scene) -> None:
    for step in (6, 7):
        scene.begin()
        number = scene.job.home.record().building
        assert number is not None
        with pytest.raises(Killed):
            scene.carry_out(killed_at=step)
        shutil.rmtree(scene.job.home.checkpoint(number))
        scene.numbers.send(4)

        assert number == scene.carry_out().number
        if scene.job.home.has_lost_checkpoint():
            with scene.job.home.live():
                rebuild(scene.job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
        scene.numbers.send(2)
        scene.go_on()
        scene.check(is_new=True)


def test_a_rebuilt_topic_without_state_goes_on_where_its_group_stood_and_sends_nothing_twice(
    our_broker: BrokerUnderTest, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers(our_broker, tmp_path)
    paper, job = Paper(numbers), numbers.job("forwards")
    monkeypatch.setattr(replaying, "run", paper.run)
    monkeypatch.setattr(replaying, "run_until_close", paper.run)
    numbers.send(20)
    paper.run_live(job, client)
    # What was sent last was not committed when the checkpoint was lost.
    client.commit(job.pipeline.group, {TopicPartition(numbers.topic, 0): 5, TopicPartition(numbers.topic, 1): 20})
    shutil.rmtree(job.home.checkpoint(1))
    numbers.send(4)

    with job.home.live():
        rebuild(job, None, is_stateful=False, say=lambda text: None)  # type: ignore[arg-type]
    paper.run_live(job, client)

    # Partition p has p, p + 2, ... and then the same once more, for each call of `send`.
    values = {at: [*range(at, 20, 2)] * 2 + [*range(20 + at, 24, 2)] * 2 for at in (0, 1)}
    due = Counter(f"{at}/{offset}" for at in values for offset, value in enumerate(values[at]) if value % 3 == 0)
    assert due == numbers.alerted()


def test_a_table_is_not_rebuilt_where_its_first_records_are_gone(our_broker: BrokerUnderTest, tmp_path: Path) -> None:
    numbers = Numbers(our_broker, tmp_path)
    job = numbers.job("counts")
    numbers.send(20)
    our_broker.delete_records(numbers.topic, 5)

    with job.home.live(), pytest.raises(UserError, match="no longer have the first 5 records"):
        rebuild(job, None, is_stateful=True, say=lambda text: None)  # type: ignore[arg-type]
    assert None is job.home.record().building


def test_a_table_without_state_is_built_beside_when_that_is_wanted(
    our_broker: BrokerUnderTest, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers(our_broker, tmp_path)
    paper, job = Paper(numbers), numbers.job("rows")
    monkeypatch.setattr(replaying, "run", paper.run)
    monkeypatch.setattr(replaying, "run_until_close", paper.run)
    numbers.send(20)
    paper.run_live(job, client)
    numbers.label = "new"
    kind = kind_of(job, is_stateful=False, is_beside=True, has_stop=False)
    with job.home.replaying():
        plan = plan_version(job, client, ToEarliest(), kind=kind, is_stateful=False)
        work = begin(job, client, plan, Choices())
        Replay(job, lambda: None, client, work, telling=Telling(say=lambda text: None)).carry_out()  # type: ignore[arg-type, return-value]
    numbers.send(4)
    paper.run_live(job, client)

    assert ({"new"}, 48) == (set(numbers.labels().values()), len(numbers.labels()))


def test_what_a_table_would_lack_is_said_and_refused(our_broker: BrokerUnderTest, tmp_path: Path) -> None:
    numbers = Numbers(our_broker, tmp_path)
    job = numbers.job("counts")
    numbers.send(20)
    our_broker.delete_records(numbers.topic, 5)
    with connect(job.brokers) as client:
        plan = plan_version(job, client, ToEarliest(), kind=Kind.SWAP, is_stateful=True)
        assert {TopicPartition(numbers.topic, 0): 5, TopicPartition(numbers.topic, 1): 0} == plan.starts
        assert (5, 35) == (plan.dropped, plan.records)
        with pytest.raises(UserError, match="5 records before its beginning"):
            check_older(plan, drop_older=False)
        check_older(plan, drop_older=True)
        other = plan_version(numbers.job("fraud"), client, ToEarliest(), kind=Kind.SWAP, is_stateful=True)
        check_older(other, drop_older=False)


def test_a_version_reads_what_lies_before_its_beginning_unless_that_is_to_be_dropped(
    our_broker: BrokerUnderTest, tmp_path: Path
) -> None:
    numbers = Numbers(our_broker, tmp_path)
    numbers.send(20)
    first, second = TopicPartition(numbers.topic, 0), TopicPartition(numbers.topic, 1)
    aim = parse_aim(json.dumps({numbers.topic: {"0": 8, "1": 3}}), group="", now_ms=0)
    for kind in ("counts", "fraud"):
        job = numbers.job(kind)
        with connect(job.brokers) as client:
            whole = plan_version(job, client, aim, kind=Kind.SWAP, is_stateful=True)
            later = plan_version(job, client, aim, kind=Kind.SWAP, is_stateful=True, drop_older=True)

        assert ({first: 0, second: 0}, {first: 8, second: 3}) == (whole.starts, later.starts)
        assert ["The version reads 11 records before --from as well: what comes after depends on the state they "
                "leave."] == whole.notes  # fmt: skip
        assert (0, 11 if kind == "counts" else 0) == (whole.dropped, later.dropped)


@pytest.mark.parametrize(
    ("to_topic", "is_stateful", "is_beside", "has_stop", "kind"),
    [
        (False, True, False, False, Kind.SWAP),
        (True, True, False, False, Kind.SWAP),
        (True, False, False, True, Kind.COPY),
        (True, False, True, False, Kind.SWAP),
        (False, True, False, True, None),
    ],
)
def test_state_and_sink_decide_how_a_pipeline_is_replayed(
    our_broker: BrokerUnderTest, tmp_path: Path, to_topic: bool, is_stateful: bool, is_beside: bool, has_stop: bool,
    kind: Kind | None,
) -> None:  # fmt: skip
    numbers = Numbers(our_broker, tmp_path)
    job = numbers.job("fraud") if to_topic else numbers.job("counts")
    given = {"is_stateful": is_stateful, "is_beside": is_beside, "has_stop": has_stop}
    if kind is None:
        with pytest.raises(UserError, match="Leave --to away"):
            kind_of(job, **given)
    else:
        assert kind is kind_of(job, **given)


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
    assert is_near is is_close(left, before=before, took_s=took_s)
