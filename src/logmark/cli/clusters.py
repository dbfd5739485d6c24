"""Which cluster a command means: the options that all of them share, contexts, and names to complete."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from logmark import properties
from logmark.client.client import Client
from logmark.client.errors import ReadOnly
from logmark.errors import LogmarkError
from logmark.escaping import is_safe
from logmark.offsets.contexts import read_contexts
from logmark.offsets.user_files import config_file

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"
# A person waits for these: without a broker, the error message must come within ten seconds.
TIMEOUT_S = 8.0
CONNECT_TIMEOUT_S = 5.0
PATIENCE_S = 1.0
# Completion must not hold up the shell.
_COMPLETION_S = 1.5


class Origin(StrEnum):
    """Who said which cluster is meant."""

    OPTION = "option"
    ENVIRONMENT = "environment"
    SETTINGS = "settings"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster that a command means, who said so, and whether it may be changed."""

    bootstrap_servers: str
    properties: Mapping[str, str]
    is_read_only: bool = False
    context: str | None = None
    said_by: Origin

    def connect(self, *, timeout_s: float = TIMEOUT_S) -> Client:
        """Return a client with timeouts short enough for a person who waits."""

        return Client(
            self.bootstrap_servers,
            config=self.properties,
            timeout_s=timeout_s,
            connect_timeout_s=min(CONNECT_TIMEOUT_S, timeout_s),
            patience_s=min(PATIENCE_S, timeout_s),
            read_only=self.is_read_only,
        )

    def refuse_writing(self) -> None:
        """Raise ReadOnly for a read-only cluster; for commands that write without our client."""

        if self.is_read_only:
            raise ReadOnly("This would change the cluster. Nothing was changed.")


def complete_context(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the contexts of the settings file that start with the typed text."""

    with contextlib.suppress(LogmarkError):
        return [name for name in sorted(read_contexts(config_file()).known) if name.startswith(incomplete)]
    return []


OPTIONS = {
    "bootstrap_servers": Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers",
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT,...",
            help="Brokers of the cluster, Logmark's or any Kafka's; or LOGMARK_BOOTSTRAP_SERVERS. "
            f"Unless given: {DEFAULT_BOOTSTRAP_SERVERS}.",
            show_default=False,
        ),
    ],
    "command_config": Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            envvar="LOGMARK_COMMAND_CONFIG",
            metavar="FILE",
            help="Client properties (security.protocol, sasl.*, ssl.*) in Kafka's file format.",
            show_default=False,
        ),
    ],
    "context": Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            help="A cluster by the name that it has in your settings; or LOGMARK_CONTEXT. See `logmark contexts`.",
            autocompletion=complete_context,
            show_default=False,
        ),
    ],
    "read_only": Annotated[
        bool,
        typer.Option(
            "--read-only",
            envvar="LOGMARK_READ_ONLY",
            help="Refuse everything that would change the cluster.",
            show_envvar=True,
        ),
    ],
}


_DEFAULTS = {"bootstrap_servers": None, "command_config": None, "context": None, "read_only": False}


def on_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a cluster to a command, and pass it the result as `cluster`."""
    signature = inspect.signature(command, eval_str=False)

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        wanted = {name: given.pop(name) for name in OPTIONS}
        return command(cluster=chosen_cluster(**wanted), **given)

    own = [one for one in signature.parameters.values() if one.name != "cluster"]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=kind)
        for name, kind in OPTIONS.items()
    ]
    # Typer reads the signature and the annotations; both must tell of the shared options.
    keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    wrapped.__signature__ = signature.replace(parameters=[*keyword_only, *shared])  # type: ignore[attr-defined]
    kept = {name: kind for name, kind in command.__annotations__.items() if name != "cluster"}
    wrapped.__annotations__ = {**kept, **OPTIONS}
    return wrapped


def chosen_cluster(
    *, bootstrap_servers: str | None, command_config: Path | None, context: str | None, read_only: bool
) -> Cluster:
    """Return the cluster of the options, else of the environment, else of the settings; the sources are never mixed."""

    variables = os.environ.get("LOGMARK_BOOTSTRAP_SERVERS"), os.environ.get("LOGMARK_CONTEXT")
    if bootstrap_servers or context:
        said_by = Origin.OPTION
    elif any(variables):
        said_by = Origin.ENVIRONMENT
        bootstrap_servers, context = variables
    else:
        context = read_contexts(config_file()).current
        said_by = Origin.SETTINGS if context else Origin.NOBODY
    named = read_contexts(config_file()).named(context) if context else None
    own = properties.read(command_config) if command_config else {}
    return Cluster(
        bootstrap_servers=bootstrap_servers or (named.bootstrap_servers if named else DEFAULT_BOOTSTRAP_SERVERS),
        properties={**(named.properties if named else {}), **own},
        is_read_only=read_only or (named is not None and named.is_read_only),
        context=named.name if named else None,
        said_by=said_by,
    )


@contextlib.contextmanager
def _asked_for_completion(ctx: typer.Context) -> Iterator[Client]:
    wanted = {name: ctx.params.get(name) for name in OPTIONS}
    wanted["read_only"] = True
    with chosen_cluster(**wanted).connect(timeout_s=_COMPLETION_S) as client:  # type: ignore[arg-type]
        yield client


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the groups of the live cluster, none if it does not answer at once."""
    with contextlib.suppress(LogmarkError), _asked_for_completion(ctx) as client:
        # The shell writes them as they are.
        return [one.group for one in client.list_groups() if one.group.startswith(incomplete) and is_safe(one.group)]
    return []


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics of the live cluster, none if it does not answer at once."""
    with contextlib.suppress(LogmarkError), _asked_for_completion(ctx) as client:
        return [one for one in sorted(client.metadata().topics) if one.startswith(incomplete)]
    return []
