"""`logmark pipelines replay`: reads a pipeline's records again without counting or sending anything twice."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.offsets.acting import NOTHING_TO_DO, ask
from logmark.cli.offsets.showing import plan_fields, print_plan
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.cli.pipelines.app import Conf, HomeFolder, Master, Package, app
from logmark.cli.pipelines.known_pipeline import File, Known, Name, SparkSettings, known
from logmark.cli.pipelines.offset_text import nested, shown
from logmark.cli.progress import bar
from logmark.cli.tables import Column, count, print_json, print_table, say, write_line
from logmark.errors import UserError

if TYPE_CHECKING:
    from logmark.client.client import Client
    from logmark.offsets.reset.plan import ResetPlan
    from logmark.spark.pipelines.replay.plan import VersionPlan
    from logmark.spark.pipelines.replay.runner import Choices, Outcome
    from logmark.spark.pipelines.replay.state import Kind, Work
    from logmark.spark.pipelines.replay.targets import Aim

_LINE_EVERY_S = 10.0

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
KeepSideTopic = Annotated[bool, typer.Option("--keep-side-topic", help="Leave the side topic when it is released.")]
WithoutId = Annotated[
    str | None,
    typer.Option(
        metavar="skip|send", help="What becomes of rows for a topic that have no id; else they are a mistake."
    ),
]
Wait = Annotated[str, typer.Option(metavar="D", help="How long the version that runs may take to finish its batch.")]


@app.command("replay", epilog=example("logmark pipelines replay fraud --from 3d"))
@on_cluster
def replay(
    cluster: Cluster,
    name: Name,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where to begin: earliest, 3d or 2h (before now), a time, offsets as JSON, or a file of offsets. A "
            "new version reads what lies before it as well, unless --drop-older is given.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="Where to end, without state; then it goes on where it was.", show_default=False
        ),
    ] = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="Build a new version and swap it in, also where that is not needed.")
    ] = False,
    drop_older: Annotated[
        bool, typer.Option("--drop-older", help="Let a new version begin at --from, without older rows or state.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Keep the old version, to take it back.")] = True,
    keep_side_topic: KeepSideTopic = False,
    without_id: WithoutId = None,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give up a replay that was begun.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait for a pipeline that runs; not with --to.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = "5m",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept in the journal.")] = "",
    file: File = None,
    home: HomeFolder = None,
    master: Master = "local[*]",
    conf: Conf = None,
    package: Package = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Reads again from a place, counting and sending nothing twice: live where that is exact, else as a new version.

    A replay that was stopped is gone on with by the same command without --from.
    """
    from logmark.spark.pipelines.replay.runner import Choices, unfinished

    settings = SparkSettings(master, conf or (), package or ())
    with known(cluster, name, file=file, home=home, settings=settings) as it:
        if not dry_run:
            it.cluster.refuse_writing()
        act = _Act(it, output=output, yes=yes, dry_run=dry_run, wait=wait, reason=reason)
        with it.job.home.replaying(), it.connect() as client:
            work = unfinished(it.job)
            if abandon:
                act.abandon(client)
            elif work is not None:
                # Whoever was told that rows have no ids says so the second time.
                work = replace(work, without_id=_without_id(without_id) or work.without_id)
                act.go_on(client, work, is_new=from_ is not None or to is not None)
            else:
                choices = Choices(keep=keep, keep_side_topic=keep_side_topic, without_id=_without_id(without_id))
                act.begin(
                    client, from_, to, choices, is_beside=beside, drop_older=drop_older, is_detached=detach
                )  # fmt: skip


@app.command("take-back", epilog=example("logmark pipelines take-back fraud"))
@on_cluster
def take_back(
    cluster: Cluster,
    name: Name,
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", help="The version; the one before unless it is given.")
    ] = None,
    keep_side_topic: KeepSideTopic = False,
    without_id: WithoutId = None,
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
    """Makes a version live again that was live before; the present one is kept."""
    from logmark.spark.pipelines.replay.runner import Choices, unfinished
    from logmark.spark.pipelines.versions import previous

    settings = SparkSettings(master, conf or (), package or ())
    with known(cluster, name, file=file, home=home, settings=settings) as it:
        if not dry_run:
            it.cluster.refuse_writing()
        act = _Act(it, output=output, yes=yes, dry_run=dry_run, wait=wait)
        with it.job.home.replaying(), it.connect() as client:
            if (work := unfinished(it.job)) is not None:
                raise _is_under_way(it, work)
            number = version if version is not None else previous(it.job.home)
            if number is None:
                raise UserError(f"{name} has had no other version. Nothing was changed.", exit_code=NOTHING_TO_DO)
            act.take_back(
                client, number, Choices(keep_side_topic=keep_side_topic, without_id=_without_id(without_id))
            )  # fmt: skip


class _Act:
    """One command that replays: how it is shown, whether it is asked, and how far it is."""

    def __init__(
        self, it: Known, *, output: OutputFormat, yes: bool, dry_run: bool, wait: str, reason: str = ""
    ) -> None:
        from logmark.offsets.times import parse_duration

        self._it = it
        self._output = output
        self._yes = yes
        self._dry_run = dry_run
        self._reason = reason
        self._wait_s = parse_duration(wait) / 1000

    def begin(
        self, client: "Client", from_: str | None, to: str | None, choices: "Choices", *, is_beside: bool,
        drop_older: bool, is_detached: bool,
    ) -> None:  # fmt: skip
        """Plans, shows, asks and replays."""
        from logmark.spark.pipelines.replay.plan import check_ids, check_older, has_state, kind_of, plan_version
        from logmark.spark.pipelines.replay.runner import begin
        from logmark.spark.pipelines.replay.state import Kind

        job = self._it.job
        is_stateful = has_state(job, self._it.spark)
        kind = kind_of(job, is_stateful=is_stateful, is_beside=is_beside, has_stop=to is not None)
        aims = self._aims(from_, to, kind)
        if kind is Kind.LIVE:
            self._reread(client, *aims, is_detached=is_detached)
            return
        plan = plan_version(job, client, *aims, kind=kind, is_stateful=is_stateful, drop_older=drop_older)
        if not plan.records and kind is Kind.COPY:
            say(f"Nothing to do: {job.pipeline.name} has read nothing behind that place.")
            raise typer.Exit(NOTHING_TO_DO)
        self._show_version(plan)
        check_older(plan, drop_older=drop_older)
        if self._dry_run:
            self._end_dry_run(_version_fields(plan))
            return
        check_ids(job, plan, self._it.spark(), without_id=choices.without_id)
        self._ask(f"Replay {job.pipeline.name} so?")
        self._carry_out(client, begin(job, client, plan, choices))

    def go_on(self, client: "Client", work: "Work", *, is_new: bool) -> None:
        """Goes on with a replay that was stopped."""
        if is_new:
            raise _is_under_way(self._it, work)
        say(f"Going on with version {work.number} of {self._it.job.pipeline.name}.")
        if self._dry_run:
            self._end_dry_run({"version": work.number, "kind": work.kind.value})
            return
        self._carry_out(client, work)

    def take_back(self, client: "Client", number: int, choices: "Choices") -> None:
        """Makes a version live again."""
        from logmark.spark.pipelines.replay.runner import begin_taking_back, check_taking_back

        job = self._it.job
        check_taking_back(job, number)
        say(f"Version {number} of {job.pipeline.name} takes the place of version {job.home.record().live} again.")
        if self._dry_run:
            self._end_dry_run({"version": number, "kind": "back"})
            return
        self._ask("Take it back?")
        self._carry_out(client, begin_taking_back(job, client, number, choices))

    def abandon(self, client: "Client") -> None:
        """Gives up what was begun."""
        from logmark.spark.pipelines.replay.runner import abandon, can_be_abandoned

        job = self._it.job
        work = can_be_abandoned(job)
        if self._dry_run:
            say(f"Version {work.number} of {job.pipeline.name} would be given up; the live one would have its group.")
            self._end_dry_run({"version": work.number, "kind": work.kind.value})
            return
        self._ask(f"Give up version {work.number} of {job.pipeline.name}?")
        number = abandon(job, client)
        say(f"Done: version {number} of {job.pipeline.name} is given up; the live one has its group.")

    def _aims(self, from_: str | None, to: str | None, kind: "Kind") -> "tuple[Aim, Aim | None]":
        from logmark.spark.pipelines.replay.state import Kind
        from logmark.spark.pipelines.replay.targets import parse_aim

        if from_ is None and kind is not Kind.SWAP:
            raise UserError(
                "Say where to begin with --from: earliest, 3d, a time, or offsets. Nothing was changed.", exit_code=2
            )
        group, now_ms = self._it.job.pipeline.group, time.time_ns() // 1_000_000
        begin = parse_aim(from_ or "earliest", group=group, now_ms=now_ms)
        return begin, None if to is None else parse_aim(to, group=group, now_ms=now_ms, name="--to")

    def _reread(self, client: "Client", aim: "Aim", stop: "Aim | None", *, is_detached: bool) -> None:
        from logmark.spark.pipelines.replay.in_place import (
            places_before,
            plan_rereading,
            reread,
            rows_between,
            stops_of,
        )

        job = self._it.job
        plan = plan_rereading(job, client, aim)
        stops = stops_of(job, client, plan, stop)
        starts = {move.partition: move.to or 0 for move in plan.moves}
        rows = rows_between(job, starts, stops)
        ends_early = stops != places_before(plan)
        fields: dict[str, object] = {"pipeline": job.pipeline.name, "kind": "live", "rows_to_replace": rows}
        fields["stops"] = nested(stops) if ends_early else None
        if self._output is OutputFormat.TABLE:
            print_plan(plan)
            if ends_early:
                write_line(f"Read again up to {shown(stops)}; then it goes on where it was.")
            if rows is not None:
                write_line(f"{count(rows, 'row')} of the table came from there and will be replaced.")
        if not plan.changes or not plan.read_again:
            say(f"Nothing to do: {job.pipeline.name} has read nothing behind that place.")
            raise typer.Exit(NOTHING_TO_DO)
        if self._dry_run:
            self._end_dry_run(fields | plan_fields(plan, None))
            return
        self._ask(f"Replay {job.pipeline.name} so?")
        with telling(f"{job.pipeline.name}: reading again") as report:
            applied = reread(
                job, self._it.spark, client, plan, stops, agree=self._agree, reason=self._reason,
                is_detached=is_detached, report=report,
            )  # fmt: skip
        if self._output is OutputFormat.JSON:
            print_json(fields | plan_fields(applied.plan, applied))
        say(
            f"Done: {count(plan.read_again, 'record')} {'are' if is_detached else 'were'} read again. To take the move "
            f"of the group back: logmark offsets undo {applied.change.id}"
        )

    def _agree(self, plan: "ResetPlan") -> None:
        if not self._yes:
            print_plan(plan)
            self._ask("The group has moved since. Replay it so?")

    def _carry_out(self, client: "Client", work: "Work") -> None:
        from logmark.spark.pipelines.replay.runner import Replay, Telling

        job = self._it.job
        with telling(f"{job.pipeline.name}: version {work.number}") as report:
            telling_all = Telling(say=say, report=report)
            outcome = Replay(
                job, self._it.spark, client, work, telling=telling_all, wait_s=self._wait_s
            ).carry_out()  # fmt: skip
        if self._output is OutputFormat.JSON:
            print_json(_outcome_fields(job.pipeline.name, outcome))
        _tell(job.pipeline.name, outcome)

    def _show_version(self, plan: "VersionPlan") -> None:
        if self._output is OutputFormat.JSON:
            return
        job = self._it.job
        what = {
            "copy": "is read again beside the live version; what was not sent before is released",
            "swap": "is built beside the live version and takes its place",
        }[plan.kind.value]
        write_line(f"Plan for pipeline {job.pipeline.name}: version {plan.number} {what}.")
        print_table(
            [
                Column("TOPIC"),
                Column("PARTITION", True),
                Column("FROM", True),
                Column("TO", True),
                Column("READ", True),
            ],
            [
                (place.topic, place.partition, start, plan.stops[place], max(plan.stops[place] - start, 0))
                for place, start in sorted(plan.starts.items())
            ],
        )
        write_line(f"In total: {count(plan.records, 'record')} to read.")
        for note in plan.notes:
            say(note)

    def _end_dry_run(self, fields: dict[str, object]) -> None:
        if self._output is OutputFormat.JSON:
            print_json(fields)
        say("This was a dry run: nothing was changed.")

    def _ask(self, question: str) -> None:
        if self._yes:
            return
        if self._output is OutputFormat.JSON:
            raise UserError(
                "Nothing was changed: JSON is for programs, and nobody can be asked about a plan that is not shown. "
                "Add --yes or --dry-run.",
                exit_code=2,
            )
        ask(question)


@contextmanager
def telling(title: str) -> "Iterator[Callable[[int, int], None]]":
    """What shows how far a run is: a bar in a terminal, else a line now and then."""
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


def _tell(name: str, outcome: "Outcome") -> None:
    if outcome.released is not None:
        released = outcome.released
        say(
            f"{count(released.sent, 'record')} released; {released.known:,} ids were sent before"
            + (f", {count(released.without_id, 'record')} had no id." if released.without_id else ".")
        )
    if outcome.kind.value == "copy":
        say(f"Done: {name} goes on as it was.")
        return
    say(f"Done: version {outcome.number} of {name} is live. To go back: logmark pipelines take-back {name}")


def _outcome_fields(name: str, outcome: "Outcome") -> dict[str, object]:
    released = outcome.released
    return {
        "pipeline": name,
        "kind": outcome.kind.value,
        "version": outcome.number,
        "stands": nested(outcome.stands),
        "released": released.sent if released else None,
        "sent_before": released.known if released else None,
        "without_id": released.without_id if released else None,
    }


def _version_fields(plan: "VersionPlan") -> dict[str, object]:
    return {
        "kind": plan.kind.value,
        "version": plan.number,
        "stateful": plan.is_stateful,
        "starts": nested(plan.starts),
        "stops": nested(plan.stops),
        "records": plan.records,
        "dropped": plan.dropped,
        "notes": list(plan.notes),
    }


def _is_under_way(it: Known, work: "Work") -> UserError:
    name = it.job.pipeline.name
    return UserError(
        f"A replay of {name} to version {work.number} was begun and is not done. Nothing was changed. Go on with it "
        f"(logmark pipelines replay {name}) or give it up (logmark pipelines replay {name} --abandon) first."
    )


def _without_id(text: str | None) -> str | None:
    if text not in (None, "skip", "send"):
        raise UserError(f"--without-id is skip or send, not {text!r}. Nothing was changed.", exit_code=2)
    return text
