"""kafka-consumer-groups twice: Apache's tool and ours, side by side on one broker."""

import contextlib
import io
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from logmark.cli.kafka_consumer_groups import main
from tests.harness.brokers import BrokerUnderTest
from tests.harness.gateway import JavaTools
from tests.harness.tools import CONSUMER_GROUPS, ToolResult

MARCH_5 = 1_709_596_800_000
HOUR_MS = 3_600_000
HELP = "<the help>"
# A stack trace, its causes, and the lines of a message of several.
_TRACE = re.compile(r"^(\tat |\t\.\.\. |(Caused by: )?(java|org|com|joptsimple)\.[\w.$]+(: |$)| at \[Source: |SLF4J)")
_UNCAUGHT = re.compile(r'^Exception in thread "main" joptsimple\.\w+: ')
_CLAMPED = re.compile(
    r"^\[[\d-]+ [\d:,]+\] WARN New offset \(-?\d+\) is .* \(org\.apache\.kafka\.tools\.OffsetsUtils\)$"
)
# Java prints a set in an order that changes from run to run.
_SETS = (
    re.compile(r"(?<=these options: )\[.*\]$"),
    re.compile(r"(?<=following options: )\[.*\]$"),
    re.compile(r"(?<=scenarios: \[)\[.*\](?=\]$)"),
    re.compile(r"(?<=Valid states are: ).*$"),
    re.compile(r"(?<=Valid types are: ).*$"),
    re.compile(r"(?<=Option\(s\) \[)[^\]]*(?=\])"),
    re.compile(r"(?<=following partitions: \[).*(?=\]$)"),
    re.compile(r"(?<=successfully: ).*$"),
    re.compile(r"(?<=consumer groups \()[^)]*(?=\))"),
)


@dataclass(frozen=True, slots=True)
class Printed:
    """What a tool printed of its own, and how it ended."""

    exit_code: int
    out: tuple[str, ...]
    err: tuple[str, ...]

    def in_any_order(self) -> "Printed":
        """The same with its lines sorted, for what Kafka prints in the order of a hash."""
        return Printed(self.exit_code, tuple(sorted(self.out)), self.err)


def of_apache(result: ToolResult) -> Printed:
    """What Apache's tool printed, without stack traces and the complaints of its logging library."""
    lines = [_UNCAUGHT.sub("", line) for line in result.stderr.split("\n")]
    return _printed(result.exit_code, result.stdout, [line for line in lines if not _TRACE.match(line)])


def of_ours(result: ToolResult) -> Printed:
    """What our tool printed, without its log lines (Apache's have nowhere to go here) and its remarks of its own."""
    lines = result.stderr.split("\n")
    return _printed(
        result.exit_code,
        result.stdout,
        [line for line in lines if not line.startswith("logmark: ") and not _CLAMPED.match(line)],
    )


def _printed(exit_code: int, out: str, err: Sequence[str]) -> Printed:
    cut = next((at for at, line in enumerate(err) if re.match(r"Option +Description", line)), None)
    shown = [*err[:cut], HELP] if cut is not None else list(err)
    out = re.sub(r"(Duplicate key \S+) .*", r"\1", out)  # Java adds the addresses of two objects
    return Printed(
        exit_code, tuple(_ordered(line) for line in out.split("\n")), tuple(_ordered(line) for line in shown)
    )


def _ordered(line: str) -> str:
    for pattern in _SETS:
        line = pattern.sub(lambda found: ", ".join(sorted(found[0].split(", "))), line)
    return line


def run_ours(*args: str) -> ToolResult:
    """Runs our tool in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    return ToolResult(exit_code=code, stdout=out.getvalue(), stderr=err.getvalue())


class BothTools:
    """One broker with topics and groups, brought back to how it was before each tool changes it."""

    def __init__(self, broker: BrokerUnderTest, apache: JavaTools) -> None:
        self.broker = broker
        self.apache = apache
        forever = {"retention.ms": "-1"}
        now_ms = time.time_ns() // 1_000_000
        self.orders = broker.create_topic("orders", partitions=2, config=forever)
        broker.produce(self.orders, ["order"] * 3000, timestamp_ms=MARCH_5 - HOUR_MS)
        broker.produce(self.orders, ["order"] * 3000, timestamp_ms=MARCH_5 + HOUR_MS)
        broker.produce(self.orders, ["order"] * 10, partition=1, timestamp_ms=MARCH_5 - HOUR_MS)
        broker.delete_records(self.orders, 1000)
        self.users = broker.create_topic("users-of-the-whole-wide-world", config=forever)
        broker.produce(self.users, ["user"] * 4, timestamp_ms=now_ms - 4 * HOUR_MS)
        broker.produce(self.users, ["user"] * 4, timestamp_ms=now_ms - HOUR_MS)
        self.email = broker.group("email-service")
        self.half = broker.group("half")
        self.audit = broker.group("audit of everything")
        self.nobody = broker.group("nobody")
        self._committed: dict[str, Mapping[tuple[str, int], int | tuple[int, str]]] = {
            self.email: {(self.orders, 0): (4242, "kept"), (self.orders, 1): 7},
            self.half: {(self.orders, 0): 1500},
            self.audit: {(self.users, 0): 2, (self.orders, 1): 50},
        }
        self.restore()

    def restore(self) -> None:
        """Every group stands where it stood, and no other group is there."""
        listed = [group.group_id for group in self.broker.admin.list_consumer_groups().result(60).valid]
        known = [group for group in listed if group not in self._committed]
        known += [group for group in self._committed if group in listed and self._has_moved(group)]
        for future in self.broker.admin.delete_consumer_groups(known).values() if known else ():
            try:
                future.result(60)
            except KafkaException as failure:
                # A group that was left without an offset is removed by the broker's own check, at any moment.
                if failure.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                    raise
        for group, offsets in self._committed.items():
            if group in known or group not in listed:
                self.broker.commit(group, offsets)

    def _has_moved(self, group: str) -> bool:
        wanted = {one: to[0] if isinstance(to, tuple) else to for one, to in self._committed[group].items()}
        return self.broker.committed(group) != wanted

    def committed_offsets(self) -> dict[str, dict[tuple[str, int], int]]:
        """Where every group stands that has an offset; the broker removes the others, at any moment."""
        listed = sorted(group.group_id for group in self.broker.admin.list_consumer_groups().result(60).valid)
        return {group: found for group in listed if (found := self.broker.committed(group))}

    def filled(self, text: str) -> str:
        """A text with the names of these topics and groups in it."""
        for name in ("orders", "users", "email", "half", "audit", "nobody"):
            text = text.replace(f"<{name}>", getattr(self, name))
        return text

    def ours(self, *args: str) -> ToolResult:
        """Our tool on this broker."""
        return run_ours("--bootstrap-server", self.broker.bootstrap_servers, *(self.filled(one) for one in args))

    def same(self, *args: str, in_any_order: bool = False, changes: bool = False) -> Printed:
        """What both tools print, which is the same, as is where both leave the groups."""
        given = ["--bootstrap-server", self.broker.bootstrap_servers, *(self.filled(one) for one in args)]
        theirs = of_apache(self.apache.run(CONSUMER_GROUPS, *given))
        left_by_theirs = self.committed_offsets() if changes else {}
        if changes:
            self.restore()
        ours = of_ours(run_ours(*given))
        left_by_ours = self.committed_offsets() if changes else {}
        if changes:
            self.restore()
        if in_any_order:
            theirs, ours = theirs.in_any_order(), ours.in_any_order()
        assert theirs == ours, f"Apache's tool:\n{_format_printed(theirs)}\nours:\n{_format_printed(ours)}"
        assert left_by_theirs == left_by_ours
        return ours


def _format_printed(printed: Printed) -> str:
    lines = [f"  out {line!r}" for line in printed.out] + [f"  err {line!r}" for line in printed.err]
    return "\n".join([f"  exit {printed.exit_code}", *lines])
