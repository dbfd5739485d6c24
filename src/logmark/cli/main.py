"""The command `logmark`: finds the subcommand, and turns errors into messages and exit codes."""

import contextlib
import os
import sys
from typing import Annotated, Any

import typer

from logmark import __version__
from logmark.cli.lazy_group import CommandSource, LazyGroup
from logmark.cli.tables import say
from logmark.errors import LogmarkError, UserError

INTERRUPTED = 130


# In the order of a first minute: serve, write, read, look, move. Modules are imported when their command is run.
COMMANDS = {
    "serve": CommandSource(
        "serve:serve", "Run a broker in the foreground until it is told to stop.", "logmark serve --data-dir ./data"
    ),
    "tour": CommandSource(
        "tour:tour",
        "Learn offsets with real clients and a broker of its own; nothing of yours is touched.",
        "logmark tour lag crash --no-pause",
    ),
    "topics": CommandSource("topics:app", "List, create, describe and delete topics."),
    "produce": CommandSource(
        "produce:produce",
        "Write each line of standard input as a record, and print the offsets that the broker assigned.",
        "seq 3 | logmark produce orders",
    ),
    "consume": CommandSource(
        "consume:consume",
        "Print the records of a topic, one line each, up to its present end.",
        "logmark consume orders --from @-2h --max 10",
    ),
    "groups": CommandSource("groups:app", "List, describe and delete consumer groups."),
    "lag": CommandSource(
        "lag:lag",
        "Show how far each group is behind in records and seconds, what it lost, and what its history says about it.",
        "logmark lag billing --output json",
    ),
    "monitor": CommandSource(
        "monitor:monitor",
        "Watch a cluster until it is told to stop: store the history of lag, serve metrics, send alerts.",
        "logmark monitor --alerts alerts.toml",
    ),
    "offsets": CommandSource("offsets:app", "Reset a group's committed offsets, and undo it."),
    "replay": CommandSource(
        "replay:replay",
        "Show a range of a topic, or copy it to another topic; live consumer groups are not affected.",
        "logmark replay orders --from @-2h --key ORD-7 --to-topic orders-sandbox",
    ),
    "pipelines": CommandSource("pipelines:app", "Run, show and replay Spark pipelines that are consumer groups."),
    "health": CommandSource(
        "health:health",
        "Show whether brokers answer, accept records, and have all partitions and coordinators.",
        "logmark health --bootstrap-servers 127.0.0.1:9092",
    ),
    "verify": CommandSource(
        "verify:verify",
        "Check every batch, index, snapshot, id and setting; exit code 1 when anything is wrong.",
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
        "Copy all records, topics, settings and committed offsets, while the broker runs.",
        "logmark backup ./logmark-data /mnt/backup/orders",
    ),
    "restore": CommandSource(
        "backup:restore",
        "Create a data directory from a backup, and check every file and every batch.",
        "logmark restore /mnt/backup/orders ./restored",
    ),
    "contexts": CommandSource(
        "contexts:contexts",
        "List the clusters that you have named; a star marks the default.",
        "logmark contexts",
    ),
    "kafka-consumer-groups": CommandSource(
        "kafka_tools:kafka_consumer_groups",
        "Kafka's kafka-consumer-groups.sh: the same options, output and exit codes, without a JVM.",
    ),
}


class Root(LazyGroup):
    """All commands, and what is done about their errors."""

    package = "logmark.cli"
    sources = COMMANDS

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a user's mistake is a message on standard error, never a traceback."""
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
    """Run the console script."""
    app()
