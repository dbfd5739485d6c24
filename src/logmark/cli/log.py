"""`logmark log`: the files of a log, for people and for programs."""

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer

from logmark.cli.options import Output, OutputFormat, example
from logmark.cli.tables import json_line, write_line
from logmark.coordination import group_records
from logmark.disk.read_only import ReadOnlyFileSystem
from logmark.errors import UserError
from logmark.log.dump import Dump
from logmark.log.dump_items import (
    BatchDamageItem,
    BatchItem,
    DamageItem,
    FileItem,
    Item,
    MarkerItem,
    OffsetItem,
    RecordItem,
    RecoveryPointItem,
    WalEntryItem,
    WalHeaderItem,
    WalPointsItem,
    WalRunItem,
    decode_text,
)
from logmark.names import OFFSETS_TOPIC

app = typer.Typer(help="Look into the files of a log.", no_args_is_help=True)

_TEXT_LENGTH_MAX = 160


@app.command("dump", epilog=example("logmark log dump ./data/orders-0 --records --from-offset 100 --limit 20"))
def dump(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A file of a log, a partition's folder, logmark.wal or a data directory.",
            show_default=False,
        ),
    ],
    records: Annotated[bool, typer.Option("--records", "-r", help="Show the records of each batch too.")] = False,
    indexes: Annotated[
        bool,
        typer.Option("--indexes", help="Of a folder, show indexes, snapshots, checkpoints and write-ahead log too."),
    ] = False,
    from_offset: Annotated[int, typer.Option(help="Begin at this offset.", min=0)] = 0,
    limit: Annotated[
        int | None, typer.Option(help="Stop after so many batches, or records with --records.", min=1)
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show batches, records, markers and the files beside them, of Logmark or of Apache Kafka.

    Of the write-ahead log it shows the recovery points and, for each entry, where its batches belong.

    Nothing is written. Damaged bytes are reported and skipped. With --output json every item is one line.
    """

    shown = Dump(ReadOnlyFileSystem(), with_records=records, with_indexes=indexes, from_offset=from_offset)
    write = _write_json if output is OutputFormat.JSON else _write_line
    try:
        for item in _limited(shown.of(os.path.abspath(path)), limit, {"record"} if records else {"batch", "wal_entry"}):
            write(_with_meaning(item))
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be read: {error.strerror or error}.", exit_code=2) from error


def _limited(items: Iterator[Item], limit: int | None, counted: set[str]) -> Iterator[Item]:
    if limit is None:
        yield from items
        return
    left = limit
    for item in items:
        if item.kind in counted:
            if not left:
                return
            left -= 1
        yield item
        if not left and "record" in counted:
            return


def _with_meaning(item: Item) -> Item:
    """Return the item; a record of the offsets topic says what it keeps."""
    if not isinstance(item, RecordItem) or item.where.topic != OFFSETS_TOPIC:
        return item
    return replace(item, says=group_records.describe(item.key, item.value))


def _write_json(item: Item) -> None:
    typer.echo(json_line(item.to_json()))


# For people


def _write_line(item: Item) -> None:
    write_line(_LINES.get(type(item), _other)(item))


def _file(item: FileItem) -> str:
    return f"{item.where.path}: {item.size_bytes} bytes"


def _batch(item: BatchItem) -> str:
    base, last, records = item.base_offset, item.last_offset, item.record_count
    parts = [
        f"  {_range(base, last)}: {records} record{'' if records == 1 else 's'}",
        f"{item.size_bytes} bytes at {item.position}",
        item.codec,
        f"{item.timestamp_type} {_time(item.max_timestamp)}",
    ]
    if item.producer_id >= 0:
        sequences = _range(item.base_sequence, item.last_sequence)
        parts.append(
            f"producer {item.producer_id} epoch {item.producer_epoch}"
            + (f" sequences {sequences}" if item.base_sequence >= 0 else "")
        )
    if item.is_transactional:
        parts.append("control" if item.is_control else "transactional")
    if item.delete_horizon is not None:
        parts.append(f"delete horizon {_time(item.delete_horizon)}")
    if item.leader_epoch:
        parts.append(f"leader epoch {item.leader_epoch}")
    return ", ".join(parts)


def _marker(item: MarkerItem) -> str:
    return (
        f"    {item.offset}  {item.type} of producer {item.producer_id} epoch {item.producer_epoch}, "
        f"coordinator epoch {item.coordinator_epoch}"
    )


def _record(item: RecordItem) -> str:
    says = item.says
    if says is not None:
        fields = " ".join(f"{name}={_shown(value)}" for name, value in says.items() if name != "type")
        return f"    {item.offset}  {_time(item.timestamp)}  {says['type']} {fields}"
    headers = "".join(f"  {_shown(key)}={_shown(value)}" for key, value in item.headers)
    value = "tombstone" if item.value is None else _shown(item.value)
    return f"    {item.offset}  {_time(item.timestamp)}  {_shown(item.key)}: {value}{headers}"


def _damage(item: DamageItem) -> str:
    return f"  damaged: {item.problem}"


def _damaged_batches(item: BatchDamageItem) -> str:
    until = "the end" if item.next_offset is None else str(item.next_offset - 1)
    return (
        f"  damaged at {item.position} ({item.size_bytes} bytes, offsets {item.first_offset} to {until}): "
        f"{item.problem}"
    )


def _wal_points(item: WalPointsItem) -> str:
    return f"  a recovery begins at entry {item.first_entry}"


def _recovery_point(item: RecoveryPointItem) -> str:
    return f"  {_partition(item)}: flushed up to offset {item.offset}, byte {item.position} of {item.segment}"


def _wal_header(item: WalHeaderItem) -> str:
    return f"  file {item.sequence} of the write-ahead log {item.wal_id}"


def _wal_entry(item: WalEntryItem) -> str:
    needed = ", not needed any more" if item.is_needed is False else ""
    runs = item.run_count
    return f"  entry {item.number}: {runs} run{'' if runs == 1 else 's'}, {item.size_bytes} bytes{needed}"


def _wal_run(item: WalRunItem) -> str:
    return (
        f"    {_partition(item)} {_range(item.first_offset, item.last_offset)}: {item.size_bytes} bytes at "
        f"{item.position} of {item.segment}"
    )


def _partition(item: RecoveryPointItem | WalRunItem) -> str:
    """Return the partition's name, by the id of its topic if the topic is deleted."""
    return f"{item.where.topic or 'topic id ' + item.topic_id}-{item.where.partition}"


def _other(item: Item) -> str:
    shown = item.fields()
    if isinstance(item, OffsetItem):
        shown = {"topic": item.where.topic, "partition": item.where.partition} | shown
    return "  " + "  ".join(f"{name} {_shown(value)}" for name, value in shown.items())


_LINES: Mapping[type[Item], Callable[[Any], str]] = {
    FileItem: _file, BatchItem: _batch, MarkerItem: _marker, RecordItem: _record, DamageItem: _damage,
    BatchDamageItem: _damaged_batches, WalPointsItem: _wal_points, RecoveryPointItem: _recovery_point,
    WalHeaderItem: _wal_header, WalEntryItem: _wal_entry, WalRunItem: _wal_run,
}  # fmt: skip


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "no time"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6] + "Z"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"


def _shown(value: Any) -> str:
    """Return a value on one line: text unchanged, other bytes in base64, long values cut."""
    if isinstance(value, bytes):
        text = decode_text(value)
        value = f"base64:{base64.b64encode(value).decode()}" if text is None else text
    text = "null" if value is None else "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(value))
    if len(text) <= _TEXT_LENGTH_MAX:
        return text
    return "".join(islice(text, _TEXT_LENGTH_MAX)) + f"... ({len(text)} characters)"
