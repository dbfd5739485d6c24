"""A replay in place: the pipeline's group is moved back, and its rows replace those of the same offsets.

Only for pipelines without state that write a table by offsets. A running query follows the move by itself; where none
runs, this process runs the pipeline. With an end, the group is moved forward again to where it was once the end is
reached. If this process is killed before, the pipeline reads on up to where it was, which takes longer and changes
nothing else.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.reset.executor import QUIET_WATCH_S, AppliedReset, WatchTimeouts, apply_plan
from logmark.offsets.reset.plan import ResetPlan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ToOffsets
from logmark.spark.pipelines.declaration import Table
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.live_query import hold_live_lock
from logmark.spark.pipelines.replay.build import Report, measure_progress, read_log_bounds, run_version
from logmark.spark.pipelines.replay.targets import ReplayTarget, resolve_target
from logmark.spark.source.position import Offsets
from logmark.spark.tables.modes import REPLACE
from logmark.spark.tables.table import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_EVERY_S = 0.25
STOPPED_AFTER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlacePlan:
    """A replay in place: the move of the group, where reading again ends, and how many rows are replaced.

    `rows` is None where the rows do not say which offsets they came from.
    """

    reset: ResetPlan
    stops: Offsets
    rows: int | None

    @property
    def ends_early(self) -> bool:
        """Whether the replay ends before the group's committed offsets."""
        return self.stops != committed_before(self.reset)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read again."""
        return not self.reset.changes or not self.reset.read_again


def plan_in_place(job: Job, client: Client, start: ReplayTarget, stop: ReplayTarget | None = None) -> InPlacePlan:
    """Return what moving the group to the start would do, as `logmark offsets reset` plans it; changes nothing."""
    reset = plan_reset(client, job.group, None, start, with_preview=True, action="replay")
    starts = {move.partition: move.to or 0 for move in reset.moves}
    stops = committed_before(reset)
    if stop is not None:
        bounds = {partition: one for partition, one in read_log_bounds(job, client).items() if partition in stops}
        wanted = resolve_target(client, stop, bounds)
        stops = {one: min(max(wanted.get(one, end), starts[one]), end) for one, end in stops.items()}
    return InPlacePlan(reset=reset, stops=stops, rows=count_rows(job, starts, stops))


def committed_before(plan: ResetPlan) -> dict[TopicPartition, int]:
    """Return the committed offsets of the group when the plan was made."""
    return {move.partition: move.committed.offset for move in plan.moves if move.committed is not None}


def count_rows(job: Job, starts: Offsets, stops: Offsets) -> int | None:
    """Return how many rows of the table came from these offsets; None where the rows do not say."""
    # Only here: pyarrow belongs to the extra `spark`.
    import pyarrow.compute as compute

    sink = job.pipeline.sink
    if not isinstance(sink, Table) or sink.mode != REPLACE:
        return None
    try:
        rows = read_table(sink.path, ["topic", "partition", "offset"])
    except UserError:
        return 0
    count = 0
    for partition, start in starts.items():
        is_of_partition = compute.and_(
            compute.equal(rows["topic"], partition.topic), compute.equal(rows["partition"], partition.partition)
        )
        is_within = compute.and_(
            compute.greater_equal(rows["offset"], start), compute.less(rows["offset"], stops.get(partition, start))
        )
        count += compute.sum(compute.and_(is_of_partition, is_within)).as_py() or 0
    return count


def replay_in_place(
    job: Job,
    spark: "Callable[[], SparkSession]",
    client: Client,
    plan: InPlacePlan,
    *,
    agree: Callable[[ResetPlan], None],
    reason: str = "",
    is_detached: bool = False,
    report: Report = lambda done, of: None,
) -> AppliedReset:
    """Move the group, which the journal notes, and wait until everything up to the stops is read again.

    With `is_detached` it leaves the reading to the process that runs the pipeline. `agree` is called with a new plan if
    the group has moved meanwhile.
    """
    stops = plan.stops
    back = {one: offset for one, offset in committed_before(plan.reset).items() if stops.get(one, offset) < offset}
    if is_detached and back:
        raise UserError(
            "A replay with an end has to wait for that end and cannot be detached. Nothing was changed. Replay without "
            "an end, or wait."
        )
    details = {"pipeline": job.name}
    applied = apply_plan(client, plan.reset, reason=reason, agree=agree, timeouts=_timeouts(job), details=details)
    starts = {move.partition: move.to for move in applied.plan.moves if move.to is not None}
    if not job.home.is_live():
        _run_here(job, spark, client, starts, stops if back else None, report=report)
    elif not is_detached:
        _wait(job, spark, client, starts, stops, report=report)
    if back:
        _move_forward(job, client, back, reason=reason, agree=agree)
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
    """Wait until the running query has read up to `stops`; run the pipeline here if that query stops."""
    stopped_at: float | None = None
    while True:
        done, of = measure_progress(client, job.group, starts, stops)
        report(done, of)
        if done >= of:
            return
        if job.home.is_live():
            stopped_at = None
        elif stopped_at is None:
            stopped_at = time.monotonic()
        elif time.monotonic() - stopped_at > STOPPED_AFTER_S:
            _run_here(job, spark, client, starts, stops, report=report)
            return
        time.sleep(_POLL_EVERY_S)


def _run_here(
    job: Job,
    spark: "Callable[[], SparkSession]",
    client: Client,
    starts: Offsets,
    stops: Offsets | None,
    *,
    report: Report,
) -> None:
    with hold_live_lock(job.home):
        version = job.home.live_version(job.pipeline)
        run_version(job, version, spark(), client, starts=starts, stops=stops, report=report)


def _move_forward(
    job: Job,
    client: Client,
    back: Mapping[TopicPartition, int],
    *,
    reason: str,
    agree: Callable[[ResetPlan], None],
) -> None:
    """Move the group to where it was before, in partitions that have not reached it by themselves."""
    now = client.committed(job.group, back)
    offsets = {one: Committed(offset=offset) for one, offset in back.items() if one in now and now[one].offset < offset}
    if offsets:
        target = ToOffsets(offsets, "where it was before the replay")
        plan = plan_reset(client, job.group, None, target, clamp=True, action="replay")
        if plan.changes:
            apply_plan(client, plan, reason=reason or "the end of a replay", agree=agree, timeouts=_timeouts(job))


def _timeouts(job: Job) -> WatchTimeouts:
    """Return how long to watch the group: where nobody runs the pipeline, nobody has to be seen to follow."""
    return WatchTimeouts() if job.home.is_live() else WatchTimeouts(watch_s=QUIET_WATCH_S)
