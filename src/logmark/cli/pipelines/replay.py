"""`logmark pipelines replay` and `rollback`: read records again, or make an older version live again."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.offsets.plan_command import NOTHING_TO_DO, ask
from logmark.cli.offsets.plan_tables import print_plan
from logmark.cli.options import Output, OutputFormat, Yes
from logmark.cli.pipelines.homes import HomeFolder
from logmark.cli.pipelines.known_pipeline import File, KnownPipeline, Name, SparkSettings, open_pipeline
from logmark.cli.pipelines.spark_session import Conf, Master, Package
from logmark.cli.progress import bar
from logmark.cli.tables import Column, count, print_json, print_table, say, write_line
from logmark.errors import UserError
from logmark.offsets.reset.plan import ResetPlan
from logmark.offsets.times import parse_duration
from logmark.spark.pipelines.replay.in_place import InPlacePlan
from logmark.spark.pipelines.replay.plan import VersionPlan
from logmark.spark.pipelines.replay.runner import ReplayCallbacks, ReplayOptions, ReplayResult
from logmark.spark.pipelines.replay.session import ReplayRequest, ReplaySession, open_replay
from logmark.spark.pipelines.views import (
    InPlaceReplayView,
    VersionChangeView,
    view_result,
    view_state,
    view_version_plan,
)
from logmark.spark.source.offset_maps import format_offsets

_LINE_EVERY_S = 10.0

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
KeepSideTopic = Annotated[bool, typer.Option("--keep-side-topic", help="Keep the side topic after it is published.")]
MissingId = Annotated[
    str | None,
    typer.Option(
        metavar="skip|send", help="What to do with rows for a topic that have no id; without it they are an error."
    ),
]
Wait = Annotated[str, typer.Option(metavar="D", help="How long the running version may take to end its batch.")]


@on_cluster
def replay(
    cluster: Cluster,
    name: Name,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="START",
            help="Where to start: earliest, 3d or 2h (before now), a time, offsets as JSON, or a file of offsets. A "
            "new version reads older records as well, unless --drop-older is given.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="END", help="Where to end; only for pipelines without state.", show_default=False),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build a new version and swap it in, also where that is not needed.")
    ] = False,
    drop_older: Annotated[
        bool, typer.Option("--drop-older", help="Let a new version start at --from, without older rows or state.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Keep the old version for a rollback.")] = True,
    keep_side_topic: KeepSideTopic = False,
    missing_id: MissingId = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted replay or rollback.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Remove an unfinished replay or rollback.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait for a running pipeline; not with --to.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = "5m",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the journal keeps it.")] = "",
    file: File = None,
    home: HomeFolder = None,
    master: Master = "local[*]",
    conf: Conf = None,
    package: Package = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Read records again and count or send nothing twice: in place where that is exact, else as a new version.

    If a replay is interrupted, run the command with --resume to finish it.
    """
    if (resume or abandon) and (from_ is not None or to is not None):
        raise UserError("--resume and --abandon take no --from and no --to. Nothing was changed.", exit_code=2)
    request = ReplayRequest(
        start=from_,
        stop=to,
        rebuild=rebuild,
        drop_older=drop_older,
        is_detached=detach,
        reason=reason,
        wait_s=_parse_wait(wait),
        options=ReplayOptions(
            keep_old=keep, keep_side_topic=keep_side_topic, missing_id=_parse_missing_id(missing_id)
        ),
    )  # fmt: skip
    settings = SparkSettings(master, conf or (), package or ())
    with open_pipeline(cluster, name, file=file, home=home, settings=settings) as known:
        if not dry_run:
            known.cluster.refuse_writing()
        with open_replay(known.job, known.spark) as session:
            command = _ReplayCommand(known, session, output=output, yes=yes, dry_run=dry_run)
            if abandon:
                command.abandon()
            elif resume:
                command.resume(request)
            else:
                command.replay(request)


@on_cluster
def rollback(
    cluster: Cluster,
    name: Name,
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", help="The version; the previous one unless it is given.")
    ] = None,
    keep_side_topic: KeepSideTopic = False,
    missing_id: MissingId = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = "5m",
    file: File = None,
    home: HomeFolder = None,
    master: Master = "local[*]",
    conf: Conf = None,
    package: Package = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a version live again that was live before; the present one is kept."""
    options = ReplayOptions(keep_side_topic=keep_side_topic, missing_id=_parse_missing_id(missing_id))
    request = ReplayRequest(wait_s=_parse_wait(wait), options=options)
    settings = SparkSettings(master, conf or (), package or ())
    with open_pipeline(cluster, name, file=file, home=home, settings=settings) as known:
        if not dry_run:
            known.cluster.refuse_writing()
        with open_replay(known.job, known.spark) as session:
            command = _ReplayCommand(known, session, output=output, yes=yes, dry_run=dry_run)
            command.roll_back(session.choose_rollback(version), request)


class _ReplayCommand:
    """One command about a replay: how its plan is shown, whether it asks, and how its progress is shown."""
    def __init__(
        self, known: KnownPipeline, session: ReplaySession, *, output: OutputFormat, yes: bool, dry_run: bool
    ) -> None:
        self._session = session
        self._job = known.job
        self._name = known.job.name
        self._output = output
        self._yes = yes
        self._dry_run = dry_run

    def replay(self, request: ReplayRequest) -> None:
        """Plan, show, ask and replay."""

        plan = self._session.plan(request)
        if isinstance(plan, InPlacePlan):
            self._replay_in_place(plan, request)
            return
        if plan.is_empty:
            self._end_empty()
        self._print_version_plan(plan)
        self._session.check(plan, request, with_spark=not self._dry_run)
        if self._dry_run:
            self._end_dry_run(asdict(view_version_plan(plan)))
            return
        self._ask(f"Replay {self._name} like this?")
        self._run(plan.number, lambda callbacks: self._session.execute(plan, request, callbacks))

    def resume(self, request: ReplayRequest) -> None:
        """Finish an interrupted replay."""
        state = self._session.check_resumable()
        say(f"Resuming the replay of {self._name} to version {state.version}, which is {state.step}.")
        if self._dry_run:
            self._end_dry_run(asdict(view_state(state)))
            return
        self._run(
            state.version,
            lambda callbacks: self._session.resume(
                callbacks, missing_id=request.options.missing_id, wait_s=request.wait_s
            ),
        )

    def roll_back(self, number: int, request: ReplayRequest) -> None:
        """Make a version live again."""
        say(f"Version {number} of {self._name} replaces version {self._job.home.record().live}, which is kept.")
        if self._dry_run:
            self._end_dry_run(asdict(VersionChangeView(version=number, kind="rollback")))
            return
        self._ask("Roll back?")
        self._run(
            number,
            lambda callbacks: self._session.roll_back(number, request.options, callbacks, wait_s=request.wait_s),
        )

    def abandon(self) -> None:
        """Remove an unfinished replay."""
        state = self._session.check_abandonable()
        if self._dry_run:
            say(f"Version {state.version} of {self._name} would be removed; the live version would get its group back.")
            self._end_dry_run(asdict(VersionChangeView(version=state.version, kind=state.kind.value)))
            return
        self._ask(f"Abandon version {state.version} of {self._name}?")
        number = self._session.abandon()
        say(f"Replay abandoned: version {number} of {self._name} is removed; the live version has its group.")

    def _replay_in_place(self, plan: InPlacePlan, request: ReplayRequest) -> None:
        if self._output is OutputFormat.TABLE:
            print_plan(plan.reset)
            if plan.ends_early:
                write_line(f"Read again up to {format_offsets(plan.stops)}; then the group returns to where it was.")
            if plan.rows is not None:
                write_line(f"{count(plan.rows, 'row')} of the table came from these offsets and will be replaced.")
        if plan.is_empty:
            self._end_empty()
        if self._dry_run:
            self._end_dry_run(InPlaceReplayView(self._name, plan).to_json())
            return
        self._ask(f"Replay {self._name} like this?")
        with show_progress(f"{self._name}: reading again") as report:
            callbacks = ReplayCallbacks(say=say, report=report)
            applied = self._session.replay_in_place(plan, request, callbacks, agree=self._agree)
        if self._output is OutputFormat.JSON:
            print_json(InPlaceReplayView(self._name, plan, applied).to_json())
        verb = "are being" if request.is_detached else "were"
        say(
            f"Replay {'started' if request.is_detached else 'done'}: {count(plan.reset.read_again, 'record')} {verb} "
            f"read again. To undo the move of the group: logmark offsets undo {applied.change.id}"
        )

    def _agree(self, plan: ResetPlan) -> None:
        if not self._yes:
            print_plan(plan)
            self._ask("The group has moved since. Replay like this?")

    def _run(self, number: int, run: Callable[[ReplayCallbacks], ReplayResult]) -> None:
        with show_progress(f"{self._name}: version {number}") as report:
            result = run(ReplayCallbacks(say=say, report=report))
        if self._output is OutputFormat.JSON:
            print_json(asdict(view_result(self._name, result)))
        _say_result(self._name, result)

    def _print_version_plan(self, plan: VersionPlan) -> None:
        if self._output is OutputFormat.JSON:
            return
        what = {
            "backfill": "reads the records again beside the live version; rows that were not sent before are sent",
            "swap": "is built beside the live version and replaces it",
        }[plan.kind.value]
        write_line(f"Plan for pipeline {self._name}: version {plan.number} {what}.")
        columns = [Column("TOPIC"), *(Column(title, True) for title in ("PARTITION", "FROM", "TO", "READ"))]
        print_table(
            columns,
            [
                (one.topic, one.partition, start, plan.stops[one], max(plan.stops[one] - start, 0))
                for one, start in sorted(plan.starts.items())
            ],
        )
        write_line(f"In total: {count(plan.records, 'record')} to read.")
        for note in plan.notes:
            say(note)

    def _end_empty(self) -> None:
        say(f"Nothing to do: {self._name} has read nothing after that start.")
        raise typer.Exit(NOTHING_TO_DO)

    def _end_dry_run(self, fields: dict[str, object]) -> None:
        if self._output is OutputFormat.JSON:
            print_json(fields)
        say("This was a dry run: nothing was changed.")

    def _ask(self, question: str) -> None:
        if self._yes:
            return
        if self._output is OutputFormat.JSON:
            raise UserError(
                "Nothing was changed: JSON output shows no plan to confirm. Add --yes or --dry-run.", exit_code=2
            )
        ask(question)


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the progress of a run: a bar in a terminal, else a line now and then."""
    last, said_at = 0, time.monotonic()
    with bar(title, is_bytes=False) as progress:

        def report(done: int, of: int) -> None:
            nonlocal last, said_at
            progress.advance(done - last if done >= last else done)
            progress.expect(max(of - done, 0))
            last = done
            if not sys.stderr.isatty() and time.monotonic() - said_at >= _LINE_EVERY_S:
                said_at = time.monotonic()
                say(f"{title}: {done:,} of {of:,} records ({done / max(of, 1):.0%})")

        yield report


def _say_result(name: str, result: ReplayResult) -> None:
    if result.publication is not None:
        published = result.publication
        say(
            f"{count(published.sent, 'record')} sent to the topic; {published.known:,} ids were sent before"
            + (f", {count(published.missing_id, 'record')} had no id." if published.missing_id else ".")
        )
    if result.kind.value == "backfill":
        say(f"Replay done: {name} runs on as it was.")
        return
    say(f"Done: version {result.version} of {name} is live. To undo it: logmark pipelines rollback {name}")


def _parse_missing_id(text: str | None) -> str | None:
    if text not in (None, "skip", "send"):
        raise UserError(f"--missing-id is skip or send, not {text!r}. Nothing was changed.", exit_code=2)
    return text


def _parse_wait(text: str) -> float:
    return parse_duration(text) / 1000
