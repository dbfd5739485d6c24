"""What is remembered of pipelines between runs: a folder for each, with its record, its checkpoints and its locks.

    <root>/<name>/record.json     which version is live, which one is being built, where its file and its cluster are
    <root>/<name>/v<n>/           the checkpoint of version n: of Spark, and never edited by anybody else
    <root>/<name>/status.json     how the last run is doing, renewed by whoever runs it
    <root>/<name>/live.lock       held while the live version runs: by one process at a time
    <root>/<name>/replay.lock     held while another version is built
    <root>/<name>/record.lock     held for a moment by whoever changes the record

Executors keep state below the checkpoints, so on a cluster the root must be a folder that all its machines share.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from logmark import private_files
from logmark.errors import UserError
from logmark.offsets.user_files import state_folder
from logmark.spark.pipelines.pipeline import Pipeline, Version

_FORMAT = 1
# Looking whether a lock is held takes microseconds.
_TRIES = 5
_LOOK_S = 0.02


def default_root() -> Path:
    """Where pipelines are remembered unless somebody says otherwise."""
    named = os.environ.get("LOGMARK_PIPELINES")
    return Path(named) if named else state_folder() / "pipelines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What outlives a run: the live version, the one that is being built beside it, and what the pipeline is.

    `begun` is the version of which a query was started last, so that a checkpoint which is lost is noticed.
    """

    live: int = 1
    building: int | None = None
    last: int = 1
    begun: int = 0
    file: str | None = None
    bootstrap_servers: str | None = None
    context: str | None = None
    group: str | None = None
    topics: str = ""
    sink: str = ""
    dead_letters: str | None = None

    def next_number(self) -> int:
        """A number that no version ever had."""
        return self.last + 1


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one pipeline."""

    root: Path
    name: str

    @property
    def folder(self) -> Path:
        """Where everything of this pipeline is."""
        return self.root / self.name

    @property
    def status_file(self) -> Path:
        """How the last run is doing."""
        return self.folder / "status.json"

    def checkpoint(self, version: int) -> Path:
        """The checkpoint of a version."""
        return (self.folder / f"v{version}").absolute()

    def record(self) -> Record:
        """What is remembered; of a pipeline that never ran, nothing but that version 1 comes first."""
        try:
            fields = json.loads((self.folder / "record.json").read_text())
            if fields.pop("format") != _FORMAT:
                raise UserError(
                    f"{self.folder} was written by a newer Logmark. Nothing was changed. Use that version of it."
                )
            return Record(**fields)
        except FileNotFoundError:
            return Record()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{self.folder / 'record.json'} cannot be read, so nobody knows which version of {self.name} is live. "
                "Nothing was changed. Restore the file from a backup, or take the whole folder away to begin anew."
            ) from None

    def remember(self, record: Record) -> None:
        """The record is on disk, whole: a crash leaves the old one or the new."""
        write_whole(self.folder / "record.json", json.dumps({"format": _FORMAT, **asdict(record)}, indent=1) + "\n")

    def change(self, change: Callable[[Record], Record]) -> Record:
        """The record is what `change` makes of it, whoever else changes it at the same time; returns it."""
        private_files.make_folders(self.folder)
        with private_files.open_file(self.folder / "record.lock", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = self.record()
            after = change(before)
            if after != before or not (self.folder / "record.json").exists():
                self.remember(after)
            return after

    def live_version(self, pipeline: Pipeline) -> Version:
        """The version that runs as the pipeline: one that was built or caught up had a group of its own until then."""
        number = self.record().live
        return Version(
            number=number,
            group=pipeline.group,
            checkpoint=self.checkpoint(number),
            sink=pipeline.sink,
            group_before=f"{pipeline.group}.v{number}",
        )

    def has_lost_checkpoint(self) -> bool:
        """Whether the live version has run and its checkpoint is gone."""
        record = self.record()
        checkpoint = self.checkpoint(record.live)
        return record.begun == record.live and not has_begun(checkpoint) and not _is_unused(checkpoint)

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Holds the right to run the live version; raises a sentence if another process has it."""
        with self._lock("live.lock", f"The pipeline {self.name} runs already"):
            yield

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """Holds the right to build a version; raises a sentence if another process has it."""
        with self._lock("replay.lock", f"The pipeline {self.name} is being replayed already"):
            yield

    def is_live(self) -> bool:
        """Whether a process runs the live version now."""
        return self._is_held("live.lock")

    def is_replaying(self) -> bool:
        """Whether a process builds a version now."""
        return self._is_held("replay.lock")

    def _is_held(self, name: str) -> bool:
        try:
            # Shared, so that two who look do not take each other for the holder.
            with (self.folder / name).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except OSError:
            return True

    @contextlib.contextmanager
    def _lock(self, name: str, what: str) -> Iterator[None]:
        private_files.make_folders(self.folder)
        with private_files.open_file(self.folder / name, "a+") as file:
            if not _is_locked(file):
                raise UserError(f"{what}, in the process {_holder(file)}. Nothing was changed.")
            file.seek(0)
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            yield


def homes(root: Path) -> list[Home]:
    """The pipelines that are remembered, by name."""
    return [Home(root, path.parent.name) for path in sorted(root.glob("*/record.json"))]


def has_begun(checkpoint: Path) -> bool:
    """Whether a query has planned a batch with this checkpoint."""
    folder = checkpoint / "offsets"
    return folder.is_dir() and any(one.name.isdecimal() for one in folder.iterdir())


def _is_unused(checkpoint: Path) -> bool:
    """Whether a query was made with this checkpoint that never came to its first batch."""
    return (checkpoint / "metadata").exists() and not any((checkpoint / "commits").glob("[0-9]*"))


def write_whole(path: Path, text: str) -> None:
    """The file has this text; nobody ever reads a part of it."""
    private_files.make_folders(path.parent)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with private_files.open_file(part, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _is_locked(file: IO[str]) -> bool:
    """True once this process has the lock; not at the first try, because somebody may be looking who has it."""
    for left in range(_TRIES - 1, -1, -1):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_LOOK_S if left else 0)
        else:
            return True
    return False


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "unknown"
