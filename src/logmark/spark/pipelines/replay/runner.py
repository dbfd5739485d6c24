"""Runs a replay that builds a version, step by step (`state.py`); after a kill the same runner resumes it."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.spark.checkpoint import finished_position, has_state, planned_batch, resume_position
from logmark.spark.errors import CheckpointLost, PublicationStarted
from logmark.spark.pipelines.declaration import Table, Topic, side_topic_name, version_group
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.replay.build import Report, build_version, run_version, shadow_version
from logmark.spark.pipelines.replay.fence import (
    WAIT_S,
    claim_group,
    commit_marked,
    fence_live_version,
    restore_group,
)
from logmark.spark.pipelines.replay.plan import VersionPlan, plan_rebuild
from logmark.spark.pipelines.replay.publication import (
    Publication,
    check_record_ids,
    create_side_topic,
    empty_side_topic,
    publish_side_topic,
)
from logmark.spark.pipelines.replay.state import (
    ReplayKind,
    ReplayState,
    ReplayStep,
    delete_state,
    load_state,
    save_state,
)
from logmark.spark.pipelines.versions import (
    LiveChange,
    add_live_change,
    check_can_resume,
    delete_side_topic,
    is_complete,
    remove_folder,
    remove_version,
)
from logmark.spark.source.position import Offsets
from logmark.spark.source.positions import QueryPosition
from logmark.spark.tables.versions import current_version, roll_back_version, swap_in_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What the user may choose about a replay that builds a version."""

    keep_old: bool = True
    keep_side_topic: bool = False
    missing_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What a replay did: the version, where it resumes, and what was sent to the topic."""

    version: int
    kind: ReplayKind
    next_offsets: Offsets
    publication: Publication | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCallbacks:
    """Who is called with messages for people, with the progress of a run, and with each step that is done."""

    say: Callable[[str], None] = print
    report: Report = lambda done, of: None
    on_step: Callable[[ReplayStep], None] = lambda step: None


def save_planned_replay(job: Job, client: Client, plan: VersionPlan, options: ReplayOptions) -> ReplayState:
    """Save the replay as planned; the caller holds `job.home.replaying()`."""
    stops = plan.stops if plan.kind is ReplayKind.BACKFILL else {}
    return _save_planned(job, client, plan.number, plan.kind, plan.starts, stops, options)


def save_planned_rollback(job: Job, client: Client, number: int, options: ReplayOptions) -> ReplayState:
    """Save the rollback to a version as planned; raises UserError if that version cannot be live again."""
    check_rollback(job, number)
    position = resume_position(job.home.checkpoint(number))
    assert position is not None
    return _save_planned(job, client, number, ReplayKind.ROLLBACK, position.next, {}, options)


def check_rollback(job: Job, number: int) -> None:
    """Raise UserError unless the version could be live again."""
    if number == job.home.record().live:
        raise UserError(f"Version {number} of {job.name} is live already. Nothing was changed.", exit_code=3)
    if not is_complete(job, number):
        raise UserError(
            f"Version {number} of {job.name} was not kept, so there is nothing to roll back to. Nothing was changed."
        )
    check_can_resume(job, number)


def _save_planned(
    job: Job,
    client: Client,
    number: int,
    kind: ReplayKind,
    starts: Offsets,
    stops: Offsets,
    options: ReplayOptions,
) -> ReplayState:
    state = ReplayState(
        version=number,
        kind=kind,
        starts=starts,
        stops=stops,
        keep_old=options.keep_old,
        keep_side_topic=options.keep_side_topic,
        missing_id=options.missing_id,
        group_before=client.committed(job.group),
    )
    save_state(job.home, state)
    job.home.change(lambda record: replace(record, building=number, last=max(record.last, number)))
    return state


class ReplayRunner:
    """Takes one replay from its saved step to its end; the caller holds `job.home.replaying()` meanwhile."""

    def __init__(
        self,
        job: Job,
        spark: "Callable[[], SparkSession]",
        client: Client,
        state: ReplayState,
        *,
        callbacks: ReplayCallbacks | None = None,
        wait_s: float = WAIT_S,
        has_live_lock: bool = False,
    ) -> None:
        self._job = job
        self._spark = spark
        self._client = client
        self._state = state
        self._callbacks = callbacks or ReplayCallbacks()
        self._wait_s = wait_s
        self._has_live_lock = has_live_lock
        self._version = shadow_version(job, state.version)
        self._publication: Publication | None = None
        self._checked_ids: Offsets = {}
        self._actions: dict[ReplayStep, Callable[[], None]] = {
            ReplayStep.PREPARED: self._prepare,
            ReplayStep.BUILT: self._build,
            ReplayStep.CAUGHT_UP: self._catch_up,
            ReplayStep.PUBLISHING: self._claim,
            ReplayStep.PUBLISHED: self._publish,
            ReplayStep.GROUP_MOVED: self._move_group,
            ReplayStep.LIVE: self._go_live,
        }

    def run(self) -> ReplayResult:
        """Do all steps that are left, in the order of the table of transitions."""
        self._callbacks.on_step(ReplayStep.PLANNED)
        self._enter()
        with contextlib.ExitStack() as fence:
            try:
                while self._state.next_step is not ReplayStep.CLEANED:
                    if self._needs_fence():
                        self._fence(fence)
                    if self._state.next_step is not ReplayStep.FENCED:
                        self._actions[self._state.next_step]()
                    self._advance()
            except BaseException:
                if self._state.has_reached(ReplayStep.BUILT):
                    self._restore_group()
                raise
        position = resume_position(self._version.checkpoint)
        self._clean()
        self._callbacks.on_step(ReplayStep.CLEANED)
        return ReplayResult(
            version=self._state.version,
            kind=self._state.kind,
            next_offsets=position.next if position is not None else {},
            publication=self._publication,
        )

    def _enter(self) -> None:
        """Enter at the saved step, or further on if a crash came before the last step was saved."""
        self._state = self._state.resume()
        sink, number = self._job.pipeline.sink, self._state.version
        if self._state.kind is not ReplayKind.BACKFILL and self._job.home.record().live == number:
            self._state = replace(self._state, step=ReplayStep.LIVE)
        elif isinstance(sink, Table) and current_version(sink.path) == number:
            if not self._state.has_reached(ReplayStep.PUBLISHED):
                self._state = replace(self._state, step=ReplayStep.PUBLISHED)
        elif self._state.step is ReplayStep.PREPARED:
            self._prepare()  # again: the checkpoint may be lost
        elif self._state.step is ReplayStep.PUBLISHING and self._has_lost_checkpoint():
            # The old version must not run any more, so this one is built again.
            self._prepare()
            self._build()

    def _has_lost_checkpoint(self) -> bool:
        return not self._keeps_rows() and finished_position(self._version.checkpoint) is None

    def _advance(self) -> None:
        self._state = self._state.advance(self._state.next_step)
        save_state(self._job.home, self._state)
        self._callbacks.on_step(self._state.step)

    def _needs_fence(self) -> bool:
        """Whether the next step is one that only the owner of the live lock does, and this process has it not yet."""
        is_fenced = self._state.has_reached(ReplayStep.BUILT) and self._state.step is not ReplayStep.LIVE
        return is_fenced and not self._has_live_lock and self._state.kind is not ReplayKind.BACKFILL

    def _fence(self, fence: contextlib.ExitStack) -> None:
        position = resume_position(self._version.checkpoint)
        if position is None and self._state.has_reached(ReplayStep.PUBLISHED):
            return  # the version goes live, and whoever runs it finds its checkpoint lost and rebuilds it
        fence.enter_context(
            fence_live_version(
                self._job, self._client, self._resume_position(), wait_s=self._wait_s, say=self._callbacks.say
            )
        )
        self._has_live_lock = True

    def _restore_group(self) -> None:
        """Let the live version run on; the replay can be resumed later."""
        with contextlib.suppress(Exception):
            restore_group(self._client, self._job)

    def _keeps_rows(self) -> bool:
        """Whether the version is a kept table: it takes over as it is, and reads on when it is live."""
        return self._state.kind is ReplayKind.ROLLBACK and isinstance(self._job.pipeline.sink, Table)

    @property
    def _side_topic(self) -> str:
        assert isinstance(self._job.pipeline.sink, Topic)
        return side_topic_name(self._job.pipeline.sink.name, self._state.version)

    def _prepare(self) -> None:
        if self._keeps_rows():
            return
        state, sink = self._state, self._job.pipeline.sink
        is_prepared = state.has_reached(ReplayStep.PREPARED)
        has_checkpoint = planned_batch(self._version.checkpoint) is not None
        if not has_checkpoint and (is_prepared or state.kind is ReplayKind.ROLLBACK):
            self._discard()
        if isinstance(sink, Topic):
            is_new = not has_checkpoint and not is_prepared
            create_side_topic(self._client, sink.name, self._side_topic, is_new=is_new)
        if not has_checkpoint and state.starts:
            self._client.commit(self._version.group, dict(state.starts))

    def _discard(self) -> None:
        """Remove what the version made before it lost its checkpoint: no other query can resume it."""
        if self._state.kind is ReplayKind.ROLLBACK:
            self._resume_position()  # raises: a version that was live before cannot be built again
        remove_version(self._job, self._client, self._state.version, with_topic=False)
        if isinstance(self._job.pipeline.sink, Topic):
            empty_side_topic(self._client, self._side_topic)

    def _build(self) -> None:
        if self._keeps_rows():
            return
        if self._state.kind is ReplayKind.BACKFILL:
            self._run(self._state.stops)
            return
        build_version(
            self._job,
            self._version,
            self._spark(),
            self._client,
            starts=self._state.starts,
            report=self._callbacks.report,
        )
        self._check_ids()

    def _catch_up(self) -> None:
        if not self._keeps_rows():
            self._run(None)
            self._check_ids()

    def _check_ids(self) -> None:
        """Find rows that cannot be published while the live version still runs, or can run on."""
        sink = self._job.pipeline.sink
        if isinstance(sink, Topic):
            self._checked_ids = check_record_ids(
                self._client,
                self._side_topic,
                sink.name,
                missing_id=self._state.missing_id,
                checked=self._checked_ids,
            )

    def _run(self, stops: Offsets | None) -> None:
        run_version(
            self._job,
            self._version,
            self._spark(),
            self._client,
            starts=self._state.starts,
            stops=stops,
            report=self._callbacks.report,
        )

    def _claim(self) -> None:
        """Claim the group also where nobody ran the pipeline: the live version must not be started any more."""
        claim_group(self._client, self._job.group, self._resume_position())

    def _publish(self) -> None:
        job, state, sink = self._job, self._state, self._job.pipeline.sink
        if isinstance(sink, Topic):
            self._publication = publish_side_topic(
                self._client,
                self._side_topic,
                sink.name,
                missing_id=state.missing_id,
                report=self._callbacks.report,
            )
        elif state.kind is ReplayKind.ROLLBACK:
            roll_back_version(sink.path, state.version, group=job.group)
        else:
            swap_in_version(sink.path, state.version, group=job.group, keep=state.keep_old)

    def _move_group(self) -> None:
        position = resume_position(self._version.checkpoint)
        if position is None:
            return  # lost since it was published: the group is committed where it was claimed
        if position.group == self._job.group:
            # The very commit by which its query knows itself.
            is_stateful = has_state(self._version.checkpoint)
            commit_marked(self._client, self._job.group, position, is_stateful=is_stateful)
        else:
            claim_group(self._client, self._job.group, position)

    def _go_live(self) -> None:
        job, number = self._job, self._state.version
        old = job.home.record().live
        if old != number:
            self._state = replace(self._state, replaced=old)
            save_state(job.home, self._state)
        how = "rollback" if self._state.kind is ReplayKind.ROLLBACK else "replay"
        add_live_change(job.home, LiveChange(number=number, at_ms=time.time_ns() // 1_000_000, how=how))
        job.home.change(lambda record: replace(record, live=number, building=None, begun=number))

    def _clean(self) -> None:
        job, state = self._job, self._state
        if state.replaced is not None and not state.keep_old:
            remove_version(job, self._client, state.replaced)
        if isinstance(job.pipeline.sink, Topic) and not state.keep_side_topic:
            delete_side_topic(self._client, self._side_topic)
        self._client.delete_groups([version_group(job.pipeline, state.version)])
        if state.kind is ReplayKind.BACKFILL:
            remove_folder(self._version.checkpoint)
            job.home.change(lambda record: replace(record, building=None))
        delete_state(job.home)

    def _resume_position(self) -> QueryPosition:
        position = resume_position(self._version.checkpoint)
        if position is None:
            raise CheckpointLost(
                f"The checkpoint of version {self._state.version} in {self._version.checkpoint} is missing. Nothing "
                f"was changed. Abandon the replay of {self._job.name} and start again."
            )
        return position


def check_abandonable(job: Job) -> ReplayState:
    """Return the unfinished replay; raises UserError if there is none, PublicationStarted if it can only be resumed."""
    state = load_state(job.home)
    if state is None:
        raise UserError(f"No replay of {job.name} was started. Nothing was changed.", exit_code=3)
    if state.is_irrevocable or job.home.record().live == state.version:
        raise PublicationStarted(
            f"The replay is publishing version {state.version} of {job.name} already and cannot be abandoned. Nothing "
            f"was changed. Resume it; then roll back with `logmark pipelines rollback {job.name}`."
        )
    return state


def abandon_replay(job: Job, client: Client) -> int:
    """Abandon the unfinished replay and give the group back to the live version; return the number of the version."""
    state = check_abandonable(job)
    restore_group(client, job)
    if state.kind is not ReplayKind.ROLLBACK:
        # A version that was live before keeps its side topic: its checkpoint has read on, and will not send those rows
        # again.
        remove_version(job, client, state.version)
    job.home.change(lambda record: replace(record, building=None))
    delete_state(job.home)
    return state.version


def rebuild_live_version(
    job: Job,
    spark: "SparkSession",
    *,
    is_stateful: bool,
    say: Callable[[str], None] = print,
    report: Report = lambda done, of: None,
) -> int:
    """Rebuild the live version, whose checkpoint is lost, as a new version that takes over; return the new number.

    The caller holds the live lock.
    """
    callbacks = ReplayCallbacks(say=say, report=report)
    with job.home.replaying(), job.connect() as client:
        state = load_state(job.home)
        if state is None:
            plan = plan_rebuild(job, client, is_stateful=is_stateful)
            state = save_planned_replay(job, client, plan, ReplayOptions())
            start = "the beginning of the logs" if is_stateful else "the group's offsets"
            say(
                f"{job.name}: the checkpoint of version {job.home.record().live} is missing; rebuilding it as version "
                f"{state.version} from {start}"
            )
        ReplayRunner(job, lambda: spark, client, state, callbacks=callbacks, has_live_lock=True).run()
        return state.version
