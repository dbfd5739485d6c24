"""A batch enters a Delta table by the rules of its mode, in one commit, once.

Executors have written the rows as Parquet files below the table's directory; here the driver adds them through
`deltalake`, whose `create_write_transaction` takes added and removed files together. Of the ways there are, this one is
exact and cheap: `write_deltalake` would pass all rows through the driver, and its predicate would have deltalake search
the rows; here the files to touch follow from their statistics, and files that are touched in part are rewritten in the
same commit.

Why it is exact. A commit is tried once against the version of the table that was read (no retries inside deltalake), so
what was decided still holds when it becomes true; if somebody else committed first, everything is decided again. Rows
are replaced by the batch's ranges and never by its rows, so a fixed pipeline that yields fewer rows leaves none of the
old. Files are removed from disk only while no commit can name them: what a crash or an unclear failure leaves behind
is seen by no reader, and vacuum removes it.
"""

import contextlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.errors import UserError
from logmark.spark.errors import Contended
from logmark.spark.tables.files import DataFile, Replacement, describe, parse_files, replace
from logmark.spark.tables.intervals import intersect_by_partition, split_layers
from logmark.spark.tables.ledger import Batch, Ledger, entries, note, read_ledger, takes
from logmark.spark.tables.modes import APPEND, COMPLETE, REPLACE, UPSERT, Rules, is_located
from logmark.spark.tables.schemas import (
    arrow_of,
    check_fit,
    check_kind,
    check_types,
    columns_of,
    grow,
    schema_of,
    types_of,
)

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable

ATTEMPTS_MAX = 20
BY_RANGES = Rules()


def write_batch(
    table: Path, batch: Batch, schema: str, stage: Callable[[Path], None], rules: Rules = BY_RANGES
) -> bool:
    """Write the rows of the batch into the table as the rules say; return False if it held them already.

    `schema` is Spark's, as JSON; `stage` writes the rows as Parquet files into the folder that it is given.
    """
    assert (batch.mode, batch.keys) == (rules.mode, rules.keys)
    delta = open_table(table)
    ledger = ledger_of(delta, batch)
    if (not batch.is_stateful and not batch.position.ranges) or not takes(ledger, batch, table=str(table)):
        return False
    given = types_of(columns_of(schema))
    check_rows(schema, rules)
    columns = columns_of(schema, without=rules.delete_by if rules.marks_deletes(given) else None)
    if delta is not None:
        check_fit(delta, columns, table, may_grow=rules.merge_schema)
    work = _Work(table, batch, rules, columns, schema)
    if work.is_known(ledger):
        work.commit_until_done()
        return False
    folder = table / "data" / uuid.uuid4().hex
    try:
        stage(folder)
        must_locate = is_located(given) and rules.mode in (REPLACE, APPEND)
        work.staged = _staged_files(table, folder, rules.keys, is_located=must_locate)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    work.commit_until_done()
    return True


def check_rows(schema: str, rules: Rules) -> None:
    """Raise UserError if rows of this schema cannot enter any table by these rules."""
    columns = columns_of(schema)
    check_types(columns)
    rules.check(types_of(columns))


class _Work:
    """A batch on its way into a table."""

    def __init__(self, table: Path, batch: Batch, rules: Rules, columns: Any, given: str) -> None:
        self.staged: list[DataFile] = []
        self._table = table
        self._batch = batch
        self._rules = rules
        self._columns = columns
        self._given = given

    def is_known(self, ledger: Ledger) -> bool:
        """Return whether every record of the batch was read before, so that none of its rows will be appended."""
        if self._rules.mode != APPEND or self._batch.is_stateful:
            return False
        ranges = self._batch.position.ranges
        known = intersect_by_partition(ranges, ledger.read)
        if all(known.get(partition) == (span,) for partition, span in ranges.items()):
            return True
        if known and not is_located(types_of(self._columns)):
            partition, spans = min(known.items())
            raise UserError(
                f"The batch reads offsets of {partition} again, of which the table {self._table} has appended "
                f"{spans[0][0]} to {spans[0][1]}, and its rows do not say which records they came from. Nothing was "
                "written. Keep the columns topic, partition and offset, or reset the group to where the table ends."
            )
        return False

    def commit_until_done(self) -> None:
        """Commit the batch; try again after a lost race."""
        for _ in range(ATTEMPTS_MAX):
            if self._commit():
                return
        raise contention_error(self._table)

    def _commit(self) -> bool:
        """Commit the batch; return False if another writer committed meanwhile."""
        delta = open_table(self._table)
        ledger = ledger_of(delta, self._batch)
        if not takes(ledger, self._batch, table=str(self._table)):
            return True
        self.is_known(ledger)
        if delta is not None:
            new = check_fit(delta, self._columns, self._table, may_grow=self._rules.merge_schema)
            if new:
                with suppress_lost_race():
                    grow(delta, new)
                return False
        changes = self._changes(ledger, delta)
        is_idle = self._batch.is_stateful and ledger.generation is not None and ledger.has_read(self._batch)
        if is_idle and not changes.removed and not changes.rewritten:
            return True
        numbers = entries(self._batch, ledger)
        if not commit(self._table, delta, self._columns, changes, text=note(self._batch), numbers=numbers):
            return False
        for file in self.staged:
            if file not in changes.rewritten:
                (self._table / file.path).unlink()
        return True

    def _changes(self, ledger: Ledger, delta: "DeltaTable | None") -> Replacement:
        """Return what the batch does to the files of the table."""
        schema = arrow_of(self._columns) if delta is None else schema_of(delta)
        ranges = self._batch.position.ranges
        if self._rules.mode == APPEND and not self._batch.is_stateful:
            left = self.staged
            for known in split_layers(intersect_by_partition(ranges, ledger.read)):
                gone = replace(self._table, left, known, schema)
                left = [file for file in left if file not in gone.removed] + gone.rewritten
            return Replacement(removed=[], rewritten=left)
        if self._rules.mode == APPEND or (self._rules.mode == REPLACE and self._batch.is_stateful):
            return Replacement(removed=[], rewritten=self.staged)
        files = list_files(delta) if delta is not None else []
        if self._rules.mode == COMPLETE:
            return Replacement(removed=files, rewritten=self.staged)
        if self._rules.mode == UPSERT:
            # Only here: pyarrow's functions take long to import, and most tables are not upserted.
            from logmark.spark.tables.upserts import merge

            return merge(self._table, files, self._staged_rows(schema), self._rules, schema)
        gone = replace(self._table, files, ranges, schema)
        return Replacement(removed=gone.removed, rewritten=[*self.staged, *gone.rewritten])

    def _staged_rows(self, schema: "pyarrow.Schema") -> "pyarrow.Table":
        # Only here: only upserts read rows back.
        import pyarrow.dataset as dataset

        given = arrow_of(columns_of(self._given))
        for name in given.names:
            schema = schema if name in schema.names else schema.append(given.field(name))
        if not self.staged:
            return schema.empty_table()
        paths = [str(self._table / file.path) for file in self.staged]
        return dataset.dataset(paths, schema=schema, format="parquet").to_table()


def commit(
    table: Path,
    delta: "DeltaTable | None",
    columns: Any,
    changes: Replacement,
    *,
    text: Mapping[str, Any],
    numbers: Mapping[str, int],
    is_overwrite: bool = False,
    is_data_change: bool = True,
) -> bool:
    """Commit the changes and the ledger; return False if the table has changed since it was opened.

    With `is_overwrite` all files of the table are removed and the columns may be others.
    """
    # Only here: pipelines are listed without deltalake, which is an extra.
    from deltalake import Schema, exceptions, transaction

    schema = Schema.from_json(json.dumps(columns))
    properties = transaction.CommitProperties(
        custom_metadata={"logmark": text},
        app_transactions=[transaction.Transaction(name, number) for name, number in numbers.items()],
        max_commit_retries=0,
    )
    added: list[Any] = [transaction.AddAction(**_added_fields(file, is_data_change)) for file in changes.rewritten]
    if delta is None:
        try:
            transaction.create_table_with_add_actions(
                str(table), schema, added, mode="error", commit_properties=properties
            )
        except exceptions.DeltaError:
            if open_table(table) is None:
                raise
            return False
        return True
    now_ms = time.time_ns() // 1_000_000
    gone = [
        transaction.RemoveAction(file.path, is_data_change, now_ms, file.size_bytes, {}) for file in changes.removed
    ]
    mode, actions = ("overwrite", added) if is_overwrite else ("append", added + gone)
    with suppress_lost_race():
        delta.create_write_transaction(actions, mode=mode, schema=schema, commit_properties=properties)
        return True
    return False


def suppress_lost_race() -> contextlib.AbstractContextManager[None]:
    """Suppress the error of a commit that lost a race."""
    # Only here: deltalake is an extra; see `commit`.
    from deltalake.exceptions import CommitFailedError

    return contextlib.suppress(CommitFailedError)


def contention_error(table: Path) -> UserError:
    """Return the error for a table that other writers change all the time."""
    return Contended(
        f"Others change the table {table} all the time: {ATTEMPTS_MAX} commits failed in a row. Nothing was written. "
        "Stop the other writers, or start the query again when they are done."
    )


def open_table(table: Path) -> "DeltaTable | None":
    """Return the table as it is now, or None if there is none."""
    # Only here: deltalake is an extra; see `commit`.
    from deltalake import DeltaTable, exceptions

    with contextlib.suppress(exceptions.TableNotFoundError):
        return DeltaTable(str(table)) if (table / "_delta_log").is_dir() else None
    return None


def open_existing_table(table: Path) -> "DeltaTable":
    """Return the table as it is now; raises UserError if there is none, or if it is of a kind that we do not read."""
    delta = open_table(table)
    if delta is None:
        raise UserError(f"There is no table in {table}. A pipeline makes it with its first batch.")
    check_kind(delta, table)
    return delta


def ledger_of(delta: "DeltaTable | None", batch: Batch) -> Ledger:
    """Return what the table knows of the partitions of the batch."""
    return read_ledger(delta.transaction_version if delta is not None else lambda name: None, batch.position)


def list_files(delta: "DeltaTable") -> list[DataFile]:
    """Return the Parquet files that make up the table."""
    # Only here: pyarrow belongs to the extra `spark`.
    import pyarrow

    return parse_files(pyarrow.table(delta.get_add_actions(flatten=True)).to_pylist())


def _staged_files(table: Path, folder: Path, keys: Sequence[str], *, is_located: bool) -> list[DataFile]:
    paths: Iterable[Path] = sorted(folder.glob("*.parquet"))
    files = [describe(table, str(file.relative_to(table)), keys=keys, is_located=is_located) for file in paths]
    for checksum in folder.glob(".*.crc"):
        checksum.unlink()
    for empty in (file for file in files if not file.records):
        (table / empty.path).unlink()
    return [file for file in files if file.records]


def _added_fields(file: DataFile, is_data_change: bool) -> dict[str, Any]:
    return {
        "path": file.path,
        "size": file.size_bytes,
        "partition_values": {},
        "modification_time": time.time_ns() // 1_000_000,
        "data_change": is_data_change,
        "stats": file.stats(),
    }
