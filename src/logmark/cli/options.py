"""The options that every command shares, and the client that they ask for."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from logmark.client.client import Client

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"
# A person waits for these: no broker must be a sentence within ten seconds.
TIMEOUT_S = 8.0
CONNECT_TIMEOUT_S = 5.0
PATIENCE_S = 1.0


class OutputFormat(StrEnum):
    """How a table is written."""

    TABLE = "table"
    JSON = "json"


BootstrapServers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "--bootstrap-server",
        "-b",
        envvar="LOGMARK_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT,...",
        help="Brokers of the cluster, Logmark's or any Kafka's.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Client properties (security.protocol, sasl.*, ssl.*) in Kafka's file format.",
    ),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="A table for people or JSON for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def properties_of(command_config: Path | None) -> dict[str, str]:
    """The client properties in the file, or none."""
    if command_config is None:
        return {}
    from logmark import properties

    return properties.read(command_config)


def connect(bootstrap_servers: str, command_config: Path | None) -> "Client":
    """A client with a person's patience."""
    from logmark.client.client import Client

    return Client(
        bootstrap_servers,
        config=properties_of(command_config),
        timeout_s=TIMEOUT_S,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        patience_s=PATIENCE_S,
    )


def example(*lines: str) -> str:
    """A command's example, as its help shows it."""
    return "Example: " + "    ".join(lines)
