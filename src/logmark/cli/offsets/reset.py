"""`logmark offsets reset`: every way in which a group can be moved."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, complete_group, on_cluster
from logmark.cli.offsets.app import (
    AllTopics,
    DryRun,
    ForceStateful,
    Group,
    Reason,
    Topic,
    WaitEmpty,
    WithOptionalValues,
    app,
)
from logmark.cli.offsets.export_import import read_text
from logmark.cli.offsets.plan_command import PlanCommand, spinner, wait_empty
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.cli.progress import bar
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.offsets.errors import StatefulGroup
from logmark.offsets.reset import targets
from logmark.offsets.reset.key_search import find_key
from logmark.offsets.reset.offset_files import parse_offsets
from logmark.offsets.reset.planner import (
    TopicSelection,
    offsets_of_group,
    parse_topic_selection,
    plan_reset,
    select_partitions,
)
from logmark.offsets.reset.targets import Target, ToEarliest
from logmark.offsets.times import parse_duration, parse_time

_WHERE_TO = "Where to: one of these"
_MOMENT = "2024-03-05T00:00:00, seconds, milliseconds, '3d ago'; without a zone UTC."


@app.command(
    "reset", cls=WithOptionalValues, epilog=example("logmark offsets reset fraud --topic clicks --by-duration 3d")
)
@on_cluster
def reset(
    cluster: Cluster,
    group: Group,
    topic: Topic = None,
    all_topics: AllTopics = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Read everything again.", rich_help_panel=_WHERE_TO)
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Skip everything that is there.", rich_help_panel=_WHERE_TO)
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option(metavar="N", help="Read offset N next, in each partition.", rich_help_panel=_WHERE_TO)
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"The first record at or after a time: {_MOMENT}", rich_help_panel=_WHERE_TO),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="D", help="So long before now: 2h, 3d, PT2H, P3D.", rich_help_panel=_WHERE_TO)
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Forward, or back if negative, from the committed offset.", rich_help_panel=_WHERE_TO
        ),
    ] = None,
    to_current: Annotated[
        bool,
        typer.Option(
            "--to-current", help="Commit the same again, which keeps it from expiring.", rich_help_panel=_WHERE_TO
        ),
    ] = False,
    from_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="To the offsets in a file: Kafka's CSV, or our JSON.", rich_help_panel=_WHERE_TO
        ),
    ] = None,
    from_group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="To the committed offsets of another group.",
            autocompletion=complete_group,
            rich_help_panel=_WHERE_TO,
        ),
    ] = None,
    before_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="To the first record with this key.", rich_help_panel=_WHERE_TO)
    ] = None,
    after_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Behind the first record with this key.", rich_help_panel=_WHERE_TO),
    ] = None,
    key_hex: Annotated[
        bool, typer.Option("--key-hex", help="The key is given in hexadecimal digits.", rich_help_panel=_WHERE_TO)
    ] = False,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Look for the key from this time on.", rich_help_panel=_WHERE_TO)
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Look for the key up to this time.", rich_help_panel=_WHERE_TO)
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    create_group: Annotated[
        bool, typer.Option("--create-group", help="Allow a group that does not exist yet.")
    ] = False,
    allow_new_topics: Annotated[
        bool,
        typer.Option("--allow-new-topics", help="Allow topics of a file or a group where nothing is committed yet."),
    ] = False,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Take the nearer end of the log for an offset that is out of range.")
    ] = False,
    force: ForceStateful = False,
    wait: WaitEmpty = None,
    reason: Reason = "",
    output: Output = OutputFormat.TABLE,
) -> None:
    """Reset a group's committed offsets: show the plan, ask, journal it, apply it and read it back."""

    target_options = _TargetOptions(
        to_earliest=to_earliest, to_latest=to_latest, to_offset=to_offset, to_datetime=to_datetime,
        by_duration=by_duration, shift_by=shift_by, to_current=to_current, from_file=from_file, from_group=from_group,
        before_key=before_key, after_key=after_key, key_hex=key_hex, since=since, until=until,
    )  # fmt: skip
    target_options.check()
    topics = _topics(topic, all_topics=all_topics, is_named_elsewhere=bool(from_file or from_group))
    command = PlanCommand(cluster, yes=yes, dry_run=dry_run, output=output, reason=reason)
    chosen = None if topics is None else parse_topic_selection(topics)
    with cluster.connect() as client:
        wait_empty(client, group, wait)
        target = target_options.target(client, group, chosen)
        with spinner("Looking at the group and its logs"), _name_pipeline():
            plan = plan_reset(
                client, group, chosen, target, create_group=create_group, allow_new_topics=allow_new_topics,
                clamp=clamp, allow_stateful=force, with_preview=True,
            )  # fmt: skip
        command.carry_out(client, plan)


@contextlib.contextmanager
def _name_pipeline() -> Iterator[None]:
    """Let an error about a group name the pipeline of that group, if it has run on this machine."""
    try:
        yield
    except StatefulGroup as error:
        # Only here: a reset that is not refused starts sooner without pipelines.
        from logmark.spark.pipelines.home import default_root, list_homes

        names = [home.name for home in list_homes(default_root()) if home.record().group == error.group]
        error.pipeline = names[0] if names else error.pipeline
        raise


def _topics(topic: list[str] | None, *, all_topics: bool, is_named_elsewhere: bool) -> Sequence[str] | None:
    if topic and all_topics:
        raise typer.BadParameter("Name topics with --topic or take --all-topics, not both.")
    if not (topic or all_topics or is_named_elsewhere):
        raise typer.BadParameter(
            "Say which topics are meant: --topic NAME or --topic NAME:0,1, or --all-topics for every partition in "
            "which the group has committed."
        )
    return topic or None


@dataclass(frozen=True, slots=True, kw_only=True)
class _TargetOptions:
    """The options that say where the group shall go; one of them is given."""

    to_earliest: bool
    to_latest: bool
    to_offset: int | None
    to_datetime: str | None
    by_duration: str | None
    shift_by: int | None
    to_current: bool
    from_file: Path | None
    from_group: str | None
    before_key: str | None
    after_key: str | None
    key_hex: bool
    since: str | None
    until: str | None

    def check(self) -> None:
        """Refuses none and several, before anybody is asked anything."""
        given = [
            self.to_earliest, self.to_latest, self.to_current, self.to_offset is not None,
            self.to_datetime is not None, self.by_duration is not None, self.shift_by is not None,
            self.from_file is not None, self.from_group is not None, self.before_key is not None,
            self.after_key is not None,
        ]  # fmt: skip
        if sum(given) != 1:
            raise UserError(
                "Say where the group shall go, with one of --to-earliest, --to-latest, --to-offset, --to-datetime, "
                "--by-duration, --shift-by, --to-current, --from-file, --from-group, --before-key and --after-key.",
                exit_code=2,
            )
        if (self.key_hex or self.since or self.until) and self.before_key is None and self.after_key is None:
            raise UserError(
                "--key-hex, --since and --until belong to --before-key and --after-key. Nothing was changed.",
                exit_code=2,
            )

    def target(self, client: Client, group: str, topics: TopicSelection | None) -> Target:
        """Where the group shall go; a file is read, another group asked and a key looked for."""

        now_ms = time.time_ns() // 1_000_000
        if self.from_file is not None:
            return parse_offsets(read_text(self.from_file), group, str(self.from_file))
        if self.from_group is not None:
            return offsets_of_group(client, self.from_group)
        if self.before_key is not None or self.after_key is not None:
            return self._key(client, group, topics, now_ms)
        if self.to_offset is not None:
            return targets.ToOffset(self.to_offset)
        if self.to_datetime is not None:
            return targets.ToTime(parse_time(self.to_datetime, now_ms=now_ms))
        if self.by_duration is not None:
            return targets.ToTime(max(now_ms - parse_duration(self.by_duration), 0))
        if self.shift_by is not None:
            return targets.ShiftBy(self.shift_by)
        if self.to_current:
            return targets.ToCurrent()
        return targets.ToEarliest() if self.to_earliest else targets.ToLatest()

    def _key(self, client: Client, group: str, topics: TopicSelection | None, now_ms: int) -> Target:

        text = self.before_key if self.before_key is not None else self.after_key
        assert text is not None
        try:
            key = bytes.fromhex(text) if self.key_hex else text.encode()
        except ValueError:
            raise UserError(f"{text!r} is no key in hexadecimal digits. Nothing was changed.", exit_code=2) from None
        times = [parse_time(one, now_ms=now_ms) if one else None for one in (self.since, self.until)]
        partitions = select_partitions(client, group, client.committed(group), topics, ToEarliest())
        with bar("Looking for the key", is_bytes=False) as progress:
            return find_key(
                client, partitions, key, is_after=self.after_key is not None, since_ms=times[0], until_ms=times[1],
                expect=progress.expect, advance=progress.advance,
            )  # fmt: skip
