"""Lag as programs read it: one flat view for a partition, a topic or a group; `dataclasses.asdict` makes it JSON."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logmark.offsets.lag.ages import Age
from logmark.offsets.lag.report import GroupLag, LagReport, PartitionLag
from logmark.offsets.lag.sample import Total
from logmark.offsets.lag.verdicts import Finding
from logmark.offsets.partitions import GroupPartition, GroupView


class LagLevel(StrEnum):
    """What one row of lag is about."""

    PARTITION = "partition"
    TOPIC = "topic"
    GROUP = "group"


@dataclass(frozen=True, kw_only=True)
class OffsetView:
    """A group's committed offset in one partition; `lost` counts records that expired unread."""

    group: str
    topic: str
    partition: int
    committed: int | None
    last_processed: int | None
    start: int | None
    end: int | None
    lag: int | None
    lost: int | None


@dataclass(frozen=True, kw_only=True)
class AgeView:
    """The age of the oldest unread record in seconds, its bound, and how it was found."""

    seconds: float | None
    seconds_bound: float | None
    seconds_method: str


@dataclass(frozen=True, kw_only=True)
class PartitionLagView(AgeView, OffsetView):
    """The lag of a group in one partition."""

    verdict: str | None
    evidence: str | None
    note: str


@dataclass(frozen=True, kw_only=True)
class TotalView:
    """Lag over several partitions; `uncommitted` have no commit, `unknown` could not be asked."""

    partitions: int
    uncommitted: int
    unknown: int
    lag: int
    lost: int


@dataclass(frozen=True, kw_only=True)
class TopicName:
    """A group in one topic."""

    group: str
    topic: str


@dataclass(frozen=True, kw_only=True)
class TopicLagView(AgeView, TotalView, TopicName):
    """The lag of a group in one topic."""


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """A group and its state as the broker names it."""

    group: str
    state: str
    type: str
    members: int


@dataclass(frozen=True, kw_only=True)
class GroupLagView(AgeView, TotalView, GroupState):
    """The lag of a group in all its partitions; `catch_up_seconds` is None if it is unknown or never."""

    verdict: str | None
    evidence: str | None
    trend: str | None
    in_per_second: float | None
    out_per_second: float | None
    catch_up_seconds: float | None
    note: str


@dataclass(frozen=True, kw_only=True)
class PartitionName:
    """A topic-partition."""

    topic: str
    partition: int


@dataclass(frozen=True, kw_only=True)
class MemberView:
    """A member of a group with its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[PartitionName]


@dataclass(frozen=True, kw_only=True)
class MemberOffsetView(OffsetView):
    """A group's committed offset in one partition, and the member that reads it."""

    member_id: str | None


@dataclass(frozen=True, kw_only=True)
class GroupDescriptionView:
    """A group with its members and its committed offsets."""

    group: str
    state: str
    type: str
    assignor: str
    coordinator: int
    lag: int
    members: Sequence[MemberView]
    offsets: Sequence[MemberOffsetView]


def view_lag(
    report: LagReport, level: LagLevel, *, only_with_lag: bool = False
) -> Sequence[PartitionLagView | TopicLagView | GroupLagView]:
    """Return a view of each partition, topic or group of a report, in its order."""
    if level is LagLevel.PARTITION:
        return [
            _view_partition(one)
            for group in report.groups
            for one in partitions_with_lag(group, only_with_lag=only_with_lag)
        ]
    if level is LagLevel.GROUP:
        return [_view_group(one) for one in report.groups if has_lag(one.total, only_with_lag=only_with_lag)]
    return [
        TopicLagView(group=group, topic=topic, **_total_fields(total), **age_fields(age))
        for group, topic, total, age in topic_totals(report)
        if has_lag(total, only_with_lag=only_with_lag)
    ]


def view_group(view: GroupView) -> GroupDescriptionView:
    """Return a group as `groups describe` shows it."""
    group = view.description
    return GroupDescriptionView(
        group=group.group,
        state=group.state,
        type=group.type,
        assignor=group.assignor,
        coordinator=group.coordinator,
        lag=view.lag,
        members=[
            MemberView(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.host,
                partitions=[PartitionName(topic=one.topic, partition=one.partition) for one in member.partitions],
            )
            for member in group.members
        ],
        offsets=[
            MemberOffsetView(**offset_fields(one), member_id=one.member.member_id if one.member else None)
            for one in view.partitions
        ],
    )


def offset_fields(one: GroupPartition) -> dict[str, Any]:
    """Return the fields of an OffsetView."""
    return {
        "group": one.group,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "committed": one.committed.offset if one.committed else None,
        "last_processed": one.last_processed,
        "start": one.start,
        "end": one.end,
        "lag": one.lag.records if one.lag else None,
        "lost": one.lag.lost if one.lag else None,
    }


def age_fields(age: Age) -> dict[str, Any]:
    """Return the fields of an AgeView."""
    return {
        "seconds": None if age.ms is None else age.ms / 1000,
        "seconds_bound": None if age.ms is None else age.bound_ms / 1000,
        "seconds_method": str(age.method),
    }


def partitions_with_lag(group: GroupLag, *, only_with_lag: bool) -> Iterator[PartitionLag]:
    """Yield the partitions of a group; with `only_with_lag` those that are behind, have lost records or a problem."""
    for one in group.partitions:
        if not only_with_lag or one.group_partition.problem or (one.lag and (one.lag.records or one.lag.lost)):
            yield one


def has_lag(total: Total, *, only_with_lag: bool) -> bool:
    """Return whether a total is to be shown."""
    return not only_with_lag or bool(total.records or total.lost or total.unknown)


def topic_totals(report: LagReport) -> Iterator[tuple[str, str, Total, Age]]:
    """Yield group, topic, lag and age for each topic of each group."""
    for group in report.groups:
        name = group.group.group
        for topic in sorted({one.group_partition.partition.topic for one in group.partitions}):
            yield name, topic, report.sample.total(name, topic), report.ages.oldest(name, topic)


def partition_note(one: GroupPartition) -> str:
    """Return what a person should know about a partition beyond its numbers."""
    if one.problem:
        return one.problem
    if one.lag and one.lag.lost:
        return f"{one.lag.lost} record{'s'[: one.lag.lost != 1]} lost: expired before they were read"
    if one.committed and one.end is not None and one.committed.offset > one.end:
        return "committed beyond the log end: was the topic deleted and created again?"
    return ""


def partition_lag_note(one: PartitionLag, *, with_evidence: bool) -> str:
    """Return the notes on a partition; with evidence where its verdict is bad."""
    return _joined(partition_note(one.group_partition), one.age.note, *_finding_notes(one.finding, with_evidence))


def group_lag_note(one: GroupLag, *, with_evidence: bool) -> str:
    """Return the notes on a group; with evidence where its verdict is bad."""
    return _joined(one.group.problem, total_note(one.total), *_finding_notes(one.finding, with_evidence))


def total_note(total: Total) -> str:
    """Return how many partitions of a total have no commit or could not be asked."""
    counts = ((total.uncommitted, "without a commit"), (total.unknown, "could not be asked"))
    return ", ".join(f"{number} partition{'s'[: number != 1]} {what}" for number, what in counts if number)


def _view_partition(one: PartitionLag) -> PartitionLagView:
    return PartitionLagView(
        **offset_fields(one.group_partition),
        **age_fields(one.age),
        **_finding_fields(one.finding),
        note=partition_lag_note(one, with_evidence=False),
    )


def _view_group(one: GroupLag) -> GroupLagView:
    trend = one.trend
    catch_up_ms = trend.catch_up_ms if trend else None
    return GroupLagView(
        group=one.group.group,
        state=one.group.state,
        type=one.group.type,
        members=len(one.group.members),
        **_total_fields(one.total),
        **age_fields(one.age),
        **_finding_fields(one.finding),
        trend=str(trend.direction) if trend else None,
        in_per_second=trend.in_per_s if trend else None,
        out_per_second=trend.out_per_s if trend else None,
        catch_up_seconds=None if catch_up_ms is None or math.isinf(catch_up_ms) else catch_up_ms / 1000,
        note=group_lag_note(one, with_evidence=False),
    )


def _total_fields(total: Total) -> dict[str, Any]:
    return {
        "partitions": total.partitions,
        "uncommitted": total.uncommitted,
        "unknown": total.unknown,
        "lag": total.records,
        "lost": total.lost,
    }


def _finding_fields(finding: Finding | None) -> dict[str, Any]:
    return {
        "verdict": str(finding.verdict) if finding else None,
        "evidence": finding.evidence if finding else None,
    }


def _finding_notes(finding: Finding | None, with_evidence: bool) -> list[str]:
    if finding is None:
        return []
    return [finding.evidence if with_evidence and finding.verdict.is_bad else "", finding.note]


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
