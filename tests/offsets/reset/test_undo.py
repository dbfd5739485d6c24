"""Every change can be taken back exactly, whatever came of it, or it is said why not."""

import multiprocessing
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Author, Change, resolve_states
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.journal.journal import list_changes, select_change
from logmark.offsets.reset.deletion import plan_deletion
from logmark.offsets.reset.executor import AppliedReset, apply_plan
from logmark.offsets.reset.plan import ResetPlan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ShiftBy, Target, ToCurrent, ToEarliest, ToLatest, ToOffset, ToOffsets
from logmark.offsets.reset.undo import ChangeConflict, plan_undo
from logmark.offsets.undo import finish_change, undo_change
from tests.harness.brokers import BrokerUnderTest, read
from tests.offsets.reset import killed_process
from tests.offsets.reset.killed_process import AT_ONCE

RECORDS = 10


class UndoDriver:
    """A topic with ten records in each of three partitions, groups in it, and a journal."""

    def __init__(self, broker: BrokerUnderTest, client: Client, folder: Path) -> None:
        self.broker, self.client = broker, client
        self.topic = broker.create_topic("clicks", partitions=3, config={"retention.ms": "-1"})
        for number in range(3):
            broker.produce(self.topic, ["x"] * RECORDS, partition=number)
        self.partitions = [TopicPartition(self.topic, number) for number in range(3)]
        self.journal = FileJournal(folder / "journal.jsonl")
        self.group = broker.group("fraud")

    def new_life(self, offsets: dict[TopicPartition, Committed]) -> None:
        """Another group, which has committed these offsets, and an empty journal."""
        self.group = f"fraud-{uuid.uuid4().hex[:8]}"
        self.journal.path.unlink(missing_ok=True)
        if offsets:
            self.client.commit(self.group, offsets)

    def committed(self) -> dict[TopicPartition, Committed]:
        return self.client.committed(self.group)

    def reset(self, target: Target, partitions: list[int] | None = None) -> AppliedReset:
        plan = plan_reset(self.client, self.group, {self.topic: partitions}, target, create_group=True, clamp=True)
        return self.apply(plan)

    def apply(self, plan: ResetPlan) -> AppliedReset:
        return apply_plan(self.client, plan, journal=self.journal, timeouts=AT_ONCE)

    def undo(self, id: str | None = None, *, force: bool = False) -> AppliedReset | None:
        return undo_change(self.client, id, journal=self.journal, timeouts=AT_ONCE, force=force)

    def states(self) -> list[str]:
        return [one.state for one in self.journal.changes()]


@pytest.fixture
def driver(broker: BrokerUnderTest, tmp_path: Path) -> Iterator[UndoDriver]:
    with Client(broker.bootstrap_servers) as client:
        yield UndoDriver(broker, client, tmp_path)


offsets = st.integers(0, RECORDS)
committed_offsets = st.builds(
    Committed, offset=offsets, leader_epoch=st.integers(-1, 3), metadata=st.text("aé{ =", max_size=5)
)
targets = st.one_of(
    st.just(ToEarliest()),
    st.just(ToLatest()),
    st.builds(ToOffset, offsets),
    st.builds(ShiftBy, st.integers(-12, 12)),
    st.just(ToCurrent()),
    st.lists(committed_offsets, min_size=3, max_size=3),
    st.just("delete"),
)
steps = st.lists(st.tuples(targets, st.sets(st.integers(0, 2), min_size=1)), max_size=6)


def take(driver: UndoDriver, target: Target | list[Committed] | str, partitions: list[int]) -> None:
    """Makes one change, if it changes anything."""
    if target == "delete":
        plan = plan_deletion(driver.client, driver.group, {driver.topic: partitions})
    else:
        if isinstance(target, list):
            target = ToOffsets(dict(zip(driver.partitions, target, strict=True)), "a file", is_exact=True)
        assert not isinstance(target, str)
        if isinstance(target, ShiftBy):
            partitions = [one for one in partitions if TopicPartition(driver.topic, one) in driver.committed()]
        if not partitions:
            return
        plan = plan_reset(
            driver.client, driver.group, {driver.topic: partitions}, target, create_group=True, clamp=True
        )  # fmt: skip
    if plan.changes:
        driver.apply(plan)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "many", [pytest.param(False, id="some"), pytest.param(True, id="many", marks=pytest.mark.soak)]
)
def test_undoing_any_sequence_of_changes_in_reverse_restores_offset_metadata_and_epoch_exactly(
    driver: UndoDriver, many: bool, record_property: Callable[[str, object], None]
) -> None:
    examples = (8 if driver.broker.kind == "kafka" else 40) * (25 if many else 1)
    undone: list[int] = []

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(st.sampled_from(driver.partitions), committed_offsets), steps)
    def holds(before: dict[TopicPartition, Committed], taken: list[tuple[Target, set[int]]]) -> None:
        driver.new_life(before)
        after = [before]
        for target, partitions in taken:
            if driver.committed() or target != "delete":
                take(driver, target, sorted(partitions))
                after.append(driver.committed())
        changes = [one.id for one in driver.journal.changes()]
        for _ in changes:
            driver.undo()
        undone.append(len(changes))
        assert before == driver.committed()
        assert ["undone"] * len(changes) == [one.state for one in driver.journal.changes() if one.undoes is None]
        with pytest.raises(UserError, match="no change of this cluster that could be undone"):
            driver.undo()
        # And forward again: the undoing is undone, the last first.
        undoing = [one.id for one in driver.journal.changes() if one.undoes is not None]
        for id in reversed(undoing):
            driver.undo(id)
        assert after[-1] == driver.committed()

    holds()
    record_property("sequences", len(undone))
    record_property("changes undone and redone", sum(undone))


def test_an_undo_is_journaled_and_can_be_undone(driver: UndoDriver) -> None:
    driver.new_life({driver.partitions[0]: Committed(offset=7, leader_epoch=0, metadata="m")})
    made = driver.reset(ToOffset(2))

    undone = driver.undo()
    assert undone is not None
    assert ("undo", made.change.id, f"undo of {made.change.id} (reset to offset 2)") == (
        undone.change.action, undone.change.undoes, undone.change.how,
    )  # fmt: skip
    assert {driver.partitions[0]: Committed(offset=7, leader_epoch=0, metadata="m")} == driver.committed()
    assert ["undone", "done"] == driver.states()

    redone = driver.undo(undone.change.id)
    assert redone is not None
    assert [2, 2, 2] == [one.offset for one in driver.committed().values()]
    assert ["done", "undone", "done"] == driver.states()

    driver.undo()
    assert ["undone", "undone", "done", "done"] == driver.states()
    assert [7] == [one.offset for one in driver.committed().values()]


def test_a_group_that_moved_on_is_not_put_back_by_accident(driver: UndoDriver) -> None:
    driver.new_life(dict.fromkeys(driver.partitions[:2], Committed(offset=7)))
    made = driver.reset(ToOffset(2), [0, 1])
    driver.client.commit(driver.group, {driver.partitions[0]: 9, driver.partitions[1]: 4})

    with pytest.raises(ChangeConflict) as refused:
        driver.undo()
    assert (
        f"Undoing {made.change.id} would not be right any more: group {driver.group} has moved on: "
        f"{driver.partitions[0]} had committed 2 and has committed 9 now; {driver.partitions[1]} had committed 2 and "
        "has committed 4 now. 2 of its records would be read twice, and 3 of its records would not be read. "
        "Nothing was changed; pass force=True "
        "to do it all the same, or reset the group to where it shall start."
    ) == str(refused.value)
    assert [9, 4] == [one.offset for one in driver.committed().values()]
    assert ["done"] == driver.states()

    driver.undo(force=True)
    assert [7, 7] == [one.offset for one in driver.committed().values()]


def test_an_undo_is_exact_also_where_a_reader_commits_between_plan_and_change(driver: UndoDriver) -> None:
    before = {driver.partitions[0]: Committed(offset=7, leader_epoch=0, metadata="old")}
    driver.new_life(before)
    made = driver.reset(ToOffset(2), [0])
    plan = plan_undo(driver.client, made.change)
    driver.client.commit(driver.group, {driver.partitions[0]: Committed(offset=3, metadata="new")})

    driver.apply(plan)

    assert before == driver.committed()


def test_a_topic_that_was_created_again_is_another_one(driver: UndoDriver) -> None:
    topic = driver.broker.create_topic("short-lived")
    driver.broker.produce(topic, ["x"] * 4)
    driver.new_life({TopicPartition(topic, 0): Committed(offset=4)})
    made = driver.apply(plan_reset(driver.client, driver.group, None, ToEarliest()))
    driver.client.delete_topics([topic])

    with pytest.raises(ChangeConflict, match=rf"topic {topic} does not exist any more\. Nothing was changed"):
        driver.undo()
    driver.broker.create_topic("short-lived")
    with pytest.raises(ChangeConflict, match=rf"topic {topic} is another one of the same name, made since"):
        driver.undo(made.change.id)


def test_what_has_expired_since_is_said(driver: UndoDriver) -> None:
    driver.new_life({driver.partitions[0]: Committed(offset=1)})
    made = driver.reset(ToOffset(6), [0])
    driver.broker.delete_records(driver.topic, 5)

    (move,) = plan_undo(driver.client, made.change).moves
    assert "4 records from 1 on have expired" == move.note


def test_a_group_with_members_is_not_put_back(driver: UndoDriver) -> None:
    driver.new_life(dict.fromkeys(driver.partitions, Committed(offset=7)))
    driver.reset(ToOffset(2))
    consumer = driver.broker.consumer(driver.group)
    consumer.subscribe([driver.topic])
    read(consumer, 1)

    with pytest.raises(UserError, match="is active"):
        driver.undo()


@pytest.mark.parametrize("state", ["undone", "taken back", "refused", "overwritten"])
def test_what_does_not_hold_cannot_be_undone(state: str) -> None:
    change = replace(a_change("a"), state=state)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"The change a is {state} already. Nothing was changed"):
        plan_undo(None, change)  # type: ignore[arg-type]


def a_change(id: str, *, undoes: str | None = None, state: str = "done", who: str = "ann") -> Change:
    return Change(
        id=id, at_ms=ord(id[0]), cluster_id="c", name="g", action="reset", who=who, host="desk",
        before={}, after={}, undoes=undoes, state=state,  # type: ignore[arg-type]
    )  # fmt: skip


def test_without_an_id_the_last_own_change_that_holds_is_meant() -> None:
    ann, changes = Author("ann", "desk"), [a_change("a"), a_change("b"), a_change("c", undoes="b")]
    assert "a" == select_change(list(resolve_states(changes).values()), None, who=ann).id
    changes.append(a_change("d", undoes="c"))
    assert "b" == select_change(list(resolve_states(changes).values()), None, who=ann).id
    changes.append(a_change("e", who="bob"))
    with pytest.raises(UserError, match=r"The last change .* is e \(reset of g\) by bob on desk, and not yours"):
        select_change(list(resolve_states(changes).values()), None, who=ann)
    with pytest.raises(UserError, match=r"no change of this cluster .*Pending are f: name one"):
        select_change([a_change("f", state="pending")], None, who=ann)


class TestKilled:
    """A change that is killed at any step is pending with both ways out, or did nothing, or is done."""

    @pytest.fixture
    def driver(self, our_broker: BrokerUnderTest, tmp_path: Path) -> Iterator[UndoDriver]:
        with Client(our_broker.bootstrap_servers) as client:
            yield UndoDriver(our_broker, client, tmp_path)

    @pytest.mark.parametrize("way_out", ["finish", "undo"])
    @pytest.mark.parametrize("kind", ["reset", "delete", "undo"])
    @pytest.mark.parametrize("step", killed_process.STEPS)
    def test_a_killed_change_is_finished_or_undone(
        self, driver: UndoDriver, kind: str, step: str, way_out: str
    ) -> None:
        before = {
            driver.partitions[0]: Committed(offset=7, leader_epoch=0, metadata="m"),
            driver.partitions[1]: Committed(offset=9),
        }
        after = {
            one: Committed(offset=2, metadata="m" if one == driver.partitions[0] else "") for one in driver.partitions
        }
        driver.new_life(before)
        if kind == "undo":
            driver.reset(ToOffset(2))
            before, after = after, before
        elif kind == "delete":
            after = {}
        earlier = driver.states()
        self.die(driver, kind, step)

        # An undo that commits in some partitions and deletes in another is killed between the two.
        between = {**after, **before} if kind == "undo" else after
        expected = {3: {**between, **after}, 4: after, 5: after}.get(killed_process.STEPS.index(step), before)
        assert expected == driver.committed()
        if step == "before the journal":
            assert earlier == driver.states(), "nothing was begun"
            return
        last = list_changes(driver.client, journal=driver.journal)[-1]
        if step == "after the end":
            assert "done" == last.state
            return
        assert "pending" == last.state
        if way_out == "finish":
            finish_change(driver.client, last.id, journal=driver.journal, timeouts=AT_ONCE)
            assert (after, "done") == (driver.committed(), driver.journal.changes()[len(earlier)].state)
            assert earlier == [] or "undone" == driver.states()[0]
        else:
            driver.undo(last.id)
            assert (before, "taken back") == (driver.committed(), driver.journal.changes()[len(earlier)].state)
            assert earlier == [] or "done" == driver.states()[0]

    def test_a_group_that_stands_elsewhere_is_not_finished_by_accident(self, driver: UndoDriver) -> None:
        driver.new_life({driver.partitions[0]: Committed(offset=7)})
        self.die(driver, "reset", "before the commit")
        driver.client.commit(driver.group, {driver.partitions[0]: 8})
        (pending,) = driver.journal.changes()

        with pytest.raises(ChangeConflict, match="had committed 7 and has committed 8 now"):
            finish_change(driver.client, pending.id, journal=driver.journal, timeouts=AT_ONCE)
        finish_change(driver.client, pending.id, journal=driver.journal, timeouts=AT_ONCE, force=True)
        assert 2 == driver.committed()[driver.partitions[0]].offset
        with pytest.raises(UserError, match="is done and not pending"):
            finish_change(driver.client, pending.id, journal=driver.journal, timeouts=AT_ONCE)

    def die(self, driver: UndoDriver, kind: str, step: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.offsets.reset.killed_process"])
        servers = driver.broker.bootstrap_servers
        process = context.Process(
            target=killed_process.change, args=(servers, driver.group, driver.topic, driver.journal.path, kind, step)
        )
        process.start()
        process.join(60)
        assert -signal.SIGKILL == process.exitcode


@pytest.mark.kafka
def test_a_group_of_the_newer_protocol_is_moved_and_put_back(apache_kafka: BrokerUnderTest, tmp_path: Path) -> None:
    with Client(apache_kafka.bootstrap_servers) as client:
        driver = UndoDriver(apache_kafka, client, tmp_path)
        consumer = apache_kafka.consumer(driver.group, group_protocol="consumer")
        consumer.subscribe([driver.topic])
        read(consumer, 3 * RECORDS)
        consumer.commit(asynchronous=False)
        with pytest.raises(UserError, match="is active"):
            driver.reset(ToOffset(2))
        consumer.close()
        before = driver.committed()
        assert "consumer" == client.describe_groups([driver.group])[driver.group].type

        driver.reset(ToOffset(2))
        driver.apply(plan_deletion(client, driver.group, {driver.topic: [0]}))
        assert [2, 2] == [one.offset for one in driver.committed().values()]
        driver.undo()
        driver.undo()
        assert before == driver.committed()
