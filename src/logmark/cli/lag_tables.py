"""Lag as tables for people."""

from collections.abc import Sequence

from logmark.cli.tables import Column, count, offset_cells, print_table, say, write_line
from logmark.offsets.lag.ages import Age, Method
from logmark.offsets.lag.report import GroupLag, LagReport
from logmark.offsets.lag.views import (
    LagLevel,
    group_lag_note,
    has_lag,
    partition_lag_note,
    partition_note,
    partitions_with_lag,
    topic_totals,
    total_note,
)
from logmark.offsets.partitions import GroupPartition, GroupView
from logmark.offsets.times import format_duration

_OFFSETS = [
    Column("GROUP"), Column("TOPIC"), Column("PARTITION", True), Column("COMMITTED", True),
    Column("LAST PROCESSED", True), Column("START", True), Column("END", True), Column("LAG", True), Column("NOTE"),
]  # fmt: skip


def print_group_offsets(views: Sequence[GroupView]) -> None:
    """Write one table for all groups, and the total of each."""
    if not any(view.partitions for view in views):
        say("No group has committed an offset yet.")
        return
    print_table(_OFFSETS, [(*_offset_row(one), partition_note(one)) for view in views for one in view.partitions])
    for view in views:
        if view.partitions:
            write_line(f"Group {view.description.group}: {count(view.lag, 'record')} behind in total.")


def print_lag_report(report: LagReport, level: LagLevel, *, only_with_lag: bool = False) -> None:
    """Write the table that was asked for, and the totals under it."""
    if not any(group.total.partitions for group in report.groups):
        say("No group has committed an offset yet.")
        return
    has_history = any(group.finding for group in report.groups)
    if level is LagLevel.PARTITION:
        _print_partitions(report, only_with_lag=only_with_lag, has_history=has_history)
        _print_totals(report)
    elif level is LagLevel.GROUP:
        _print_groups(report, only_with_lag=only_with_lag, has_history=has_history)
    else:
        _print_topics(report, only_with_lag=only_with_lag)


def format_age(age: Age) -> str | None:
    """Return an age with its bound and the way it was found; None where it is unknown."""
    if age.ms is None:
        return None
    if age.method is Method.CAUGHT_UP:
        return "0 s"
    return f"{format_duration(age.ms)}{_format_bound(age)} ({age.method})"


def format_rate(per_s: float | None) -> str:
    """Return a rate of records in few digits."""
    if per_s is None:
        return "-"
    return f"{per_s:,.0f}/s" if per_s >= 10 or per_s == 0 else f"{per_s:.2g}/s"


def _format_bound(age: Age) -> str:
    return f" ±{format_duration(age.bound_ms)}" if age.bound_ms else ""


def _offset_row(one: GroupPartition) -> tuple[object, ...]:
    return (
        one.group, one.partition.topic, one.partition.partition,
        *offset_cells(one.committed.offset if one.committed else None), one.start, one.end,
        one.lag.records if one.lag else None,
    )  # fmt: skip


def _print_partitions(report: LagReport, *, only_with_lag: bool, has_history: bool) -> None:
    shown = [one for group in report.groups for one in partitions_with_lag(group, only_with_lag=only_with_lag)]
    columns = [*_OFFSETS[:-1], Column("BEHIND"), *([Column("VERDICT")] if has_history else []), Column("NOTE")]
    cells = [
        (
            *_offset_row(one.group_partition),
            format_age(one.age),
            *([one.finding.verdict if one.finding else None] if has_history else []),
            partition_lag_note(one, with_evidence=True),
        )
        for one in shown
    ]
    if shown:
        print_table(columns, cells)


def _print_totals(report: LagReport) -> None:
    for one in report.groups:
        if not one.total.partitions:
            continue
        oldest = ""
        if one.total.records and one.age.ms is not None:
            age = f"{format_duration(one.age.ms)}{_format_bound(one.age)}"
            oldest = f", the oldest unread record is {age} old ({one.age.method})"
        write_line(f"Group {one.group.group}: {count(one.total.records, 'record')} behind in total{oldest}.")
        if one.finding is not None:
            trend = f" {_format_trend(one)}" if one.total.records else ""
            remark = f" ({one.finding.note})" if one.finding.note else ""
            write_line(f"Group {one.group.group}: {one.finding.verdict}: {one.finding.evidence}{remark}.{trend}")
    if sum(one.total.partitions > 0 for one in report.groups) > 1:
        write_line(f"All groups: {count(report.total.records, 'record')} behind in total.")


def _format_trend(one: GroupLag) -> str:
    trend = one.trend
    if trend is None or trend.in_per_s is None:
        return ""
    return (
        f"The lag is {trend.direction}: {format_rate(trend.in_per_s)} in, {format_rate(trend.out_per_s)} out; "
        f"time to catch up: {trend.catch_up}."
    )


def _print_groups(report: LagReport, *, only_with_lag: bool, has_history: bool) -> None:
    columns = [
        Column("GROUP"), Column("STATE"), Column("MEMBERS", True), Column("PARTITIONS", True), Column("LAG", True),
        Column("BEHIND"), Column("LOST", True),
    ]  # fmt: skip
    past = [Column("TREND"), Column("IN", True), Column("OUT", True), Column("CATCH UP"), Column("VERDICT")]
    cells = []
    for one in report.groups:
        if not has_lag(one.total, only_with_lag=only_with_lag):
            continue
        trend, finding = one.trend, one.finding
        seen = (
            (
                str(trend.direction) if trend else None, format_rate(trend.in_per_s if trend else None),
                format_rate(trend.out_per_s if trend else None), trend.catch_up if trend else None,
                finding.verdict if finding else None,
            )
            if has_history
            else ()
        )  # fmt: skip
        cells.append(
            (
                one.group.group, one.group.state or None, len(one.group.members), one.total.partitions,
                one.total.records, format_age(one.age), one.total.lost, *seen, group_lag_note(one, with_evidence=True),
            )
        )  # fmt: skip
    if cells:
        print_table([*columns, *(past if has_history else []), Column("NOTE")], cells)
    write_line(f"All groups: {count(report.total.records, 'record')} behind in total.")


def _print_topics(report: LagReport, *, only_with_lag: bool) -> None:
    cells = [
        (group, topic, total.partitions, total.records, format_age(age), total.lost, total_note(total))
        for group, topic, total, age in topic_totals(report)
        if has_lag(total, only_with_lag=only_with_lag)
    ]
    columns = [
        Column("GROUP"), Column("TOPIC"), Column("PARTITIONS", True), Column("LAG", True), Column("BEHIND"),
        Column("LOST", True), Column("NOTE"),
    ]  # fmt: skip
    if cells:
        print_table(columns, cells)
    write_line(f"All groups: {count(report.total.records, 'record')} behind in total.")
