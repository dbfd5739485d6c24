"""The command `logmark`: finds the subcommand, and turns what went wrong into a sentence and an exit code."""

import contextlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from logmark import __version__
from logmark.cli import (
    backup,
    consume,
    contexts,
    groups,
    health,
    kafka_tools,
    lag,
    log,
    monitor,
    offsets,
    pipelines,
    produce,
    recover,
    replay,
    topics,
    tour,
    verify,
)
from logmark.cli.options import example
from logmark.cli.tables import say
from logmark.errors import LogmarkError, UserError

_SERVE_HELP = "Run a broker in the foreground until it is told to stop."
_ORDER = (
    "tour", "topics", "produce", "consume", "groups", "lag", "monitor", "offsets", "replay", "pipelines", "health",
    "verify", "recover", "log", "backup", "restore", "contexts", "kafka-consumer-groups",
)  # fmt: skip
INTERRUPTED = 130


class Root(TyperGroup):
    """The commands; the broker is imported only when it is to be served."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of a first minute: serve, write, read, look, move."""
        known = super().list_commands(ctx)
        return ["serve", *sorted(known, key=_ORDER.index)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand("serve", help=_SERVE_HELP) if cmd_name == "serve" else super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[:1] == ["serve"]:
            return "serve", _serve_command(), args[1:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; a person's mistake is a sentence on standard error, never a traceback."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except LogmarkError as error:
            first, *others = error.lines if isinstance(error, UserError) else (str(error),)
            for line in (f"logmark: {first}", *others):
                say(line)
            raise typer.Exit(error.exit_code if isinstance(error, UserError) else 1) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read our output has seen enough; Python must not fail at its last flush either.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        return result


def _serve_command() -> Any:
    from logmark.cli.serve import serve

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("serve", help=_SERVE_HELP, epilog=example("logmark serve --data-dir ./data"))(serve)
    return typer.main.get_command(app)


app = typer.Typer(
    name="logmark",
    cls=Root,
    help="Kafka's log, everybody's place in it, and the pipelines that read it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command("tour", epilog=example("logmark tour lag crash --no-pause"))(tour.tour)
app.add_typer(topics.app, name="topics")
app.command("produce", epilog=example("seq 3 | logmark produce orders"))(produce.produce)
app.command("consume", epilog=example("logmark consume orders --from @-2h --max 10"))(consume.consume)
app.add_typer(groups.app, name="groups")
app.command("lag", epilog=example("logmark lag billing --output json"))(lag.lag)
app.command("monitor", epilog=example("logmark monitor --alerts alerts.toml"))(monitor.monitor)
app.add_typer(offsets.app, name="offsets")
app.command("replay", epilog=example("logmark replay orders --from @-2h --key ORD-7 --to-topic orders-sandbox"))(
    replay.replay
)
app.add_typer(pipelines.app, name="pipelines")
app.command("health", epilog=example("logmark health --bootstrap-servers 127.0.0.1:9092"))(health.health)
app.command("verify", epilog=example("logmark verify ./logmark-data"))(verify.verify)
app.command("recover", epilog=example("logmark recover ./logmark-data --dry-run"))(recover.recover)
app.add_typer(log.app, name="log")
app.command("backup", epilog=example("logmark backup ./logmark-data /mnt/backup/orders"))(backup.backup)
app.command("restore", epilog=example("logmark restore /mnt/backup/orders ./restored"))(backup.restore)
app.command("contexts", epilog=example("logmark contexts"))(contexts.contexts)
app.command("kafka-consumer-groups", cls=kafka_tools.Untouched)(kafka_tools.kafka_consumer_groups)


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
    """Kafka's log, everybody's place in it, and the pipelines that read it."""


def run() -> None:
    """The console script."""
    app()
