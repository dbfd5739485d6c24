"""What a replay would do, before it does anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.reset.targets import ToEarliest, ToLatest
from logmark.spark.pipelines.home import has_begun
from logmark.spark.pipelines.pipeline import Table, Topic
from logmark.spark.pipelines.query import make_rows
from logmark.spark.pipelines.replay.build import beside, logs_of, source_of
from logmark.spark.pipelines.replay.state import Kind
from logmark.spark.pipelines.replay.targets import Aim, offsets_of
from logmark.spark.pipelines.stateful_operators import keeps_state
from logmark.spark.pipelines.supervisor import Job
from logmark.spark.source.position import Offsets
from logmark.spark.tables.modes import APPEND
from logmark.spark.tables.versions import next_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPlan:
    """A version that would be built: from where to where it reads, and what is to be known before.

    `dropped` counts the older records that are not read, so that rows made of them are in no new table.
    """

    kind: Kind
    number: int
    starts: Offsets
    stops: Offsets
    is_stateful: bool
    dropped: int = 0
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def records(self) -> int:
        """How many offsets are read."""
        return sum(max(self.stops[place] - start, 0) for place, start in self.starts.items())


def has_state(job: Job, spark: "Callable[[], SparkSession]") -> bool:
    """Whether the pipeline keeps state: as its checkpoint shows, or as Spark plans it where there is none yet."""
    checkpoint = job.home.checkpoint(job.home.record().live)
    if has_begun(checkpoint):
        return (checkpoint / "state").is_dir()
    return keeps_state(make_rows(job.pipeline, job.home.live_version(job.pipeline), spark(), job.brokers))


def kind_of(job: Job, *, is_stateful: bool, is_beside: bool, has_stop: bool) -> Kind:
    """How the pipeline is replayed; raises a sentence for what does not go together."""
    sink = job.pipeline.sink
    if is_stateful or is_beside:
        if has_stop:
            why = "keeps state" if is_stateful else "is built beside the old version"
            raise UserError(
                f"The pipeline {job.pipeline.name} {why}, so what is read again becomes a version that goes on from "
                "there: it cannot end at --to. Nothing was changed. Leave --to away.",
                exit_code=2,
            )
        return Kind.SWAP
    if isinstance(sink, Topic):
        return Kind.COPY
    if sink.mode == APPEND:
        raise UserError(
            f"The table {sink.path} is written in mode append, which keeps what was made of a record first: reading "
            "again would change nothing. Nothing was changed. Build it again with --beside.",
            exit_code=2,
        )
    return Kind.LIVE


def plan_version(
    job: Job,
    client: Client,
    aim: Aim,
    stop: Aim | None = None,
    *,
    kind: Kind,
    is_stateful: bool,
    drop_older: bool = False,
) -> VersionPlan:
    """What building a version would read; nothing is changed.

    A version that takes the live one's place reads all that the logs have, wherever the aim lies, unless older records
    are to be dropped: its table replaces the whole old one, and state of an earlier day is to be had no other way.
    """
    bounds = logs_of(client, source_of(job))
    starts = offsets_of(client, aim, bounds)
    notes = []
    if kind is Kind.SWAP and not drop_older:
        if isinstance(aim, ToLatest):
            raise UserError(
                "There is nothing to read again from the latest on. Nothing was changed. Say --drop-older if a version "
                "shall begin there, without state and older rows.",
                exit_code=2,
            )
        more = sum(start - bounds[place].start for place, start in starts.items())
        starts = offsets_of(client, ToEarliest(), bounds)
        if more:
            why = "what comes after depends on the state they leave" if is_stateful else "it replaces the whole table"
            notes.append(f"The version reads {more:,} records before --from as well: {why}.")
    stops = {place: one.end for place, one in bounds.items()}
    if kind is Kind.COPY:
        stops = _where_it_stands(job, client, starts)
        if stop is not None:
            wanted = offsets_of(client, stop, bounds)
            if any(wanted[place] > stops[place] for place in wanted):
                notes.append("What lies behind the place of the live version is not read here: it comes to it anyway.")
            stops = {place: min(wanted[place], end) for place, end in stops.items()}
        stops = {place: max(end, starts[place]) for place, end in stops.items()}
    dropped = sum(starts.values()) if kind is Kind.SWAP and isinstance(job.pipeline.sink, Table) else 0
    if dropped:
        notes.append(f"{dropped:,} older records are not read: rows that were made of them are not in the new table.")
    if isinstance(job.pipeline.sink, Topic):
        topic = job.pipeline.sink.name
        gone = sum(client.earliest(client.metadata([topic]).partitions(topic)).values())
        if gone:
            notes.append(
                f"The topic {topic} no longer has its first {gone:,} records: what was sent there by them is not "
                "recognised, and would be sent again."
            )
    return VersionPlan(
        kind=kind,
        number=next_number(job),
        starts=starts,
        stops=stops,
        is_stateful=is_stateful,
        dropped=dropped,
        notes=notes,
    )


def check_older(plan: VersionPlan, *, drop_older: bool) -> None:
    """Raises a sentence if the new table would lack rows of the old one and nobody has said that this is meant."""
    if plan.dropped and not drop_older:
        raise UserError(
            f"A version replaces the whole table, and {plan.dropped:,} records before its beginning would not be in "
            "it: the logs no longer have them. Nothing was changed. Say --drop-older if the table shall begin there.",
            exit_code=2,
        )


def check_ids(job: Job, plan: VersionPlan, spark: "SparkSession", *, without_id: str | None) -> None:
    """Raises a sentence if rows for a topic have no ids, by which those that were sent would be known."""
    if isinstance(job.pipeline.sink, Topic) and without_id is None:
        rows = make_rows(job.pipeline, beside(job, plan.number), spark, job.brokers)
        if "id" not in rows.columns:
            raise UserError(
                f"The rows of {job.pipeline.name} have no column id, so nobody can say which of them were sent to "
                f"{job.pipeline.sink.name} before. Nothing was changed. Give each row an id that is the same whenever "
                "the same records are read, or say --without-id skip or --without-id send.",
                exit_code=2,
            )


def next_number(job: Job) -> int:
    """A number that no version of the pipeline or of its table ever had."""
    number = job.home.record().next_number()
    return max(number, next_version(job.pipeline.sink.path)) if isinstance(job.pipeline.sink, Table) else number


def _where_it_stands(job: Job, client: Client, starts: Offsets) -> dict[TopicPartition, int]:
    committed = client.committed(job.pipeline.group, starts)
    return {place: committed[place].offset if place in committed else start for place, start in starts.items()}
