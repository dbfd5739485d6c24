"""Rows that a pipeline marks bad: those whose column `error` is not null become dead letters and not rows.

The rows pass through Python once, between the pipeline and its sink: a task sends the letters of some rows before it
hands on the others, so a batch is committed only when its letters are in the log. A batch, or a task, that is repeated
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
from logmark.spark.dead_letters import LetterBox, LetterSender
from logmark.spark.record_lookup import read_originals
from logmark.spark.sink.outbox import connect, patiently

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MARK = "error"
PLACE = {"topic": "string", "partition": "int", "offset": "bigint"}
LETTERS_AT_ONCE = 1000


def without_marked(rows: "DataFrame", box: LetterBox | None, *, is_for_topic: bool) -> "DataFrame":
    """The rows that are not marked; the marked ones go to the letters. Rows that cannot be marked stay as they are.

    Rows for a topic lose topic, partition and offset as well, which say where they are from and not where to.
    """
    from pyspark.sql.types import StructType

    if MARK not in rows.columns:
        return rows
    _check(rows.schema, box)
    assert box is not None
    left_out = {MARK, *PLACE} if is_for_topic else {MARK}
    kept = StructType([one for one in rows.schema.fields if one.name not in left_out])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about a pandas that it asks for and does not use
        return rows.mapInArrow(_splitting(box, kept.names), kept)


def _check(schema: "StructType", box: LetterBox | None) -> None:
    if box is None:
        raise UserError(
            "The rows have a column error, which marks those that are bad, and the pipeline does not say where bad "
            'rows go. Nothing was read. Add dead_letters="<topic>" to the pipeline, or give the column another name.'
        )
    if importlib.util.find_spec("pandas") is None:
        raise UserError(
            "PySpark needs pandas to hand rows to Python, by which marked rows become dead letters. Nothing was read. "
            "Install it with: pip install 'logmark[spark]'."
        )
    kinds = {one.name: one.dataType.simpleString() for one in schema.fields}
    if kinds[MARK] not in ("string", "void"):
        raise UserError(
            f"The column error marks bad rows with the reason: it must be a string, and is {kinds[MARK]}. Nothing was "
            "read. Cast it, or give it another name."
        )
    wrong = [f"{name} {kind.upper()}" for name, kind in PLACE.items() if kinds.get(name) != kind]
    if wrong:
        raise UserError(
            "Rows that are marked in a column error must say which record they came from, and the rows lack "
            f"{', '.join(wrong)}. Nothing was read. Keep topic, partition and offset in what transform returns."
        )


def _splitting(
    box: LetterBox, kept: list[str]
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":  # fmt: skip
    def split(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        with LetterSender(box) as sender:
            for rows in batches:
                yield good_rows(rows, kept, sender)

    return split


def good_rows(rows: "pa.RecordBatch", kept: list[str], sender: LetterSender) -> "pa.RecordBatch":
    """The rows that are not marked, of these columns; the letters about the others are in the log."""
    error = rows.column(MARK)
    if error.null_count < rows.num_rows:
        _deliver(_marked(rows.filter(error.is_valid())), sender)
        rows = rows.filter(error.is_null())
    return rows.select(kept)


def _marked(rows: "pa.RecordBatch") -> dict[TopicPartition, dict[int, str]]:
    """Why each record was refused; of a record that several rows came from, all the reasons."""
    found: dict[TopicPartition, dict[int, str]] = {}
    columns = (rows.column(name).to_pylist() for name in (*PLACE, MARK))
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


def _deliver(marked: dict[TopicPartition, dict[int, str]], sender: LetterSender) -> None:
    options = sender.box.sink()
    with connect(options) as client:
        for place, reasons in marked.items():
            offsets = sorted(reasons)
            for at in range(0, len(offsets), LETTERS_AT_ONCE):
                some = {offset: reasons[offset] for offset in offsets[at : at + LETTERS_AT_ONCE]}
                patiently(
                    lambda: sender.send(_letters(client, place, some, sender.box.pipeline)),  # noqa: B023
                    options,
                    f"Sending the letters of {place}",
                )


def _letters(client: Client, place: TopicPartition, reasons: dict[int, str], pipeline: str) -> Iterator[DeadLetter]:
    for offset, record in read_originals(client, place, list(reasons)):
        error = reasons[offset]
        if record is None:
            missing = "The record was deleted before its letter was written."
            yield dead_letter_for_lost_record(place, offset, error=error, pipeline=pipeline, missing=missing)
        else:
            yield dead_letter_for_record(
                place, offset, record.timestamp_ms, record.key, record.value, record.headers,
                error=error, pipeline=pipeline,
            )  # fmt: skip
