"""The lag report of a sample: for every group lag in records and seconds, lost records, verdict and trend."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from logmark.client.bulk import chunks
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import activity_token
from logmark.offsets.lag.ages import Age, Ages, compute_ages
from logmark.offsets.lag.annotations import Annotation
from logmark.offsets.lag.history import History, PartitionSample
from logmark.offsets.lag.sample import GroupSample, Sample, Total
from logmark.offsets.lag.trend import Trend, compute_trend
from logmark.offsets.lag.verdicts import WINDOW_MS, WINDOW_POINTS, Finding, Verdict, judge_group, judge_partition
from logmark.offsets.partitions import GroupPartition, Lag

Windows = dict[TopicPartition, list[PartitionSample]]
_TOGETHER = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """One group in one partition; the verdict is None without a history."""

    group_partition: GroupPartition
    lag: Lag | None
    age: Age
    finding: Finding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """One group over all its partitions; the age is that of the oldest."""

    group: GroupSample
    total: Total
    age: Age
    finding: Finding | None
    trend: Trend | None
    partitions: Sequence[PartitionLag]


@dataclass(frozen=True, slots=True, kw_only=True)
class LagReport:
    """All groups of a sample, by name."""

    sample: Sample
    ages: Ages
    groups: Sequence[GroupLag]

    @property
    def total(self) -> Total:
        """The lag of all groups together."""
        return self.sample.total()


def build_lag_report(
    sample: Sample,
    *,
    client: Client | None = None,
    history: History | None = None,
    ages: Ages | None = None,
    own_changes: Callable[[int], Iterable[Annotation]] | None = None,
    allowed_lag: int = 0,
) -> LagReport:
    """Judges a sample by its history, if there is one.

    Ages that are not given come from the history, and with a client from the cluster where no history knows them.
    `own_changes` tells which changes our own tools made since a time; it is called only when a group seems to have been
    rewound.
    """
    ages = ages or compute_ages(sample, history=history, client=client)
    since_ms = sample.at_ms - WINDOW_MS
    annotations = history.annotations(since_ms=since_ms) if history is not None else []

    def judged(names: Sequence[str]) -> list[GroupLag]:
        windows = _windows(sample, history, names, since_ms) if history is not None else None
        return [
            _group(sample, ages, name, windows[name] if windows is not None else None, annotations, allowed_lag)
            for name in names
        ]

    # A few groups at a time: the windows of all of them together would take much more room than what is made of them.
    standings = [one for names in chunks(list(sample.groups), _TOGETHER) for one in judged(names)]
    if own_changes is not None and any(_is_rewound(one) for one in standings):
        annotations = [*annotations, *own_changes(since_ms)]
        standings = [judged([one.group.group])[0] if _is_rewound(one) else one for one in standings]
    return LagReport(sample=sample, ages=ages, groups=standings)


def _windows(sample: Sample, history: History, names: Sequence[str], since_ms: int) -> dict[str, Windows]:
    """Return the recent samples of these groups, and the present one."""
    found = history.windows(names, since_ms=since_ms, points_max=WINDOW_POINTS - 1)
    for name in names:
        _extend(found.setdefault(name, {}), sample, sample.groups[name])
    return found


def _is_rewound(one: GroupLag) -> bool:
    return one.finding is not None and one.finding.verdict is Verdict.REWOUND


def _extend(windows: Windows, sample: Sample, group: GroupSample) -> None:
    """Add the present sample to the windows; a partition without a commit now has no window."""
    sign = activity_token(commit.metadata for commit in group.committed.values())
    for partition in set(windows) - set(group.committed):
        del windows[partition]
    for partition, commit in group.committed.items():
        end = sample.ends.get(partition)
        if end is None:
            windows.pop(partition, None)
            continue
        moment = PartitionSample(sample.at_ms, commit.offset, sample.starts[partition], end, len(group.members), sign)
        moments = windows.setdefault(partition, [])
        if moments and moments[-1].at_ms >= sample.at_ms:
            moments.pop()
        moments.append(moment)


def _group(
    sample: Sample,
    ages: Ages,
    name: str,
    windows: Windows | None,
    annotations: Sequence[Annotation],
    allowed_lag: int,
) -> GroupLag:
    group = sample.groups[name]
    own = [one for one in annotations if one.group == name]
    partitions = []
    findings = []
    for one in sample.group_partitions(name):
        lag = sample.lag(name, one.partition)
        finding = None
        if windows is not None and one.partition in windows:
            window = windows[one.partition]
            finding = judge_partition(window, allowed_lag=allowed_lag, annotations=own, partition=one.partition)
            findings.append((one.partition, finding, lag.records if lag else 0))
        age = ages.of(name, one.partition)
        partitions.append(PartitionLag(group_partition=one, lag=lag, age=age, finding=finding))
    return GroupLag(
        group=group,
        total=sample.total(name),
        age=ages.oldest(name),
        finding=judge_group(findings) if windows is not None else None,
        trend=compute_trend(windows) if windows is not None else None,
        partitions=partitions,
    )
