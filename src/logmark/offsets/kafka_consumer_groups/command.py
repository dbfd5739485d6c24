"""The whole tool: words of a command line in, text and an exit code out."""

import contextlib
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from logmark.client.client import Client
from logmark.client.connection import as_addresses
from logmark.client.errors import BadProperties, ClientError, ReadOnly
from logmark.errors import UserError
from logmark.escaping import escape
from logmark.offsets.kafka_consumer_groups import KAFKA_VERSION, re2j_syntax, usage
from logmark.offsets.kafka_consumer_groups.arguments import Arguments, parse
from logmark.offsets.kafka_consumer_groups.deletion import delete_groups, delete_offsets
from logmark.offsets.kafka_consumer_groups.description import describe_groups
from logmark.offsets.kafka_consumer_groups.failures import Ended, Failed, Unparsed, Usage
from logmark.offsets.kafka_consumer_groups.group_list import list_groups
from logmark.offsets.kafka_consumer_groups.printer import Printer
from logmark.offsets.kafka_consumer_groups.reset import reset_offsets

_COMMANDS = {
    "list": list_groups,
    "describe": describe_groups,
    "delete": delete_groups,
    "reset-offsets": reset_offsets,
    "delete-offsets": delete_offsets,
}
_WRITING = ("delete", "delete-offsets")
_NO_CLIENT = "Failed to create new KafkaAdminClient"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The cluster that the options name, and how long a request to it may take; `is_patient` if that was said."""

    bootstrap_servers: str | None
    command_config: str | None
    context: str | None
    read_only: bool
    timeout_s: float
    is_patient: bool


def run_tool(
    words: Sequence[str],
    printer: Printer,
    *,
    connect: Callable[[ConnectionOptions], Client],
    is_cluster_known: bool = False,
) -> int:
    """Run the tool and return its exit code; `is_cluster_known` if the environment names a cluster."""
    is_strict = False
    try:
        given = parse(words)
        is_strict = given.has("strict")
        # What only we have is no reason to leave out the help that the tool gives to who says nothing.
        is_silent = all(word in ("--strict", "--read-only") for word in words)
        _run(given, printer, connect, is_silent=is_silent, is_cluster_known=is_cluster_known or given.has("context"))
    except Unparsed as ended:
        printer.say(ended.message)
        return 1
    except Usage as ended:
        printer.say(f"{ended.message}\n{usage.help_text()}".rstrip("\n"))
        return 1
    except Failed as ended:
        printer.error(f"Executing consumer group command failed due to {ended.message}")
        if ended.hint:
            printer.say(f"logmark: {escape(ended.hint)}")
    except UserError as error:
        printer.say(f"logmark: {escape(str(error))}")
        return error.exit_code
    finally:
        printer.flush()
    return int(is_strict and printer.has_failed)


def _run(
    given: Arguments,
    printer: Printer,
    connect: Callable[[ConnectionOptions], Client],
    *,
    is_silent: bool,
    is_cluster_known: bool,
) -> None:
    if is_silent or given.has("help"):
        raise Usage(usage.ABOUT)
    if given.has("version"):
        printer.write(KAFKA_VERSION + "\n")
        return
    with _ending_as(Unparsed):
        usage.check_options(given, is_cluster_known=is_cluster_known, warn=printer.say)
    action = usage.check_action(given)
    if action == "validate-regex":
        with _ending_as(Usage):
            _validate(given.value(action) or "", printer)
        return
    with _ending_as(Failed):
        client = _connected(given, connect)
    with client:
        if client.is_read_only and (action in _WRITING or given.has("execute")):
            raise ReadOnly(
                "This would change the cluster, and that is forbidden here (--read-only, LOGMARK_READ_ONLY or the "
                "context). Nothing was changed."
            )
        with _ending_as(Failed):
            _COMMANDS[action](client, given, printer)


@contextlib.contextmanager
def _ending_as(kind: type[Unparsed] | type[Usage] | type[Failed]) -> Iterator[None]:
    """Where a value that is asked for cannot be had, or the client fails, the tool ends in this way."""
    try:
        yield
    except (Unparsed, Usage, Failed):
        raise
    except Ended as ended:
        raise kind(ended.message) from None
    except ClientError as error:
        raise kind(str(error)) from None


def _validate(expression: str, printer: Printer) -> None:
    why = re2j_syntax.find_syntax_error(expression)
    printer.has_failed = why is not None
    verdict = "valid" if why is None else f"invalid: {why}"
    printer.write(f"The regular expression `{expression}` is {verdict}.\n")


def _connected(given: Arguments, connect: Callable[[ConnectionOptions], Client]) -> Client:
    """Return a client for the cluster of the options; they are checked in the same order as by Kafka's tool."""
    command_config = given.value("command-config")
    if command_config is not None:
        _refuse_unreadable(command_config)
    servers = given.value("bootstrap-server")
    if servers is not None:
        _refuse_addresses(servers)
    given.numbers("to-offset")
    given.value("by-duration")
    given.number("shift-by")
    timeout_ms = given.number("timeout")
    assert timeout_ms is not None
    return connect(
        ConnectionOptions(
            bootstrap_servers=servers,
            command_config=command_config,
            context=given.value("context"),
            read_only=given.has("read-only"),
            timeout_s=max(timeout_ms / 1000, 0.001),
            is_patient=given.has("timeout"),
        )
    )


def _refuse_unreadable(path: str) -> None:
    try:
        with open(path, "rb"):
            return
    except FileNotFoundError:
        raise Failed(f"java.nio.file.NoSuchFileException: {path}") from None
    except PermissionError:
        raise Failed(f"java.nio.file.AccessDeniedException: {path}") from None
    except OSError as error:
        raise Failed(f"java.io.IOException: {error.strerror}") from None


def _refuse_addresses(servers: str) -> None:
    """Fail with the tool's own message unless every address has a port and some host resolves."""
    try:
        addresses = as_addresses(servers)
    except BadProperties as error:
        raise Failed(_NO_CLIENT, hint=str(error)) from None
    if not all(re.search(r":\d+$", part.strip()) for part in servers.split(",") if part.strip()):
        raise Failed(_NO_CLIENT, hint=f"{servers!r}: write the port too, as in 127.0.0.1:9092.")
    for address in addresses:
        with contextlib.suppress(OSError, UnicodeError):
            socket.getaddrinfo(address.host, address.port)
            return
    raise Failed(_NO_CLIENT, hint=f"No host of {servers} has an address.")
