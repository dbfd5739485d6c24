"""How a run is doing: written to `status.json` by whoever runs a pipeline, and read by anybody."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from logmark.spark.pipelines.home import write_whole

_BATCHES_MAX = 10
_IDLE_AFTER_MS = 60_000


class State(StrEnum):
    """What a pipeline is doing."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    MAKING_WAY = "making way"
    REBUILDING = "rebuilding"
    EXAMINING = "examining"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Nothing more will happen in this run."""
        return self in (State.DONE, State.STOPPED, State.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A batch that is finished: its number in the checkpoint, the offsets that it read, and when it ended."""

    number: int
    records: int
    duration_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One pipeline in one run."""

    state: State
    pid: int
    version: int
    since_ms: int
    at_ms: int
    batch: BatchDone | None = None
    batches: int = 0
    records: int = 0
    rate: float = 0.0
    restarts: int = 0
    error: str | None = None
    error_at_ms: int | None = None
    next_try_at_ms: int | None = None


def write_status(path: Path, status: Status) -> None:
    """The file says how the run is doing; a reader never sees a part of it."""
    write_whole(path, json.dumps(asdict(status), indent=1) + "\n")


def read_status(path: Path) -> Status | None:
    """How the last run was doing when it last said so; None if nothing can be read there."""
    try:
        fields = json.loads(path.read_text())
        batch = fields.pop("batch")
        state = State(fields.pop("state"))
        return Status(state=state, batch=None if batch is None else BatchDone(**batch), **fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class Meter:
    """Counts the batches of a query by its reports of progress."""

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.last: BatchDone | None = None
        self._recent: deque[BatchDone] = deque(maxlen=_BATCHES_MAX)

    def begin(self) -> None:
        """Another query reports from now on, whose batches are numbered anew."""
        self.last = None

    def note(self, progress: Mapping[str, Any]) -> bool:
        """Takes a report into account; True if it is about a batch that is new here."""
        done = batch_of(progress)
        if done is None or (self.last is not None and done.number <= self.last.number):
            return False
        self.last = done
        self.batches += 1
        self.records += done.records
        self._recent.append(done)
        return True

    def rate(self, now_ms: int) -> float:
        """Records a second over the last batches; none where the last one is long ago."""
        if not self._recent or now_ms - self._recent[-1].at_ms > _IDLE_AFTER_MS:
            return 0.0
        began_ms = self._recent[0].at_ms - self._recent[0].duration_ms
        took_ms = max(self._recent[-1].at_ms - began_ms, 1)
        return sum(one.records for one in self._recent) * 1000 / took_ms


def batch_of(progress: Mapping[str, Any]) -> BatchDone | None:
    """The batch that a report is about; None if it only says that there was nothing to do."""
    durations = progress.get("durationMs") or {}
    if "addBatch" not in durations:
        return None
    duration_ms = int(durations.get("triggerExecution", 0))
    began_ms = round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000)
    return BatchDone(
        number=int(progress["batchId"]),
        records=sum(_records(source) for source in progress.get("sources", ())),
        duration_ms=duration_ms,
        at_ms=began_ms + duration_ms,
    )


def _records(source: Mapping[str, Any]) -> int:
    """How many offsets a batch has read: counted as lag is, whatever Spark reads twice."""
    start, end = _position(source.get("startOffset")), _position(source.get("endOffset"))
    if end is None or start == end:
        return 0
    return sum(
        max(int(offset) - int(end["f"].get(topic, {}).get(partition, offset)), 0)
        for topic, partitions in end["t"].items()
        for partition, offset in partitions.items()
    )


def _position(offset: Any) -> dict[str, Any] | None:
    """An offset of our source; Spark hands it over as text or as what the text says."""
    try:
        fields = json.loads(offset) if isinstance(offset, str) else offset
        return fields if isinstance(fields, dict) and "f" in fields and "t" in fields else None
    except ValueError:
        return None
