"""Applying a plan while others are in the group; whoever else is there acts whenever the tool sleeps."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, ReadOnly
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.journal.changes import Author, Change
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.reset.deletion import plan_deletion
from logmark.offsets.reset.executor import AppliedReset, WatchTimeouts, apply_plan
from logmark.offsets.reset.members import GroupActive, wait_until_empty
from logmark.offsets.reset.plan import ResetPlan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ShiftBy, ToCurrent, ToEarliest, ToLatest, ToOffset
from tests.harness.brokers import BrokerUnderTest, read
from tests.harness.node import wait_until


class ResetDriver:
    """A topic of ten records, a group in it, a journal, and a clock that only sleeping moves."""

    def __init__(self, broker: BrokerUnderTest, client: Client, folder: Path, *, partitions: int = 1) -> None:
        self.broker, self.client = broker, client
        self.topic, self.group = broker.create_topic("clicks", partitions=partitions), broker.group("fraud")
        for number in range(partitions):
            broker.produce(self.topic, ["x"] * 10, partition=number)
        self.partitions = [TopicPartition(self.topic, number) for number in range(partitions)]
        self.partition = self.partitions[0]
        self.journal = FileJournal(folder / "journal.jsonl")
        self.slept: list[float] = []
        self.meanwhile: Callable[[int], None] = lambda _: None

    def commit(self, offset: int, metadata: str = "") -> None:
        self.client.commit(self.group, {self.partition: Committed(offset=offset, metadata=metadata)})

    def committed(self) -> Committed | None:
        return self.client.committed(self.group).get(self.partition)

    def plan(self, target: ToOffset | ShiftBy | ToCurrent | ToEarliest) -> ResetPlan:
        return plan_reset(self.client, self.group, {self.topic: None}, target)

    def apply(self, plan: ResetPlan, **more: object) -> AppliedReset:
        timeouts = WatchTimeouts(monotonic=lambda: sum(self.slept), sleep=self._sleep)
        return apply_plan(self.client, plan, journal=self.journal, timeouts=timeouts, **more)  # type: ignore[arg-type]

    def states(self) -> list[str]:
        return [one.state for one in self.journal.changes()]

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.meanwhile(len(self.slept))


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def driver(broker: BrokerUnderTest, client: Client, tmp_path: Path) -> ResetDriver:
    return ResetDriver(broker, client, tmp_path)


@pytest.fixture
def our_driver(our_broker: BrokerUnderTest, tmp_path: Path) -> Iterator[ResetDriver]:
    with Client(our_broker.bootstrap_servers) as client:
        yield ResetDriver(our_broker, client, tmp_path)


def mark(offset: int, *, generation: int = 1, query: str = "q") -> str:
    return CommitMetadata(query=query, generation=generation, offset=offset).to_text()


def test_a_change_is_journaled_with_who_when_why_before_and_after(driver: ResetDriver) -> None:
    driver.commit(8, "kept")

    applied = driver.apply(
        driver.plan(ToOffset(2)), reason="a fix", who=Author("ann", "desk"), details={"context": "prod"}
    )

    assert [applied.change] == driver.journal.changes(driver.client.metadata([]).cluster_id, driver.group)
    change = applied.change
    assert ("reset", "to offset 2", "ann", "desk", "a fix", "done") == (
        change.action, change.how, change.who, change.host, change.reason, change.state,
    )  # fmt: skip
    assert {driver.partition: Committed(offset=8, metadata="kept")} == change.before
    assert {driver.partition: Committed(offset=2, metadata="kept")} == change.after
    assert "prod" == change.details["context"]
    assert sum(driver.slept) < 1, "nobody is known to be in this group, so it is watched for a moment only"


def test_what_a_query_writes_over_is_set_again_under_its_new_mark(our_driver: ResetDriver) -> None:
    driver = our_driver
    driver.commit(8, mark(8))

    def query(step: int) -> None:
        if step == 1:  # it had looked at the group just before the reset
            driver.commit(9, mark(9))
        if step == 5:  # now it has seen the reset
            assert Committed(offset=2, metadata=mark(9)) == driver.committed()
            driver.commit(4, mark(4, generation=2))

    driver.meanwhile = query
    applied = driver.apply(driver.plan(ToOffset(2)))

    assert (1, "the query q", "the query q") == (applied.repeats, applied.overwritten_by, applied.picked_up_by)
    assert (5, ["done"]) == (len(driver.slept), driver.states())


def test_a_stopped_query_is_watched_for_five_seconds(our_driver: ResetDriver) -> None:
    our_driver.commit(8, mark(8))

    applied = our_driver.apply(our_driver.plan(ToOffset(2)))

    assert 5 <= sum(our_driver.slept) < 5.2
    assert ("", 0, Committed(offset=2, metadata=mark(8))) == (
        applied.picked_up_by, applied.repeats, our_driver.committed(),
    )  # fmt: skip


def test_a_reader_that_never_looks_is_named_and_the_change_is_not_called_done(our_driver: ResetDriver) -> None:
    our_driver.commit(8)
    our_driver.meanwhile = lambda step: our_driver.commit(9)

    with pytest.raises(UserError, match=r"was moved, and somebody has written over it .*has committed 9.*stop it"):
        our_driver.apply(our_driver.plan(ToOffset(2)))
    assert (["overwritten"], True) == (our_driver.states(), sum(our_driver.slept) <= 11)


def test_what_was_set_at_the_last_moment_is_watched_before_it_is_called_done(our_driver: ResetDriver) -> None:
    driver = our_driver
    driver.commit(8)
    again = iter([True])

    def reader(step: int) -> None:
        if sum(driver.slept) < 9.8 or (sum(driver.slept) > 11 and next(again, False)):
            driver.commit(9)

    driver.meanwhile = reader
    with pytest.raises(UserError, match="has written over it"):
        driver.apply(driver.plan(ToOffset(2)))
    assert ["overwritten"] == driver.states()


def test_two_people_who_move_a_group_at_once_do_not_fight(our_driver: ResetDriver) -> None:
    driver = our_driver
    driver.commit(8, mark(8))
    mine = driver.plan(ToOffset(2))
    theirs = driver.plan(ToOffset(5))

    def other(step: int) -> None:
        if step == 1:
            apply_plan(
                driver.client, theirs, journal=driver.journal, who=Author("bob", "shop"),
                timeouts=WatchTimeouts(watch_s=0, quiet_watch_s=0), agree=lambda _: None,
            )  # fmt: skip

    driver.meanwhile = other
    with pytest.raises(
        UserError, match=r"then moved elsewhere by bob on shop \(change \w+, reset to offset 5\), which ho"
    ):
        driver.apply(mine)
    assert (["overwritten", "done"], 5) == (driver.states(), driver.committed() and driver.committed().offset)  # type: ignore[union-attr]


def test_an_empty_group_that_moves_while_it_is_planned_is_said_to_be_in_use(our_driver: ResetDriver) -> None:
    driver = our_driver
    driver.commit(3, mark(3))
    original, looks = driver.client.committed, iter(range(100))

    def moving(*args: object, **more: object) -> dict[TopicPartition, Committed]:
        if next(looks) == 1:
            driver.commit(5, mark(5))
        return original(*args, **more)  # type: ignore[arg-type]

    driver.client.committed = moving  # type: ignore[method-assign]
    plan = driver.plan(ToEarliest())

    assert [
        f"Group {driver.group} is in use although it has no members: it moved in {driver.partition} while this was "
        "planned, by "
        "the query q."
    ] == list(plan.warnings)


@pytest.mark.parametrize("target", [ShiftBy(-1), ToCurrent()])
def test_an_offset_that_depends_on_where_the_group_stands_is_agreed_to_again(
    our_driver: ResetDriver, target: ShiftBy | ToCurrent
) -> None:
    driver = our_driver
    driver.commit(3)
    plan = driver.plan(target)
    driver.commit(6)
    shown: list[ResetPlan] = []

    driver.apply(plan, agree=shown.append)

    by = target.records if isinstance(target, ShiftBy) else 0
    assert [[6 + by]] == [[move.to for move in one.moves] for one in shown]
    assert Committed(offset=6 + by) == driver.committed()


def test_whoever_does_not_agree_to_the_new_plan_changes_nothing(our_driver: ResetDriver) -> None:
    driver = our_driver
    driver.commit(3)
    plan = driver.plan(ShiftBy(-1))
    driver.commit(6)

    def no(_: ResetPlan) -> None:
        raise UserError("Nothing was changed.")

    with pytest.raises(UserError, match=r"Nothing was changed\."):
        driver.apply(plan, agree=no)
    assert ([], Committed(offset=6)) == (driver.states(), driver.committed())


def test_a_group_that_never_stands_still_is_not_shifted(our_driver: ResetDriver) -> None:
    driver = our_driver
    driver.commit(1)
    plan = driver.plan(ShiftBy(-1))
    driver.commit(2)
    later = iter(range(3, 10))

    with pytest.raises(UserError, match=r"moves faster than a plan can be confirmed.* Nothing was changed"):
        driver.apply(plan, agree=lambda _: driver.commit(next(later)))
    assert [] == driver.states()


def test_a_renewed_commit_is_the_same_commit(driver: ResetDriver) -> None:
    driver.client.commit(driver.group, {driver.partition: Committed(offset=3, leader_epoch=0, metadata="m")})

    applied = driver.apply(driver.plan(ToCurrent()))

    assert applied.change.before == applied.change.after
    assert Committed(offset=3, leader_epoch=0, metadata="m") == driver.committed()


def test_offsets_are_forgotten_and_nothing_else(broker: BrokerUnderTest, client: Client, tmp_path: Path) -> None:
    driver = ResetDriver(broker, client, tmp_path, partitions=2)
    client.commit(driver.group, dict.fromkeys(driver.partitions, 4))

    applied = driver.apply(plan_deletion(client, driver.group, {driver.topic: [1]}))

    assert {driver.partitions[0]: Committed(offset=4)} == client.committed(driver.group)
    assert ("delete-offsets", {driver.partitions[1]: None}) == (applied.change.action, applied.change.after)


def test_offsets_in_a_topic_that_members_read_are_not_forgotten(driver: ResetDriver) -> None:
    consumer = driver.broker.consumer(driver.group)
    consumer.subscribe([driver.topic])
    read(consumer, 3)
    consumer.commit(asynchronous=False)

    with pytest.raises(UserError, match=r"was not taken away: .*Nothing was changed"):
        driver.apply(plan_deletion(driver.client, driver.group, {driver.topic: None}))
    assert (["refused"], 3) == (driver.states(), driver.committed() and driver.committed().offset)  # type: ignore[union-attr]


class TestRefusals:
    """A change that the cluster refuses leaves nothing behind but its entry in the journal."""

    def test_a_member_that_joins_between_look_and_commit_is_said_so(self, driver: ResetDriver) -> None:
        driver.commit(8)
        plan = driver.plan(ToOffset(2))
        original = driver.journal.add

        def joins_then(change: Change) -> None:
            original(change)
            consumer = driver.broker.consumer(driver.group)
            consumer.subscribe([driver.topic])
            read(consumer, 1)

        driver.journal.add = joins_then  # type: ignore[method-assign]
        with pytest.raises(UserError, match=r"it has active members; stop them and try again. Nothing was changed"):
            driver.apply(plan)
        assert (["refused"], Committed(offset=8)) == (driver.states(), driver.committed())

    def test_a_commit_that_is_refused_in_part_is_put_back(self, driver: ResetDriver) -> None:
        doomed = TopicPartition(driver.broker.create_topic("doomed"), 0)
        driver.client.commit(driver.group, {driver.partition: 8, doomed: 0})
        plan = plan_reset(driver.client, driver.group, None, ToLatest())
        plan = replace(plan, moves=[replace(move, after=Committed(offset=2)) for move in plan.moves])
        original = driver.journal.add

        def is_deleted_then(change: Change) -> None:
            original(change)
            driver.client.delete_topics([doomed.topic])
            wait_until(lambda: doomed.topic not in driver.client.metadata([doomed.topic]).topics, "the topic is gone")

        driver.journal.add = is_deleted_then  # type: ignore[method-assign]
        with pytest.raises(UserError, match=r"does not exist. The other partitions were put back, so nothing"):
            driver.apply(plan)
        assert (["taken back"], Committed(offset=8)) == (driver.states(), driver.committed())

    def test_a_broker_that_goes_away_meanwhile_leaves_a_pending_change(self, our_driver: ResetDriver) -> None:
        driver = our_driver
        driver.commit(8)
        plan = driver.plan(ToOffset(2))

        def gone(*_: object) -> None:
            raise BrokerUnreachable("The broker went away.")

        driver.client.commit = gone  # type: ignore[method-assign]
        with pytest.raises(UserError, match=r"is not known. The change \w+ is journaled as pending; finish_change"):
            driver.apply(plan)
        assert ["pending"] == driver.states()

    def test_who_may_only_look_journals_nothing(self, our_broker: BrokerUnderTest, tmp_path: Path) -> None:
        with Client(our_broker.bootstrap_servers) as client:
            driver = ResetDriver(our_broker, client, tmp_path)
            driver.commit(8)
        with Client(our_broker.bootstrap_servers, read_only=True) as looking:
            driver.client = looking
            plan = driver.plan(ToOffset(2))
            with pytest.raises(ReadOnly):
                driver.apply(plan)
        assert [] == driver.states()

    def test_ctrl_c_while_it_is_watched_leaves_a_change_that_is_done(self, our_driver: ResetDriver) -> None:
        our_driver.commit(8)

        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        our_driver.meanwhile = interrupt
        with pytest.raises(KeyboardInterrupt):
            our_driver.apply(our_driver.plan(ToOffset(2)))
        assert (["done"], Committed(offset=2)) == (our_driver.states(), our_driver.committed())


class TestMembers:
    def test_members_are_named_with_host_and_partitions_and_waited_for(self, driver: ResetDriver) -> None:
        consumer = driver.broker.consumer(driver.group, client_id="worker-1")
        consumer.subscribe([driver.topic])
        read(consumer, 1)
        with pytest.raises(GroupActive, match=rf"worker-1 on [\d.]+ with {driver.partition}.*or call wait_until_empty"):
            driver.plan(ToEarliest())

        waited: list[float] = []

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 2:
                consumer.close()

        wait_until_empty(driver.client, driver.group, timeout_s=60, sleep=sleep)
        assert len(waited) >= 2
        assert driver.plan(ToEarliest()).moves

    def test_waiting_ends(self, driver: ResetDriver) -> None:
        consumer = driver.broker.consumer(driver.group, client_id="worker-1")
        consumer.subscribe([driver.topic])
        read(consumer, 1)
        waited: list[float] = []
        with pytest.raises(GroupActive, match="worker-1"):
            wait_until_empty(driver.client, driver.group, timeout_s=2, sleep=waited.append)
        assert 2 == sum(waited)
