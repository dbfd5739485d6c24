"""What users and commands do with replays: plan, execute, resume, roll back, abandon.

A session holds the replay lock of the pipeline's home, so that one process at a time replays a pipeline.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.offsets.reset.executor import AppliedReset
from logmark.offsets.reset.plan import ResetPlan
from logmark.spark.errors import UnfinishedReplay
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.replay.fence import WAIT_S
from logmark.spark.pipelines.replay.in_place import InPlacePlan, plan_in_place, replay_in_place
from logmark.spark.pipelines.replay.plan import (
    VersionPlan,
    check_id_column,
    check_older_records,
    check_state_shape,
    choose_kind,
    detect_state,
    plan_version,
)
from logmark.spark.pipelines.replay.runner import (
    ReplayCallbacks,
    ReplayOptions,
    ReplayResult,
    ReplayRunner,
    abandon_replay,
    check_abandonable,
    check_rollback,
    save_planned_replay,
    save_planned_rollback,
)
from logmark.spark.pipelines.replay.state import ReplayKind, ReplayState, load_state
from logmark.spark.pipelines.replay.targets import parse_target
from logmark.spark.pipelines.versions import previous_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTHING_TO_DO = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """How a pipeline is to be replayed.

    start        earliest, a time, a duration before now ("3d"), offsets as JSON, or the name of a file of offsets; a
                 replay that builds a version starts at the earliest offset unless given
    stop         the same; only for pipelines without state
    rebuild      build a new version also where that is not needed
    drop_older   let a new version start at `start`, without older rows and state
    is_detached  leave the reading to the process that runs the pipeline; only for a replay in place
    reason       why; the journal keeps it
    wait_s       how long the running version may take to end its batch
    """

    start: str | None = None
    stop: str | None = None
    rebuild: bool = False
    drop_older: bool = False
    is_detached: bool = False
    reason: str = ""
    wait_s: float = WAIT_S
    options: ReplayOptions = field(default_factory=ReplayOptions)


@contextlib.contextmanager
def open_replay(job: Job, spark: "Callable[[], SparkSession]") -> "Iterator[ReplaySession]":
    """Hold the replay lock and a client; `spark` is called when Spark is needed.

    Raises UserError if another process replays the pipeline.
    """
    with job.home.replaying(), job.connect() as client:
        yield ReplaySession(job, spark, client)


class ReplaySession:
    """One process's hold on the replays of a pipeline."""

    def __init__(self, job: Job, spark: "Callable[[], SparkSession]", client: Client) -> None:
        self._job = job
        self._spark = spark
        self._client = client

    def find_unfinished(self) -> ReplayState | None:
        """Return the replay that was started and is not finished."""
        return load_state(self._job.home)

    def check_none_unfinished(self) -> None:
        """Raise UnfinishedReplay if a replay was started and is not finished."""
        state = self.find_unfinished()
        if state is not None:
            raise UnfinishedReplay(
                f"A replay of {self._job.name} to version {state.version} was started and is not finished. Nothing was "
                "changed. Resume or abandon it first."
            )

    def plan(self, request: ReplayRequest) -> InPlacePlan | VersionPlan:
        """Return what the replay would do; changes nothing.

        Raises UserError if the pipeline cannot be replayed like that.
        """
        self.check_none_unfinished()
        job, client = self._job, self._client
        is_stateful = detect_state(job, self._spark)
        has_stop = request.stop is not None
        kind = choose_kind(job, is_stateful=is_stateful, rebuild=request.rebuild, has_stop=has_stop)
        if request.start is None and kind is not ReplayKind.SWAP:
            raise UserError(
                f"A replay of {job.name} needs a start: earliest, 3d, a time, or offsets. Nothing was changed.",
                exit_code=2,
            )
        now_ms = time.time_ns() // 1_000_000
        start = parse_target(request.start or "earliest", group=job.group, now_ms=now_ms)
        stop = None if request.stop is None else parse_target(request.stop, group=job.group, now_ms=now_ms)
        if kind is ReplayKind.IN_PLACE:
            return plan_in_place(job, client, start, stop)
        return plan_version(
            job, client, start, stop, kind=kind, is_stateful=is_stateful, drop_older=request.drop_older
        )  # fmt: skip

    def check(self, plan: VersionPlan, request: ReplayRequest, *, with_spark: bool = True) -> None:
        """Raise MissingOlderRecords or MissingRecordIds if the plan must not be executed as requested."""
        check_older_records(plan, drop_older=request.drop_older)
        if with_spark:
            check_id_column(self._job, plan, self._spark(), missing_id=request.options.missing_id)

    def execute(
        self,
        plan: InPlacePlan | VersionPlan,
        request: ReplayRequest,
        callbacks: ReplayCallbacks,
        *,
        agree: Callable[[ResetPlan], None] = lambda plan: None,
    ) -> ReplayResult:
        """Carry out the plan; `agree` is called with a new plan if the group has moved since."""
        if isinstance(plan, InPlacePlan):
            applied = self.replay_in_place(plan, request, callbacks, agree=agree)
            version = self._job.home.record().live
            offsets = {move.partition: move.to for move in applied.plan.moves if move.to is not None}
            return ReplayResult(version=version, kind=ReplayKind.IN_PLACE, next_offsets=offsets | dict(plan.stops))
        self.check(plan, request)
        state = save_planned_replay(self._job, self._client, plan, request.options)
        return self._run(state, callbacks, request.wait_s)

    def replay_in_place(
        self,
        plan: InPlacePlan,
        request: ReplayRequest,
        callbacks: ReplayCallbacks,
        *,
        agree: Callable[[ResetPlan], None],
    ) -> AppliedReset:
        """Carry out a replay in place; return the applied move of the group, which can be undone."""
        return replay_in_place(
            self._job,
            self._spark,
            self._client,
            plan,
            agree=agree,
            reason=request.reason,
            is_detached=request.is_detached,
            report=callbacks.report,
        )

    def resume(
        self, callbacks: ReplayCallbacks, *, missing_id: str | None = None, wait_s: float = WAIT_S
    ) -> ReplayResult:  # fmt: skip
        """Finish the interrupted replay; `missing_id` replaces what was chosen for rows without an id.

        Raises UserError if no replay is unfinished.
        """
        state = self.check_resumable()
        return self._run(replace(state, missing_id=missing_id or state.missing_id), callbacks, wait_s)

    def check_resumable(self) -> ReplayState:
        """Return the unfinished replay; raises UserError if there is none."""
        state = self.find_unfinished()
        if state is None:
            raise UserError(
                f"No replay of {self._job.name} is unfinished. Nothing was changed.", exit_code=NOTHING_TO_DO
            )
        return state

    def choose_rollback(self, version: int | None) -> int:
        """Return the version to roll back to, the previous one unless given; raises UserError if it cannot be."""
        self.check_none_unfinished()
        number = version if version is not None else previous_version(self._job.home)
        if number is None:
            raise UserError(
                f"{self._job.name} has had no other version. Nothing was changed.", exit_code=NOTHING_TO_DO
            )  # fmt: skip
        check_rollback(self._job, number)
        check_state_shape(self._job, number, self._spark)
        return number

    def roll_back(
        self, number: int, options: ReplayOptions, callbacks: ReplayCallbacks, *, wait_s: float = WAIT_S
    ) -> ReplayResult:  # fmt: skip
        """Make a kept version live again."""
        return self._run(save_planned_rollback(self._job, self._client, number, options), callbacks, wait_s)

    def check_abandonable(self) -> ReplayState:
        """Return the unfinished replay; raises UserError if there is none, or if it can only be resumed."""
        return check_abandonable(self._job)

    def abandon(self) -> int:
        """Abandon the unfinished replay; return the number of its version."""
        return abandon_replay(self._job, self._client)

    def _run(self, state: ReplayState, callbacks: ReplayCallbacks, wait_s: float) -> ReplayResult:
        runner = ReplayRunner(self._job, self._spark, self._client, state, callbacks=callbacks, wait_s=wait_s)
        return runner.run()
