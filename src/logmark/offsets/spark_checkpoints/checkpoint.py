"""A checkpoint as it is now: its query, its micro-batches, its offsets, and what else is known of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.errors import UserError
from logmark.offsets.errors import QueryOnLogmarkSource
from logmark.offsets.spark_checkpoints import log_files
from logmark.offsets.spark_checkpoints.folder import Entry, Folder
from logmark.offsets.spark_checkpoints.log_files import CommitLogEntry, OffsetLogEntry, Offsets

BATCHES_SHOWN = 5
_CHILDREN_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One batch of a query: planned, and committed if its sink has it."""

    id: int
    plan: OffsetLogEntry
    commit: CommitLogEntry | None
    planned_file_ms: int | None = None
    committed_ms: int | None = None

    @property
    def is_committed(self) -> bool:
        """The sink has the batch."""
        return self.commit is not None

    @property
    def offsets(self) -> Offsets:
        """Where the batch ends, in all Kafka sources together."""
        return {
            partition: offset
            for source in self.plan.sources
            for partition, offset in (source.offsets or {}).items()
        }  # fmt: skip

    @property
    def watermark_ms(self) -> int:
        """The watermark after the batch; 0 for none."""
        return max(self.plan.watermark_ms, self.commit.watermark_ms if self.commit else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says of its query; `batches` has the last ones, the newest last."""

    url: str
    query_id: str | None
    batches: Sequence[MicroBatch]
    last_committed: MicroBatch | None
    committed_id: int | None
    initial: Offsets | None
    has_state: bool
    changed_ms: int | None

    @property
    def last(self) -> MicroBatch:
        """The newest batch that was planned."""
        return self.batches[-1]

    @property
    def offsets(self) -> Offsets:
        """The next offsets of the query: the end of its last committed batch, or its initial offsets."""
        return self.last_committed.offsets if self.last_committed else (self.initial or {})

    @property
    def unfinished(self) -> MicroBatch | None:
        """The batch that was planned and whose commit is missing."""
        return None if self.last.is_committed else self.last


def read_checkpoint(folder: Folder, *, batches: int = BATCHES_SHOWN) -> Checkpoint:
    """Read the checkpoint in a folder; raises UserError if it is none, or not one of a query that reads Kafka."""
    names = {entry.name for entry in folder.entries()}
    if "offsets" not in names:
        raise UserError(_no_checkpoint(folder, names))
    planned = _numbered(folder.entries("offsets"))
    committed = _numbered(folder.entries("commits"))
    if not planned:
        raise UserError(
            f"{folder.url} has no batch yet: its query was stopped before its first one was planned, and has "
            "no offsets. Nothing was changed."
        )
    wanted = sorted(planned)[-max(batches, 1) :]
    read = [_read_batch(folder, id, planned, committed) for id in wanted]
    committed_id = max(committed, default=None)
    last_committed = next((one for one in reversed(read) if one.is_committed), None)
    if last_committed is None and (known := sorted(planned.keys() & committed.keys())):
        last_committed = _read_batch(folder, known[-1], planned, committed)
    found = Checkpoint(
        url=folder.url,
        query_id=_query_id(folder),
        batches=read,
        last_committed=last_committed,
        committed_id=committed_id,
        initial=_initial(folder),
        has_state=bool(folder.entries("state")) or any(one.commit.has_state for one in read if one.commit),
        changed_ms=_changed_ms(folder),
    )
    _refuse_other_sources(found)
    return found


def _read_batch(folder: Folder, id: int, planned: Mapping[int, Entry], committed: Mapping[int, Entry]) -> MicroBatch:
    plan_path, commit_path = f"offsets/{id}", f"commits/{id}"
    content = folder.read(plan_path)
    if content is None:
        raise UserError(f"Batch {id} of {folder.url} vanished while it was read: the query runs. Look again.")
    commit = folder.read(commit_path) if id in committed else None
    return MicroBatch(
        id=id,
        plan=log_files.read_offset_log_entry(content, f"{folder.url}/{plan_path}"),
        commit=None if commit is None else log_files.read_commit_log_entry(commit, f"{folder.url}/{commit_path}"),
        planned_file_ms=planned[id].changed_ms,
        committed_ms=committed[id].changed_ms if id in committed else None,
    )


def _numbered(entries: Sequence[Entry]) -> dict[int, Entry]:
    """Return the files of batches by number, without temporary files and checksums."""
    return {
        int(one.name): one for one in entries if not one.is_folder and one.name.isascii() and one.name.isdigit()
    }  # fmt: skip


def _query_id(folder: Folder) -> str | None:
    content = folder.read("metadata")
    return None if content is None else log_files.read_query_id(content, f"{folder.url}/metadata")


def _initial(folder: Folder) -> Offsets | None:
    content = folder.read("sources/0/0")
    return None if content is None else log_files.read_initial_offsets(content, f"{folder.url}/sources/0/0")


def _changed_ms(folder: Folder) -> int | None:
    """When something was last written; temporary files count, and where a time is not known nothing is."""
    times = [
        entry.changed_ms
        for path in ("offsets", "commits", "sources/0")
        for entry in folder.entries(path)
        if not entry.is_folder
    ]
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None


def _refuse_other_sources(checkpoint: Checkpoint) -> None:
    plan = checkpoint.last.plan
    if any(source.is_ours for source in plan.sources):
        raise QueryOnLogmarkSource(
            f'{checkpoint.url} belongs to a query on format("logmark"), whose offsets are its group\'s committed ones. '
            "Nothing was changed",
            "take_sample shows them, and plan_reset moves them, also while the query runs",
        )
    if any(source.offsets is not None for source in plan.sources):
        return
    kinds = sorted({kind for kind in plan.providers.values() if kind})
    raise UserError(
        f"{checkpoint.url} is the checkpoint of a query that reads "
        f"{' and '.join(kinds) if kinds else 'something else'}, not Kafka through Spark's own connector. "
        "Nothing was changed."
    )


def _no_checkpoint(folder: Folder, names: set[str]) -> str:
    if not names:
        return f"There is no checkpoint at {folder.url}: no such folder, or an empty one. Nothing was changed."
    if "_spark_metadata" in names:
        return (
            f"{folder.url} is where a query of Spark's writes its files, not its checkpoint: give the folder that the "
            "query has as checkpointLocation. Nothing was changed."
        )
    inside = sorted(
        entry.name
        for entry in folder.entries()[:_CHILDREN_MAX]
        if entry.is_folder and any(one.name == "offsets" for one in folder.entries(entry.name))
    )
    hint = f" In it there is one: {', '.join(inside)}." if inside else ""
    return (
        f"{folder.url} is not a Spark checkpoint: it has no folder named offsets.{hint} Give the folder that the query "
        "has as checkpointLocation. Nothing was changed."
    )
