"""The status of a run: the process that runs a pipeline writes it to `status.json`, and commands read it."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from logmark.errors import UserError
from logmark.spark.pipelines.home import write_file
from logmark.spark.progress import count_dropped
from logmark.spark.source.position import Position

_BATCHES_MAX = 10
_IDLE_AFTER_MS = 60_000
_RENAMED_STATES = {"making way": "superseded"}  # in files of earlier versions


class RunState(StrEnum):
    """What a pipeline is doing."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUPERSEDED = "superseded"
    REBUILDING = "rebuilding"
    EXAMINING = "examining"
    STOPPING = "stopping"
    HALTED = "stopped by command"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen in this run."""
        return self in (RunState.DONE, RunState.STOPPED, RunState.FAILED)

    def can_become(self, other: "RunState") -> bool:
        """Return whether a pipeline in this state may enter another one."""
        return other in _TRANSITIONS[self]


_STARTED = frozenset({RunState.RUNNING, RunState.REBUILDING, RunState.RESTARTING, RunState.SUPERSEDED})
_OVER = frozenset({RunState.DONE, RunState.STOPPED, RunState.FAILED})
# A query that runs may end in all these ways, also while it is being stopped.
_ENDED = frozenset({RunState.RESTARTING, RunState.SUPERSEDED, RunState.EXAMINING, RunState.HALTED}) | _OVER
_TRANSITIONS = {
    RunState.STARTING: _STARTED | {RunState.HALTED, RunState.STOPPED, RunState.FAILED},
    RunState.RUNNING: _ENDED | {RunState.STOPPING},
    RunState.RESTARTING: _STARTED | {RunState.STARTING, RunState.HALTED, RunState.STOPPED, RunState.FAILED},
    RunState.SUPERSEDED: _STARTED | {RunState.HALTED, RunState.STOPPED, RunState.FAILED},
    RunState.REBUILDING: _STARTED | {RunState.STOPPED, RunState.FAILED},
    RunState.EXAMINING: frozenset({RunState.STOPPED, RunState.FAILED}),
    RunState.STOPPING: _ENDED,
    RunState.HALTED: frozenset({RunState.STARTING, RunState.STOPPED, RunState.FAILED}),
    RunState.DONE: frozenset({RunState.STARTING}),
    RunState.STOPPED: frozenset({RunState.STARTING}),
    RunState.FAILED: frozenset({RunState.STARTING}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBatch:
    """A committed batch: its number in the checkpoint, how many offsets it read, and when it ended.

    `dropped_rows` counts the rows that came after the watermark, at least: Spark may have combined some of them first.
    """

    number: int
    records: int
    duration_ms: int
    at_ms: int
    dropped_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The status of one pipeline in one run."""

    state: RunState
    pid: int
    version: int
    since_ms: int
    at_ms: int
    batch: FinishedBatch | None = None
    batches: int = 0
    records: int = 0
    rate: float = 0.0
    dropped_rows: int = 0
    restarts: int = 0
    error: str | None = None
    error_at_ms: int | None = None
    next_try_at_ms: int | None = None


def write_status(path: Path, status: RunStatus) -> None:
    """Write the status file; a reader never sees a part of it."""
    write_file(path, json.dumps(asdict(status), indent=1) + "\n")


def read_status(path: Path) -> RunStatus | None:
    """Return the last status that a run wrote, None if the file is missing or cannot be read."""
    try:
        fields = json.loads(path.read_text())
        batch = fields.pop("batch")
        state = fields.pop("state")
        return RunStatus(
            state=RunState(_RENAMED_STATES.get(state, state)),
            batch=None if batch is None else FinishedBatch(**batch),
            **fields,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class BatchMeter:
    """Counts the batches of a query by its progress reports."""

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.dropped_rows = 0
        self.last: FinishedBatch | None = None
        self._recent: deque[FinishedBatch] = deque(maxlen=_BATCHES_MAX)

    def reset(self) -> None:
        """Expect the reports of another query, which numbers its batches from 0."""
        self.last = None

    def add(self, progress: Mapping[str, Any]) -> bool:
        """Count the batch of a report; return whether it is a new one."""
        done = parse_progress(progress)
        if done is None or (self.last is not None and done.number <= self.last.number):
            return False
        self.last = done
        self.batches += 1
        self.records += done.records
        self.dropped_rows += done.dropped_rows
        self._recent.append(done)
        return True

    def rate(self, now_ms: int) -> float:
        """Return the records per second over the last batches, 0 if the last one is long ago."""
        if not self._recent or now_ms - self._recent[-1].at_ms > _IDLE_AFTER_MS:
            return 0.0
        started_ms = self._recent[0].at_ms - self._recent[0].duration_ms
        took_ms = max(self._recent[-1].at_ms - started_ms, 1)
        return sum(one.records for one in self._recent) * 1000 / took_ms


def parse_progress(progress: Mapping[str, Any]) -> FinishedBatch | None:
    """Return the batch of a progress report, None if the report says that there was nothing to do."""
    durations = progress.get("durationMs") or {}
    if "addBatch" not in durations:
        return None
    duration_ms = int(durations.get("triggerExecution", 0))
    started_ms = round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000)
    return FinishedBatch(
        number=int(progress["batchId"]),
        records=sum(_records(source) for source in progress.get("sources", ())),
        duration_ms=duration_ms,
        at_ms=started_ms + duration_ms,
        dropped_rows=count_dropped(progress),
    )


def _records(source: Mapping[str, Any]) -> int:
    """Return how many offsets a batch read: counted as lag is, however often Spark reads them."""
    end = source.get("endOffset")
    position = parse_offset(end)
    if position is None or source.get("startOffset") == end:
        return 0
    return sum(end - first for first, end in position.ranges.values())


def parse_offset(offset: Any) -> Position | None:
    """Return an offset of our source, which Spark hands over as text or parsed; None if it is of another source."""
    try:
        fields = json.loads(offset) if isinstance(offset, str) else offset
        return Position.from_json(fields)
    except (ValueError, TypeError, UserError):
        return None
