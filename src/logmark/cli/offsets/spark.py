"""`logmark offsets spark`: the offsets of a query on Spark's own Kafka connector, shown, moved, or given to a group."""

import time
from dataclasses import replace
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, complete_group, on_cluster
from logmark.cli.offsets.app import DryRun, Reason, Topic, app
from logmark.cli.offsets.checkpoint_tables import print_rewind, print_view
from logmark.cli.offsets.plan_command import NOTHING_TO_DO, PlanCommand, ask, spinner
from logmark.cli.offsets.plan_tables import print_change
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.cli.tables import print_json, say
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.offsets.journal.changes import Change
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.journal.journal import Journal, open_journal
from logmark.offsets.reset import targets
from logmark.offsets.reset.planner import parse_topic_selection
from logmark.offsets.reset.preview import add_preview
from logmark.offsets.reset.targets import Target
from logmark.offsets.spark_checkpoints.checkpoint import read_checkpoint
from logmark.offsets.spark_checkpoints.folder import Folder, open_folder
from logmark.offsets.spark_checkpoints.group_seed import plan_group_seed
from logmark.offsets.spark_checkpoints.json_views import checkpoint_json, rewind_json
from logmark.offsets.spark_checkpoints.rewind import Rewind, apply_rewind, complete_rewind, plan_rewind, start_of_batch
from logmark.offsets.spark_checkpoints.sinks import parse_sink
from logmark.offsets.spark_checkpoints.undo import apply_rewind_undo, plan_rewind_undo
from logmark.offsets.spark_checkpoints.view import view_checkpoint, view_without_cluster
from logmark.offsets.times import parse_duration, parse_time

_EXAMPLES = example(
    "logmark offsets spark /data/checkpoints/clicks",
    "logmark offsets spark /data/checkpoints/clicks --by-duration 3h --sink foreachBatch",
    "logmark offsets spark s3a://bucket/checkpoints/clicks --to-group clicks",
)


@app.command("spark", epilog=_EXAMPLES)
@on_cluster
def spark(
    cluster: Cluster,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="The query's checkpointLocation: a folder, a file: URL, or any URL that fsspec knows (s3a:, gs:, …).",
        ),
    ],
    to_group: Annotated[
        str | None,
        typer.Option(
            "--to-group",
            metavar="GROUP",
            help='Give this group the query\'s offsets, so that format("logmark") continues after format("kafka".',
            autocompletion=complete_group,
        ),
    ] = None,
    topic: Topic = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Read everything again.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Skip everything that is there.")] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="N", help="Read offset N next, in each partition.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="The first record at or after a time; without a zone UTC.")
    ] = None,
    by_duration: Annotated[str | None, typer.Option(metavar="D", help="So long before now: 2h, 3d, PT2H, P3D.")] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="Forward, or back if negative, from the next offset of the query.")
    ] = None,
    before_batch: Annotated[
        int | None, typer.Option(metavar="ID", min=0, help="To where this batch began: it is read again.")
    ] = None,
    sink: Annotated[
        str | None,
        typer.Option(
            metavar="KIND|FOLDER",
            help="Where the query writes to, needed to move it: foreachBatch, kafka, delta, … or a folder to look at. "
            "The query of a file sink cannot be moved.",
        ),
    ] = None,
    i_stopped_it: Annotated[
        bool, typer.Option("--i-stopped-it", help="Also where the checkpoint was written to in the last minute.")
    ] = False,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Take the nearer end of the log for an offset that is out of range.")
    ] = False,
    batches: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many batches are shown.")] = 5,
    no_lag: Annotated[bool, typer.Option("--no-lag", help="Show the checkpoint alone, and ask no cluster.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    reason: Reason = "",
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the offsets of a query on Spark's Kafka connector, rewind it while it is stopped, or seed a group from it.

    Without a target it changes nothing. A target moves the query by a batch that is added to its checkpoint; none is
    ever edited, the change is journaled, and `logmark offsets undo` undoes it.
    """

    folder = open_folder(checkpoint)
    target = _target(
        folder, to_earliest=to_earliest, to_latest=to_latest, to_offset=to_offset, to_datetime=to_datetime,
        by_duration=by_duration, shift_by=shift_by, before_batch=before_batch,
    )  # fmt: skip
    if target is not None and to_group is not None:
        raise UserError(
            "Say where the query shall go, or with --to-group which group shall have its offsets, not both: seed the "
            "group first, and then reset it. Nothing was changed.",
            exit_code=2,
        )
    if target is None and to_group is None:
        _refuse_idle_options(topic=bool(topic), sink=sink is not None, clamp=clamp, dry_run=dry_run)
        _show(cluster, folder, batches=batches, is_alone=no_lag, output=output)
        return
    if no_lag:
        raise UserError("--no-lag is for looking only. Nothing was changed.", exit_code=2)
    if to_group is not None:
        command = PlanCommand(cluster, yes=yes, dry_run=dry_run, output=output, reason=reason)
        _seed(cluster, folder, to_group, command, topic=topic, clamp=clamp, is_stopped=i_stopped_it)
        return
    assert target is not None
    mover = Mover(cluster, yes=yes, dry_run=dry_run, output=output, reason=reason)
    mover.move(folder, target, topic=topic, sink=sink, clamp=clamp, is_stopped=i_stopped_it)


class Mover:
    """One run of a command that moves a query: how it is shown, whether it is asked, and why it is done."""

    def __init__(self, cluster: Cluster, *, yes: bool, dry_run: bool, output: OutputFormat, reason: str = "") -> None:
        self._cluster = cluster
        self._yes = yes
        self._dry_run = dry_run
        self._output = output
        self._reason = reason
        self._details = {"context": cluster.context} if cluster.context else {}
        if not dry_run:
            cluster.refuse_writing()

    def move(
        self,
        folder: Folder,
        target: Target,
        *,
        topic: list[str] | None,
        sink: str | None,
        clamp: bool,
        is_stopped: bool,
    ) -> None:
        """Plans a move of a query, shows it, asks, and adds the batch."""

        with self._cluster.connect() as client:
            journal = open_journal(client)
            with spinner("Looking at the checkpoint and its logs"):
                rewind = plan_rewind(
                    client,
                    folder,
                    target,
                    topics=parse_topic_selection(topic) if topic else None,
                    sink=parse_sink(sink) if sink is not None else None,
                    clamp=clamp,
                    is_stopped=is_stopped,
                    changes=journal.changes(name=folder.url),
                    now_ms=_now_ms(),
                )
            if self._is_agreed(client, rewind):
                self._tell(
                    rewind,
                    apply_rewind(
                        client, folder, journal, rewind, reason=self._reason, details=self._details, now_ms=_now_ms()
                    ),
                )

    def undo(self, client: Client, journal: Journal, change: Change, *, force: bool) -> None:
        """Undo a journaled rewind, by one more batch."""

        folder = open_folder(change.name)
        rewind = plan_rewind_undo(client, folder, change, force=force, now_ms=_now_ms())
        if rewind is None:
            if not self._dry_run:
                complete_rewind(folder, journal, change)
            say(f"Nothing to do: the change {change.id} was interrupted before it changed anything.")
            raise typer.Exit(NOTHING_TO_DO)
        if self._is_agreed(client, rewind):
            done = apply_rewind_undo(
                client, folder, journal, change, rewind, reason=self._reason, details=self._details, now_ms=_now_ms()
            )
            self._tell(rewind, done)

    def finish(self, journal: Journal, change: Change) -> None:
        """Brings an interrupted move to its end."""

        if self._output is OutputFormat.TABLE:
            print_change(change)
        if self._dry_run:
            say("This was a dry run: nothing was changed.")
            return
        if not self._yes:
            ask("Is the query stopped, and shall this change be completed?")
        done = complete_rewind(open_folder(change.name), journal, change)
        if done.state == "done":
            say(f"Done: the change {change.id} is complete. To undo it: logmark offsets undo {change.id}")
            return
        say(f"Nothing to do: the change {change.id} was interrupted before it changed anything.")
        raise typer.Exit(NOTHING_TO_DO)

    def _is_agreed(self, client: Client, rewind: Rewind) -> bool:
        """Show the plan and ask; return false for a dry run. Exit with code 3 if it would change nothing."""

        shown = replace(rewind, plan=add_preview(client, rewind.plan))
        if self._output is OutputFormat.TABLE:
            print_rewind(shown)
        elif self._dry_run or not rewind.plan.changes:
            print_json(rewind_json(shown, None))
        if not rewind.plan.changes:
            say("Nothing to do: the query starts there already.")
            raise typer.Exit(NOTHING_TO_DO)
        if self._dry_run:
            say("This was a dry run: nothing was changed.")
            return False
        if not self._yes:
            ask("Is the query stopped, and shall this batch be added to its checkpoint?")
        return True

    def _tell(self, rewind: Rewind, change: Change) -> None:
        if self._output is OutputFormat.JSON:
            print_json(rewind_json(rewind, change))
        say(
            f"Done: batch {rewind.addition.id} was added, and the query continues from there when it is started. "
            f"To undo it: logmark offsets undo {change.id}"
        )


def _show(cluster: Cluster, folder: Folder, *, batches: int, is_alone: bool, output: OutputFormat) -> None:

    checkpoint = read_checkpoint(folder, batches=batches)
    if is_alone:
        view = view_without_cluster(checkpoint, FileJournal().changes(name=folder.url))
    else:
        with cluster.connect() as client:
            changes = open_journal(client).changes(name=folder.url)
            view = view_checkpoint(client, checkpoint, changes, now_ms=_now_ms())
    if output is OutputFormat.JSON:
        print_json(checkpoint_json(view))
    else:
        print_view(view)


def _seed(
    cluster: Cluster,
    folder: Folder,
    group: str,
    command: PlanCommand,
    *,
    topic: list[str] | None,
    clamp: bool,
    is_stopped: bool,
) -> None:

    with cluster.connect() as client:
        with spinner("Looking at the checkpoint, the group and their logs"):
            seed = plan_group_seed(
                client,
                folder,
                group,
                topics=parse_topic_selection(topic) if topic else None,
                clamp=clamp,
                is_stopped=is_stopped,
                changes=open_journal(client).changes(name=folder.url),
                now_ms=_now_ms(),
            )
        for note in seed.notes:
            say(note)
        command.carry_out(client, seed.plan)


def _target(
    folder: Folder, *, to_earliest: bool, to_latest: bool, to_offset: int | None, to_datetime: str | None,
    by_duration: str | None, shift_by: int | None, before_batch: int | None,
) -> Target | None:  # fmt: skip

    chosen: list[targets.Target] = []
    if to_earliest:
        chosen.append(targets.ToEarliest())
    if to_latest:
        chosen.append(targets.ToLatest())
    if to_offset is not None:
        chosen.append(targets.ToOffset(to_offset))
    if to_datetime is not None:
        chosen.append(targets.ToTime(parse_time(to_datetime, now_ms=_now_ms())))
    if by_duration is not None:
        chosen.append(targets.ToTime(max(_now_ms() - parse_duration(by_duration), 0)))
    if shift_by is not None:
        chosen.append(targets.ShiftBy(shift_by))
    if before_batch is not None:
        chosen.append(start_of_batch(folder, before_batch))
    if len(chosen) > 1:
        raise UserError(
            "Say once where the query shall go: --to-earliest, --to-latest, --to-offset, --to-datetime, "
            "--by-duration, --shift-by or --before-batch. Nothing was changed.",
            exit_code=2,
        )
    return chosen[0] if chosen else None


def _refuse_idle_options(**given: bool) -> None:
    """Refuse options that only a move needs: showing instead would look as if the move were done."""
    idle = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if idle:
        raise UserError(
            f"{' and '.join(idle)}: say also where the query shall go (--to-earliest, --to-latest, --to-offset, "
            "--to-datetime, --by-duration, --shift-by, --before-batch), or --to-group. Nothing was changed.",
            exit_code=2,
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
