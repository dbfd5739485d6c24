"""Typed rows of the records whose values fit their schema; the others are sent as dead letters."""

from collections.abc import Collection, Iterable

import pyarrow as pa

from logmark.names import TopicPartition
from logmark.offsets.dead_letters.dead_letter import DeadLetter, Headers, dead_letter_for_record
from logmark.spark.dead_letters import DeadLetterSender
from logmark.spark.source.json_values import JsonValues
from logmark.wire.columns import Columns


class ValidRows:
    """Typed rows of the values that fit; the others become dead letters, in the log before a row is handed on."""

    def __init__(self, values: JsonValues, sender: DeadLetterSender) -> None:
        self._values = values
        self._sender = sender

    def to_arrow(self, columns: Columns, partition: TopicPartition) -> pa.RecordBatch:
        """Return the records that fit as one batch; the columns were decoded with headers."""
        rows, refused_values = self._values.split(columns, partition)
        if refused_values:
            self._sender.send(_make_dead_letters(columns, partition, refused_values, self._sender.target.pipeline))
        return rows


def _make_dead_letters(
    columns: Columns, partition: TopicPartition, refused_values: Collection[tuple[int, str]], pipeline: str
) -> Iterable[DeadLetter]:
    keys, values, headers = columns.keys(), columns.values(), _RecordHeaders(columns)
    for index, error in refused_values:
        yield dead_letter_for_record(
            partition, columns.offsets[index], columns.timestamps_ms[index], keys[index], values[index],
            headers.at(index), error=error, pipeline=pipeline,
        )  # fmt: skip


class _RecordHeaders:
    """The headers of single records, decoded when the first one is asked for."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._all: list[list[tuple[bytes, bytes | None]]] | None = None

    def at(self, index: int) -> Headers:
        ends = self._columns.header_list_offsets
        assert ends is not None, "decoded without headers"
        if ends[index] == ends[index + 1]:
            return ()
        if self._all is None:
            self._all = self._columns.headers()
        return self._all[index]
