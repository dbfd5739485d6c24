"""What the monitor serves: our own metrics, and those of the exporters that dashboards are made for.

When the last sample failed, or is older than it should be, only what the monitor says about itself is served: a series
that is not there is stale for Prometheus, an old number would pass for a new one.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from logmark.offsets.lag.verdicts import Verdict
from logmark.offsets.monitor.exporters import ExporterSample, LagExporterValues, kafka_exporter
from logmark.offsets.monitor.prometheus_text import MetricFamily
from logmark.offsets.monitor.readings import PartitionReading, Reading

KAFKA_EXPORTER, KAFKA_LAG_EXPORTER, LOGMARK = "kafka_exporter", "kafka_lag_exporter", "logmark"
FAMILIES = (KAFKA_EXPORTER, KAFKA_LAG_EXPORTER, LOGMARK)
_BY_PARTITION = ("group", "topic", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the monitor says about itself."""

    is_up: bool
    samples: int = 0
    failures: int = 0
    last_success_ms: int | None = None
    took_ms: int = 0
    requests: int = 0
    problems: int = 0
    delivered: int = 0
    given_up: int = 0
    waiting: int = 0
    firing: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Everything that one answer is made of; without a reading the last sample failed."""

    health: Health
    reading: Reading | None = None
    seen: ExporterSample | None = None
    lag_exporter: LagExporterValues | None = None


def served_families(served: Served, wanted: Collection[str]) -> Iterator[MetricFamily]:
    """Yield the metrics of these families for which there is a fresh reading."""
    if KAFKA_EXPORTER in wanted and served.seen is not None:
        yield from kafka_exporter(served.seen)
    if KAFKA_LAG_EXPORTER in wanted and served.lag_exporter is not None:
        yield from served.lag_exporter.families()
    if LOGMARK in wanted and served.reading is not None:
        yield from _groups(served.reading)
        yield from _partitions(served.reading)
    yield from _health(served.health)


def _groups(reading: Reading) -> Iterator[MetricFamily]:
    # Of a group that could not be read, members and verdict would be made up.
    groups = [one for one in reading.groups if one.state != "Dead" and not one.problem]
    yield MetricFamily(
        name="logmark_group_members",
        help="Members of a group.",
        labels=("group",),
        series=[((one.group,), one.members) for one in groups],
    )
    yield MetricFamily(
        name="logmark_group_state",
        help="1 for the state that a group is in.",
        labels=("group", "state"),
        series=[((one.group, one.state), 1) for one in groups if one.state],
    )
    yield MetricFamily(
        name="logmark_group_verdict",
        help="1 for the verdict on a group, 0 for the others: how the worst of its partitions does.",
        labels=("group", "verdict"),
        series=[
            ((one.group, verdict), int(verdict == (one.verdict or Verdict.UNKNOWN)))
            for one in groups
            for verdict in Verdict
        ],
    )
    yield MetricFamily(
        name="logmark_group_catch_up_seconds",
        help="Seconds until a group has read everything at the present rate, +Inf if it never will.",
        labels=("group",),
        series=[((one.group,), one.catch_up_s) for one in groups if one.catch_up_s is not None],
    )
    yield MetricFamily(
        name="logmark_group_uncommitted_partitions",
        help="Partitions that are assigned to a group's members and have no commit.",
        labels=("group",),
        series=[((one.group,), sum(each.is_uncommitted for each in one.partitions)) for one in groups],
    )


def _partitions(reading: Reading) -> Iterator[MetricFamily]:
    yield MetricFamily(
        name="logmark_group_lag_records",
        help="Records that a group can still read in a partition and has not.",
        labels=_BY_PARTITION,
        series=((labels, one.lag) for labels, one in _each(reading) if one.lag is not None),
    )
    yield MetricFamily(
        name="logmark_group_lost_records",
        help="Records that expired in a partition before a group read them.",
        labels=_BY_PARTITION,
        series=((labels, one.lost) for labels, one in _each(reading) if one.lag is not None),
    )
    yield MetricFamily(
        name="logmark_group_lag_seconds",
        help="Age of the oldest unread record, with how it was found; no series where nobody can tell.",
        labels=(*_BY_PARTITION, "method"),
        series=(((*labels, one.method), one.seconds) for labels, one in _each(reading) if one.seconds is not None),
    )
    yield MetricFamily(
        name="logmark_group_partition_verdict",
        help="1 for the verdict on a group in a partition where it is neither OK nor unknown.",
        labels=(*_BY_PARTITION, "verdict"),
        series=(((*labels, one.verdict), 1) for labels, one in _each(reading) if one.verdict not in ("", Verdict.OK)),
    )


def _each(reading: Reading) -> Iterator[tuple[tuple[str, str, str], PartitionReading]]:
    for group in reading.groups:
        for one in group.partitions:
            yield (group.group, one.partition.topic, str(one.partition.partition)), one


def _health(health: Health) -> Iterator[MetricFamily]:
    def gauge(name: str, help: str, value: float, type: str = "gauge") -> MetricFamily:
        return MetricFamily(name=name, help=help, type=type, series=[((), value)])

    yield gauge("logmark_up", "1 if the last sample of the cluster succeeded, else 0.", int(health.is_up))
    if health.last_success_ms is not None:
        yield gauge(
            "logmark_last_sample_timestamp_seconds",
            "When the last sample that succeeded was taken.",
            health.last_success_ms / 1000,
        )
        yield gauge("logmark_sample_duration_seconds", "How long that sample took.", health.took_ms / 1000)
        yield gauge("logmark_sample_requests", "Requests that it sent.", health.requests)
        yield gauge("logmark_sample_problems", "Groups and partitions that could not be asked.", health.problems)
    yield gauge("logmark_samples_total", "Samples that were tried.", health.samples, "counter")
    yield gauge("logmark_sample_failures_total", "Samples that failed.", health.failures, "counter")
    yield MetricFamily(
        name="logmark_alerts_firing",
        help="Subjects for which an alert of the file is firing.",
        labels=("alert",),
        series=[((name,), count) for name, count in health.firing.items()],
    )
    yield gauge("logmark_notifications_delivered_total", "Messages that arrived.", health.delivered, "counter")
    yield gauge("logmark_notifications_given_up_total", "Messages that were given up.", health.given_up, "counter")
    yield gauge("logmark_notifications_waiting", "Messages that are on their way.", health.waiting)


def problems_of(reading: Reading) -> int:
    """Return how many groups and partitions of a reading could not be reached."""
    groups = sum(bool(group.problem) for group in reading.groups)
    return groups + sum(one.lag is None and not one.is_uncommitted for _, one in _each(reading))
