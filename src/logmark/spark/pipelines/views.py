"""Pipelines, their versions and their replays as programs read them: JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from logmark.client.client import Client
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.dead_letters.topic import count_dead_letters
from logmark.offsets.lag.ages import Age
from logmark.offsets.lag.report import build_lag_report
from logmark.offsets.lag.sample import take_sample
from logmark.offsets.lag.views import age_fields
from logmark.offsets.reset.executor import AppliedReset
from logmark.offsets.reset.views import view_plan
from logmark.spark.pipelines.home import Home, PipelineRecord
from logmark.spark.pipelines.replay.in_place import InPlacePlan
from logmark.spark.pipelines.replay.plan import VersionPlan
from logmark.spark.pipelines.replay.runner import ReplayResult
from logmark.spark.pipelines.replay.state import ReplayState
from logmark.spark.pipelines.status import RunState, RunStatus, read_status
from logmark.spark.pipelines.supervisor import Supervisor
from logmark.spark.pipelines.versions import PipelineVersion
from logmark.spark.source.offset_maps import nest_by_topic

NestedOffsets = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """A pipeline that has a home: what it is, and what it is doing."""

    name: str
    file: str | None
    bootstrap_servers: str | None
    group: str | None
    topics: str | None
    sink: str | None
    version: int
    building: int | None
    is_running: bool
    is_replaying: bool
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLag:
    """The lag of a pipeline's group in records and in time, its dead letters, and why they are unknown.

    `restored_at_ms` is when the pipeline last restored its offsets, because somebody had moved the group.
    """

    records: int | None = None
    age: Age | None = None
    dead_letters: int | None = None
    restored_at_ms: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatusView:
    """A pipeline with its lag and what its last run has written."""

    pipeline: PipelineView
    lag: PipelineLag
    dead_letters_topic: str | None
    last: RunStatus | None

    @property
    def rate(self) -> float | None:
        """Records in a second; 0 while it does not run."""
        return None if self.last is None else self.last.rate if self.pipeline.is_running else 0.0

    @property
    def pid(self) -> int | None:
        """The process that runs it."""
        return None if self.last is None or not self.pipeline.is_running else self.last.pid

    def to_json(self) -> dict[str, Any]:
        """Return all of it in one object; without a known age only `seconds` is there, and null."""
        last, lag = self.last, self.lag
        return asdict(self.pipeline) | {
            "lag": lag.records,
            **(age_fields(lag.age) if lag.age is not None else {"seconds": None}),
            "dead_letters_topic": self.dead_letters_topic,
            "dead_letters": lag.dead_letters,
            "problem": lag.problem,
            "rate": self.rate,
            "batch": None if last is None or last.batch is None else asdict(last.batch),
            "batches": None if last is None else last.batches,
            "records": None if last is None else last.records,
            "dropped_rows": None if last is None else last.dropped_rows,
            "restarts": None if last is None else last.restarts,
            "error": None if last is None else last.error,
            "error_at_ms": None if last is None else last.error_at_ms,
            "next_try_at_ms": None if last is None or not self.pipeline.is_running else last.next_try_at_ms,
            "since_ms": None if last is None else last.since_ms,
            "pid": self.pid,
            "restored_at_ms": lag.restored_at_ms,
        }


def view_pipeline(home: Home, record: PipelineRecord | None = None, last: RunStatus | None = None) -> PipelineView:
    """Return a pipeline as its home says; what its last run has written is read unless it is given."""
    record = record or home.record()
    last = last or read_status(home.status_file)
    return PipelineView(
        name=home.name,
        file=record.file,
        bootstrap_servers=record.bootstrap_servers,
        group=record.group,
        topics=record.topics,
        sink=record.sink,
        version=record.live,
        building=record.building,
        is_running=home.is_live(),
        is_replaying=home.is_replaying(),
        state=describe_state(last, is_live=home.is_live(), is_replaying=home.is_replaying()),
    )


def view_status(home: Home, record: PipelineRecord, lag: PipelineLag) -> PipelineStatusView:
    """Return a pipeline with its lag."""
    last = read_status(home.status_file)
    return PipelineStatusView(
        pipeline=view_pipeline(home, record, last), lag=lag, dead_letters_topic=record.dead_letters, last=last
    )


# What a pipeline may be doing while no process holds its live lock, by whether it is being replayed.
_WITHOUT_LOCK = {False: {RunState.HALTED}, True: {RunState.HALTED, RunState.SUPERSEDED}}


def describe_state(status: RunStatus | None, *, is_live: bool, is_replaying: bool) -> str:
    """Return what a pipeline is doing: its locks decide where its last status may be outdated."""
    if status is None:
        text = "running" if is_live else "never ran"
    elif is_live:
        text = "running" if status.state.is_over else str(status.state)
    elif status.state.is_over or status.state in _WITHOUT_LOCK[is_replaying]:
        text = str(status.state)
    else:
        text = "died"
    return f"{text}, being replayed" if is_replaying else text


def measure_lag(client: Client, group: str, dead_letters_topic: str | None) -> PipelineLag:
    """Return the lag of a pipeline's group and the number of its dead letters."""
    sample = take_sample(client, [group])
    [found] = build_lag_report(sample, client=client).groups
    dead_letters = None if dead_letters_topic is None else count_dead_letters(client, dead_letters_topic)
    if found.group.problem or not found.total.partitions:
        return PipelineLag(dead_letters=dead_letters, problem=found.group.problem or None)
    marks = [CommitMetadata.parse(one.metadata) for one in client.committed(group).values()]
    restored = [mark.restored_ms for mark in marks if mark is not None and mark.restored_ms is not None]
    return PipelineLag(
        records=found.total.records,
        age=found.age,
        dead_letters=dead_letters,
        restored_at_ms=max(restored, default=None),
    )


def view_run(supervisor: Supervisor) -> dict[str, Any]:
    """Return the status of one pipeline of a run, after its name."""
    return {"name": supervisor.name} | asdict(supervisor.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionView:
    """A version of a pipeline."""

    version: int
    live: bool
    building: bool
    can_roll_back: bool
    live_since_ms: int | None
    how: str
    next_offsets: NestedOffsets | None
    rows: int | None
    size_bytes: int | None


def view_version(version: PipelineVersion) -> VersionView:
    """Return a version of a pipeline in the form that programs read."""
    return VersionView(
        version=version.number,
        live=version.is_live,
        building=version.is_building,
        can_roll_back=version.can_roll_back,
        live_since_ms=version.since_ms,
        how=version.how,
        next_offsets=None if version.next_offsets is None else nest_by_topic(version.next_offsets),
        rows=version.rows,
        size_bytes=version.size_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPlanView:
    """A version that a replay would build."""

    kind: str
    version: int
    stateful: bool
    starts: NestedOffsets
    stops: NestedOffsets
    records: int
    dropped: int
    notes: Sequence[str]


def view_version_plan(plan: VersionPlan) -> VersionPlanView:
    """Return the plan of a new version in the form that programs read."""
    return VersionPlanView(
        kind=plan.kind.value,
        version=plan.number,
        stateful=plan.is_stateful,
        starts=nest_by_topic(plan.starts),
        stops=nest_by_topic(plan.stops),
        records=plan.records,
        dropped=plan.dropped,
        notes=list(plan.notes),
    )


@dataclass(frozen=True, slots=True)
class InPlaceReplayView:
    """A replay in place: its plan, and the reset of the group if it was applied."""

    pipeline: str
    plan: InPlacePlan
    applied: AppliedReset | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the replay and the plan of the group's reset in one object."""
        reset = self.plan.reset if self.applied is None else self.applied.plan
        return {
            "pipeline": self.pipeline,
            "kind": "in-place",
            "rows_to_replace": self.plan.rows,
            "stops": nest_by_topic(self.plan.stops) if self.plan.ends_early else None,
            **view_plan(reset, self.applied).to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStateView:
    """A replay that was interrupted, as it would be resumed."""

    version: int
    kind: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChangeView:
    """A version that would become live by a rollback, or be removed with its unfinished replay."""

    version: int
    kind: str


def view_state(state: ReplayState) -> ReplayStateView:
    """Return an unfinished replay in the form that programs read."""
    return ReplayStateView(version=state.version, kind=state.kind.value, step=state.step.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResultView:
    """What a replay did; `sent` and the two after it are null if it has published no topic."""

    pipeline: str
    kind: str
    version: int
    next_offsets: NestedOffsets
    sent: int | None
    sent_before: int | None
    missing_id: int | None


def view_result(pipeline: str, result: ReplayResult) -> ReplayResultView:
    """Return what a replay did in the form that programs read."""
    published = result.publication
    return ReplayResultView(
        pipeline=pipeline,
        kind=result.kind.value,
        version=result.version,
        next_offsets=nest_by_topic(result.next_offsets),
        sent=published.sent if published else None,
        sent_before=published.known if published else None,
        missing_id=published.missing_id if published else None,
    )
