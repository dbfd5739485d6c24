"""A query and its group, with a cluster that a test can disturb."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from logmark.client.answers import EARLIEST, LATEST, Committed, FetchedPartition, OffsetAndTimestamp
from logmark.client.connection import Address
from logmark.client.errors import BrokerUnreachable, CommitRefused, NoCoordinator, RefusedByBroker
from logmark.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from logmark.clock import ManualClock
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata, Heartbeat, QueryState
from logmark.spark.errors import GroupInUse, is_transient
from logmark.spark.source.group_follower import GroupFollower
from logmark.spark.source.options import parse_source_options
from logmark.spark.source.position import Position
from logmark.wire.batches import build

RECORD_EVERY_MS = 1000  # the record of offset 7 was written in second 7
P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


class FakeCluster:
    """Logs with two ends and committed offsets: no network, and failures on demand."""

    def __init__(self, **logs: tuple[int, int]) -> None:
        self.logs = {TopicPartition("clicks", int(name[1:])): ends for name, ends in logs.items()}
        self.stable: dict[TopicPartition, int] = {}  # where the oldest open transaction begins
        self.topic_id = b"\1" * 16
        self.is_away = False
        self.value_bytes = 100
        self.fetches: list[tuple[TopicPartition, int]] = []
        self.offsets: dict[TopicPartition, Committed] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.failure: Exception | None = None
        self.arrives_all_the_same = False

    def metadata(self, topics: list[str] | None = None) -> ClusterMetadata:
        one = PartitionMetadata(leader=1, leader_epoch=0, replicas=(1,), in_sync=(1,), error=ErrorCode.NONE)
        numbers: dict[str, dict[int, PartitionMetadata]] = {}
        for partition in self.logs:
            if topics is None or partition.topic in topics:
                numbers.setdefault(partition.topic, {})[partition.partition] = one
        return ClusterMetadata(
            cluster_id="",
            controller=1,
            brokers={1: Address("h", 1)},
            topics={
                name: TopicMetadata(
                    name=name, topic_id=self.topic_id, is_internal=name.startswith("__"), partitions=partitions
                )
                for name, partitions in numbers.items()
            },
            errors={},
        )

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        if self.failure is not None and self.is_away:
            raise self.failure
        return {
            partition: OffsetAndTimestamp(offset=self._offset(partition, at, read_committed=read_committed))
            for partition, at in wanted.items()
        }

    def _offset(self, partition: TopicPartition, at: int, *, read_committed: bool) -> int:
        start, end = self.logs[partition]
        if at == EARLIEST:
            return start
        if at == LATEST:
            return min(end, self.stable.get(partition, end)) if read_committed else end
        return next((offset for offset in range(start, end) if offset * RECORD_EVERY_MS >= at), -1)

    def fetch(
        self, partition: TopicPartition, offset: int, *, bytes_max: int, max_wait_ms: int, min_bytes: int
    ) -> FetchedPartition:
        records = build([(None, b"x" * self.value_bytes)] * 10, timestamp_ms=0, base_offset=offset)
        self.fetches.append((partition, offset))
        start, end = self.logs[partition]
        return FetchedPartition(
            records=memoryview(records),
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=start,
        )

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed]:
        if self.failure is not None:
            raise self.failure
        return dict(self.offsets)

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed | int]) -> None:
        marked = {
            partition: one if isinstance(one, Committed) else Committed(offset=one)
            for partition, one in offsets.items()
        }
        if self.failure is None or self.arrives_all_the_same:
            self.offsets |= marked
        if self.failure is not None:
            raise self.failure
        self.commits.append({partition: one.offset for partition, one in marked.items()})

    def reset(self, **offsets: int) -> None:
        """What Apache's tool does: another offset, no metadata."""
        self.offsets |= {TopicPartition("clicks", int(name[1:])): Committed(offset=to) for name, to in offsets.items()}


def follow(cluster: FakeCluster, clock: ManualClock | None = None, **given: str) -> GroupFollower:
    options = {"bootstrap.servers": "b:1", "subscribe": "clicks", "group.id": "billing", **given}
    return GroupFollower(parse_source_options(options, is_stream=True), cluster, clock or ManualClock())


EARLY = {"auto.offset.reset": "earliest"}


def step(follower: GroupFollower, start: Position, records_max: int | None = None) -> Position:
    return follower.advance(start, records_max=records_max)


def test_a_new_query_starts_at_the_committed_offsets_and_owns_them_when_it_plans_its_first_batch() -> None:
    cluster = FakeCluster(p0=(0, 100), p1=(0, 50))
    cluster.reset(p0=42)
    follower = follow(cluster, **EARLY)

    position = follower.start()
    anchored = list(cluster.commits)
    step(follower, position)

    assert {P0: 42, P1: 0} == position.next
    assert [{P1: 0}] == anchored, "where the group had none, the start is its own at once"
    assert {P0: 42, P1: 0} == {partition: one.offset for partition, one in cluster.offsets.items()}
    assert position.mark(P0) == CommitMetadata.parse(cluster.offsets[P0].metadata)


@pytest.mark.parametrize(("reset", "offset"), [("earliest", 10), ("latest", 100), (None, 100)])
def test_a_group_without_commits_starts_where_the_reset_rule_says(reset: str | None, offset: int) -> None:
    cluster = FakeCluster(p0=(10, 100))

    position = follow(cluster, **({"auto.offset.reset": reset} if reset else {})).start()

    assert {P0: offset} == position.next


def test_a_group_without_commits_and_without_a_rule_is_an_error() -> None:
    with pytest.raises(UserError, match=r"has no committed offset for clicks-0, and auto\.offset\.reset is none"):
        follow(FakeCluster(p0=(0, 9)), **{"auto.offset.reset": "none"}).start()


def test_each_trigger_commits_where_the_last_finished_batch_ended() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)

    first = step(follower, follower.start(), 60)
    second = step(follower, first)
    assert second is step(follower, second)

    assert [{P0: 0}, {P0: 60}, {P0: 100}] == cluster.commits
    assert [{P0: (0, 60)}, {P0: (60, 100)}] == [first.ranges, second.ranges]


def test_a_foreign_move_is_followed_and_then_owned() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    end = step(follower, follower.start())
    step(follower, end)
    cluster.reset(p0=30)

    seek = step(follower, end)
    batch = step(follower, seek)

    assert (end.generation + 1, {P0: 30}, {}) == (seek.generation, seek.next, seek.ranges)
    assert {P0: (30, 100)} == batch.ranges
    assert batch.generation == seek.generation
    assert {P0: 30} == cluster.commits[-1]


def test_a_stopped_query_follows_a_move_when_it_comes_back() -> None:
    cluster = FakeCluster(p0=(0, 100))
    end = step(follower := follow(cluster, **EARLY), follower.start())
    cluster.reset(p0=30)

    assert {P0: 30} == step(follow(cluster), end).next


def test_a_query_that_died_before_its_commit_does_not_read_the_batch_again() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    end = step(follower, follower.start())
    assert 0 == cluster.offsets[P0].offset

    assert end is step(follow(cluster), end)
    assert 100 == cluster.offsets[P0].offset


def test_the_query_that_lost_its_group_stops_names_the_owner_and_commits_nothing() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    end = step(old, old.start(), 50)
    clock.advance(seconds=1)
    owner = step(heir := follow(cluster, clock, takeover="true"), heir.start())
    commits = len(cluster.commits)

    with pytest.raises(UserError, match=f"taken over by the query {owner.query}"):
        step(old, end)
    assert commits == len(cluster.commits)


def test_a_reset_gives_the_group_back_to_the_query_that_had_lost_it() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    end = step(old, old.start(), 50)
    clock.advance(seconds=1)
    heir = follow(cluster, clock, takeover="true")
    lost = step(heir, heir.start(), 20)
    clock.advance(seconds=1)
    # As our own tool resets: another offset, what stood beside it stays.
    cluster.offsets[P0] = Committed(offset=30, metadata=cluster.offsets[P0].metadata)

    back = step(old, end)
    step(old, back)

    assert ({P0: 30}, True) == (back.next, back.generation > lost.generation)
    with pytest.raises(UserError, match=f"taken over by the query {back.query}"):
        step(heir, lost)


def test_a_lost_commit_is_no_move_and_is_made_again() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    end = step(follower, follower.start())
    cluster.offsets.clear()

    assert end is step(follower, end)
    assert 100 == cluster.offsets[P0].offset


def test_a_failing_commit_never_stops_the_query() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    end = step(follower, follower.start(), 50)
    for failure in (BrokerUnreachable("gone."), CommitRefused("billing", {P0: ErrorCode.UNKNOWN_MEMBER_ID})):
        cluster.failure = failure
        end = step(follower, end, 10)
    cluster.failure = None

    assert end.generation == step(follower, end).generation
    assert {P0: 70} == cluster.commits[-1]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_without_an_answer_is_ours_whether_it_arrived_or_not(arrives: bool) -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    end = step(follower, follower.start(), 50)
    original = cluster.committed
    cluster.failure, cluster.arrives_all_the_same = BrokerUnreachable("gone."), arrives
    cluster.committed = lambda group, partitions=None: dict(cluster.offsets)  # type: ignore[method-assign]
    later = step(follower, end, 10)
    cluster.failure, cluster.committed = None, original  # type: ignore[method-assign]

    assert later.generation == step(follower, later).generation
    assert 60 == cluster.offsets[P0].offset


def test_a_restart_after_failed_commits_does_not_go_back() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    end = step(follower, follower.start(), 50)
    cluster.failure = CommitRefused("billing", {P0: ErrorCode.UNKNOWN_MEMBER_ID})
    cluster.committed = lambda group, partitions=None: dict(cluster.offsets)  # type: ignore[method-assign]
    end = step(follower, step(follower, end, 10), 10)
    assert 0 == cluster.offsets[P0].offset
    cluster.failure = None

    assert end.generation == step(follow(cluster), end).generation
    assert 70 == cluster.offsets[P0].offset


REFUSED = CommitRefused("billing", dict.fromkeys((P0, P1), ErrorCode.GROUP_AUTHORIZATION_FAILED))


class RefusingCluster(FakeCluster):
    """Lets everybody see the group, and refuses commits while `refuses` says so."""

    refuses: int = 1_000_000

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed | int]) -> None:
        self.refuses -= 1
        if self.refuses >= 0:
            raise REFUSED
        super().commit(group, offsets)


def read(follower: GroupFollower, position: Position, triggers: int, records_max: int = 10) -> list[dict[int, object]]:
    """The ranges that the next triggers read, partition by partition, without those that read nothing."""
    seen = []
    for _ in range(triggers):
        before, position = position, step(follower, position, records_max)
        if position.ranges and position is not before:
            seen.append({partition.partition: ends for partition, ends in position.ranges.items()})
    return seen


def test_where_no_commit_is_allowed_a_query_reads_each_record_once() -> None:
    cluster = RefusingCluster(p0=(0, 40))
    cluster.reset(p0=10)
    follower = follow(cluster, **EARLY)

    assert [{0: (10, 20)}, {0: (20, 30)}, {0: (30, 40)}] == read(follower, follower.start(), 6)


def test_where_no_commit_is_allowed_a_restarted_query_continues() -> None:
    cluster = RefusingCluster(p0=(0, 40))
    cluster.reset(p0=10)
    end = step(follower := follow(cluster, **EARLY), follower.start(), 10)

    assert [{0: (20, 30)}, {0: (30, 40)}] == read(follow(cluster, **EARLY), Position.from_json(end.to_json()), 4)


def test_a_reset_is_followed_once_though_the_commit_after_it_is_refused() -> None:
    cluster = RefusingCluster(p0=(0, 40))
    cluster.refuses = 0
    follower = follow(cluster, **EARLY)
    end = step(follower, follower.start(), 30)
    step(follower, end, 1)
    cluster.reset(p0=5)
    cluster.refuses = 2

    assert [{0: (5, 15)}, {0: (15, 25)}, {0: (25, 35)}] == read(follower, end, 4)
    assert 25 == cluster.offsets[P0].offset


def test_a_refused_commit_during_a_reset_rewinds_no_other_partition() -> None:
    cluster = RefusingCluster(p0=(0, 50), p1=(0, 50))
    cluster.refuses = 0
    follower = follow(cluster, **EARLY)
    end = step(follower, follower.start(), 100)
    cluster.reset(p0=5)
    cluster.refuses = 1

    assert [{0: (5, 50)}] == read(follower, end, 4, records_max=100)


def test_a_query_that_was_restarted_without_its_coordinator_does_not_go_back() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    end = step(follower, step(follower, follower.start(), 50), 50)
    assert end is step(follower, end)
    cluster.logs[P0] = (0, 300)
    cluster.failure = NoCoordinator("billing", ErrorCode.COORDINATOR_NOT_AVAILABLE, "It is being elected.")
    restarted = follow(cluster)

    blind = step(restarted, step(restarted, end, 50), 50)
    cluster.failure = None
    after = step(restarted, blind, 50)

    assert {P0: (150, 200)} == blind.ranges
    assert (blind.generation, {P0: (200, 250)}) == (after.generation, after.ranges)
    assert {P0: (200, 250)} == step(follow(cluster), blind, 50).ranges, "nor does the next one"


def test_a_commit_that_arrived_without_an_answer_is_known_after_a_restart() -> None:
    cluster = FakeCluster(p0=(0, 300))
    follower = follow(cluster, **EARLY)
    end = step(follower, follower.start(), 50)
    original = cluster.committed
    cluster.failure, cluster.arrives_all_the_same = BrokerUnreachable("gone."), True
    cluster.committed = lambda group, partitions=None: dict(cluster.offsets)  # type: ignore[method-assign]
    end = step(follower, end, 50)
    cluster.committed = original  # type: ignore[method-assign]
    end = step(follower, end, 50)
    cluster.failure = None
    assert (50, {P0: (100, 150)}) == (cluster.offsets[P0].offset, end.ranges)

    assert {P0: (150, 200)} == step(follow(cluster), end, 50).ranges


def test_an_idle_query_renews_its_commit_every_day() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    follower = follow(cluster, clock, **EARLY)
    end = step(follower, follower.start())
    for hours in (1, 22, 2, 1, 23):
        clock.advance(seconds=hours * 3600)
        assert end is step(follower, end)

    assert [{P0: 0}, {P0: 100}, {P0: 100}, {P0: 100}] == cluster.commits


def test_a_restarted_query_renews_its_commit_at_once() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    end = step(follower, step(follower, follower.start()))
    commits = len(cluster.commits)

    assert end is step(follow(cluster), end)
    assert commits + 1 == len(cluster.commits)


@pytest.mark.parametrize(("reset", "goes_on_at"), [("earliest", 40), ("latest", 100)])
def test_records_that_expired_unread_are_skipped_as_the_reset_rule_says(reset: str, goes_on_at: int) -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **{"auto.offset.reset": reset})
    cluster.reset(p0=0)
    end = step(follower, follower.start(), 10)
    cluster.logs[P0] = (40, 100)

    seek = step(follower, end)

    assert ({P0: goes_on_at}, {}) == (seek.next, seek.ranges)
    assert seek.generation > end.generation


@pytest.mark.parametrize("given", [{}, {"auto.offset.reset": "none"}])
def test_records_that_expired_unread_stop_a_query_without_a_rule(given: dict[str, str]) -> None:
    cluster = FakeCluster(p0=(0, 100))
    cluster.reset(p0=0)
    follower = follow(cluster, **given)
    end = step(follower, follower.start(), 10)
    cluster.logs[P0] = (40, 100)

    with pytest.raises(UserError, match=r"30 records of clicks-0 \(offsets 10 to 39; the log holds 40 to 100\)"):
        step(follower, end)
    assert 10 == cluster.offsets[P0].offset, "what was read is committed, and nothing is skipped"


def test_a_log_that_was_recreated_is_noticed() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    follower = follow(cluster, clock, **EARLY)
    end = step(follower, follower.start())
    cluster.logs[P0] = (0, 7)
    assert end is step(follower, end), "an end that went back may come forward again"
    clock.advance(seconds=30)

    assert {P0: 0} == step(follower, end).next


def test_the_offset_of_a_topic_that_was_deleted_is_not_committed_in_the_one_that_has_its_name_now() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    cluster.reset(p0=0)
    end = step(follower := follow(cluster, clock), follower.start())
    cluster.topic_id, cluster.logs[P0] = b"\2" * 16, (0, 150)
    cluster.offsets.clear()

    with pytest.raises(UserError, match="belongs to a topic of that name that was deleted"):
        step(follow(cluster, clock), end)
    assert {} == cluster.offsets


def test_a_run_that_ends_waits_until_it_is_known_that_a_log_has_become_shorter() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    cluster.reset(p0=0)
    end = step(follower := follow(cluster, clock), follower.start())
    cluster.logs[P0] = (0, 60)
    weekly = follow(cluster, clock)
    weekly.fix_end()

    with pytest.raises(RefusedByBroker, match="clicks-0 is missing, or shorter than what was read of it") as waits:
        step(weekly, end)
    clock.advance(seconds=30)
    with pytest.raises(UserError, match="offset 100 of clicks-0 lies beyond the log, which holds 0 to 60"):
        step(weekly, end)
    assert is_transient(waits.value)


def test_a_run_that_ends_waits_until_it_is_known_that_a_topic_is_gone() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    cluster.reset(p0=0)
    pattern = {"subscribe": "", "subscribePattern": "cl.*"}
    end = step(follower := follow(cluster, clock, **pattern), follower.start())
    cluster.logs.clear()
    weekly = follow(cluster, clock, **pattern)
    weekly.fix_end()

    with pytest.raises(RefusedByBroker, match="clicks-0 is missing"):
        step(weekly, end)
    clock.advance(seconds=30)
    with pytest.raises(UserError, match="clicks-0 is not there any more"):
        step(weekly, end)


def test_a_take_over_while_a_new_leader_knows_less_does_not_begin_elsewhere() -> None:
    cluster, clock = FakeCluster(p0=(0, 90)), ManualClock()
    cluster.reset(p0=100)
    follower = follow(cluster, clock, **EARLY)
    position = follower.start()
    assert position is step(follower, position)
    cluster.logs[P0] = (0, 120)

    assert {P0: (100, 120)} == step(follower, position).ranges


def test_a_topic_that_never_was_is_an_error_whatever_may_be_lost() -> None:
    with pytest.raises(UserError, match="There is no topic clicks"):
        follow(FakeCluster(), failOnDataLoss="false").start()


def test_a_new_partition_is_read_from_its_first_record() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    follower = follow(cluster, clock)
    end = step(follower, follower.start())
    cluster.logs[P1] = (3, 9)
    clock.advance(seconds=60)

    assert {P1: (3, 9)} == step(follower, end).ranges


def test_a_partition_that_is_gone_is_an_error() -> None:
    cluster, clock = FakeCluster(p0=(0, 100), p1=(0, 5)), ManualClock()
    follower = follow(cluster, clock, **EARLY)
    end = step(follower, follower.start())
    del cluster.logs[P1]
    clock.advance(seconds=60)
    assert end is step(follower, end), "one answer may miss a partition"
    clock.advance(seconds=60)

    with pytest.raises(UserError, match="clicks-1 is not there any more"):
        step(follower, end)


def test_a_topic_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UserError, match="There is no topic clicks at b:1"):
        follow(FakeCluster()).start()


def test_available_now_ends_where_the_logs_ended_when_it_began() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    follower.fix_end()
    start = follower.start()
    cluster.logs[P0] = (0, 500)

    end = step(follower, start)

    assert {P0: (0, 100)} == end.ranges
    assert end is step(follower, end)


def test_available_now_follows_a_reset_beyond_the_end_that_it_began_with() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    follower.fix_end()
    end = step(follower, follower.start())
    cluster.logs[P0] = (0, 500)
    cluster.reset(p0=400)

    seek = step(follower, end)

    assert {P0: 400} == seek.next
    assert seek is step(follower, seek)


def test_a_checkpoint_of_another_group_is_an_error() -> None:
    cluster = FakeCluster(p0=(0, 100))
    end = step(follower := follow(cluster, **EARLY), follower.start())

    with pytest.raises(UserError, match=r"belongs to group billing, but group\.id is fraud"):
        step(follow(cluster, **{"group.id": "fraud"}), end)


def begin(follower: GroupFollower) -> Position:
    """The first batch of a query with a new checkpoint."""
    return step(follower, follower.start(), 10)


def heartbeat(cluster: FakeCluster, partition: TopicPartition = P0) -> Heartbeat:
    mark = CommitMetadata.parse(cluster.offsets[partition].metadata)
    assert mark is not None and mark.heartbeat is not None
    return mark.heartbeat


def test_a_new_query_is_refused_while_another_one_runs_in_its_group_and_has_touched_nothing() -> None:
    cluster, clock = FakeCluster(p0=(0, 100), p1=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    end = step(old, old.start(), 50)
    clock.advance(seconds=45)
    before = dict(cluster.offsets)

    with pytest.raises(GroupInUse, match=f"in use by the query {end.query} .* 45 s ago. Nothing was read or committed"):
        begin(follow(cluster, clock))
    assert before == cluster.offsets


def test_a_new_query_may_be_told_to_take_over_and_the_owner_ends() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    end = step(old, old.start(), 50)
    clock.advance(seconds=1)
    heir = follow(cluster, clock, takeover="true")
    step(heir, heir.start(), 20)
    there = dict(cluster.offsets)
    clock.advance(seconds=60)

    old.renew_heartbeat()
    assert there == cluster.offsets, "a query that has lost its group renews nothing"
    with pytest.raises(UserError, match="taken over by the query"):
        step(old, end)


def test_a_query_in_a_batch_of_ten_minutes_keeps_its_group_and_a_killed_one_loses_it_after_two() -> None:
    cluster, clock = FakeCluster(p0=(0, 100), p1=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    end = step(old, old.start(), 50)
    step(old, end, 50)
    for _ in range(20):  # Spark asks nothing meanwhile
        clock.advance(seconds=30)
        old.renew_heartbeat()
    clock.advance(seconds=119)

    with pytest.raises(GroupInUse, match="heartbeat was 119 s ago"):
        begin(follow(cluster, clock))
    clock.advance(seconds=1)
    assert end.next == begin(follow(cluster, clock)).first


def test_a_heartbeat_is_written_once_in_half_a_minute_and_to_one_partition() -> None:
    cluster, clock = FakeCluster(p0=(0, 100), p1=(0, 100)), ManualClock()
    follower = follow(cluster, clock, **EARLY)
    end = step(follower, follower.start())
    assert end is step(follower, end)
    commits = len(cluster.commits)
    for _ in range(6):
        clock.advance(seconds=10)
        follower.renew_heartbeat()

    assert [{P0: 100}, {P0: 100}] == cluster.commits[commits:]
    assert end is step(follower, end) and end is step(follow(cluster, clock), end), "it is no move"


def test_a_heartbeat_keeps_to_partitions_that_nobody_moved() -> None:
    cluster, clock = FakeCluster(p0=(0, 100), p1=(0, 100)), ManualClock()
    follower = follow(cluster, clock, **EARLY)
    end = step(follower, follower.start())
    step(follower, end)
    cluster.offsets[P0] = Committed(offset=30, metadata=cluster.offsets[P0].metadata)
    clock.advance(seconds=60)
    follower.renew_heartbeat()

    assert ({P0: 30}, clock.now_ms()) == ({P0: cluster.offsets[P0].offset}, heartbeat(cluster, P1).at_ms)
    assert {P0: 30, P1: 100} == step(follower, end).next


def test_a_heartbeat_is_never_older_than_the_one_before() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    follower = follow(cluster, clock, **EARLY)
    step(follower, follower.start())
    before = heartbeat(cluster)
    clock.advance(seconds=60)
    clock.set_time(clock.now_ms() - 3_600_000)
    follower.mark_stopped(cluster)

    assert (QueryState.STOPPED, True) == (heartbeat(cluster).state, heartbeat(cluster).at_ms > before.at_ms)


def test_a_stopped_query_says_so_and_its_group_is_free_at_once() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    end = step(old, old.start(), 50)
    step(old, end, 50)
    old.mark_stopped(cluster)

    again = follow(cluster, clock)
    assert end.generation == step(again, end, 50).generation, "its own checkpoint goes on"
    with pytest.raises(GroupInUse):
        begin(follow(cluster, clock))
    again.mark_stopped(cluster)
    assert {P0: 50} == begin(follow(cluster, clock)).first


def test_a_query_that_has_committed_nothing_writes_no_heartbeat() -> None:
    cluster = FakeCluster(p0=(0, 100))
    cluster.reset(p0=20)
    follower = follow(cluster)
    follower.renew_heartbeat()
    follower.start()
    follower.renew_heartbeat()
    follower.mark_stopped(cluster)

    assert {P0: Committed(offset=20)} == cluster.offsets


def test_a_pipeline_that_lost_its_checkpoint_in_a_crash_starts_at_once_and_others_wait() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    crashed = follow(cluster, clock, **EARLY, **{"group.owner": "home-1"})
    step(crashed, step(crashed, crashed.start(), 50), 50)
    clock.advance(seconds=1)

    with pytest.raises(GroupInUse):
        begin(follow(cluster, clock, **{"group.owner": "home-2"}))
    assert {P0: 50} == begin(follow(cluster, clock, **{"group.owner": "home-1"})).first


def test_a_query_that_was_killed_in_its_first_batch_resumes_at_once_and_is_no_new_one() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    killed = follow(cluster, clock, **EARLY)
    planned = step(killed, killed.start(), 30)
    clock.advance(seconds=1)
    again = follow(cluster, clock, **EARLY)
    again.start()

    assert {P0: (30, 60)} == step(again, planned, 30).ranges


def test_a_refused_query_has_not_committed_where_it_would_have_started_either() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    step(old, step(old, old.start(), 30), 30)
    cluster.logs[P1] = (0, 100)
    before = dict(cluster.offsets)

    with pytest.raises(GroupInUse):
        begin(follow(cluster, clock, **EARLY))
    assert before == cluster.offsets


def test_a_new_query_that_cannot_look_whether_its_group_is_in_use_reads_nothing() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    step(old, step(old, old.start(), 30), 30)
    new = follow(cluster, clock)
    position = new.start()
    cluster.failure = NoCoordinator("billing", ErrorCode.COORDINATOR_NOT_AVAILABLE, "It is being elected.")

    with pytest.raises(NoCoordinator):
        step(new, position)
    cluster.failure = None
    with pytest.raises(GroupInUse):
        step(new, position)


@pytest.mark.parametrize("state", [QueryState.RUNNING, QueryState.STOPPED])
def test_a_commit_that_the_process_before_made_too_late_is_no_move(state: QueryState) -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    killed = follow(cluster, clock, **EARLY)
    end = step(killed, step(killed, killed.start(), 30), 30)
    own = cluster.offsets[P0]
    follower = follow(cluster, clock)
    later = step(follower, step(follower, end, 20), 20)
    mark = CommitMetadata.parse(own.metadata)
    assert mark is not None and mark.heartbeat is not None
    late = replace(mark, heartbeat=replace(mark.heartbeat, at_ms=mark.heartbeat.at_ms + 5, state=state))
    cluster.offsets[P0] = Committed(offset=own.offset, metadata=late.to_text())

    clock.advance(seconds=60)
    follower.renew_heartbeat()
    follower.mark_stopped(cluster)
    assert late.to_text() == cluster.offsets[P0].metadata, "a heartbeat would make it a commit of this process"
    assert later.generation == step(follower, later, 20).generation
    assert later.next[P0] == cluster.offsets[P0].offset
    cluster.offsets[P0] = own
    assert {P0: own.offset} == step(follower, later, 20).next, "the same commit from before was restored by a tool"


def test_a_commit_of_the_owner_before_that_came_too_late_is_no_move() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    step(old, step(old, old.start(), 30), 30)
    own = cluster.offsets[P0]
    clock.advance(seconds=1)
    heir = follow(cluster, clock, takeover="true")
    end = step(heir, step(heir, heir.start(), 20), 20)
    mark = CommitMetadata.parse(own.metadata)
    assert mark is not None and mark.heartbeat is not None
    late = replace(mark, heartbeat=replace(mark.heartbeat, at_ms=clock.now_ms()))
    cluster.offsets[P0] = Committed(offset=own.offset, metadata=late.to_text())

    assert end.generation == step(heir, end, 20).generation
    assert end.next[P0] == cluster.offsets[P0].offset


def test_a_query_that_lost_its_group_takes_it_back_where_its_checkpoint_stands() -> None:
    cluster, clock = FakeCluster(p0=(0, 100), p1=(0, 100)), ManualClock()
    old = follow(cluster, clock, **EARLY)
    end = step(old, old.start(), 50)
    step(old, end, 50)
    clock.advance(seconds=1)
    heir = follow(cluster, clock, takeover="true")
    lost = step(heir, step(heir, heir.start()))
    clock.advance(seconds=1)
    with pytest.raises(UserError, match=r"takeover=true: it resumes from its own checkpoint"):
        step(follow(cluster, clock), end)

    back = follow(cluster, clock, takeover="true")
    there = step(back, end, 10)

    assert (end.next, {}, True) == (there.next, there.ranges, there.generation > lost.generation)
    assert end.next == {partition: one.offset for partition, one in cluster.offsets.items()}
    with pytest.raises(UserError, match=f"taken over by the query {end.query}"):
        step(heir, lost)
    clock.advance(seconds=1)
    other = follow(cluster, clock, takeover="true")
    step(other, other.start())
    with pytest.raises(UserError, match="taken over"):
        step(back, there)
STATEFUL = EARLY | {"stateful": "true"}


def test_a_query_with_state_restores_its_offsets_when_somebody_moves_its_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, clock = FakeCluster(p0=(0, 100), p1=(0, 50)), ManualClock()
    follower = follow(cluster, clock, **STATEFUL)
    first = step(follower, follower.start(), records_max=60)
    second = step(follower, first, records_max=60)
    cluster.reset(p0=3)
    clock.advance(seconds=5)

    third = step(follower, second)

    assert second.generation == third.generation, "it seeks nowhere"
    assert second.next == third.first
    assert {P0: 100, P1: 50} == third.next
    assert dict(second.next) == {partition: one.offset for partition, one in cluster.offsets.items()}
    restored = [CommitMetadata.parse(one.metadata) for one in cluster.offsets.values()]
    assert [(True, clock.now_ms())] == list({(one.is_stateful, one.restored_ms) for one in restored if one})
    assert "group billing was moved to clicks-0: 3" in caplog.text
    assert "keeps state" in caplog.text


def test_a_query_with_state_restores_its_offsets_as_often_as_the_cluster_does_not_take_the_commit() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **STATEFUL)
    first = step(follower, follower.start(), records_max=60)
    step(follower, first)
    cluster.reset(p0=3)
    real, answers = cluster.commit, [BrokerUnreachable("away"), RefusedByBroker(ErrorCode.NOT_COORDINATOR, "moved")]

    def refuse(group: str, offsets: Mapping[TopicPartition, Committed | int]) -> None:
        if answers:
            raise answers.pop()
        real(group, offsets)

    cluster.commit = refuse  # type: ignore[method-assign]
    offsets = []
    for _ in range(3):
        assert first.generation == step(follower, first).generation
        offsets.append(cluster.offsets[P0].offset)

    assert [3, 3, 60] == offsets


def test_a_reset_while_a_query_with_state_is_stopped_is_restored_when_it_runs_again() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **STATEFUL)
    first = step(follower, follower.start(), records_max=60)
    step(follower, first)
    cluster.reset(p0=0)

    again = step(follow(cluster, **STATEFUL), Position.from_json(first.to_json()))

    assert (first.generation, {P0: 60}, {P0: 100}) == (again.generation, again.first, again.next)
    assert 60 == cluster.offsets[P0].offset
    # The process after this one still knows of it.
    step(follow(cluster, **STATEFUL), again)
    mark = CommitMetadata.parse(cluster.offsets[P0].metadata)
    assert mark is not None
    assert (100, True) == (mark.offset, mark.restored_ms is not None)


def test_a_query_with_state_that_takes_over_another_group_keeps_its_offsets_though_that_one_was_reset() -> None:
    cluster = FakeCluster(p0=(0, 100))
    built = follow(cluster, **STATEFUL | {"group.id": "billing.v2"})
    position = step(built, built.start(), records_max=60)
    cluster.reset(p0=7)

    adopted = step(follow(cluster, **STATEFUL, **{"group.id.before": "billing.v2"}), position)

    assert ("billing", {P0: 60}) == (adopted.group, adopted.next)
    assert 60 == cluster.offsets[P0].offset


@pytest.mark.parametrize(("given", "known"), [({"stateful": "false"}, False), ({}, None)])
def test_a_query_without_state_and_one_that_nobody_knows_follow_a_reset(
    given: dict[str, str], known: bool | None
) -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY, **given)
    first = step(follower, follower.start(), records_max=60)
    cluster.reset(p0=3)

    moved = step(follower, first)

    assert {P0: 3} == moved.next
    assert moved.generation > first.generation
    step(follower, moved)
    mark = CommitMetadata.parse(cluster.offsets[P0].metadata)
    assert mark is not None
    assert known is mark.is_stateful
