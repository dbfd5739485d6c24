"""The versions of a pipeline: which one is live, which were live before, which can be rolled back to or dropped."""

import json
import re
import shutil
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.spark.checkpoint import is_between_batches, planned_batch, resume_position
from logmark.spark.pipelines.declaration import Table, Topic, side_topic_name, version_group
from logmark.spark.pipelines.home import Home, write_file
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.state_shape import delete_state_shape
from logmark.spark.source.position import Offsets
from logmark.spark.tables.commits import ledger_of, open_table
from logmark.spark.tables.ledger import takes
from logmark.spark.tables.modes import Rules
from logmark.spark.tables.table import read_batch
from logmark.spark.tables.versions import drop_version as drop_table_version
from logmark.spark.tables.versions import has_version, version_path
from logmark.spark.tables.versions import list_versions as list_table_versions

_FILE = "versions.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChange:
    """A version became the live one: by a replay or a rollback."""

    number: int
    at_ms: int
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineVersion:
    """A version of a pipeline as it is now.

    `can_roll_back` says that its checkpoint and, for tables, its rows are there. `next_offsets` is where it resumes.
    """

    number: int
    is_live: bool
    is_building: bool
    can_roll_back: bool
    since_ms: int | None = None
    how: str = ""
    next_offsets: Offsets | None = None
    rows: int | None = None
    size_bytes: int | None = None


def list_live_changes(home: Home) -> list[LiveChange]:
    """Return which versions became live, in order; version 1 was live from the beginning and is not in the list."""
    try:
        return [LiveChange(**fields) for fields in json.loads((home.folder / _FILE).read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        raise UserError(f"{home.folder / _FILE} cannot be read. Nothing was changed. Remove the file.") from None


def add_live_change(home: Home, change: LiveChange) -> None:
    """Note that a version became live, unless it is the last one noted."""
    known = list_live_changes(home)
    if not known or known[-1].number != change.number:
        write_file(home.folder / _FILE, json.dumps([asdict(one) for one in (*known, change)], indent=1) + "\n")


def previous_version(home: Home) -> int | None:
    """Return the version that was live before the present one."""
    live = home.record().live
    numbers = [1, *(change.number for change in list_live_changes(home))]
    return next((number for number in reversed(numbers) if number != live), None)


def list_versions(job: Job) -> list[PipelineVersion]:
    """Return the versions of which anything is left, in order."""
    record, sink = job.home.record(), job.pipeline.sink
    tables = {one.number: one for one in list_table_versions(sink.path)} if isinstance(sink, Table) else {}
    changes = {change.number: change for change in list_live_changes(job.home)}
    numbers = {record.live, *tables, *_checkpoints(job.home)} | ({record.building} if record.building else set())
    found = []
    for number in sorted(numbers):
        position = resume_position(job.home.checkpoint(number))
        table, change = tables.get(number), changes.get(number)
        found.append(
            PipelineVersion(
                number=number,
                is_live=number == record.live,
                is_building=number == record.building,
                can_roll_back=number not in (record.live, record.building) and is_complete(job, number),
                since_ms=change.at_ms if change is not None else None,
                how=change.how if change is not None else "",
                next_offsets=position.next if position is not None else None,
                rows=table.records if table is not None else None,
                size_bytes=table.size_bytes if table is not None else None,
            )
        )
    return found


def is_complete(job: Job, number: int) -> bool:
    """Return whether a version that is not live could be: its checkpoint is there, and the rows of its table are."""
    sink = job.pipeline.sink
    has_rows = isinstance(sink, Topic) or has_version(sink.path, number)
    return planned_batch(job.home.checkpoint(number)) is not None and has_rows


def check_can_resume(job: Job, number: int) -> None:
    """Raise UserError if a version that is not live could not finish its next batch.

    That is so if its table refuses the batch that was planned last, such as one of a query with state that was moved
    back, and if Spark's own part of the checkpoint is damaged.
    """
    checkpoint, sink = job.home.checkpoint(number), job.pipeline.sink
    refused = f"Version {number} of {job.name} cannot run any more, so it cannot be live again. Nothing was changed."
    if not (checkpoint / "metadata").is_file():
        raise UserError(f"{refused} Its checkpoint {checkpoint} lacks the file metadata.")
    planned = planned_batch(checkpoint)
    if isinstance(sink, Topic) or planned is None or is_between_batches(checkpoint):
        return
    rules = Rules.of(
        sink.mode, keys=sink.keys, sequence=sink.sequence, delete_by=sink.delete_by, merge_schema=sink.merge_schema
    )
    path = version_path(sink.path, number)
    batch = read_batch(checkpoint, planned, rules)
    # A kept version is closed until it is swapped in again.
    ledger = replace(ledger_of(open_table(path), batch), is_closed=False)
    try:
        takes(ledger, batch, table=str(path))
    except UserError as error:
        raise UserError(f"{refused} {error}") from None


def drop_version(job: Job, client: Client, number: int) -> None:
    """Remove a version; raises UserError if it is live, being built, or not there."""
    record = job.home.record()
    if number in (record.live, record.building):
        what = "is live" if number == record.live else "is being built: abandon the replay to remove it"
        raise UserError(f"Version {number} of {job.name} {what}. Nothing was removed.")
    if number not in {one.number for one in list_versions(job)}:
        raise UserError(f"There is no version {number} of {job.name}. Nothing was removed.")
    remove_version(job, client, number)


def remove_version(job: Job, client: Client, number: int, *, with_topic: bool = True) -> None:
    """Remove the checkpoint of a version, its rows beside the table, its side topic and its group."""
    sink = job.pipeline.sink
    if isinstance(sink, Table):
        if version_path(sink.path, number).is_dir():
            drop_table_version(sink.path, number)
    elif with_topic:
        delete_side_topic(client, side_topic_name(sink.name, number))
    client.delete_groups([version_group(job.pipeline, number)])
    remove_folder(job.home.checkpoint(number))
    delete_state_shape(job.home.checkpoint(number))


def delete_side_topic(client: Client, side_topic: str) -> None:
    """Delete the side topic, if there is one."""
    if client.metadata([side_topic]).partitions(side_topic):
        client.delete_topics([side_topic])


def remove_folder(path: Path) -> None:
    """Remove a folder; it is renamed first, so that a crash leaves no half of it under its name."""
    if path.is_dir():
        renamed = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        path.rename(renamed)
        shutil.rmtree(renamed)


def _checkpoints(home: Home) -> list[int]:
    names = (re.fullmatch(r"v(\d+)", path.name) for path in home.folder.glob("v*"))
    numbers = [int(name[1]) for name in names if name is not None]
    return [number for number in numbers if planned_batch(home.checkpoint(number)) is not None]
