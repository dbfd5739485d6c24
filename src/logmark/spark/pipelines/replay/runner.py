"""Replays a pipeline as a version of its own, step by step; each step may be stopped anywhere and made again.

    1   remembered          record and replay.json say which version is on its way
    2   prepared            its group stands where it begins, and a side topic is there
    3   built               it has read nearly all there is, while the live version runs
    4   in the live place   nobody runs the live version: it has ended, or was not running
    5   level               it has read all there is
    6   handed over         the table holds its rows, by one commit; or the topic has what was not sent before
    7   moved               the pipeline's group stands where the version does
    8   live                the record says so: whoever runs the pipeline runs this version
    9   cleaned             what only the building needed is gone, and the old version if it is not kept
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.offsets.reset.targets import ToEarliest
from logmark.spark.pipelines.final_commit import finished
from logmark.spark.pipelines.home import has_begun
from logmark.spark.pipelines.pipeline import Table, Topic
from logmark.spark.pipelines.replay.build import (
    Report,
    beside,
    connect,
    group_of,
    logs_of,
    run,
    run_until_close,
    source_of,
    standing,
)
from logmark.spark.pipelines.replay.fence import WAIT_S, claim, give_back, live_place, put
from logmark.spark.pipelines.replay.plan import VersionPlan, next_number
from logmark.spark.pipelines.replay.publication import (
    Released,
    check_named,
    empty,
    make_side_topic,
    release,
    side_topic,
)
from logmark.spark.pipelines.replay.state import Kind, Work, forget_work, read_work, remember_work
from logmark.spark.pipelines.replay.targets import offsets_of
from logmark.spark.pipelines.supervisor import Job
from logmark.spark.pipelines.versions import Turn, is_whole, note_turn, remove, remove_folder, remove_side_topic
from logmark.spark.source.position import Offsets, Position
from logmark.spark.tables.versions import current_version, swap_in, take_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What whoever replays may choose about a version."""

    keep: bool = True
    keep_side_topic: bool = False
    without_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a replay."""

    number: int
    kind: Kind
    stands: Offsets
    released: Released | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """Who is told what: sentences, how far a run is, and which step is done."""

    say: Callable[[str], None] = print
    report: Report = lambda done, of: None
    reached: Callable[[int], None] = lambda step: None


def begin(job: Job, client: Client, plan: VersionPlan, choices: Choices) -> Work:
    """The version is remembered as being built; call it while `job.home.replaying()` is held."""
    work = Work(
        number=plan.number,
        kind=plan.kind,
        starts=plan.starts,
        stops=plan.stops if plan.kind is Kind.COPY else {},
        keep=choices.keep,
        keep_side_topic=choices.keep_side_topic,
        without_id=choices.without_id,
        before=client.committed(job.pipeline.group),
    )
    _remember(job, work)
    return work


def begin_taking_back(job: Job, client: Client, number: int, choices: Choices) -> Work:
    """The version is remembered as the one that shall be live again; raises a sentence if it cannot be."""
    check_taking_back(job, number)
    position = standing(job.home.checkpoint(number))
    assert position is not None
    work = Work(
        number=number,
        kind=Kind.BACK,
        starts=position.next,
        keep=choices.keep,
        keep_side_topic=choices.keep_side_topic,
        without_id=choices.without_id,
        before=client.committed(job.pipeline.group),
    )
    _remember(job, work)
    return work


def check_taking_back(job: Job, number: int) -> None:
    """Raises a sentence unless the version could be live again."""
    if number == job.home.record().live:
        raise UserError(f"Version {number} of {job.pipeline.name} is live already. Nothing was changed.", exit_code=3)
    if not is_whole(job, number):
        raise UserError(
            f"Version {number} of {job.pipeline.name} was not kept, so it cannot be taken back. Nothing was changed."
        )


def _remember(job: Job, work: Work) -> None:
    remember_work(job.home, work)
    job.home.change(lambda record: replace(record, building=work.number, last=max(record.last, work.number)))


def unfinished(job: Job) -> Work | None:
    """The replay that has begun and is not done."""
    return read_work(job.home)


class Replay:
    """One replay at work, from wherever it was left; `job.home.replaying()` is held meanwhile."""

    def __init__(
        self,
        job: Job,
        spark: "Callable[[], SparkSession]",
        client: Client,
        work: Work,
        *,
        telling: Telling | None = None,
        wait_s: float = WAIT_S,
        has_live_place: bool = False,
    ) -> None:
        self._job = job
        self._spark = spark
        self._client = client
        self._work = work
        self._telling = telling or Telling()
        self._wait_s = wait_s
        self._has_live_place = has_live_place
        self._version = beside(job, work.number)
        self._released: Released | None = None
        self._named: Offsets = {}

    def carry_out(self) -> Outcome:
        """Everything that is left of the replay is done."""
        work = self._work
        self._reached(1)
        if not self._is_live():
            if work.kind is Kind.COPY:
                self._prepare()
                self._run(work.stops)
                self._reached(3)
                self._hand_over()
            else:
                self._build()
                self._take_the_place()
        position = standing(self._version.checkpoint)
        self._clean()
        self._reached(9)
        stands = position.next if position is not None else {}
        return Outcome(number=work.number, kind=work.kind, stands=stands, released=self._released)

    def _is_live(self) -> bool:
        return self._work.kind is not Kind.COPY and self._job.home.record().live == self._work.number

    def _is_handed_over(self) -> bool:
        """Whether readers see the version: a crash may have come before that was noted."""
        sink = self._job.pipeline.sink
        if isinstance(sink, Table) and current_version(sink.path) == self._work.number:
            return True
        return self._work.is_handed_over

    def _build(self) -> None:
        if self._is_handed_over() or self._takes_rows_back() or self._is_complete():
            return
        self._prepare()
        starts = self._work.starts
        run_until_close(
            self._job, self._version, self._spark(), self._client, starts=starts, report=self._telling.report
        )
        self._check_ids()
        self._reached(3)

    def _takes_rows_back(self) -> bool:
        """A table that was kept is taken back as it is, and goes on from where it stood."""
        return self._work.kind is Kind.BACK and isinstance(self._job.pipeline.sink, Table)

    def _is_complete(self) -> bool:
        """Whether handing over had begun when a process was killed: the version reads no more until it is live."""
        # Reading on might find rows without ids, and there is no way back any more.
        return self._work.is_handing_over and finished(self._version.checkpoint) is not None

    def _check_ids(self) -> None:
        """What cannot be released is found while the live version still runs, or can run on."""
        sink = self._job.pipeline.sink
        if isinstance(sink, Topic):
            self._named = check_named(
                self._client, self._side, sink.name, without_id=self._work.without_id, checked=self._named
            )

    def _prepare(self) -> None:
        job, work = self._job, self._work
        is_new = not has_begun(self._version.checkpoint)
        if is_new and (work.is_prepared or work.kind is Kind.BACK):
            self._start_over()
        if isinstance(job.pipeline.sink, Topic):
            is_untouched = is_new and not work.is_prepared
            make_side_topic(self._client, job.pipeline.sink.name, self._side, is_new=is_untouched)
        if is_new and work.starts:
            self._client.commit(self._version.group, dict(work.starts))
        self._work = replace(work, is_prepared=True)
        remember_work(job.home, self._work)
        self._reached(2)

    def _start_over(self) -> None:
        """What the version has made is gone, because its checkpoint is: no other query could go on from it."""
        job, number = self._job, self._work.number
        if self._work.kind is Kind.BACK:
            self._standing()  # raises: what was live once cannot be made again
        remove(job, self._client, number, with_topic=False)
        if isinstance(job.pipeline.sink, Topic):
            empty(self._client, self._side)

    @property
    def _side(self) -> str:
        assert isinstance(self._job.pipeline.sink, Topic)
        return side_topic(self._job.pipeline.sink.name, self._work.number)

    def _take_the_place(self) -> None:
        job = self._job
        if self._is_handed_over() and standing(self._version.checkpoint) is None:
            self._go_live()  # whoever runs it finds that its checkpoint is lost, and builds it again
            return
        position = self._standing()
        try:
            with contextlib.ExitStack() as stack:
                if not self._has_live_place:
                    place = live_place(job, self._client, position, wait_s=self._wait_s, say=self._telling.say)
                    stack.enter_context(place)
                self._reached(4)
                if not self._is_handed_over():
                    if not self._takes_rows_back() and not self._is_complete():
                        self._run(None)
                        self._check_ids()
                    self._reached(5)
                    self._claim()
                    self._hand_over()
                self._go_live()
        except BaseException:
            self._give_back()
            raise

    def _give_back(self) -> None:
        """The live version runs on; the replay is gone on with another time."""
        with contextlib.suppress(Exception):
            give_back(self._client, self._job)

    def _claim(self) -> None:
        """Also where nobody ran it: the live version must not be started before the new one is in its place."""
        claim(self._client, self._job.pipeline.group, self._standing())
        self._work = replace(self._work, is_handing_over=True)
        remember_work(self._job.home, self._work)

    def _run(self, stops: Offsets | None) -> None:
        run(
            self._job,
            self._version,
            self._spark(),
            self._client,
            starts=self._work.starts,
            stops=stops,
            report=self._telling.report,
        )

    def _hand_over(self) -> None:
        job, work = self._job, self._work
        sink = job.pipeline.sink
        if isinstance(sink, Topic):
            self._released = release(
                self._client, self._side, sink.name, without_id=work.without_id, report=self._telling.report
            )
        elif work.kind is Kind.BACK:
            take_back(sink.path, work.number, group=job.pipeline.group)
        else:
            swap_in(sink.path, work.number, group=job.pipeline.group, keep=work.keep)
        self._reached(6)
        self._work = replace(work, is_handed_over=True)
        remember_work(job.home, self._work)

    def _go_live(self) -> None:
        job, number = self._job, self._work.number
        position = standing(self._version.checkpoint)
        if position is None:
            pass  # lost since it was handed over: its group stands where it was claimed
        elif position.group == job.pipeline.group:
            put(self._client, job.pipeline.group, position)  # the very commit by which its query knows itself
        else:
            claim(self._client, job.pipeline.group, position)
        self._reached(7)
        old = job.home.record().live
        if old != number:
            self._work = replace(self._work, replaced=old)
            remember_work(job.home, self._work)
        how = "taken back" if self._work.kind is Kind.BACK else "built beside"
        note_turn(job.home, Turn(number=number, at_ms=time.time_ns() // 1_000_000, how=how))
        job.home.change(lambda record: replace(record, live=number, building=None, begun=number))
        self._reached(8)

    def _clean(self) -> None:
        job, work = self._job, self._work
        if work.replaced is not None and not work.keep:
            remove(job, self._client, work.replaced)
        if isinstance(job.pipeline.sink, Topic) and not work.keep_side_topic:
            remove_side_topic(self._client, self._side)
        self._client.delete_groups([group_of(job.pipeline, work.number)])
        if work.kind is Kind.COPY:
            remove_folder(self._version.checkpoint)
            job.home.change(lambda record: replace(record, building=None))
        forget_work(job.home)

    def _standing(self) -> Position:
        position = standing(self._version.checkpoint)
        if position is None:
            raise UserError(
                f"The checkpoint of version {self._work.number} in {self._version.checkpoint} is gone. Nothing was "
                f"changed. Give the version up (logmark pipelines replay {self._job.pipeline.name} --abandon) and "
                "begin again."
            )
        return position

    def _reached(self, step: int) -> None:
        self._telling.reached(step)


def can_be_abandoned(job: Job) -> Work:
    """The replay that has begun; raises a sentence if there is none, or if it can only be gone on with."""
    work = unfinished(job)
    if work is None:
        raise UserError(f"No replay of {job.pipeline.name} has begun. Nothing was changed.", exit_code=3)
    if work.is_handing_over or job.home.record().live == work.number:
        raise UserError(
            f"Version {work.number} of {job.pipeline.name} is being put in place already. Nothing was changed. Go on "
            f"with `logmark pipelines replay {job.pipeline.name}`; then take the old version back with `logmark "
            f"pipelines take-back {job.pipeline.name}`."
        )
    return work


def abandon(job: Job, client: Client) -> int:
    """The replay that had begun is given up, and the live version has its group; the number of the version."""
    work = can_be_abandoned(job)
    give_back(client, job)
    if work.kind is not Kind.BACK:
        # One that was live before keeps its side topic: its checkpoint has gone on, and will not make those rows again.
        remove(job, client, work.number)
    job.home.change(lambda record: replace(record, building=None))
    forget_work(job.home)
    return work.number


def rebuild(
    job: Job,
    spark: "SparkSession",
    *,
    is_stateful: bool,
    say: Callable[[str], None] = print,
    report: Report = lambda done, of: None,
) -> int:
    """The live version, whose checkpoint is lost, is built again beside and takes its own place; the new number.

    Whoever calls this holds the place of the live version. State is built from the beginning of the logs; without
    state, reading goes on where the group stands, and what was sent of it already is known by its ids.
    """
    telling = Telling(say=say, report=report)
    with job.home.replaying(), connect(job.brokers) as client:
        work = unfinished(job)
        if work is None:
            work = begin(job, client, _rebuilding(job, client, is_stateful=is_stateful), Choices())
            say(
                f"{job.pipeline.name}: the checkpoint of version {job.home.record().live} is gone; version "
                f"{work.number} is built {'from the beginning' if is_stateful else 'from where the group stands'}"
            )
        Replay(job, lambda: spark, client, work, telling=telling, has_live_place=True).carry_out()
        return work.number


def _rebuilding(job: Job, client: Client, *, is_stateful: bool) -> VersionPlan:
    bounds = logs_of(client, source_of(job))
    starts = offsets_of(client, ToEarliest(), bounds)
    if not is_stateful:
        committed = client.committed(job.pipeline.group)
        starts = {place: committed[place].offset if place in committed else one for place, one in starts.items()}
    dropped = sum(starts.values())
    if dropped and isinstance(job.pipeline.sink, Table):
        raise UserError(
            f"The checkpoint of {job.pipeline.name} is gone, and the logs no longer have the first {dropped:,} "
            "records: a table that is built again would lack what was made of them. Nothing was changed. Restore the "
            f"checkpoint, or build it with `logmark pipelines replay {job.pipeline.name} --drop-older`."
        )
    return VersionPlan(
        kind=Kind.SWAP,
        number=next_number(job),
        starts=starts,
        stops={place: one.end for place, one in bounds.items()},
        is_stateful=is_stateful,
    )
