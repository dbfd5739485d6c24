"""`logmark kafka-consumer-groups`: Kafka's own tool without a JVM; also a program of its own, for the shims."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from logmark.cli.clusters import CONNECT_TIMEOUT_S, chosen_cluster
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.offsets.kafka_consumer_groups.arguments import parse
from logmark.offsets.kafka_consumer_groups.command import ConnectionOptions, run_tool
from logmark.offsets.kafka_consumer_groups.failures import Ended
from logmark.offsets.kafka_consumer_groups.printer import Printer
from logmark.offsets.kafka_consumer_groups.shim import install_shims

INTERRUPTED = 130
# Kafka's tool waits for a broker as long as for a request; a person who did not say how long waits no longer than this.
_PATIENCE_S = 8.0
_YES = ("1", "true", "t", "yes", "y", "on")


def main(words: Sequence[str]) -> int:
    """Run the tool with the arguments after its name; return the exit code."""

    printer = Printer(sys.stdout, sys.stderr)
    if any(word.partition("=")[0] == "--install-shim" for word in words):
        return _install(words)
    is_cluster_known = any(os.environ.get(name) for name in ("LOGMARK_BOOTSTRAP_SERVERS", "LOGMARK_CONTEXT"))
    return run_tool(words, printer, connect=_connect, is_cluster_known=is_cluster_known)


def _connect(wanted: ConnectionOptions) -> Client:

    # The environment's properties belong to the environment's cluster, not to one that the command line names.
    command_config = wanted.command_config
    if wanted.bootstrap_servers is None and command_config is None:
        command_config = os.environ.get("LOGMARK_COMMAND_CONFIG") or None
    cluster = chosen_cluster(
        bootstrap_servers=wanted.bootstrap_servers,
        command_config=Path(command_config) if command_config is not None else None,
        context=wanted.context,
        read_only=wanted.read_only or os.environ.get("LOGMARK_READ_ONLY", "").lower() in _YES,
    )
    return Client(
        cluster.bootstrap_servers,
        config=cluster.properties,
        timeout_s=wanted.timeout_s,
        connect_timeout_s=min(CONNECT_TIMEOUT_S, wanted.timeout_s),
        patience_s=wanted.timeout_s if wanted.is_patient else min(_PATIENCE_S, wanted.timeout_s),
        read_only=cluster.is_read_only,
    )


def _install(words: Sequence[str]) -> int:

    try:
        given = parse(words)
        folder = Path(given.value("install-shim") or "").expanduser().absolute()
        paths = install_shims(folder, python=sys.executable, is_strict=given.has("strict"))
    except Ended as ended:
        sys.stderr.write(ended.message + "\n")
        return 1
    except UserError as error:
        sys.stderr.write(f"logmark: {error}\n")
        return error.exit_code
    for path in paths:
        sys.stdout.write(f"{path}\n")
    if str(folder) not in os.environ.get("PATH", "").split(os.pathsep):
        sys.stderr.write(f'To use them: export PATH="{folder}:$PATH"\n')
    return 0


def _program() -> int:
    try:
        return main(sys.argv[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not fail at its last flush either.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(_program())
