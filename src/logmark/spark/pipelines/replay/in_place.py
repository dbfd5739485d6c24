"""The live pipeline reads again: its group is moved back, and its rows replace those of the same offsets.

Only for pipelines without state that write a table by offsets. A query that runs follows the move by itself; where none
runs, the pipeline is run here. With an end, the group goes on from where it was once the end is reached; if nobody does
that, because this process was killed, the pipeline reads on to where it was, which costs time and changes nothing else.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.reset.executor import QUIET_WATCH_S, AppliedReset, WatchTimeouts, apply_plan
from logmark.offsets.reset.plan import ResetPlan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ToOffsets
from logmark.spark.pipelines.pipeline import Table
from logmark.spark.pipelines.replay.build import Report, how_far, logs_of, run, source_of
from logmark.spark.pipelines.replay.targets import Aim, offsets_of
from logmark.spark.pipelines.supervisor import Job, held
from logmark.spark.source.position import Offsets
from logmark.spark.tables.modes import REPLACE
from logmark.spark.tables.table import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY_S = 0.25
GONE_AFTER_S = 5.0


def plan_rereading(job: Job, client: Client, aim: Aim) -> ResetPlan:
    """What moving the group there would do, as `logmark offsets reset` plans it."""
    return plan_reset(client, job.pipeline.group, None, aim, with_preview=True, action="replay")


def stops_of(job: Job, client: Client, plan: ResetPlan, stop: Aim | None) -> dict[TopicPartition, int]:
    """Where reading again ends: at `stop`, and never beyond where the group is now."""
    here = places_before(plan)
    if stop is None:
        return here
    bounds = {place: one for place, one in logs_of(client, source_of(job)).items() if place in here}
    wanted = offsets_of(client, stop, bounds)
    starts = {move.partition: move.to or 0 for move in plan.moves}
    return {place: min(max(wanted.get(place, end), starts[place]), end) for place, end in here.items()}


def places_before(plan: ResetPlan) -> dict[TopicPartition, int]:
    """Where the group stood when the plan was made."""
    return {move.partition: move.committed.offset for move in plan.moves if move.committed is not None}


def rows_between(job: Job, starts: Offsets, stops: Offsets) -> int | None:
    """How many rows of the table came from these offsets; None where the rows do not say."""
    import pyarrow.compute as compute

    sink = job.pipeline.sink
    if not isinstance(sink, Table) or sink.mode != REPLACE:
        return None
    try:
        rows = read_table(sink.path, ["topic", "partition", "offset"])
    except UserError:
        return 0
    count = 0
    for place, start in starts.items():
        of_place = compute.and_(
            compute.equal(rows["topic"], place.topic), compute.equal(rows["partition"], place.partition)
        )
        within = compute.and_(
            compute.greater_equal(rows["offset"], start), compute.less(rows["offset"], stops.get(place, start))
        )
        count += compute.sum(compute.and_(of_place, within)).as_py() or 0
    return count


def reread(
    job: Job,
    spark: "Callable[[], SparkSession]",
    client: Client,
    plan: ResetPlan,
    stops: Mapping[TopicPartition, int],
    *,
    agree: Callable[[ResetPlan], None],
    reason: str = "",
    is_detached: bool = False,
    report: Report = lambda done, of: None,
) -> AppliedReset:
    """The group was moved, journaled, and everything up to `stops` was read again, by whoever runs the pipeline.

    With `is_detached` a pipeline that runs is left to it.
    """
    back = {place: offset for place, offset in places_before(plan).items() if stops.get(place, offset) < offset}
    if is_detached and back:
        raise UserError("With --to somebody has to wait for the end. Nothing was changed. Leave --detach away.")
    details = {"pipeline": job.pipeline.name}
    applied = apply_plan(client, plan, reason=reason, agree=agree, patience=_patience(job), details=details)
    starts = {move.partition: move.to for move in applied.plan.moves if move.to is not None}
    if job.home.is_live():
        if not is_detached:
            _wait(job, spark, client, starts, stops, report=report)
    else:
        _run_here(job, spark, client, starts, stops if back else None, report=report)
    if back:
        _go_on(job, client, back, reason=reason, agree=agree)
    return applied


def _wait(
    job: Job,
    spark: "Callable[[], SparkSession]",
    client: Client,
    starts: Offsets,
    stops: Offsets,
    *,
    report: Report,
) -> None:
    """The query that runs has read up to `stops`; if it goes away meanwhile, the pipeline is run here."""
    gone_since: float | None = None
    while True:
        done, of = how_far(client, job.pipeline.group, starts, stops)
        report(done, of)
        if done >= of:
            return
        if job.home.is_live():
            gone_since = None
        elif gone_since is None:
            gone_since = time.monotonic()
        elif time.monotonic() - gone_since > GONE_AFTER_S:
            _run_here(job, spark, client, starts, stops, report=report)
            return
        time.sleep(_LOOK_EVERY_S)


def _run_here(
    job: Job,
    spark: "Callable[[], SparkSession]",
    client: Client,
    starts: Offsets,
    stops: Offsets | None,
    *,
    report: Report,
) -> None:
    with held(job.home):
        version = job.home.live_version(job.pipeline)
        run(job, version, spark(), client, starts=starts, stops=stops, report=report)


def _go_on(
    job: Job,
    client: Client,
    back: Mapping[TopicPartition, int],
    *,
    reason: str,
    agree: Callable[[ResetPlan], None],
) -> None:
    """The group is where it was before, as far as it has not got there by itself."""
    now = client.committed(job.pipeline.group, back)
    places = {
        place: Committed(offset=offset) for place, offset in back.items() if place in now and now[place].offset < offset
    }
    if places:
        target = ToOffsets(places, "where it was before the replay")
        plan = plan_reset(client, job.pipeline.group, None, target, clamp=True, action="replay")
        if plan.changes:
            apply_plan(client, plan, reason=reason or "the end of a replay", agree=agree, patience=_patience(job))


def _patience(job: Job) -> WatchTimeouts:
    """Where nobody runs the pipeline, nobody has to be seen to follow."""
    return WatchTimeouts() if job.home.is_live() else WatchTimeouts(watch_s=QUIET_WATCH_S)
