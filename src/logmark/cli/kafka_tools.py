"""Kafka's own tools as commands of ours: they get their words as they were written, options and all."""

from typing import Any

import typer
from typer.core import TyperCommand

from logmark.cli.kafka_consumer_groups import main


class Untouched(TyperCommand):
    """Passes every word behind its name on, also `--help` and `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args
        return args


def kafka_consumer_groups(ctx: typer.Context) -> None:
    """Kafka's kafka-consumer-groups.sh: the same options, output and exit codes, without a JVM."""

    ctx.exit(main(ctx.args))


kafka_consumer_groups.command_class = Untouched  # type: ignore[attr-defined]
