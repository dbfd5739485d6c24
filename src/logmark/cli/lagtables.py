"""How lag is written: tables for people, rows for programs."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from logmark.cli.tables import Column, count, place, print_table, say, write_line
from logmark.offsets.lag.ages import Age, Method
from logmark.offsets.lag.report import GroupLag, LagReport, PartitionLag
from logmark.offsets.lag.sample import Total
from logmark.offsets.lag.verdicts import Finding
from logmark.offsets.partitions import GroupPartition, GroupView
from logmark.offsets.times import format_duration

_PLACES = [
    Column("GROUP"), Column("TOPIC"), Column("PARTITION", True), Column("PLACE"), Column("START", True),
    Column("END", True), Column("LAG", True), Column("NOTE"),
]  # fmt: skip


class By(StrEnum):
    """What one line of lag is about."""

    PARTITION = "partition"
    TOPIC = "topic"
    GROUP = "group"


def print_lag(views: Sequence[GroupView]) -> None:
    """One table for all groups, and the total of each."""
    if not any(view.partitions for view in views):
        say("No group has committed an offset yet.")
        return
    print_table(_PLACES, [(*_place_cells(one), note(one)) for view in views for one in view.partitions])
    for view in views:
        if view.partitions:
            write_line(f"Group {view.description.group}: {count(view.lag, 'record')} behind in total.")


def row(one: GroupPartition) -> dict[str, object]:
    """What JSON says about a place; `lost` counts records that expired unread."""
    committed = one.committed.offset if one.committed else None
    return {
        "group": one.group,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "committed": committed,
        "last_processed": committed - 1 if committed else None,
        "start": one.start,
        "end": one.end,
        "lag": one.lag.records if one.lag else None,
        "lost": one.lag.lost if one.lag else None,
    }


def note(one: GroupPartition) -> str:
    """What a person should know about a place beyond its numbers."""
    if one.problem:
        return one.problem
    if one.lag and one.lag.lost:
        return f"{count(one.lag.lost, 'record')} lost: expired before they were read"
    if one.committed and one.end is not None and one.committed.offset > one.end:
        return "committed beyond the end: was the topic made anew?"
    return ""


def _place_cells(one: GroupPartition) -> tuple[object, ...]:
    committed = one.committed.offset if one.committed else None
    return (
        one.group, one.partition.topic, one.partition.partition, place(committed), one.start, one.end,
        one.lag.records if one.lag else None,
    )  # fmt: skip


def age_text(age: Age) -> str | None:
    """An age with its bound and the way it was found; None where it is not known."""

    if age.ms is None:
        return None
    if age.method is Method.CAUGHT_UP:
        return "0 s"
    return f"{format_duration(age.ms)}{_bound_text(age)} ({age.method})"


def _age_sentence(age: Age) -> str:

    assert age.ms is not None
    return f"{format_duration(age.ms)}{_bound_text(age)} old ({age.method})"


def _bound_text(age: Age) -> str:

    return f" ±{format_duration(age.bound_ms)}" if age.bound_ms else ""


def age_fields(age: Age) -> dict[str, object]:
    """An age as JSON has it."""
    return {
        "seconds": None if age.ms is None else age.ms / 1000,
        "seconds_bound": None if age.ms is None else age.bound_ms / 1000,
        "seconds_method": str(age.method),
    }


def _finding_fields(finding: Finding | None) -> dict[str, object]:
    return {
        "verdict": str(finding.verdict) if finding else None,
        "evidence": finding.evidence if finding else None,
    }


def rows(standing: LagReport, by: By, *, only_with_lag: bool = False) -> list[dict[str, Any]]:
    """What JSON says: a list with an object for each partition, topic or group."""
    if by is By.PARTITION:
        return [
            row(one.group_partition)
            | age_fields(one.age)
            | _finding_fields(one.finding)
            | {"note": _note(one, with_evidence=False)}
            for group in standing.groups
            for one in _shown(group, only_with_lag=only_with_lag)
        ]
    if by is By.GROUP:
        return [_group_row(one) for one in standing.groups if _is_wanted(one.total, only_with_lag=only_with_lag)]
    return [
        {"group": group.group.group, "topic": topic} | _total_row(total) | age_fields(age)
        for group, topic, total, age in _topics(standing)
        if _is_wanted(total, only_with_lag=only_with_lag)
    ]


def _group_row(one: GroupLag) -> dict[str, object]:
    trend = one.trend
    catch_up = None if trend is None or trend.catch_up_ms in (None, float("inf")) else trend.catch_up_ms
    return {
        "group": one.group.group,
        "state": one.group.state,
        "type": one.group.type,
        "members": len(one.group.members),
        **_total_row(one.total),
        **age_fields(one.age),
        **_finding_fields(one.finding),
        "trend": str(trend.direction) if trend else None,
        "in_per_second": trend.in_per_s if trend else None,
        "out_per_second": trend.out_per_s if trend else None,
        "catch_up_seconds": None if catch_up is None else catch_up / 1000,
        "note": _group_note(one, with_evidence=False),
    }


def _total_row(total: Total) -> dict[str, object]:
    return {
        "partitions": total.partitions,
        "uncommitted": total.uncommitted,
        "unknown": total.unknown,
        "lag": total.records,
        "lost": total.lost,
    }


def print_standing(standing: LagReport, by: By, *, only_with_lag: bool = False) -> None:
    """The table that was asked for, and the totals under it."""
    if not any(group.total.partitions for group in standing.groups):
        say("No group has committed an offset yet.")
        return
    has_history = any(group.finding for group in standing.groups)
    if by is By.PARTITION:
        _print_partitions(standing, only_with_lag=only_with_lag, has_history=has_history)
        _print_totals(standing)
    elif by is By.GROUP:
        _print_groups(standing, only_with_lag=only_with_lag, has_history=has_history)
    else:
        _print_topics(standing, only_with_lag=only_with_lag)


def _print_partitions(standing: LagReport, *, only_with_lag: bool, has_history: bool) -> None:
    shown = [one for group in standing.groups for one in _shown(group, only_with_lag=only_with_lag)]
    columns = [*_PLACES[:-1], Column("BEHIND"), *([Column("VERDICT")] if has_history else []), Column("NOTE")]
    cells = [
        (
            *_place_cells(one.group_partition),
            age_text(one.age),
            *([one.finding.verdict if one.finding else None] if has_history else []),
            _note(one),
        )
        for one in shown
    ]
    if shown:
        print_table(columns, cells)


def _print_totals(standing: LagReport) -> None:
    for one in standing.groups:
        if not one.total.partitions:
            continue
        is_known = one.total.records and one.age.ms is not None
        oldest = f", the oldest unread record is {_age_sentence(one.age)}" if is_known else ""
        write_line(f"Group {one.group.group}: {count(one.total.records, 'record')} behind in total{oldest}.")
        if one.finding is not None:
            trend = f" {_trend_text(one)}" if one.total.records else ""
            remark = f" ({one.finding.note})" if one.finding.note else ""
            write_line(f"Group {one.group.group}: {one.finding.verdict}: {one.finding.evidence}{remark}.{trend}")
    if sum(one.total.partitions > 0 for one in standing.groups) > 1:
        write_line(f"All groups: {count(standing.total.records, 'record')} behind in total.")


def _trend_text(one: GroupLag) -> str:
    trend = one.trend
    if trend is None or trend.in_per_s is None:
        return ""
    return (
        f"The lag is {trend.direction}: {rate_text(trend.in_per_s)} in, {rate_text(trend.out_per_s)} out; "
        f"time to catch up: {trend.catch_up}."
    )


def rate_text(per_s: float | None) -> str:
    """A rate of records in few digits."""
    if per_s is None:
        return "-"
    return f"{per_s:,.0f}/s" if per_s >= 10 or per_s == 0 else f"{per_s:.2g}/s"


def _print_groups(standing: LagReport, *, only_with_lag: bool, has_history: bool) -> None:
    columns = [
        Column("GROUP"), Column("STATE"), Column("MEMBERS", True), Column("PARTITIONS", True), Column("LAG", True),
        Column("BEHIND"), Column("LOST", True),
    ]  # fmt: skip
    past = [Column("TREND"), Column("IN", True), Column("OUT", True), Column("CATCH UP"), Column("VERDICT")]
    cells = []
    for one in standing.groups:
        if not _is_wanted(one.total, only_with_lag=only_with_lag):
            continue
        trend, finding = one.trend, one.finding
        seen = (
            (
                str(trend.direction) if trend else None, rate_text(trend.in_per_s if trend else None),
                rate_text(trend.out_per_s if trend else None), trend.catch_up if trend else None,
                finding.verdict if finding else None,
            )
            if has_history
            else ()
        )  # fmt: skip
        cells.append(
            (
                one.group.group, one.group.state or None, len(one.group.members), one.total.partitions,
                one.total.records, age_text(one.age), one.total.lost, *seen, _group_note(one),
            )
        )  # fmt: skip
    if cells:
        print_table([*columns, *(past if has_history else []), Column("NOTE")], cells)
    write_line(f"All groups: {count(standing.total.records, 'record')} behind in total.")


def _print_topics(standing: LagReport, *, only_with_lag: bool) -> None:
    cells = [
        (group.group.group, topic, total.partitions, total.records, age_text(age), total.lost, _total_note(total))
        for group, topic, total, age in _topics(standing)
        if _is_wanted(total, only_with_lag=only_with_lag)
    ]
    columns = [
        Column("GROUP"), Column("TOPIC"), Column("PARTITIONS", True), Column("LAG", True), Column("BEHIND"),
        Column("LOST", True), Column("NOTE"),
    ]  # fmt: skip
    if cells:
        print_table(columns, cells)
    write_line(f"All groups: {count(standing.total.records, 'record')} behind in total.")


def _topics(standing: LagReport) -> Iterator[tuple[GroupLag, str, Total, Age]]:
    for group in standing.groups:
        name = group.group.group
        for topic in sorted({one.group_partition.partition.topic for one in group.partitions}):
            yield group, topic, standing.sample.total(name, topic), standing.ages.oldest(name, topic)


def _shown(group: GroupLag, *, only_with_lag: bool) -> Iterator[PartitionLag]:
    for one in group.partitions:
        if not only_with_lag or one.group_partition.problem or (one.lag and (one.lag.records or one.lag.lost)):
            yield one


def _is_wanted(total: Total, *, only_with_lag: bool) -> bool:
    return not only_with_lag or bool(total.records or total.lost or total.unknown)


def _note(one: PartitionLag, *, with_evidence: bool = True) -> str:
    remarks = [note(one.group_partition), one.age.note, *_remarks(one.finding, with_evidence=with_evidence)]
    return "; ".join(remark for remark in remarks if remark)


def _group_note(one: GroupLag, *, with_evidence: bool = True) -> str:
    remarks = [one.group.problem, _total_note(one.total), *_remarks(one.finding, with_evidence=with_evidence)]
    return "; ".join(remark for remark in remarks if remark)


def _remarks(finding: Finding | None, *, with_evidence: bool) -> list[str]:
    if finding is None:
        return []
    return [finding.evidence if with_evidence and finding.verdict.is_bad else "", finding.note]


def _total_note(total: Total) -> str:
    remarks = [
        f"{count(total.uncommitted, 'partition')} without a commit" if total.uncommitted else "",
        f"{count(total.unknown, 'partition')} could not be asked" if total.unknown else "",
    ]
    return ", ".join(remark for remark in remarks if remark)
