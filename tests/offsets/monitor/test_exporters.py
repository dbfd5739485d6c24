"""The families of kafka_exporter and kafka-lag-exporter by their own formulas; expected numbers are worked by hand."""

import math
from collections.abc import Iterable, Mapping, Sequence

import pytest

from logmark.client.answers import Committed, GroupMember
from logmark.client.connection import Address
from logmark.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.lag.sample import GroupSample
from logmark.offsets.monitor.exporters import ExporterSample, LagExporter, kafka_exporter
from logmark.offsets.monitor.lookup_table import LookupTable
from logmark.offsets.monitor.prometheus_text import MetricFamily

A0, A1, A2, B0 = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 2), TopicPartition("b", 0))


def partition(leader: int = 1, replicas: Sequence[int] = (1, 2), in_sync: Sequence[int] = (1, 2)) -> PartitionMetadata:
    return PartitionMetadata(leader=leader, leader_epoch=0, replicas=replicas, in_sync=in_sync, error=ErrorCode.NONE)


def topic(name: str, *partitions: PartitionMetadata) -> TopicMetadata:
    return TopicMetadata(name=name, topic_id=bytes(16), is_internal=False, partitions=dict(enumerate(partitions)))


def seen(
    groups: Sequence[GroupSample],
    ends: Mapping[TopicPartition, int],
    *,
    starts: Mapping[TopicPartition, int] | None = None,
    topics: Sequence[TopicMetadata] = (),
    at_ms: int = 200,
) -> ExporterSample:
    return ExporterSample(
        at_ms=at_ms,
        took_ms=7,
        cluster_name="c",
        metadata=ClusterMetadata(
            cluster_id="id",
            controller=1,
            brokers={1: Address("h", 9092), 2: Address("h", 9093)},
            topics={one.name: one for one in topics},
            errors={},
        ),
        starts=starts or {},
        ends=ends,
        groups=groups,
    )


def group(committed: Mapping[TopicPartition, int], *members: GroupMember, name: str = "g") -> GroupSample:
    commits = {partition: Committed(offset=offset) for partition, offset in committed.items()}
    return GroupSample(group=name, state="Stable" if members else "Empty", members=members, committed=commits)


def member(*partitions: TopicPartition) -> GroupMember:
    return GroupMember(member_id="m", instance_id=None, client_id="cl", host="/10.0.0.1", partitions=partitions)


def values(families: Iterable[MetricFamily], name: str) -> dict[tuple[str, ...], float]:
    found = {family.name: family for family in families}
    return {tuple(labels): value for labels, value in found[name].series}


class TestKafkaExporter:
    def test_lag_is_the_end_less_the_committed_offset(self) -> None:
        look = seen([group({A0: 180, B0: 5})], {A0: 200, B0: 5})

        assert {("g", "a", "0"): 20, ("g", "b", "0"): 0} == values(kafka_exporter(look), "kafka_consumergroup_lag")

    def test_lag_below_zero_stays_below_zero(self) -> None:
        look = seen([group({A0: 12})], {A0: 2})

        assert {("g", "a", "0"): -10} == values(kafka_exporter(look), "kafka_consumergroup_lag")
        assert {("g", "a"): -10} == values(kafka_exporter(look), "kafka_consumergroup_lag_sum")

    def test_a_partition_without_commit_has_minus_one_if_the_topic_is_read_at_all(self) -> None:
        look = seen([group({A0: 4})], {A0: 10, A1: 7, B0: 9})

        assert {("g", "a", "0"): 6, ("g", "a", "1"): -1} == values(kafka_exporter(look), "kafka_consumergroup_lag")
        assert {("g", "a", "0"): 4, ("g", "a", "1"): -1} == values(
            kafka_exporter(look), "kafka_consumergroup_current_offset"
        )

    def test_sums_leave_partitions_without_commit_out(self) -> None:
        look = seen([group({A0: 4, A2: 1})], {A0: 10, A1: 7, A2: 3})

        assert {("g", "a"): 8} == values(kafka_exporter(look), "kafka_consumergroup_lag_sum")
        assert {("g", "a"): 5} == values(kafka_exporter(look), "kafka_consumergroup_current_offset_sum")

    def test_a_partition_whose_end_is_not_known_has_no_series(self) -> None:
        look = seen([group({A0: 4, A1: 4, B0: 1})], {A0: 10})

        assert {("g", "a", "0"): 6} == values(kafka_exporter(look), "kafka_consumergroup_lag")
        assert {("g", "a"): 6} == values(kafka_exporter(look), "kafka_consumergroup_lag_sum")

    def test_every_group_has_its_number_of_members(self) -> None:
        groups = [group({}, member(A0), member(A1)), group({A0: 1}, name="idle")]

        assert {("g",): 2, ("idle",): 0} == values(kafka_exporter(seen(groups, {})), "kafka_consumergroup_members")

    def test_every_topic_shows_its_ends_starts_and_replicas(self) -> None:
        look = seen(
            [],
            {A0: 10, A1: 0},
            starts={A0: 3, A1: 0},
            topics=[topic("a", partition(), partition(leader=2, in_sync=(2,)), partition(leader=-1))],
        )

        def served(name: str) -> dict[tuple[str, ...], float]:
            return values(kafka_exporter(look), name)

        zero, one = ("a", "0"), ("a", "1")
        assert {(): 2} == served("kafka_brokers")
        assert {("1", "h:9092"): 1, ("2", "h:9093"): 1} == served("kafka_broker_info")
        assert {("a",): 3} == served("kafka_topic_partitions")
        assert {zero: 10, one: 0} == served("kafka_topic_partition_current_offset")
        assert {zero: 3, one: 0} == served("kafka_topic_partition_oldest_offset")
        # The partition without a leader has none of these, as with that exporter.
        assert {zero: 1, one: 2} == served("kafka_topic_partition_leader")
        assert {zero: 2, one: 2} == served("kafka_topic_partition_replicas")
        assert {zero: 2, one: 1} == served("kafka_topic_partition_in_sync_replica")
        assert {zero: 1, one: 0} == served("kafka_topic_partition_leader_is_preferred")
        assert {zero: 0, one: 1} == served("kafka_topic_partition_under_replicated_partition")


# Points as (offset, time in ms), the committed offset, now in ms, seconds.
LOOKUPS: list[tuple[str, list[tuple[int, int]], int, int, float]] = [
    ("no points", [], 5, 100, math.nan),
    ("one point is too few", [(100, 100)], 90, 200, math.nan),
    ("at the only point the lag is zero", [(100, 100)], 100, 200, 0),
    ("at the last point the lag is zero", [(100, 100), (200, 200)], 200, 500, 0),
    ("between two points", [(100, 100), (200, 200)], 180, 200, 0.02),
    ("on an inner point", [(100, 100), (200, 200), (300, 400)], 200, 400, 0.2),
    ("in the steeper half", [(0, 0), (100, 100), (1000, 200)], 550, 200, 0.05),
    ("before the first point the whole line goes on", [(100, 100), (200, 200)], 0, 200, 0.2),
    ("far before it, with a bend that is ignored", [(100, 0), (110, 900), (200, 1000)], 0, 1000, 2.0),
    ("before zero time is before now all the same", [(100, 100), (110, 1100)], 0, 1100, 11.0),
    ("beyond the last point the lag is negative", [(100, 100), (200, 200)], 300, 200, -0.1),
    ("a flat line says nothing about what was before", [(100, 100), (100, 200)], 90, 200, math.inf),
    ("nor about what comes", [(100, 100), (100, 200)], 110, 200, -math.inf),
    ("the end of a flat run counts, not its beginning", [(0, 0), (100, 100), (100, 900), (200, 1000)], 100, 1000, 0.1),
    ("a flat run keeps two points", [(100, 100), (100, 200), (100, 300), (110, 400)], 105, 400, 0.05),
    ("an end that goes back is not taken", [(100, 100), (200, 200), (50, 300)], 150, 300, 0.15),
    ("nor does it bend the line before it", [(100, 100), (200, 200), (50, 300)], 40, 300, 0.26),
    ("a time that goes back is not taken", [(100, 100), (200, 200), (300, 200)], 200, 300, 0),
]  # fmt: skip


class TestKafkaLagExporter:
    @pytest.mark.parametrize(("points", "committed", "now", "expected"), [row[1:] for row in LOOKUPS],
                             ids=[row[0] for row in LOOKUPS])  # fmt: skip
    def test_seconds_come_from_the_ends_that_were_seen(
        self, points: list[tuple[int, int]], committed: int, now: int, expected: float
    ) -> None:
        table = LookupTable()
        for point in points:
            table.add(*point)

        assert pytest.approx(expected, nan_ok=True) == table.lag_seconds(committed, now)

    def test_the_oldest_point_goes_when_the_table_is_full(self) -> None:
        table = LookupTable(limit=2)
        for point in [(0, 0), (100, 1000), (200, 1100)]:
            table.add(*point)

        # From (100, 1000) and (200, 1100) on: one record in a millisecond. With (0, 0) it would be 0.6 s.
        assert 0.15 == table.lag_seconds(50, 1100)

    def test_the_numbers_of_one_look_are_theirs(self) -> None:
        exporter = LagExporter()
        exporter.learn(seen([group({}, member(A0))], {A0: 100}, at_ms=100))
        look = seen([group({A0: 180}, member(A0))], {A0: 200}, starts={A0: 0})
        exporter.learn(look)

        served = list(exporter.measure(look).families())

        one = ("c", "g", "a", "0", "/10.0.0.1", "m", "cl")
        assert {("c", "a", "0"): 200} == values(served, "kafka_partition_latest_offset")
        assert {("c", "a", "0"): 0} == values(served, "kafka_partition_earliest_offset")
        assert {one: 180} == values(served, "kafka_consumergroup_group_offset")
        assert {one: 20} == values(served, "kafka_consumergroup_group_lag")
        assert {one: pytest.approx(0.02)} == values(served, "kafka_consumergroup_group_lag_seconds")
        assert {("c", "g"): 20} == values(served, "kafka_consumergroup_group_max_lag")
        assert {("c", "g"): pytest.approx(0.02)} == values(served, "kafka_consumergroup_group_max_lag_seconds")
        assert {("c", "g"): 20} == values(served, "kafka_consumergroup_group_sum_lag")
        assert {("c", "g", "a"): 20} == values(served, "kafka_consumergroup_group_topic_sum_lag")
        assert {("c",): 7} == values(served, "kafka_consumergroup_poll_time_ms")

    def test_sums_and_maxima_go_over_topics_and_partitions(self) -> None:
        look = seen([group({A0: 10, A1: 20, A2: 30, B0: 40})], dict.fromkeys((A0, A1, A2, B0), 100))
        exporter = LagExporter()
        exporter.learn(look)

        served = list(exporter.measure(look).families())

        assert {("c", "g"): 300} == values(served, "kafka_consumergroup_group_sum_lag")
        assert {("c", "g"): 90} == values(served, "kafka_consumergroup_group_max_lag")
        assert {("c", "g", "a"): 240, ("c", "g", "b"): 60} == values(served, "kafka_consumergroup_group_topic_sum_lag")

    def test_nothing_committed_is_nan_and_counts_nothing_in_sums(self) -> None:
        look = seen([group({A1: 90}, member(A0, A1))], {A0: 100, A1: 100})
        exporter = LagExporter()
        exporter.learn(look)

        served = list(exporter.measure(look).families())

        for name in ("offset", "lag", "lag_seconds"):
            assert math.isnan(
                values(served, f"kafka_consumergroup_group_{name}")["c", "g", "a", "0", "/10.0.0.1", "m", "cl"]
            )
        assert {("c", "g"): 10} == values(served, "kafka_consumergroup_group_sum_lag")
        assert {("c", "g"): 10} == values(served, "kafka_consumergroup_group_max_lag")

    def test_lag_is_never_below_zero(self) -> None:
        look = seen([group({A0: 12})], {A0: 2})
        exporter = LagExporter()
        exporter.learn(look)

        assert {("c", "g", "a", "0", "unknown", "unknown", "unknown"): 0} == values(
            exporter.measure(look).families(), "kafka_consumergroup_group_lag"
        )

    def test_a_group_with_members_stands_where_they_are_assigned(self) -> None:
        look = seen([group({A0: 1, B0: 1}, member(A0))], {A0: 2, B0: 2})
        exporter = LagExporter()
        exporter.learn(look)

        assert [("c", "g", "a", "0", "/10.0.0.1", "m", "cl")] == list(
            values(exporter.measure(look).families(), "kafka_consumergroup_group_lag")
        )

    def test_a_partition_that_nobody_reads_any_more_is_forgotten(self) -> None:
        exporter = LagExporter()
        exporter.learn(seen([group({A0: 1})], {A0: 100}, at_ms=100))
        exporter.learn(seen([], {A0: 150}, at_ms=150))
        look = seen([group({A0: 180})], {A0: 200}, at_ms=200)
        exporter.learn(look)

        served = exporter.measure(look).families()
        assert all(math.isnan(value) for value in values(served, "kafka_consumergroup_group_lag_seconds").values())
