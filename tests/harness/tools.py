"""Apache Kafka's own command-line tools, run against any broker."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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

# -Xlog:disable: a class archive of another JVM would be reported on standard output, among the tool's own lines.
QUICK_JVM = ("-Xlog:disable", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


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
    main_class: str, args: Sequence[str], *, jvm: Sequence[str] = QUICK_JVM, archive_owner: int | None = None
) -> list[str]:
    """The command line of one of Kafka's main classes, with its class archive or the order to leave one."""
    sharing = class_sharing(main_class, archive_owner=archive_owner)
    return [distribution.java(), *jvm, *sharing, "-cp", distribution.class_path(), main_class, *args]


def class_sharing(main_class: str, *, archive_owner: int | None = None) -> list[str]:
    """The option that makes a JVM use the class archive of a main class, or leave one when it ends."""
    archive = distribution.class_archive(main_class)
    archive.parent.mkdir(parents=True, exist_ok=True)
    if archive.exists():
        return [f"-XX:SharedArchiveFile={archive}"]
    return [] if archive_owner is None else [f"-XX:ArchiveClassesAtExit={archive}.{archive_owner}"]


def keep_archive(main_class: str, owner: int) -> None:
    """Makes the class archive that a JVM left when it ended the one that later calls use."""
    archive = distribution.class_archive(main_class)
    made = Path(f"{archive}.{owner}")
    if made.exists():
        made.replace(archive)


def run_tool(
    main_class: str,
    *args: str,
    broker: HasAddress | None = None,
    stdin: str | bytes | None = None,
    timeout_s: float = 90,
    env: dict[str, str] | None = None,
) -> ToolResult:
    """Runs one of Kafka's tools to its end; with a broker, `--bootstrap-server` is filled in."""
    address = () if broker is None else ("--bootstrap-server", broker.bootstrap_servers)
    done = subprocess.run(
        java_command(main_class, [*address, *args], archive_owner=os.getpid()),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(env or {})},
    )
    keep_archive(main_class, os.getpid())
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
