"""A query and its group through crashes, resets and failed commits: each record is read once, and resets are followed.

The model is where the next batch has to begin in each partition, and where somebody has moved the group since the query
last looked at it.
"""

from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logmark.client.answers import Committed
from logmark.client.errors import BrokerUnreachable, CommitRefused, NoCoordinator
from logmark.clock import ManualClock
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.spark.source.group_follower import GroupFollower
from logmark.spark.source.ownership import is_late
from logmark.spark.source.position import GroupCommit, Position
from tests.harness.searches import examples
from tests.spark.source.test_group_follower import EARLY, P0, P1, FakeCluster, follow

PARTITIONS = (P0, P1)
SEEN, LOST, UNSURE, REFUSED = "seen", "lost", "unsure", "refused"


class UnreliableCluster(FakeCluster):
    """Answers commits as `fate` says, and looks at the group unless it is away."""

    fate = SEEN
    is_without_coordinator = False

    def committed(self, group: str, partitions: object = None) -> dict[TopicPartition, Committed]:
        if self.is_without_coordinator:
            raise NoCoordinator(group, ErrorCode.COORDINATOR_NOT_AVAILABLE, "It is being elected.")
        return dict(self.offsets)

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed | int]) -> None:
        if self.is_without_coordinator or self.fate == LOST:
            raise BrokerUnreachable("It is gone.")
        if self.fate == REFUSED:
            raise CommitRefused(group, dict.fromkeys(offsets, ErrorCode.UNKNOWN_MEMBER_ID))
        super().commit(group, offsets)
        if self.fate == UNSURE:
            raise BrokerUnreachable("It was done, and nobody said so.")


class Query(RuleBasedStateMachine):
    """What Spark does with a source, and what others do to its group."""

    @initialize(foreign=st.none() | st.integers(0, 20), fate=st.sampled_from([SEEN, LOST, UNSURE, REFUSED]))
    def begin(self, foreign: int | None, fate: str) -> None:
        self.clock = ManualClock()
        self.cluster = UnreliableCluster(p0=(0, 30), p1=(0, 30))
        if foreign is not None:
            self.cluster.reset(p0=foreign)
        self.cluster.fate = fate
        self.follower = self.new_follower()
        self.done = self.follower.start()
        self.cluster.fate = SEEN
        self.has_batch = False  # before its first batch is planned a query that dies begins anew
        self.moved: dict[TopicPartition, int] = {}
        self.earlier: list[GroupFollower] = []
        self.old: list[dict[TopicPartition, Committed]] = []

    def new_follower(self) -> GroupFollower:
        return follow(self.cluster, self.clock, **EARLY)

    @rule(records=st.integers(1, 50))
    def produce(self, records: int) -> None:
        for partition in PARTITIONS:
            start, end = self.cluster.logs[partition]
            self.cluster.logs[partition] = (start, end + records)

    @rule(fate=st.sampled_from([SEEN, SEEN, LOST, UNSURE, REFUSED]), is_blind=st.booleans(), records=st.integers(1, 40))
    def trigger(self, fate: str, is_blind: bool, records: int) -> None:
        self.old.append(dict(self.cluster.offsets))
        self.cluster.fate, self.cluster.is_without_coordinator = fate, is_blind
        planned = self.follower.advance(self.done, records_max=records)
        self.cluster.fate, self.cluster.is_without_coordinator = SEEN, False
        self.clock.advance(seconds=1)
        moved = (
            {}
            if is_blind
            else {partition: to for partition, to in self.moved.items() if to != self.done.next[partition]}
        )
        if moved:
            assert ({**self.done.next, **moved}, {}) == (planned.next, planned.ranges), "a move is followed at once"
            assert planned.generation > self.done.generation
        else:
            firsts = {partition: first for partition, (first, _) in planned.ranges.items() if planned is not self.done}
            assert {partition: self.done.next[partition] for partition in firsts} == firsts, (
                "a batch begins where the last ended"
            )
            assert planned.generation == self.done.generation
            self.has_batch = self.has_batch or bool(firsts)
        if not is_blind:
            self.moved = {}
        self.done = Position.from_json(planned.to_json())

    @precondition(lambda self: self.has_batch)
    @rule(stops=st.booleans())
    def restart(self, stops: bool) -> None:
        if stops:
            self.follower.mark_stopped(self.cluster)
        self.earlier.append(self.follower)
        self.follower = self.new_follower()
        # A commit of its own that was restored before the query stopped is all that its checkpoint knows of.
        known = self.done.possible_commits()
        self.moved = {
            partition: to for partition, to in self.moved.items() if self.found(partition) not in known[partition]
        }

    def found(self, partition: TopicPartition) -> GroupCommit:
        one = self.cluster.offsets[partition]
        return GroupCommit(offset=one.offset, mark=CommitMetadata.parse(one.metadata))

    @rule(partition=st.sampled_from(PARTITIONS), offset=st.integers(0, 30), keeps_metadata=st.booleans())
    def reset(self, partition: TopicPartition, offset: int, keeps_metadata: bool) -> None:
        self.trigger(SEEN, is_blind=False, records=1)  # only what the query has seen can be told from what it has not
        there = self.cluster.offsets[partition]
        self.put(partition, Committed(offset=offset, metadata=there.metadata if keeps_metadata else ""))

    @precondition(lambda self: bool(self.old))
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        before = data.draw(st.sampled_from(self.old))
        self.trigger(SEEN, is_blind=False, records=1)
        for partition, one in before.items():
            if not self.looks_late(partition, one):
                self.put(partition, one)

    def looks_late(self, partition: TopicPartition, one: Committed) -> bool:
        """Whether it cannot be told from a late heartbeat: what was undone before this process began, and is redone."""
        commit = GroupCommit(offset=one.offset, mark=CommitMetadata.parse(one.metadata))
        first_seen = (self.follower._first_seen or {}).get(partition)
        return is_late(commit, first_seen, process=self.follower._process)

    def put(self, partition: TopicPartition, one: Committed) -> None:
        there = self.cluster.offsets.get(partition)
        self.cluster.offsets[partition] = one
        # An older heartbeat of the same commit is no move.
        if there is None or (one.offset, CommitMetadata.parse(one.metadata)) != (
            there.offset, CommitMetadata.parse(there.metadata),
        ):  # fmt: skip
            self.moved[partition] = one.offset

    @rule()
    def renew_heartbeat(self) -> None:
        self.clock.advance(seconds=30)
        self.follower.renew_heartbeat()

    @precondition(lambda self: bool(self.earlier))
    @rule(data=st.data(), stops=st.booleans())
    def repeat_too_late(self, data: st.DataObject, stops: bool) -> None:
        """What an earlier process does that looked at the group before the trigger and commits after it.

        The next trigger comes before the query dies: a third process could not tell the late commit from a reset.
        """
        earlier = data.draw(st.sampled_from(self.earlier))
        self.trigger(SEEN, is_blind=False, records=20)
        looked = dict(self.cluster.offsets)
        self.trigger(SEEN, is_blind=False, records=20)
        now, self.cluster.offsets = self.cluster.offsets, looked
        commits = len(self.cluster.commits)
        (earlier.mark_stopped if stops else lambda cluster: earlier.renew_heartbeat())(self.cluster)
        repeated = {one: self.cluster.offsets[one] for made in self.cluster.commits[commits:] for one in made}
        self.cluster.offsets = now
        for partition, one in repeated.items():
            if partition in now and one.offset < now[partition].offset:
                self.cluster.offsets[partition] = one
        self.trigger(SEEN, is_blind=False, records=20)

    @rule(partition=st.sampled_from(PARTITIONS))
    def expire(self, partition: TopicPartition) -> None:
        self.cluster.offsets.pop(partition, None)
        self.moved.pop(partition, None)

    @invariant()
    def the_group_never_leads(self) -> None:
        """What the query commits, its sink has."""
        for partition, one in self.cluster.offsets.items():
            assert partition in self.moved or one.offset <= self.done.next[partition]


TestEachRecordIsReadOnceWhateverHappens = Query.TestCase
TestEachRecordIsReadOnceWhateverHappens.settings = settings(
    max_examples=examples(60, soak=5000), stateful_step_count=30
)
