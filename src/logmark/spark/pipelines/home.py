"""The home of a pipeline: the folder with its record, its checkpoints, its status and its locks.

    <root>/<name>/record.json     which version is live, which one is being built, where its file and its cluster are
    <root>/<name>/v<n>/           the checkpoint of version n, which only Spark writes
    <root>/<name>/status.json     the status of the last run
    <root>/<name>/replay.json     the state of an unfinished replay
    <root>/<name>/versions.json   which versions became live, and when
    <root>/<name>/live.lock       held by the one process that runs the live version
    <root>/<name>/replay.lock     held by the one process that replays the pipeline
    <root>/<name>/record.lock     held for a moment while the record is changed
    <root>/<name>/run.lock        held by the process that takes commands for the pipeline (commands.py)

Executors keep state below the checkpoints, so on a cluster the root must be a folder that all its machines share.
"""

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from logmark import private_files
from logmark.errors import UserError
from logmark.offsets.user_files import state_folder
from logmark.spark.checkpoint import is_unused, planned_batch
from logmark.spark.pipelines.declaration import PipelineDeclaration, Version, version_group

_FORMAT = 1
# A process that only checks whether a lock is held has it for microseconds.
_TRIES = 5
_RETRY_S = 0.02


def default_root() -> Path:
    """Return the folder with the homes of pipelines: LOGMARK_PIPELINES, or one in the user's state folder."""
    named = os.environ.get("LOGMARK_PIPELINES")
    return Path(named) if named else state_folder() / "pipelines"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """What outlives a run: the live version, the one that is being built, and what the pipeline is.

    `last` is the highest number that a version ever had. `begun` is the version whose query was started last: if it has
    no checkpoint, the checkpoint is lost. `owner` is the name of the home in the commits of its queries.
    """

    live: int = 1
    building: int | None = None
    last: int = 1
    begun: int = 0
    owner: str = ""
    file: str | None = None
    bootstrap_servers: str | None = None
    context: str | None = None
    group: str | None = None
    topics: str = ""
    sink: str = ""
    dead_letters: str | None = None

    def next_number(self) -> int:
        """Return a number that no version ever had."""
        return self.last + 1


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one pipeline."""

    root: Path
    name: str

    @property
    def folder(self) -> Path:
        """The folder of this pipeline."""
        return self.root / self.name

    @property
    def status_file(self) -> Path:
        """The file with the status of the last run."""
        return self.folder / "status.json"

    def checkpoint(self, version: int) -> Path:
        """Return the checkpoint of a version."""
        return (self.folder / f"v{version}").absolute()

    def record(self) -> PipelineRecord:
        """Return the record; that of a pipeline that never ran says that version 1 is live.

        Raises UserError if the file cannot be read.
        """
        try:
            fields = json.loads((self.folder / "record.json").read_text())
            if fields.pop("format") != _FORMAT:
                raise UserError(
                    f"{self.folder} was written by a newer Logmark. Nothing was changed. Use that version of it."
                )
            return PipelineRecord(**fields)
        except FileNotFoundError:
            return PipelineRecord()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{self.folder / 'record.json'} cannot be read, so the live version of {self.name} is unknown. Nothing "
                "was changed. Restore the file from a backup, or remove the whole folder to start from scratch."
            ) from None

    def save(self, record: PipelineRecord) -> None:
        """Write the record to disk; a crash leaves the old one or the new one."""
        write_file(self.folder / "record.json", json.dumps({"format": _FORMAT, **asdict(record)}, indent=1) + "\n")

    def change(self, change: Callable[[PipelineRecord], PipelineRecord]) -> PipelineRecord:
        """Replace the record by what `change` makes of it, under a lock, and return the new one."""
        private_files.make_folders(self.folder)
        with private_files.open_file(self.folder / "record.lock", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = self.record()
            after = change(before)
            if after != before or not (self.folder / "record.json").exists():
                self.save(after)
            return after

    def owner(self) -> str:
        """Return the name of this home in the commits of its queries: made once, and kept in the record."""
        made = f"{self.name}.{uuid.uuid4().hex[:8]}"
        return self.record().owner or self.change(lambda one: one if one.owner else replace(one, owner=made)).owner

    def live_version(self, pipeline: PipelineDeclaration) -> Version:
        """Return the live version; if a replay built it, it had a group of its own until then."""
        number = self.record().live
        return Version(
            number=number,
            group=pipeline.group,
            checkpoint=self.checkpoint(number),
            sink=pipeline.sink,
            group_before=version_group(pipeline, number),
        )

    def has_lost_checkpoint(self) -> bool:
        """Return whether the live version has run and its checkpoint is missing."""
        record = self.record()
        checkpoint = self.checkpoint(record.live)
        return record.begun == record.live and planned_batch(checkpoint) is None and not is_unused(checkpoint)

    def live(self) -> contextlib.AbstractContextManager[None]:
        """Hold the live lock, the right to run the live version; raises UserError if another process has it."""
        return self._lock("live.lock", f"The pipeline {self.name} runs already")

    def replaying(self) -> contextlib.AbstractContextManager[None]:
        """Hold the replay lock, the right to replay the pipeline; raises UserError if another process has it."""
        return self._lock("replay.lock", f"The pipeline {self.name} is being replayed already")

    def supervising(self) -> contextlib.AbstractContextManager[None]:
        """Hold the run lock, the right to take commands; raises UserError if another process has it."""
        return self._lock("run.lock", f"The pipeline {self.name} is supervised already")

    def commanding(self) -> contextlib.AbstractContextManager[None]:
        """Hold the command lock, the right to send a command; raises UserError if another process has it."""
        return self._lock("command.lock", f"Another command to the pipeline {self.name} is under way")

    def is_supervised(self) -> bool:
        """Return whether a process takes commands for the pipeline now."""
        return self._is_held("run.lock")

    def is_commanded(self) -> bool:
        """Return whether a process waits for the answer to a command now."""
        return self._is_held("command.lock")

    def is_live(self) -> bool:
        """Return whether a process runs the live version now."""
        return self._is_held("live.lock")

    def is_replaying(self) -> bool:
        """Return whether a process replays the pipeline now."""
        return self._is_held("replay.lock")

    def _is_held(self, name: str) -> bool:
        try:
            # A shared lock, so that two processes that check do not take each other for the holder.
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
            if not _try_lock(file):
                raise UserError(f"{what}, in the process {_read_holder(file)}. Nothing was changed.")
            file.seek(0)
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            yield


def list_homes(root: Path) -> list[Home]:
    """Return the homes below a folder, by name."""
    return [Home(root, path.parent.name) for path in sorted(root.glob("*/record.json"))]


def write_file(path: Path, text: str) -> None:
    """Write a file durably; a reader, or a crash, sees the old text or the new one and never a part."""
    private_files.make_folders(path.parent)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with private_files.open_file(part, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _try_lock(file: IO[str]) -> bool:
    """Return whether this process got the lock; it tries a few times, because another one may just be checking it."""
    for left in range(_TRIES - 1, -1, -1):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_RETRY_S if left else 0)
        else:
            return True
    return False


def _read_holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "unknown"
