"""Rows that replace the rows of the same key: which of them win, and what is left of the table's files.

A table in mode upsert holds each key once. Of the rows of a batch that share a key the newest counts; it replaces the
table's row unless that one is newer still, which happens when old records are read again. Newer is who has the greater
`sequence`, equal ones in favour of the batch. Without one, rows of the same topic and partition compare by offset, and
of any others the later batch wins.

The rows of a batch pass through the driver's memory, and so do the keys of each file that may hold one of them, one
file after the other; files whose statistics exclude every key of the batch are not opened.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.dataset as dataset

from logmark.spark.tables.files import Bounds, DataFile, Replacement, write
from logmark.spark.tables.modes import WHERE, Rules

_ROW = "logmark row"
_OTHER = "logmark other row"


def merge(table: Path, files: Iterable[DataFile], staged: pa.Table, rules: Rules, schema: pa.Schema) -> Replacement:
    """Return the files to remove and those to add, so that the staged rows replace rows of the same keys."""

    newest = newest_of(staged, rules)
    within = _bounds(newest, rules.keys)
    removed, rewritten, losing = [], [], []
    for file in files if newest.num_rows else ():
        if not file.may_share(within):
            continue
        rows = _read(table / file.path, schema)
        lost, beaten = _matches(rows, newest, rules)
        losing.append(beaten)
        if len(lost) == 0:
            continue
        removed.append(file)
        if len(lost) < rows.num_rows:
            rewritten.append(write(table, _without(rows, lost), keys=rules.keys, is_located=False))
    winners = _without(newest, pa.concat_arrays(losing)) if losing else newest
    stays = winners.filter(_stays(winners, rules)).select(schema.names).cast(schema)
    if stays.num_rows:
        rewritten.append(write(table, stays, keys=rules.keys, is_located=False))
    return Replacement(removed=removed, rewritten=rewritten)


def newest_of(rows: pa.Table, rules: Rules) -> pa.Table:
    """Return the newest row of each key; of equals the last one."""

    names = [rules.sequence] if rules.sequence else [name for name in (WHERE[2], *WHERE[:2]) if _is_located(rows)]
    # A null is older than anything.
    sorting: dict[str, pa.ChunkedArray] = {}
    for name in names:
        sorting |= {f"is known {name}": compute.is_valid(rows[name]), f"value {name}": rows[name]}
    keyed = pa.table({**sorting, _ROW: _numbers(rows)})
    order = compute.sort_indices(keyed, sort_keys=[(name, "ascending") for name in keyed.column_names])
    ordered = rows.take(order).append_column(_ROW, _numbers(rows))
    last = ordered.group_by(list(rules.keys)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    return ordered.drop_columns([_ROW]).take(last.sort())


def _matches(rows: pa.Table, newest: pa.Table, rules: Rules) -> "tuple[pa.Array, pa.Array]":
    """Return the rows of the file that lose against the batch, and the rows of the batch that lose against the file."""

    keys = list(rules.keys)
    none = pa.nulls(newest.num_rows, pa.int64()), pa.nulls(rows.num_rows, pa.int64())
    both = pa.concat_tables(
        [
            rows.select(keys).append_column(_ROW, _numbers(rows)).append_column(_OTHER, none[1]),
            newest.select(keys).append_column(_ROW, none[0]).append_column(_OTHER, _numbers(newest)),
        ],
        promote_options="permissive",
    )
    # Grouped and not joined: here a null is a key like any other.
    groups = both.group_by(keys).aggregate([(_ROW, "max"), (_OTHER, "max")])
    here, there = groups[f"{_ROW}_max"], groups[f"{_OTHER}_max"]
    is_match = compute.and_(compute.is_valid(here), compute.is_valid(there))
    here, there = here.filter(is_match).combine_chunks(), there.filter(is_match).combine_chunks()
    is_beaten = _is_older(newest.take(there), rows.take(here), rules)
    return here.filter(compute.invert(is_beaten)), there.filter(is_beaten)


def _is_older(ours: pa.Table, theirs: pa.Table, rules: Rules) -> pa.Array:
    """Row by row, whether the batch's row is older than the table's."""

    if rules.sequence:
        is_less = compute.fill_null(compute.less(ours[rules.sequence], theirs[rules.sequence]), False)
        is_unknown = compute.and_(compute.is_null(ours[rules.sequence]), compute.is_valid(theirs[rules.sequence]))
        return compute.or_(is_less, is_unknown).combine_chunks()
    if not _is_located(ours) or not _is_located(theirs):
        return pa.array([False] * ours.num_rows, pa.bool_())
    topic, partition, offset = WHERE
    is_same_partition = compute.and_(
        compute.equal(ours[topic], theirs[topic]), compute.equal(ours[partition], theirs[partition])
    )
    is_older = compute.and_(is_same_partition, compute.less(ours[offset], theirs[offset]))
    return compute.fill_null(is_older, False).combine_chunks()


def _stays(rows: pa.Table, rules: Rules) -> pa.Array:
    """Row by row, whether it is kept: `delete_by` deletes where it is true, or null if it is no truth value."""

    if rules.delete_by is None:
        return pa.array([True] * rows.num_rows, pa.bool_())
    column = rows[rules.delete_by]
    if pa.types.is_boolean(column.type):
        return compute.invert(compute.fill_null(column, False))
    return compute.is_valid(column)


def _bounds(rows: pa.Table, keys: Sequence[str]) -> Bounds:
    """Return the least and greatest key of the batch, column by column, without columns where one is null."""

    found = {}
    for name in keys:
        column = rows[name]
        is_plain = pa.types.is_integer(column.type) or pa.types.is_string(column.type)
        if rows.num_rows and is_plain and not column.null_count:
            bound = compute.min_max(column).as_py()
            found[name] = (bound["min"], bound["max"])
    return found


def _read(file: Path, schema: pa.Schema) -> pa.Table:

    return dataset.dataset(str(file), schema=schema, format="parquet").to_table()


def _without(rows: pa.Table, numbers: pa.Array) -> pa.Table:

    return rows.filter(compute.invert(compute.is_in(_numbers(rows), value_set=numbers)))


def _numbers(rows: pa.Table) -> pa.Array:

    return compute.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows), start=-1)


def _is_located(rows: pa.Table) -> bool:
    return all(name in rows.column_names for name in WHERE)
