"""Where a query writes to: a file sink keeps a manifest that needs every batch id, so its query cannot be moved.

Spark's file sink notes each batch under its id in `_spark_metadata` and every tenth time reads all of them; a batch
that never went through the sink is missing there, and the query would fail for ever after. A checkpoint does not say
what its query's sink is, except in the newest format; so neighbours are looked at, and the user is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from logmark.errors import UserError
from logmark.offsets.spark_checkpoints.checkpoint import Checkpoint, MicroBatch
from logmark.offsets.spark_checkpoints.folder import Entry, Folder, open_folder

MANIFEST = "_spark_metadata"
_FILE_FORMATS = frozenset({"avro", "csv", "file", "files", "json", "orc", "parquet", "text", "xml"})
KINDS = (
    "foreachBatch", "foreach", "kafka", "delta", "iceberg", "hudi", "jdbc", "console", "memory", "noop", "other",
)  # fmt: skip
_PARENTS = 3
_SIBLINGS_MAX = 100
# Of the clock of a file system that notes whole seconds.
_TOLERANCE_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """A sink and how it is known; `manifest` is where a file sink keeps its list of batches."""

    name: str
    known_by: str
    is_files: bool = False


def find_sink(checkpoint: Checkpoint, folder: Folder) -> Sink | None:
    """Detect the sink from the checkpoint and the folders beside it, None if they do not show it."""
    kind = next((one.commit.sink for one in reversed(checkpoint.batches) if one.commit and one.commit.sink), None)
    if kind is not None:
        is_files = kind.lower() in _FILE_FORMATS or "FileStreamSink" in kind or kind.startswith("FileSink")
        return Sink(name=kind, known_by="the checkpoint names it", is_files=is_files)
    around = folder
    for _ in range(_PARENTS):
        around = around.parent()
        if _seen(around, MANIFEST):
            return Sink(name=around.url, known_by=f"the checkpoint lies in a folder with {MANIFEST}", is_files=True)
    beside = folder.parent()
    for entry in _seen(beside, "")[:_SIBLINGS_MAX]:
        if entry.is_folder and is_manifest_of(_seen(beside, f"{entry.name}/{MANIFEST}"), checkpoint.batches):
            return Sink(
                name=f"{beside.url}/{entry.name}",
                known_by=f"its {MANIFEST} was written batch by batch with this checkpoint",
                is_files=True,
            )
    return None


def _seen(folder: Folder, path: str) -> list[Entry]:
    """List a folder; empty without the right to read it: a checkpoint's user need not see its neighbours."""
    try:
        return folder.entries(path)
    except UserError:
        return []


def parse_sink(text: str) -> Sink:
    """Parse the sink that the user names: a kind, or a folder, which is examined."""
    kinds = {kind.lower(): kind for kind in KINDS}
    if text.lower() in _FILE_FORMATS:
        return Sink(name=text.lower(), known_by="the user says so", is_files=True)
    if text.lower() in kinds:
        return Sink(name=kinds[text.lower()], known_by="the user says so")
    folder = open_folder(text)
    names = {entry.name for entry in folder.entries()}
    if MANIFEST in names:
        return Sink(name=folder.url, known_by=f"it has {MANIFEST}", is_files=True)
    if names:
        return Sink(name=folder.url, known_by=f"it has no {MANIFEST}")
    raise UserError(
        f"{text!r} is neither a kind of sink ({', '.join(KINDS)}) nor a folder with something in it. "
        "Nothing was changed."
    )


def is_manifest_of(manifest: Sequence[Entry], batches: Sequence[MicroBatch]) -> bool:
    """Whether the query of these batches wrote a manifest: each entry between a plan and its commit."""
    written = {
        int(number): entry.changed_ms
        for entry in manifest
        if (number := entry.name.removesuffix(".compact")).isascii() and number.isdigit()
    }
    done = [one for one in batches if one.is_committed]
    if not done or done[-1].id not in written:
        return False
    for batch in done:
        if batch.id not in written:
            continue  # removed since, when the manifest was compacted
        at, begin, end = written[batch.id], batch.planned_file_ms, batch.committed_ms
        if at is None or begin is None or end is None:
            return False
        if not begin - _TOLERANCE_MS <= at <= end + _TOLERANCE_MS:
            return False
    return True
