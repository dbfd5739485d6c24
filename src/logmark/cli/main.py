"""The command `logmark`: finds the subcommand, and turns what went wrong into a sentence and an exit code."""

import contextlib
import importlib
import os
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from logmark import __version__
from logmark.cli.options import example
from logmark.cli.tables import say
from logmark.errors import LogmarkError, UserError

INTERRUPTED = 130


class CommandSource(NamedTuple):
    """Where a command is defined (`module:name`), and its line in the list of commands."""

    target: str
    help: str
    example: str = ""


# In the order of a first minute: serve, write, read, look, move. Modules are imported when their command is run.
COMMANDS = {
    "serve": CommandSource(
        "serve:serve", "Run a broker in the foreground until it is told to stop.", "logmark serve --data-dir ./data"
    ),
    "tour": CommandSource(
        "tour:tour",
        "Walks you through offsets with real clients and a broker of its own; nothing of yours is touched.",
        "logmark tour lag crash --no-pause",
    ),
    "topics": CommandSource("topics:app", "List, create, describe and delete topics."),
    "produce": CommandSource(
        "produce:produce",
        "Writes each line of standard input as a record, and tells the offsets that the broker gave.",
        "seq 3 | logmark produce orders",
    ),
    "consume": CommandSource(
        "consume:consume",
        "Writes the records of a topic, one line each, up to the end that it has now.",
        "logmark consume orders --from @-2h --max 10",
    ),
    "groups": CommandSource("groups:app", "List, describe and delete consumer groups."),
    "lag": CommandSource(
        "lag:lag",
        "Shows how far each group is behind in records and seconds, what it lost, and what its past says about it.",
        "logmark lag billing --output json",
    ),
    "monitor": CommandSource(
        "monitor:monitor",
        "Watches a cluster until it is told to stop: keeps the history of lag, serves metrics, sends alerts.",
        "logmark monitor --alerts alerts.toml",
    ),
    "offsets": CommandSource("offsets:app", "Reset a group's committed offsets, and undo it."),
    "replay": CommandSource(
        "replay:replay",
        "Shows a range of a topic, or copies it to another topic; live consumer groups are not affected.",
        "logmark replay orders --from @-2h --key ORD-7 --to-topic orders-sandbox",
    ),
    "pipelines": CommandSource("pipelines:app", "Run, show and replay Spark pipelines that are consumer groups."),
    "health": CommandSource(
        "health:health",
        "Shows whether brokers answer, take records, and have all partitions and coordinators.",
        "logmark health --bootstrap-servers 127.0.0.1:9092",
    ),
    "verify": CommandSource(
        "verify:verify",
        "Checks every batch, index, snapshot, id and setting; exit code 1 when anything is wrong.",
        "logmark verify ./logmark-data",
    ),
    "recover": CommandSource(
        "recover:recover",
        "Make a directory clean after a crash, without serving it; exit code 1 when records are damaged or missing.",
        "logmark recover ./logmark-data --dry-run",
    ),
    "log": CommandSource("log:app", "Look into the files of a log."),
    "backup": CommandSource(
        "backup:backup",
        "Copies all records, topics, settings and committed offsets, while the broker runs.",
        "logmark backup ./logmark-data /mnt/backup/orders",
    ),
    "restore": CommandSource(
        "backup:restore",
        "Makes a data directory of a backup, every file and every batch checked.",
        "logmark restore /mnt/backup/orders ./restored",
    ),
    "contexts": CommandSource(
        "contexts:contexts",
        "Lists the clusters that you have named; a star marks the one that is used when none is said.",
        "logmark contexts",
    ),
    "kafka-consumer-groups": CommandSource(
        "kafka_tools:kafka_consumer_groups",
        "Kafka's kafka-consumer-groups.sh: the same options, output and exit codes, without a JVM.",
    ),
}


class Root(TyperGroup):
    """The commands; a command's module is imported when the command is run."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in the order of a first minute."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in with the command's help, for the list of commands."""
        source = COMMANDS.get(cmd_name)
        return None if source is None else TyperCommand(cmd_name, help=source.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is to be run."""
        if args and args[0] in COMMANDS:
            return args[0], _load_command(args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; a person's mistake is a sentence on standard error, never a traceback."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except LogmarkError as error:
            # Only a command that failed needs what the remedies import.
            from logmark.cli.remedies import describe_error

            first, *others = describe_error(error)
            for line in (f"logmark: {first}", *others):
                say(line)
            raise typer.Exit(error.exit_code if isinstance(error, UserError) else 1) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of our output has closed it; Python must not fail at its last flush either.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        return result


def _load_command(name: str) -> Any:
    source = COMMANDS[name]
    module, _, attribute = source.target.partition(":")
    target = getattr(importlib.import_module(f"logmark.cli.{module}"), attribute)
    if isinstance(target, typer.Typer):
        return typer.main.get_group(target)
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    # What a function leaves to its decorator: another class of command.
    options = {"cls": target.command_class} if hasattr(target, "command_class") else {}
    command.command(name, help=source.help if name == "serve" else None, epilog=_epilog(source), **options)(target)
    return typer.main.get_command(command)


def _epilog(source: CommandSource) -> str | None:
    return example(source.example) if source.example else None


app = typer.Typer(
    name="logmark",
    cls=Root,
    help="Kafka's log, its offsets and its Spark pipelines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"logmark {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Kafka's log, its offsets and its Spark pipelines."""


def run() -> None:
    """The console script."""
    app()
