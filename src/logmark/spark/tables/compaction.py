"""Small files become few large ones, and files that no version of the table needs any more leave the disk.

Compaction is done here and not by deltalake's `optimize`, which joins files in no order: the rows of a partition would
be spread over files that hold others too, and a range that is read again would have all of them rewritten. Here the
files of one partition are joined in the order of their offsets, those of an upserted table in the order of their keys,
and the statistics stay as exact as those of the writer.

It may run beside a writer. Each joined file is a commit of its own, which changes no rows and says so; it holds as long
as the files that it replaces are still there, so if somebody committed meanwhile it is tried again, and given up for
files that somebody else has replaced.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.errors import UserError
from logmark.spark.tables.commits import ATTEMPTS_MAX, commit, list_files, open_existing_table, open_table
from logmark.spark.tables.files import DataFile, Replacement, write
from logmark.spark.tables.ledger import read_ledger
from logmark.spark.tables.modes import UPSERT, WHERE
from logmark.spark.tables.paths import local_path
from logmark.spark.tables.schemas import schema_of, table_columns

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

TARGET_BYTES = 128 * 1024 * 1024
DUE_BYTES_MAX = 256 * 1024 * 1024
RETENTION_HOURS = 7 * 24
_DONE_AT = "logmark.compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of a compaction: how many files it removed, and how many replace them."""

    removed: int
    added: int
    size_bytes: int


def optimize_table(
    path: str | Path, *, target_bytes: int = TARGET_BYTES, size_bytes_max: int | None = None
) -> Compacted:
    """Join small files to files of about the target size, with the same rows; at most `bytes_max` if given."""
    table = local_path(path, "table")
    delta = open_existing_table(table)
    removed = added = size_bytes = 0
    for bunch in group_files(list_files(delta), target_bytes):
        size = sum(file.size_bytes for file in bunch)
        if size_bytes_max is not None and size_bytes + size > size_bytes_max:
            continue
        if _join(table, bunch):
            removed, added, size_bytes = removed + len(bunch), added + 1, size_bytes + size
    return Compacted(removed=removed, added=added, size_bytes=size_bytes)


def optimize_when_due(table: Path, *, every: int, size_bytes_max: int = DUE_BYTES_MAX) -> Compacted | None:
    """Compact a table after so many commits since the last time; a failure is only logged."""
    # Only here: both belong to the extra `spark`.
    import pyarrow
    from deltalake.exceptions import DeltaError

    try:
        delta = open_table(table)
        if delta is None or delta.version() - (delta.transaction_version(_DONE_AT) or 0) < every:
            return None
        done = optimize_table(table, size_bytes_max=size_bytes_max)
        if not done.added:
            _note(table)
    except (UserError, OSError, DeltaError, pyarrow.ArrowException) as error:
        log.warning("the small files of %s stay as they are: %s", table, error)
        return None
    return done


def _note(table: Path) -> None:
    """Note that the table was checked: it is not due again for a while."""
    delta = open_table(table)
    assert delta is not None
    none = Replacement(removed=[], rewritten=[])
    numbers = {_DONE_AT: delta.version() + 1}
    commit(table, delta, table_columns(delta), none, text={"compacted": _told(0, 0)}, numbers=numbers)


def vacuum_table(path: str | Path, *, retention_hours: int = RETENTION_HOURS, dry_run: bool = False) -> list[str]:
    """Remove files that the table has not named for so long; return the list of them.

    Readers that opened the table before, and batches on their way into it, are safe as long as they take less than the
    retention; the versions beside the table are not touched.
    """
    table = local_path(path, "table")
    delta = open_table(table)
    if delta is None:
        raise UserError(f"There is no table in {table}. Nothing was removed.")
    if retention_hours < 1:
        raise UserError(
            f"A retention of {retention_hours} hours would remove files that a running batch has just written. Nothing "
            "was removed. Give at least one hour."
        )
    gone = delta.vacuum(retention_hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
    if not dry_run:
        _remove_empty_folders(table, before_s=time.time() - retention_hours * 3600)
    return [str(name) for name in gone]


def _remove_empty_folders(table: Path, *, before_s: float) -> None:
    """Remove what deltalake leaves: folders of batches without files, and versions that were never finished."""
    for folder in (table / "data").glob("*/"):
        if folder.stat().st_mtime < before_s:
            with contextlib.suppress(OSError):
                folder.rmdir()
    for folder in (table / "_versions").glob(".*/"):
        if folder.stat().st_mtime < before_s:
            shutil.rmtree(folder)


def group_files(files: Iterable[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    """Return groups of small files that become one file each: of one partition by offset, else by least key.

    A file is small below three quarters of the target, and a bunch is never of one file alone.
    """
    groups: dict[Any, list[DataFile]] = {}
    for file in files:
        if file.size_bytes < target_bytes * 3 // 4:
            groups.setdefault(_partition_of(file), []).append(file)
    for partition in sorted(groups, key=str):
        bunch: list[DataFile] = []
        for file in sorted(groups[partition], key=_order):
            if bunch and sum(one.size_bytes for one in bunch) + file.size_bytes > target_bytes:
                if len(bunch) > 1:
                    yield bunch
                bunch = []
            bunch.append(file)
        if len(bunch) > 1:
            yield bunch


def _partition_of(file: DataFile) -> tuple[str, int] | None:
    """Return the one partition that the rows of the file came from, if it is one."""
    if file.low is None or file.high is None or file.low[:2] != file.high[:2]:
        return None
    return file.low[:2]


def _order(file: DataFile) -> tuple[Any, ...]:
    keys = [(str(type(low)), low) for _, (low, _) in sorted(file.bounds.items())]
    return (file.low is None, file.low or (), len(keys), *keys)


def _join(table: Path, bunch: list[DataFile]) -> bool:
    """Join the files; return False if another writer has replaced one of them."""
    joined: DataFile | None = None
    for _ in range(ATTEMPTS_MAX):
        delta = open_table(table)
        assert delta is not None
        paths = {file.path for file in list_files(delta)}
        if not all(file.path in paths for file in bunch):
            break
        if joined is None:
            is_keyed = read_ledger(delta.transaction_version).mode == UPSERT
            keys = sorted({name for file in bunch for name in file.bounds}) if is_keyed else []
            rows = _sorted([table / file.path for file in bunch], schema_of(delta), keys)
            joined = write(table, rows, keys=keys, is_located=False)
        changes = Replacement(removed=bunch, rewritten=[joined])
        text = {"compacted": _told(len(bunch), 1)}
        if commit(
            table,
            delta,
            table_columns(delta),
            changes,
            text=text,
            numbers={_DONE_AT: delta.version() + 1},
            is_data_change=False,
        ):
            return True
    if joined is not None:
        (table / joined.path).unlink()
    return False


def _told(removed: int, added: int) -> dict[str, int]:
    return {"removed": removed, "added": added}


def _sorted(files: list[Path], schema: "pa.Schema", keys: list[str]) -> "pa.Table":
    # Only here: pyarrow's datasets take long to import, and most batches compact nothing.
    import pyarrow.dataset as dataset

    rows = dataset.dataset([str(file) for file in files], schema=schema, format="parquet").to_table()
    by = [name for name in (keys or WHERE) if name in rows.column_names]
    return rows.sort_by([(name, "ascending") for name in by]) if by else rows
