"""A journal in a file of the user's: one line per thing that happened, never changed, only added to."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from logmark import private_files
from logmark.errors import UserError
from logmark.offsets import user_files
from logmark.offsets.journal.changes import (
    STATES,
    VERSION,
    Change,
    ChangeState,
    check_version,
    resolve_states,
    sort_changes,
)


class FileJournal:
    """Changes of one user in all clusters; several processes may use the file at the same time."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or user_files.state_folder() / "journal.jsonl"

    @property
    def location(self) -> str:
        """Where the journal is, for people."""
        return f"the file {self.path}"

    def add(self, change: Change) -> None:
        """Append a change; it is on disk when this returns."""
        self._append(change.to_json())

    def set_state(self, id: str, state: ChangeState) -> None:
        """Append the new state of a change; it is on disk when this returns."""
        assert state in STATES
        self._append({"version": VERSION, "finished": id, "state": state})

    def changes(
        self, cluster_id: str | None = None, name: str | None = None, since_ms: int | None = None
    ) -> list[Change]:
        """Return the changes of a cluster, of a group or a checkpoint, since a time: the newest last."""
        return sort_changes(
            one
            for one in resolve_states(self._read().values()).values()
            if (cluster_id is None or one.cluster_id == cluster_id)
            and (name is None or one.name == name)
            and (since_ms is None or one.at_ms >= since_ms)
        )

    def written_changes(self, cluster_id: str) -> list[Change]:
        """Return the changes of a cluster, each in the last state written for it."""
        return [one for one in self._read().values() if one.cluster_id == cluster_id]

    def _append(self, fields: Mapping[str, Any]) -> None:
        line = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            is_new = not self.path.exists()
            private_files.make_folders(self.path.parent)
            with self._locked("a+b", fcntl.LOCK_EX) as file:
                _cut_torn_line(file)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                user_files.sync_folder(self.path.parent)
        except OSError as error:
            raise UserError(
                f"The journal {self.path} cannot be written: {error.strerror or error}. What is not journaled is not "
                "done; make room or set XDG_STATE_HOME to a folder that can be written."
            ) from None

    def _read(self) -> dict[str, Change]:
        try:
            with self._locked("rb", fcntl.LOCK_SH) as file:
                lines = file.read().split(b"\n")[:-1]  # what follows the last newline was never finished
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UserError(f"The journal {self.path} cannot be read: {error.strerror or error}.") from None
        found: dict[str, Change] = {}
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line)
                check_version(fields)
                if "finished" in fields:
                    id = fields["finished"]
                    found[id] = replace(found[id], state=fields["state"])
                else:
                    found[fields["id"]] = Change.from_json(fields)
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"Line {number} of the journal {self.path} is damaged ({type(error).__name__}: {error}). Nothing "
                    "was changed; mend that line, or move the file away to begin a new one."
                ) from None
        return found

    @contextlib.contextmanager
    def _locked(self, mode: str, kind: int) -> Iterator[IO[bytes]]:
        with private_files.open_file(self.path, mode) as file:
            fcntl.flock(file, kind)
            yield file  # closing it gives the lock back


def _cut_torn_line(file: IO[bytes]) -> None:
    """Remove the partial line that a process left when it died during a write."""
    size = file.seek(0, os.SEEK_END)
    at = size
    while at > 0:
        start = max(at - 65536, 0)
        file.seek(start)
        last = file.read(at - start).rfind(b"\n")
        if last >= 0:
            at = start + last + 1
            break
        at = start
    if at < size:
        file.truncate(at)
