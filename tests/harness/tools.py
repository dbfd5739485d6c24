"""Apache Kafka's own command-line tools, run against any broker."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.harness import distribution

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
CLIENT_COMPATIBILITY = "org.apache.kafka.tools.ClientCompatibilityTest"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
STORAGE = "kafka.tools.StorageTool"
SERVER = "kafka.Kafka"
GATEWAY = "py4j.GatewayServer"

# -Xlog:disable: a class archive of another JVM would be reported on standard output, among the tool's own lines.
QUICK_JVM = ("-Xlog:disable", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-XX:-UsePerfData")


class HasAddress(Protocol):
    """Any broker: all that a tool needs of it is where it listens."""

    @property
    def bootstrap_servers(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool printed and how it ended."""

    exit_code: int
    stdout: str
    stderr: str

    def check(self) -> "ToolResult":
        """Itself, when the tool ended well; some tools print `Error:` and end with 0 all the same."""
        assert 0 == self.exit_code, self
        assert not re.search(r"^Error", self.stdout, re.MULTILINE), self
        return self


def java_command(
    main_class: str, args: Sequence[str], *, jvm: Sequence[str] = QUICK_JVM, sharing: str | None = None
) -> list[str]:
    """Return the command line of one of Kafka's main classes, with its class archive or what `sharing` says instead."""
    from tests.harness.kafka_archive import sharing_of

    sharing = sharing or sharing_of(main_class)
    return [distribution.java(), *jvm, sharing, "-cp", class_path(main_class), main_class, *args]


def class_path(main_class: str) -> str:
    """Return the jars of a main class; the tools have py4j too, because they share the archive of the gateway."""
    from py4j.java_gateway import find_jar_path

    jars = distribution.class_path()
    return jars if main_class == SERVER else os.pathsep.join((find_jar_path(), jars))


def run_tool(
    main_class: str,
    *args: str,
    broker: HasAddress | None = None,
    stdin: str | bytes | None = None,
    timeout_s: float = 90,
    env: dict[str, str] | None = None,
    sharing: str | None = None,
) -> ToolResult:
    """Runs one of Kafka's tools to its end; with a broker, `--bootstrap-server` is filled in."""
    address = () if broker is None else ("--bootstrap-server", broker.bootstrap_servers)
    done = subprocess.run(
        java_command(main_class, [*address, *args], sharing=sharing),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(env or {})},
    )
    stderr = "".join(line for line in done.stderr.decode().splitlines(keepends=True) if not line.startswith("SLF4J"))
    return ToolResult(exit_code=done.returncode, stdout=done.stdout.decode(), stderr=stderr)


def start_tool(main_class: str, *args: str, broker: HasAddress) -> "subprocess.Popen[str]":
    """Starts one of Kafka's tools and lets it run; the caller ends it."""
    return subprocess.Popen(
        java_command(main_class, ["--bootstrap-server", broker.bootstrap_servers, *args]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=tempfile.TemporaryFile("w+"),
        text=True,
    )


def run_logmark(*args: str, broker: HasAddress) -> Any:
    """What our own command line answers as JSON, in this process."""
    from typer.testing import CliRunner

    from logmark.cli.main import app

    done = CliRunner().invoke(app, [*args, "--bootstrap-servers", broker.bootstrap_servers, "--output", "json"])
    assert 0 == done.exit_code, done.output
    return json.loads(done.stdout)
