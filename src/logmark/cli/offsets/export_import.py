"""`logmark offsets export` and `import`: a group's offsets as a file."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.offsets.app import DryRun, ForceStateful, Group, Reason, Topic, WaitEmpty, WithOptionalValues, app
from logmark.cli.offsets.plan_command import PlanCommand, spinner, wait_empty
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.cli.tables import count, say
from logmark.errors import UserError
from logmark.offsets.reset.offset_files import export_offsets, parse_offsets
from logmark.offsets.reset.planner import parse_topic_selection, plan_reset


class FileFormat(StrEnum):
    """How offsets are written into a file."""

    CSV = "csv"
    JSON = "json"


@app.command("export", epilog=example("logmark offsets export fraud fraud.json"))
@on_cluster
def export_command(
    cluster: Cluster,
    group: Group,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to; standard output if it is not given.")
    ] = None,
    topic: Topic = None,
    format: Annotated[
        FileFormat | None,
        typer.Option(
            "--format",
            help="Kafka's CSV (topic,partition,offset), or JSON with leader epochs and metadata; by default as the "
            "file's name ends, else CSV.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")] = False,
) -> None:
    """Export a group's committed offsets in the format of kafka-consumer-groups.sh --export."""
    is_json = format is FileFormat.JSON or (format is None and file is not None and file.suffix.lower() == ".json")
    with cluster.connect() as client:
        found = export_offsets(client, group, parse_topic_selection(topic) if topic else None)
    text = found.to_json() if is_json else found.to_csv()
    if file is None:
        typer.echo(text, nl=False)
        return
    _write(file, text, overwrite=overwrite)
    say(f"Wrote {count(len(found.offsets), 'offset')} of group {group} to {file}.")


@app.command("import", cls=WithOptionalValues, epilog=example("logmark offsets import fraud fraud.json"))
@on_cluster
def import_command(
    cluster: Cluster,
    group: Group,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Kafka's CSV or our JSON; - is standard input.")],
    topic: Topic = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    create_group: Annotated[
        bool, typer.Option("--create-group", help="Allow a group that does not exist yet.")
    ] = False,
    allow_new_topics: Annotated[
        bool, typer.Option("--allow-new-topics", help="Allow topics in which the group has committed nothing yet.")
    ] = False,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Take the nearer end of the log for an offset that is out of range.")
    ] = False,
    force: ForceStateful = False,
    wait: WaitEmpty = None,
    reason: Reason = "",
    output: Output = OutputFormat.TABLE,
) -> None:
    """Reset a group to the offsets in a file: show the plan, ask, journal it, apply it and read it back."""

    target = parse_offsets(read_text(file), group, "standard input" if str(file) == "-" else str(file))
    command = PlanCommand(cluster, yes=yes, dry_run=dry_run, output=output, reason=reason)
    with cluster.connect() as client:
        wait_empty(client, group, wait)
        with spinner("Looking at the group and its logs"):
            plan = plan_reset(
                client, group, parse_topic_selection(topic) if topic else None, target, create_group=create_group,
                allow_new_topics=allow_new_topics, clamp=clamp, allow_stateful=force, with_preview=True,
                action="import",
            )  # fmt: skip
        command.carry_out(client, plan)


def read_text(file: Path) -> str:
    """Return the text of a file, or of standard input for -."""
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"{file} cannot be read: {why}. Nothing was changed.") from None


def _write(file: Path, text: str, *, overwrite: bool) -> None:
    try:
        with open(file, "w" if overwrite else "x") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
    except FileExistsError:
        raise UserError(f"{file} is there already and was left as it is; add --overwrite to write over it.") from None
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}.") from None
