"""The runs of replays as they are remembered: what was asked, how far it came, and where in the target to look.

A run is one JSON file in the user's state folder, replaced as a whole. It is behind what was written, never ahead of
it: what is missing in it is found in the target.
"""

import contextlib
import fcntl
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from logmark import private_files
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.bounded_replay.copy_headers import Headers
from logmark.offsets.user_files import replace_file

VERSION = 1
_FILE_NAMES = {"is_reported": "is_told"}  # fields whose name in the file is an older one
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEPT = 50  # finished runs; unfinished ones stay until they are finished or given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The records that are wanted: one of the keys, every header, and the text in the value; nothing named is all."""

    keys: frozenset[bytes] = frozenset()
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    value_contains: bytes | None = None

    @property
    def is_everything(self) -> bool:
        return not self.keys and not self.headers and self.value_contains is None

    def takes(self, key: bytes | None, value: bytes | None, headers: Headers) -> bool:
        """Whether a record is wanted; a header without a value in the selection only has to be there."""
        if self.keys and key not in self.keys:
            return False
        for name, wanted in self.headers:
            if not any(found == name and wanted in (None, content) for found, content in headers):
                return False
        return self.value_contains is None or (value is not None and self.value_contains in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What was asked for, in the words of the command."""

    topic: str
    begin: str = "earliest"
    end: str = "latest"
    partitions: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()  # in hexadecimal
    headers: tuple[tuple[str, str | None], ...] = ()
    value_contains: str | None = None
    to_topic: str = ""
    to_original: tuple[str, ...] = ()  # the headers that name each record's topic
    to_partition: int | None = None
    timestamp: str = "keep"
    compression: str = "keep"
    strip_headers: tuple[str, ...] = ()
    max_hops: int = 1
    limit: int | None = None
    restore: bool = False  # dead letters become the records that they were
    pipeline: str | None = None  # only the dead letters of this one

    @property
    def restores(self) -> bool:
        """Whether dead letters go out as the records that they were."""
        return self.restore or bool(self.to_original)

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the range is left out on purpose, but for the dead letters of other pipelines."""
        return self.selection.is_everything and self.limit is None and not self.partitions

    @property
    def selection(self) -> Selection:
        return Selection(
            keys=frozenset(bytes.fromhex(key) for key in self.keys),
            headers=tuple((name.encode(), None if value is None else value.encode()) for name, value in self.headers),
            value_contains=None if self.value_contains is None else self.value_contains.encode(),
        )

    @property
    def is_copy(self) -> bool:
        """Whether records are written and not only shown."""
        return bool(self.to_topic or self.to_original)

    @property
    def target(self) -> str:
        """Where to, in words."""
        return self.to_topic or "the topics named in the records' headers"

    def digest(self, source_cluster: str, target_cluster: str) -> str:
        """Return a digest that is equal for the same command on the same clusters."""
        words = json.dumps([source_cluster, target_cluster, asdict(self)], sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProgress:
    """One partition's range: everything below `next` is decided, and what was wanted of it is acknowledged."""

    start: int
    stop: int
    next: int
    copied: int = 0
    not_selected: int = 0
    hopped: int = 0  # left out because they have been through too many replays
    unaddressed: int = 0  # left out because no header names their topic
    repeated: int = 0  # dead letters about a record that was sent back already
    valueless: int = 0  # dead letters that do not hold the record
    expired: int = 0  # offsets that were deleted before they were read


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProgress:
    """One partition that is written to: whatever this run writes from now on lies at `end` or behind it."""

    end: int
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopic:
    """A topic that is written to; it keeps its count of partitions for the whole run."""

    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRun:
    """One replay, from before its first write to its end."""

    id: str
    request: ReplayRequest
    source_cluster: str
    target_cluster: str
    source_topic_id: str
    source_partitions: int
    producer_id: int
    producer_epoch: int
    started_ms: int
    updated_ms: int
    is_finished: bool = False
    is_reported: bool = False  # the user was told that it is finished
    sources: Mapping[int, SourceProgress] = field(default_factory=dict)
    topics: Mapping[str, TargetTopic] = field(default_factory=dict)
    targets: Mapping[TopicPartition, TargetProgress] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return self.request.digest(self.source_cluster, self.target_cluster)

    @property
    def copied(self) -> int:
        return sum(one.copied for one in self.sources.values())

    @property
    def hopped(self) -> int:
        return sum(one.hopped for one in self.sources.values())

    @property
    def expired(self) -> int:
        return sum(one.expired for one in self.sources.values())

    @property
    def unaddressed(self) -> int:
        return sum(one.unaddressed for one in self.sources.values())

    @property
    def not_selected(self) -> int:
        return sum(one.not_selected for one in self.sources.values())

    @property
    def repeated(self) -> int:
        return sum(one.repeated for one in self.sources.values())

    @property
    def valueless(self) -> int:
        return sum(one.valueless for one in self.sources.values())

    @property
    def offsets_left(self) -> int:
        return sum(one.stop - one.next for one in self.sources.values())

    def with_source(self, partition: int, source: SourceProgress) -> "ReplayRun":
        return replace(self, sources={**self.sources, partition: source})

    def with_target(self, partition: TopicPartition, target: TargetProgress) -> "ReplayRun":
        return replace(self, targets={**self.targets, partition: target})


def check_run_id(name: str) -> str:
    """Return a run's name that a user chose, if it can be a file name."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name for a replay: use up to 64 letters, digits, dots, underscores and hyphens, with a "
            "letter or a digit first.",
            exit_code=2,
        )
    return name


class RunStore:
    """The runs in a folder, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, run: ReplayRun) -> None:
        """Replace the saved state of the run; a crash leaves either the old file or the new one."""
        try:
            private_files.make_folders(self._folder)
            replace_file(self._path(run.id), json.dumps(_to_json(run)))
        except OSError as error:
            raise UserError(
                f"The state of replay {run.id} cannot be written to {self._folder}: {error.strerror}. Free or allow "
                "that folder, or name another by XDG_STATE_HOME."
            ) from None

    def has(self, run_id: str) -> bool:
        """Whether a run of this name was begun and not forgotten."""
        return _NAME.fullmatch(run_id) is not None and self._path(run_id).exists()

    def load(self, run_id: str) -> ReplayRun:
        """Load the run of this id; raises UserError if there is none."""
        path = self._path(run_id)
        if not self.has(run_id):
            known = ", ".join(run.id for run in self.runs() if not run.is_finished)
            raise UserError(
                f"There is no replay {run_id} in {self._folder}. "
                + (f"Unfinished: {known}." if known else "None is unfinished.")
            )
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["version"] != VERSION:
                raise UserError(f"{path} was written by another version of Logmark and is left as it is.")
            return _from_json(found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({error}). It is left as it is.") from None

    def runs(self) -> list[ReplayRun]:
        """Every run that can be read, the newest last."""
        found = []
        for path in self._folder.glob("[!.]*.json"):
            with contextlib.suppress(UserError):
                found.append(self.load(path.stem))
        return sorted(found, key=lambda run: (run.started_ms, run.id))

    def find_unreported(self, digest: str) -> ReplayRun | None:
        """Return the newest run of the same command that is not finished, or whose end was not reported."""
        return next((run for run in reversed(self.runs()) if run.digest == digest and not run.is_reported), None)

    def forget(self, run_id: str) -> None:
        """Delete a run, so that it cannot be resumed; what it has copied stays."""
        self.load(run_id)
        self._remove(run_id)

    def finish(self, run: ReplayRun) -> None:
        """Remembers that a run is at its end, and forgets the oldest of those that are and of which it was told."""
        self.save(replace(run, is_finished=True))
        others = [known for known in self.runs() if known.is_reported and known.id != run.id]
        for old in others[: max(0, len(others) + 1 - _KEPT)]:
            self._remove(old.id)

    def mark_reported(self, run: ReplayRun) -> None:
        """Save that the user was told of the run's end."""
        self.finish(replace(run, is_reported=True))

    @contextlib.contextmanager
    def lock(self, run_id: str) -> Iterator[None]:
        """Lock a run against other processes of this machine."""
        private_files.make_folders(self._folder)
        with private_files.open_file(self._folder / f"{run_id}.lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"Replay {run_id} is running in another process. Nothing was changed.") from None
            yield

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"

    def _remove(self, run_id: str) -> None:
        for ending in ("json", "lock"):
            (self._folder / f"{run_id}.{ending}").unlink(missing_ok=True)


def _to_json(run: ReplayRun) -> dict[str, Any]:
    fields = asdict(run)
    return {
        "version": VERSION,
        **{_FILE_NAMES.get(name, name): value for name, value in fields.items()},
        "sources": {str(number): asdict(one) for number, one in run.sources.items()},
        "targets": [[*partition, asdict(one)] for partition, one in run.targets.items()],
    }


def _from_json(found: Mapping[str, Any]) -> ReplayRun:
    names = {written: name for name, written in _FILE_NAMES.items()}
    fields = {names.get(name, name): value for name, value in found.items() if name != "version"}
    asked = dict(fields["request"])
    for name in ("partitions", "keys", "to_original", "strip_headers"):
        asked[name] = tuple(asked[name])
    asked["headers"] = tuple((name, value) for name, value in asked["headers"])
    fields["request"] = ReplayRequest(**asked)
    fields["sources"] = {int(number): SourceProgress(**one) for number, one in fields["sources"].items()}
    fields["topics"] = {name: TargetTopic(**one) for name, one in fields["topics"].items()}
    fields["targets"] = {TopicPartition(topic, n): TargetProgress(**one) for topic, n, one in fields["targets"]}
    return ReplayRun(**fields)
