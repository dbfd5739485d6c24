"""The column `error`: rows in which it is not null become dead letters and are not written to the sink.

The rows pass through Python once, between the pipeline and its sink: a task sends the dead letters of some rows before
it hands on the others, so a batch is committed only when its dead letters are in the log. A repeated batch or task
sends them again.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.dead_letters.dead_letter import DeadLetter, dead_letter_for_lost_record, dead_letter_for_record
from logmark.spark.dead_letters import DeadLetterSender, DeadLetterTarget
from logmark.spark.record_lookup import read_by_offset
from logmark.spark.sink.outbox import connect_sink, retry_call

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ERROR = "error"
RECORD_COLUMNS = {"topic": "string", "partition": "int", "offset": "bigint"}
DEAD_LETTERS_AT_ONCE = 1000


def split_marked_rows(rows: "DataFrame", target: DeadLetterTarget | None, *, is_for_topic: bool) -> "DataFrame":
    """Return the rows that are not marked; the marked ones are sent as dead letters. Rows without the column stay.

    Rows for a topic lose topic, partition and offset as well, which name the record that was read.
    """
    # Only here: executors import this module for `send_marked_rows` alone.
    from pyspark.sql.types import StructType

    if ERROR not in rows.columns:
        return rows
    _check(rows.schema, target)
    assert target is not None
    left_out = {ERROR, *RECORD_COLUMNS} if is_for_topic else {ERROR}
    kept = StructType([one for one in rows.schema.fields if one.name not in left_out])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about a pandas that it asks for and does not use
        return rows.mapInArrow(_make_splitter(target, kept.names), kept)


def _check(schema: "StructType", target: DeadLetterTarget | None) -> None:
    if target is None:
        raise UserError(
            "The rows have a column error, which marks bad rows, and the pipeline declares no dead-letter topic. "
            'Nothing was read. Add dead_letters="<topic>" to the pipeline, or rename the column.'
        )
    if importlib.util.find_spec("pandas") is None:
        raise UserError(
            "PySpark needs pandas to hand rows to Python, which sends marked rows as dead letters. Nothing was read. "
            "Install it with: pip install 'logmark[spark]'."
        )
    kinds = {one.name: one.dataType.simpleString() for one in schema.fields}
    if kinds[ERROR] not in ("string", "void"):
        raise UserError(
            f"The column error marks bad rows with the reason: it must be a string, and is {kinds[ERROR]}. Nothing was "
            "read. Cast it, or give it another name."
        )
    wrong = [f"{name} {kind.upper()}" for name, kind in RECORD_COLUMNS.items() if kinds.get(name) != kind]
    if wrong:
        raise UserError(
            "Rows that are marked in a column error must say which record they came from, and the rows lack "
            f"{', '.join(wrong)}. Nothing was read. Keep topic, partition and offset in what transform returns."
        )


def _make_splitter(
    target: DeadLetterTarget, kept: list[str]
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":  # fmt: skip
    def split(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        with DeadLetterSender(target) as sender:
            for rows in batches:
                yield send_marked_rows(rows, kept, sender)

    return split


def send_marked_rows(rows: "pa.RecordBatch", kept: list[str], sender: DeadLetterSender) -> "pa.RecordBatch":
    """Send dead letters for the marked rows, and return the others with these columns."""
    error = rows.column(ERROR)
    if error.null_count < rows.num_rows:
        _send(_collect_errors(rows.filter(error.is_valid())), sender)
        rows = rows.filter(error.is_null())
    return rows.select(kept)


def _collect_errors(rows: "pa.RecordBatch") -> dict[TopicPartition, dict[int, str]]:
    """Return the error of each record; of a record that several rows came from, all errors."""
    found: dict[TopicPartition, dict[int, str]] = {}
    columns = (rows.column(name).to_pylist() for name in (*RECORD_COLUMNS, ERROR))
    for topic, partition, offset, error in zip(*columns, strict=True):
        if topic is None or partition is None or offset is None:
            raise UserError(
                f"A row is marked with the error {error!r} and does not say which record it came from: its topic, "
                "partition or offset is null. Nothing of this batch was committed."
            )
        reasons = found.setdefault(TopicPartition(topic, partition), {})
        known = reasons.get(offset)
        reasons[offset] = error if known is None or known == error else f"{known}; {error}"
    return found


def _send(errors: dict[TopicPartition, dict[int, str]], sender: DeadLetterSender) -> None:
    options = sender.target.sink_options()
    with connect_sink(options) as client:
        for partition, reasons in errors.items():
            offsets = sorted(reasons)
            for at in range(0, len(offsets), DEAD_LETTERS_AT_ONCE):
                some = {offset: reasons[offset] for offset in offsets[at : at + DEAD_LETTERS_AT_ONCE]}
                retry_call(
                    lambda: sender.send(_make_dead_letters(client, partition, some, sender.target.pipeline)),  # noqa: B023
                    options,
                    f"Sending the dead letters of {partition}",
                )


def _make_dead_letters(
    client: Client, partition: TopicPartition, reasons: dict[int, str], pipeline: str
) -> Iterator[DeadLetter]:
    for offset, record in read_by_offset(client, partition, list(reasons)):
        error = reasons[offset]
        if record is None:
            missing = "The record was deleted before its dead letter was written."
            yield dead_letter_for_lost_record(partition, offset, error=error, pipeline=pipeline, missing=missing)
        else:
            yield dead_letter_for_record(
                partition, offset, record.timestamp_ms, record.key, record.value, record.headers,
                error=error, pipeline=pipeline,
            )  # fmt: skip
