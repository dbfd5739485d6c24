"""Versions of a table: a new one is built beside the old, swapped in by one commit, and can be taken back.

A version is a Delta table of its own in `<table>/_versions/v<number>`, with its own files and its own ledger. To swap
it in, its files are linked into the table's `data`, and one commit on the table removes all its files, adds the linked
ones, takes the version's columns and ledger, and notes both in the history: a reader sees the old or the new. Before
that, what the table holds is kept as a version in the same way, so that taking it back is another swap.

Links and not moves: a file that belongs to two tables outlives what either of them removes, so vacuum on the table
cannot touch a version, and a version that is dropped cannot touch the table. Where the file system knows no links,
files are copied.

A swap may be interrupted anywhere and repeated. The version is closed first, so that a query which still writes there
fails instead of writing where no reader looks; what was linked without a commit is removed by vacuum.

A version that has become the table is emptied and its log stays, closed, for such a query. The log says that it was
emptied: a version without files may also be one that has no rows.
"""

import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.errors import UserError
from logmark.spark.tables.commits import (
    ATTEMPTS_MAX,
    commit,
    contention_error,
    list_files,
    open_table,
    suppress_lost_race,
)
from logmark.spark.tables.files import DataFile, Replacement
from logmark.spark.tables.ledger import closing_entries, summarize_ledger, transfer_ledger
from logmark.spark.tables.paths import local_path
from logmark.spark.tables.schemas import check_kind, table_columns, widen_protocol

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FOLDER = "_versions"
_CURRENT = "logmark.version"
_PREVIOUS = "logmark.previous-version"
_EMPTIED = "logmark.emptied"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One version of a table: where it is, what it holds, and its ledger."""

    number: int
    path: Path
    is_current: bool
    files: int
    records: int
    size_bytes: int
    ledger: dict[str, Any]


def version_path(table: str | Path, number: int) -> Path:
    """Return the folder where a version is built or kept; a query writes there as into any table."""
    return local_path(table, "table") / _FOLDER / f"v{number}"


def current_version(table: str | Path) -> int:
    """Return the number of the version that the table holds: 1 for a table that nothing was swapped into."""
    return _number(open_table(local_path(table, "table")), _CURRENT) or 1


def has_version(table: str | Path, number: int) -> bool:
    """Return whether a version with all its rows is built or kept beside the table."""
    return _is_whole(open_table(version_path(table, number)))


def next_version(table: str | Path) -> int:
    """Return the number for a new version."""
    return max([current_version(table), *_numbers(local_path(table, "table"))]) + 1


def list_versions(table: str | Path) -> list[TableVersion]:
    """Return the versions that there are, in order: the current one and those that are built or kept beside it."""
    root = local_path(table, "table")
    current = current_version(root)
    paths = {number: version_path(root, number) for number in _numbers(root) if number != current} | {current: root}
    found = []
    for number, path in sorted(paths.items()):
        delta = open_table(path)
        if delta is not None and (number == current or _is_whole(delta)):
            files = list_files(delta)
            found.append(
                TableVersion(
                    number=number,
                    path=path,
                    is_current=number == current,
                    files=len(files),
                    records=sum(file.records or 0 for file in files),
                    size_bytes=sum(file.size_bytes for file in files),
                    ledger=summarize_ledger(transactions(delta, path)),
                )
            )
    return found


def swap_in_version(table: str | Path, number: int, *, group: str | None = None, keep: bool = True) -> None:
    """Replace the rows and the ledger of the table by those of the version, in one commit.

    `group` is the group whose batches the table takes from now on, the version's own unless given. With `keep` what the
    table held stays as a version. Swapping in what is swapped in already changes nothing.
    """
    root = local_path(table, "table")
    path = version_path(root, number)
    for _ in range(ATTEMPTS_MAX):
        delta = open_table(root)
        current = _number(delta, _CURRENT) or 1
        if delta is not None and current == number:
            _empty(path)
            return
        staged = _closed(path, root, number)
        if delta is not None:
            check_kind(delta, root)
            is_fit = False
            with suppress_lost_race():
                is_fit = widen_protocol(delta, staged)
            if not is_fit:
                continue
            if keep:
                _keep(delta, root, current)
        files = [_linked(path, root, file) for file in list_files(staged)]
        numbers = transactions(staged, path)
        before = transactions(delta, root) if delta is not None else {}
        taken = transfer_ledger(numbers, before, group=group) | {_CURRENT: number, _PREVIOUS: current}
        text = {"swapped in": number, "swapped out": current, "kept": keep, **summarize_ledger(taken)}
        columns = table_columns(staged)
        changes = Replacement(removed=[], rewritten=files)
        if commit(root, delta, columns, changes, text=text, numbers=taken, is_overwrite=True):
            _empty(path)
            if not keep:
                # Left of a swap that was stopped before it could empty it, and older than what the table held.
                _empty(version_path(root, current))
            return
        for file in files:
            (root / file.path).unlink(missing_ok=True)
    raise contention_error(root)


def roll_back_version(table: str | Path, number: int | None = None, *, group: str | None = None) -> int:
    """Swap a kept version in again, the one before the present one unless given; return its number."""
    root = local_path(table, "table")
    wanted = number if number is not None else _number(open_table(root), _PREVIOUS)
    if wanted is None:
        raise UserError(f"Nothing was ever swapped into the table {root}, so there is nothing to take back.")
    if wanted != current_version(root) and not has_version(root, wanted):
        raise UserError(
            f"Version {wanted} of the table {root} was not kept. The table was left as it is. Take back one that "
            "list_versions names, or build the rows again as a new version."
        )
    swap_in_version(root, wanted, group=group)
    return wanted


def drop_version(table: str | Path, number: int) -> None:
    """Remove a version; the table itself is not touched."""
    root = local_path(table, "table")
    path = version_path(root, number)
    if number == current_version(root):
        raise UserError(f"The table {root} holds version {number}. Nothing was removed. Take another one back first.")
    if not path.is_dir():
        raise UserError(f"There is no version {number} beside the table {root}. Nothing was removed.")
    gone = path.with_name(f".{uuid.uuid4().hex}")
    path.rename(gone)
    shutil.rmtree(gone)


def transactions(delta: "DeltaTable", table: Path) -> dict[str, int]:
    """Return the application transactions of a table, which deltalake only tells one by one, by name.

    In force are those of the last checkpoint of the table's log and of the commits after.
    """
    import pyarrow.parquet as parquet

    log, version = table / "_delta_log", delta.version()
    parts: dict[int, list[Path]] = {}
    for file in sorted(log.glob("*.checkpoint*.parquet")):
        parts.setdefault(int(file.name.split(".")[0]), []).append(file)
    base = max((number for number in parts if number <= version), default=-1)
    found: dict[str, int] = {}
    for file in parts.get(base, []):
        column = parquet.read_table(file, columns=["txn"])["txn"].to_pylist()
        found |= {txn["appId"]: txn["version"] for txn in column if txn is not None and txn["appId"] is not None}
    for number in range(base + 1, version + 1):
        for line in (log / f"{number:020}.json").read_text().splitlines():
            txn = json.loads(line).get("txn")
            if txn is not None:
                found[txn["appId"]] = txn["version"]
    return found


def _closed(path: Path, root: Path, number: int) -> "DeltaTable":
    """Close the version to further batches and return it."""
    for _ in range(ATTEMPTS_MAX):
        delta = open_table(path)
        if delta is None:
            raise UserError(f"There is no version {number} of the table {root}. The table was left as it is.")
        if not _is_whole(delta):
            raise UserError(
                f"Version {number} of the table {root} was swapped in before and not kept since, so its rows are gone. "
                "The table was left as it is. Build them again as a new version."
            )
        check_kind(delta, path)
        if all(delta.transaction_version(name) == value for name, value in closing_entries().items()):
            return delta
        none = Replacement(removed=[], rewritten=[])
        commit(path, delta, table_columns(delta), none, text={"closed": number}, numbers=closing_entries())
    raise contention_error(path)


def _keep(delta: "DeltaTable", root: Path, number: int) -> None:
    """Keep what the table holds as a version beside it."""
    building = root / _FOLDER / f".{uuid.uuid4().hex}"
    (building / "data").mkdir(parents=True)
    files = [_linked(root, building, file) for file in list_files(delta)]
    changes = Replacement(removed=[], rewritten=files)
    numbers = transactions(delta, root) | closing_entries()
    is_done = commit(building, None, table_columns(delta), changes, text={"kept": number}, numbers=numbers)
    assert is_done
    path = version_path(root, number)
    path.mkdir(exist_ok=True)
    # Part by part: the checkpoint of the query that built this version may lie there too. The log goes first and comes
    # last, so that there is no version here until all of it is.
    for part in ("_delta_log", "data"):
        shutil.rmtree(path / part, ignore_errors=True)
    for part in ("data", "_delta_log"):
        (building / part).rename(path / part)
    building.rmdir()


def _empty(path: Path) -> None:
    """Remove the files of the version that has become the table; it stays closed."""
    for _ in range(ATTEMPTS_MAX):
        delta = open_table(path)
        if delta is None or not _is_whole(delta):
            shutil.rmtree(path / "data", ignore_errors=True)
            return
        none = Replacement(removed=[], rewritten=[])
        numbers = closing_entries() | {_EMPTIED: 1}
        commit(path, delta, table_columns(delta), none, text={"emptied": True}, numbers=numbers, is_overwrite=True)
    raise contention_error(path)


def _is_whole(delta: "DeltaTable | None") -> bool:
    """Return whether the rows of a version are there: it was built or kept, and not emptied since."""
    return delta is not None and not _number(delta, _EMPTIED)


def _linked(home: Path, to: Path, file: DataFile) -> DataFile:
    """Link the file into another table's folder, under a name of its own, and return it."""
    path = f"data/{uuid.uuid4().hex}.parquet"
    (to / path).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(home / file.path, to / path)
    except OSError:
        shutil.copyfile(home / file.path, to / path)
    # A link is as old as its file, and vacuum takes old files that no commit names yet.
    os.utime(to / path)
    return replace(file, path=path)


def _number(delta: "DeltaTable | None", name: str) -> int | None:
    return delta.transaction_version(name) if delta is not None else None


def _numbers(root: Path) -> list[int]:
    names = (re.fullmatch(r"v(\d+)", path.name) for path in (root / _FOLDER).glob("v*"))
    return [int(name.group(1)) for name in names if name]
