"""Which versions a pipeline has had, which of them can be taken back, and what becomes of those that nobody wants."""

import json
import re
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.spark.pipelines.home import Home, has_begun, write_whole
from logmark.spark.pipelines.pipeline import Table, Topic
from logmark.spark.pipelines.replay.build import group_of, standing
from logmark.spark.pipelines.replay.publication import side_topic
from logmark.spark.pipelines.supervisor import Job
from logmark.spark.source.position import Offsets
from logmark.spark.tables.versions import Version as TableVersion
from logmark.spark.tables.versions import drop_version, has_version, list_versions, version_path

_FILE = "versions.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A version became the live one."""

    number: int
    at_ms: int
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A version as it is now; `can_be_taken_back` says that its checkpoint and, for tables, its rows are there."""

    number: int
    is_live: bool
    is_building: bool
    can_be_taken_back: bool
    since_ms: int | None = None
    how: str = ""
    stands: Offsets | None = None
    rows: int | None = None
    size_bytes: int | None = None


def turns(home: Home) -> list[Turn]:
    """Which versions were live, in order; the first one was so from the beginning and is not told of."""
    try:
        return [Turn(**fields) for fields in json.loads((home.folder / _FILE).read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        raise UserError(f"{home.folder / _FILE} cannot be read. Nothing was changed. Take the file away.") from None


def note_turn(home: Home, turn: Turn) -> None:
    """The version is the last one that became live."""
    known = turns(home)
    if not known or known[-1].number != turn.number:
        write_whole(home.folder / _FILE, json.dumps([asdict(one) for one in (*known, turn)], indent=1) + "\n")


def previous(home: Home) -> int | None:
    """The version that was live before the one that is."""
    live = home.record().live
    numbers = [1, *(turn.number for turn in turns(home))]
    return next((number for number in reversed(numbers) if number != live), None)


def versions_of(job: Job) -> list[Known]:
    """The versions of which anything is left, in order."""
    record, sink = job.home.record(), job.pipeline.sink
    tables = _tables(sink) if isinstance(sink, Table) else {}
    since = {turn.number: turn for turn in turns(job.home)}
    numbers = {record.live, *tables, *_checkpoints(job.home)} | ({record.building} if record.building else set())
    found = []
    for number in sorted(numbers):
        checkpoint = job.home.checkpoint(number)
        position = standing(checkpoint) if has_begun(checkpoint) else None
        table, turn = tables.get(number), since.get(number)
        found.append(
            Known(
                number=number,
                is_live=number == record.live,
                is_building=number == record.building,
                can_be_taken_back=number not in (record.live, record.building) and is_whole(job, number),
                since_ms=turn.at_ms if turn is not None else None,
                how=turn.how if turn is not None else "",
                stands=position.next if position is not None else None,
                rows=table.records if table is not None else None,
                size_bytes=table.size_bytes if table is not None else None,
            )
        )
    return found


def is_whole(job: Job, number: int) -> bool:
    """Whether a version that is not live could be: its checkpoint is there, and so are the rows of its table."""
    sink = job.pipeline.sink
    has_rows = isinstance(sink, Topic) or has_version(sink.path, number)
    return has_begun(job.home.checkpoint(number)) and has_rows


def drop(job: Job, client: Client, number: int) -> None:
    """Nothing is left of the version; raises a sentence if it is live, being built, or not there."""
    record = job.home.record()
    if number in (record.live, record.building):
        what = "is live" if number == record.live else "is being built (--abandon gives it up)"
        raise UserError(f"Version {number} of {job.pipeline.name} {what}. Nothing was removed.")
    if number not in {one.number for one in versions_of(job)}:
        raise UserError(f"There is no version {number} of {job.pipeline.name}. Nothing was removed.")
    remove(job, client, number)


def remove(job: Job, client: Client, number: int, *, with_topic: bool = True) -> None:
    """The checkpoint, the rows beside the table, the side topic and the group of a version are gone."""
    sink = job.pipeline.sink
    if isinstance(sink, Table):
        if version_path(sink.path, number).is_dir():
            drop_version(sink.path, number)
    elif with_topic:
        remove_side_topic(client, side_topic(sink.name, number))
    client.delete_groups([group_of(job.pipeline, number)])
    remove_folder(job.home.checkpoint(number))


def remove_side_topic(client: Client, side: str) -> None:
    """The topic is gone, if it was there and may be deleted."""
    if client.metadata([side]).partitions(side):
        client.delete_topics([side])


def remove_folder(path: Path) -> None:
    """The folder is gone: under its name at once, so that a crash leaves no half of it there."""
    if path.is_dir():
        gone = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        path.rename(gone)
        shutil.rmtree(gone)


def _tables(sink: Table) -> dict[int, TableVersion]:
    return {one.number: one for one in list_versions(sink.path)}


def _checkpoints(home: Home) -> list[int]:
    names = (re.fullmatch(r"v(\d+)", path.name) for path in home.folder.glob("v*"))
    return [int(name[1]) for name in names if name is not None and has_begun(home.checkpoint(int(name[1])))]
