"""What a replay would do, before it does anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.reset.targets import ToEarliest, ToLatest
from logmark.spark.checkpoint import has_state, has_watermark, planned_batch
from logmark.spark.errors import MissingOlderRecords, MissingRecordIds, ReplayHasNoEnd, ReplayNeedsRebuild
from logmark.spark.pipelines.declaration import Table, Topic
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.query import make_rows
from logmark.spark.pipelines.replay.build import read_log_bounds, shadow_version
from logmark.spark.pipelines.replay.state import ReplayKind
from logmark.spark.pipelines.replay.targets import ReplayTarget, resolve_target
from logmark.spark.pipelines.state_shape import describe_state_shape, load_state_shape
from logmark.spark.pipelines.stateful_operators import keeps_state
from logmark.spark.source.position import Offsets
from logmark.spark.tables.modes import APPEND
from logmark.spark.tables.versions import next_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPlan:
    """A version that would be built: the offsets that it reads, and what to know before.

    `dropped` counts the older records that it does not read, so that the new table lacks the rows made of them.
    """

    kind: ReplayKind
    number: int
    starts: Offsets
    stops: Offsets
    is_stateful: bool
    dropped: int = 0
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def records(self) -> int:
        """How many offsets the version reads."""
        return sum(max(self.stops[partition] - start, 0) for partition, start in self.starts.items())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do: a backfill that reads nothing."""
        return self.kind is ReplayKind.BACKFILL and not self.records


def detect_state(job: Job, spark: "Callable[[], SparkSession]") -> bool:
    """Return whether the pipeline keeps state: as its checkpoint shows, else as Spark plans its query."""
    checkpoint = job.home.checkpoint(job.home.record().live)
    if planned_batch(checkpoint) is not None:
        return has_state(checkpoint)
    return keeps_state(make_rows(job.pipeline, job.home.live_version(job.pipeline), spark(), job.brokers))


def choose_kind(job: Job, *, is_stateful: bool, rebuild: bool, has_stop: bool) -> ReplayKind:
    """Return how the pipeline is replayed.

    Raises ReplayHasNoEnd or ReplayNeedsRebuild if it cannot be replayed as asked.
    """
    sink = job.pipeline.sink
    if is_stateful or rebuild:
        if has_stop:
            why = "keeps state" if is_stateful else "is to be rebuilt"
            raise ReplayHasNoEnd(
                f"The pipeline {job.name} {why}, so the replay builds a version that reads up to the log end: it "
                "cannot end earlier. Nothing was changed. Replay it without an end.",
                exit_code=2,
            )
        return ReplayKind.SWAP
    if isinstance(sink, Topic):
        return ReplayKind.BACKFILL
    if sink.mode == APPEND:
        raise ReplayNeedsRebuild(
            f"The table {sink.path} is written in mode append, which keeps the first row of each record: reading again "
            "would change nothing. Nothing was changed. Rebuild it as a new version.",
            exit_code=2,
        )
    return ReplayKind.IN_PLACE


def plan_version(
    job: Job,
    client: Client,
    start: ReplayTarget,
    stop: ReplayTarget | None = None,
    *,
    kind: ReplayKind,
    is_stateful: bool,
    drop_older: bool = False,
) -> VersionPlan:
    """Return what the build of a version would read; changes nothing.

    A version that takes over reads all that the logs hold, whatever the start, unless `drop_older`: its table replaces
    the whole old one, and the state of an earlier day can be had no other way.
    """
    bounds = read_log_bounds(job, client)
    starts = resolve_target(client, start, bounds)
    notes = []
    if kind is ReplayKind.SWAP and not drop_older:
        if isinstance(start, ToLatest):
            raise MissingOlderRecords(
                "There is nothing to read again from the log end on. Nothing was changed. Drop the older records if "
                "the new version shall start there, without state and older rows.",
                exit_code=2,
            )
        more = sum(offset - bounds[partition].start for partition, offset in starts.items())
        starts = resolve_target(client, ToEarliest(), bounds)
        if more:
            why = "what comes after depends on the state they leave" if is_stateful else "it replaces the whole table"
            notes.append(f"The version reads {more:,} records before the start as well: {why}.")
    stops = {partition: one.end for partition, one in bounds.items()}
    if kind is ReplayKind.BACKFILL:
        stops = _committed(job, client, starts)
        if stop is not None:
            wanted = resolve_target(client, stop, bounds)
            if any(wanted[partition] > stops[partition] for partition in wanted):
                notes.append("The replay ends where the live version is: the live version reads the rest anyway.")
            stops = {partition: min(wanted[partition], end) for partition, end in stops.items()}
        stops = {partition: max(end, starts[partition]) for partition, end in stops.items()}
    dropped = sum(starts.values()) if kind is ReplayKind.SWAP and isinstance(job.pipeline.sink, Table) else 0
    if dropped:
        notes.append(f"{dropped:,} older records are not read: the new table lacks the rows made of them.")
    if is_stateful and has_watermark(job.home.checkpoint(job.home.record().live)):
        notes.append(
            "The replay may count rows that were late the first time: they are late only if the watermark has passed "
            "them when they are read, and it depends on how the records fall into batches."
        )
    if isinstance(job.pipeline.sink, Topic):
        notes += _expired_note(client, job.pipeline.sink.name)
    return VersionPlan(
        kind=kind,
        number=next_number(job),
        starts=starts,
        stops=stops,
        is_stateful=is_stateful,
        dropped=dropped,
        notes=notes,
    )


def check_older_records(plan: VersionPlan, *, drop_older: bool) -> None:
    """Raise MissingOlderRecords if the new table would lack rows of the old one, unless that is intended."""
    if plan.dropped and not drop_older:
        raise MissingOlderRecords(
            f"The new version replaces the whole table and would lack {plan.dropped:,} older records: the logs no "
            "longer hold them. Nothing was changed. Drop the older records if the table shall start there.",
            exit_code=2,
        )


def check_state_shape(job: Job, number: int, spark: "Callable[[], SparkSession]") -> None:
    """Raise UserError if the state of a kept version is not what the code of now would keep."""
    known = load_state_shape(job.home.checkpoint(number))
    if known is None or not has_state(job.home.checkpoint(number)):
        return
    now = describe_state_shape(make_rows(job.pipeline, shadow_version(job, number), spark(), job.brokers))
    if now != known:
        raise UserError(
            f"Version {number} of {job.name} cannot run with the code of now: its state was made by other code "
            f"({'; '.join(known)}; and now {'; '.join(now) or 'no state'}). Nothing was changed. Take the change of "
            "the code back first."
        )


def check_id_column(job: Job, plan: VersionPlan, spark: "SparkSession", *, missing_id: str | None) -> None:
    """Raise MissingRecordIds if rows for a topic have no column `id`, unless `missing_id` says what becomes of them."""
    if isinstance(job.pipeline.sink, Topic) and missing_id is None:
        rows = make_rows(job.pipeline, shadow_version(job, plan.number), spark, job.brokers)
        if "id" not in rows.columns:
            raise MissingRecordIds(
                f"The rows of {job.name} have no column id, so it is unknown which of them were sent to "
                f"{job.pipeline.sink.name} before. Nothing was changed. Give each row an id that is the same whenever "
                "the same records are read, or choose what becomes of rows with a missing id (skip or send).",
                exit_code=2,
            )


def next_number(job: Job) -> int:
    """Return a number that no version of the pipeline or of its table ever had."""
    number = job.home.record().next_number()
    return max(number, next_version(job.pipeline.sink.path)) if isinstance(job.pipeline.sink, Table) else number


def plan_rebuild(job: Job, client: Client, *, is_stateful: bool) -> VersionPlan:
    """Return the plan of a version that replaces the live one, whose checkpoint is lost.

    State is built from the beginning of the logs. Without state the version starts at the group's offsets.
    Raises MissingOlderRecords if the new table would lack rows, because the logs no longer hold their records.
    """
    bounds = read_log_bounds(job, client)
    starts = resolve_target(client, ToEarliest(), bounds)
    if not is_stateful:
        starts = _committed(job, client, starts)
    dropped = sum(starts.values())
    if dropped and isinstance(job.pipeline.sink, Table):
        raise MissingOlderRecords(
            f"The checkpoint of {job.name} is missing, and the logs no longer hold the first {dropped:,} records: a "
            "rebuilt table would lack the rows made of them. Nothing was changed. Restore the checkpoint, or replay "
            "the pipeline and drop the older records."
        )
    return VersionPlan(
        kind=ReplayKind.SWAP,
        number=next_number(job),
        starts=starts,
        stops={partition: one.end for partition, one in bounds.items()},
        is_stateful=is_stateful,
    )


def _committed(job: Job, client: Client, starts: Offsets) -> dict[TopicPartition, int]:
    """Return the group's offsets, and the given ones for partitions where it has none."""
    committed = client.committed(job.group, starts)
    return {one: committed[one].offset if one in committed else start for one, start in starts.items()}


def _expired_note(client: Client, topic: str) -> list[str]:
    expired = sum(client.earliest(client.metadata([topic]).partitions(topic)).values())
    if not expired:
        return []
    return [
        f"The topic {topic} no longer has its first {expired:,} records: rows that were sent among them are not "
        "recognised, and would be sent again."
    ]
