"""Spark checkpoints and plans that rewind them, as tables for people."""

from collections.abc import Mapping

from logmark.cli.lag_tables import format_age
from logmark.cli.offsets.plan_tables import print_plan
from logmark.cli.tables import Column, count, offset_cells, print_table, say, write_line
from logmark.names import TopicPartition
from logmark.offsets.lag.views import partition_note
from logmark.offsets.spark_checkpoints.rewind import Rewind
from logmark.offsets.spark_checkpoints.view import BatchView, CheckpointView
from logmark.offsets.times import format_time

_PARTITIONS_SHOWN = 8


def print_view(view: CheckpointView) -> None:
    """Write the offsets of a query, how far it is behind, and its last batches."""
    checkpoint = view.checkpoint
    write_line(f"Query {checkpoint.query_id or 'without an id'}, checkpoint {checkpoint.url}")
    columns = [
        Column("TOPIC"), Column("PARTITION", True), Column("COMMITTED", True), Column("LAST PROCESSED", True),
        Column("START", True), Column("END", True), Column("LAG", True), Column("BEHIND"), Column("NOTE"),
    ]  # fmt: skip
    print_table(
        columns,
        [
            (
                one.partition.topic, one.partition.partition,
                *offset_cells(one.committed.offset if one.committed else None),
                one.start, one.end, one.lag.records if one.lag else None,
                format_age(view.ages[one.partition]) if one.partition in view.ages else None, partition_note(one),
            )
            for one in view.partitions
        ],
    )  # fmt: skip
    if view.ages:
        oldest = format_age(view.oldest)
        write_line(f"In total: {count(view.lag, 'record')} behind{f', the oldest for {oldest}' if oldest else ''}.")
    if view.new_partitions:
        names = ", ".join(map(str, view.new_partitions[:_PARTITIONS_SHOWN]))
        say(f"New to the query, which will read them from their start: {names}.")
    write_line("")
    print_table(
        [
            Column("BATCH", True), Column("STATE"), Column("PLANNED"), Column("COMMITTED"), Column("RECORDS", True),
            Column("WATERMARK"), Column("ENDS AT"), Column("NOTE"),
        ],
        [_batch_cells(one) for one in view.batches],
    )  # fmt: skip
    _say_what_stands_in_the_way(view)


def _batch_cells(view: BatchView) -> tuple[object, ...]:
    batch = view.batch
    added = f"added by change {view.change.id} of {view.change.who}" if view.change else ""
    return (
        batch.id, "committed" if batch.is_committed else "planned only", _moment(batch.plan.planned_ms),
        _moment(batch.committed_ms), view.records, _moment(batch.watermark_ms), _offsets_text(batch.offsets), added,
    )  # fmt: skip


def _offsets_text(offsets: Mapping[TopicPartition, int]) -> str:
    if len(offsets) > _PARTITIONS_SHOWN:
        return f"{len(offsets)} partitions"
    return " ".join(f"{one}:{offset}" for one, offset in sorted(offsets.items()))


def _say_what_stands_in_the_way(view: CheckpointView) -> None:
    checkpoint = view.checkpoint
    if checkpoint.unfinished is not None:
        say(
            f"Batch {checkpoint.unfinished.id} is planned and not committed: the query runs it now, or will run it "
            "again when it is started."
        )
    sources = len(checkpoint.last.plan.sources)
    if sources > 1:
        say(f"The query has {sources} sources, and cannot be moved; these are the offsets of those that read Kafka.")
    if checkpoint.has_state:
        say("The query keeps state, and cannot be moved.")


def print_rewind(rewind: Rewind) -> None:
    """Print the plan of a rewind, and the batch that applies it."""
    print_plan(rewind.plan, of="the query of")
    write_line(
        f"Batch {rewind.addition.id} will be added behind batch {rewind.checkpoint.last.id}; it reads nothing, and no "
        "other file is changed."
    )


def _moment(timestamp_ms: int | None) -> str | None:
    return format_time(timestamp_ms) if timestamp_ms else None
