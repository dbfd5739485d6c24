"""`logmark kafka-consumer-groups` prints what Apache's own tool prints, ends as it does and moves groups as it does.

Both run against Apache Kafka and against our broker, Apache's tool for all cases in one JVM.
"""

import functools
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from logmark.testing import Broker
from tests.compat.both_tools import BothTools, of_apache, of_ours, run_ours
from tests.compat.java_readings import compare_readings
from tests.harness.brokers import BrokerUnderTest, warm_up
from tests.harness.gateway import JavaTools, tools_of_this_process
from tests.harness.node import kafka_node, wait_until
from tests.harness.restartable_broker import OUR_SETTINGS
from tests.harness.tools import CONSUMER_GROUPS

pytestmark = pytest.mark.kafka

SETTINGS = {
    # Members of the newer protocol hear of a new assignment with their next heartbeat.
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    # Everybody may do everything with what has no rights of its own.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def apache() -> JavaTools:
    return tools_of_this_process()


@pytest.fixture(scope="module")
def start_tools(apache: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], BothTools]]:
    """Each kind of broker, started when a test first asks for it; our own, for `--all-groups` means all of a broker."""
    with ExitStack() as started:

        @functools.cache
        def start(kind: str) -> BothTools:
            if kind == "kafka":
                node = started.enter_context(kafka_node(tmp_path_factory.mktemp("node"), SETTINGS))
                warm_up(node.bootstrap_servers)
                broker = BrokerUnderTest(kind, node.bootstrap_servers)
            else:
                broker = BrokerUnderTest(kind, started.enter_context(Broker(OUR_SETTINGS)).bootstrap_servers)
            started.callback(broker.close)
            return BothTools(broker, apache)

        yield start


@pytest.fixture(params=["kafka", "logmark"])
def tools(request: pytest.FixtureRequest, start_tools: Callable[[str], BothTools]) -> BothTools:
    """Apache Kafka, then our broker."""
    return start_tools(request.param)


@pytest.fixture
def tools_on_kafka(start_tools: Callable[[str], BothTools]) -> BothTools:
    """Apache Kafka alone, for what the tools find out without any broker."""
    return start_tools("kafka")


def words(text: str) -> list[str]:
    """A command line; a name with spaces in it is a name of a group or topic."""
    return text.split()


@pytest.mark.parametrize(
    "line",
    [
        "--list",
        "--list --state",
        "--list --type",
        "--list --state --type",
        "--list --state empty",
        "--list --state Empty,STABLE --type classic",
        "--list --state=stable",
        "--list --type consumer",
        "--list --type=Classic,consumer",
        "--list --all-groups",
    ],
)
def test_list_prints_the_same(tools: BothTools, line: str) -> None:
    printed = tools.same(*words(line), in_any_order=True)
    assert 0 == printed.exit_code


VIEWS = ["", "--offsets", "--members", "--state", "--verbose", "--members --verbose", "--state --verbose"]


@pytest.mark.parametrize("view", VIEWS)
def test_describe_prints_the_same_in_every_view(tools: BothTools, view: str) -> None:
    printed = tools.same(*words(f"--describe --group <email> {view}"))
    assert any(tools.email in line for line in (*printed.out, *printed.err))


@pytest.mark.parametrize("groups", ["--group <half> --group <email> --group <half>", "--all-groups --all-topics"])
@pytest.mark.parametrize("view", ["", "--state"])
def test_several_groups_are_described_by_name(tools: BothTools, groups: str, view: str) -> None:
    printed = tools.same(*words(f"--describe {groups} {view}"))
    assert all(any(group in line for line in printed.out) for group in (tools.email, tools.half))


SCENARIOS = {
    "to-earliest": "--to-earliest",
    "to-latest": "--to-latest",
    "to-current": "--to-current",
    "to-offset 5000": "--to-offset 5000",
    "to-offset beyond every end": "--to-offset 99999999",
    "to-offset below every start": "--to-offset -3",
    "shift-by": "--shift-by 100",
    "shift-by back": "--shift-by -100",
    "shift-by beyond": "--shift-by=-9223372036854770000",
    "to-datetime": "--to-datetime 2024-03-05T00:00:00.000",
    "to-datetime with a zone": "--to-datetime 2024-03-05T02:30:00.000+02:30",
    "to-datetime after everything": "--to-datetime 2999-03-05T00:00:00.000Z",
    "by-duration": "--by-duration PT2H",
}
WAYS = {"dry run": "--dry-run", "execute": "--execute", "export": "--dry-run --export"}
SCOPES = {
    "dry run": "--group <email> --all-topics",
    "execute": "--group <email> --topic <orders>",
    "export": "--group <email> --topic <orders>:0,1",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_reset_prints_and_does_the_same(tools: BothTools, scenario: str, way: str) -> None:
    line = f"--reset-offsets {SCOPES[way]} {SCENARIOS[scenario]} {WAYS[way]}"
    printed = tools.same(*words(line), in_any_order=True, changes=way == "execute")
    assert 0 == printed.exit_code
    assert any(tools.orders in line for line in printed.out)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    "scope", [*SCOPES.values(), "--group <half> --group <email> --topic <orders>", "--all-groups --all-topics"]
)
def test_every_reset_in_every_scope_and_way_prints_and_does_the_same(
    tools: BothTools, scenario: str, scope: str
) -> None:
    for way in ("", *WAYS.values(), "--execute --export"):
        line = f"--reset-offsets {scope} {SCENARIOS[scenario]} {way}"
        tools.same(*words(line), in_any_order=True, changes="--execute" in way)


@pytest.mark.parametrize(
    "line",
    [
        "--group <email> --topic <orders>:1 --to-earliest --execute",
        "--group <email> --topic <orders>:0,1 --topic <users> --to-latest --execute",
        "--group <email> --group <half> --all-topics --to-earliest --execute",
        "--group <email> --group <half> --all-topics --to-earliest --dry-run --export",
        "--group <half> --topic <orders> --to-current --execute",
        "--group <nobody> --topic <orders> --to-earliest --execute",
        "--group <nobody> --topic <orders> --to-earliest --dry-run",
        "--group <nobody> --all-topics --to-latest --execute",
        "--group <nobody> --all-topics --to-latest --execute --export",
        "--all-groups --all-topics --to-earliest --execute",
        "--all-groups --topic <users> --to-latest --dry-run --export",
        "--all-groups --topic <users> --to-latest --execute",
        "--group <email> --all-topics --to-offset 1200 --to-offset 1300 --execute",
        "--group <email> --all-topics --topic <users> --to-offset 1200 --execute",
        "--group <email> --all-topics --to-offset 5000 --execute --export",
        "--group <email> --topic <orders> --to-datetime 2024-03-05T00:00:00.000",
        "--group <email> --topic <orders> --to-latest --export",
    ],
)
def test_every_scope_of_a_reset_prints_and_does_the_same(tools: BothTools, line: str) -> None:
    printed = tools.same("--reset-offsets", *words(line), in_any_order=True, changes="--execute" in line)
    assert 0 == printed.exit_code


def test_groups_of_other_names_are_reset_described_and_exported_the_same(tools: BothTools) -> None:
    group = ("--group", "<audit>")
    for args in (
        ("--describe", *group),
        ("--reset-offsets", *group, "--all-topics", "--to-latest", "--dry-run"),
        ("--reset-offsets", *group, "--group", "<half>", "--all-topics", "--to-latest", "--dry-run", "--export"),
        ("--reset-offsets", *group, "--all-topics", "--to-current", "--dry-run", "--export"),
    ):
        tools.same(*args, in_any_order=True)
    assert any(line.endswith(" -40             -               -               -") for line in tools.same(
        "--describe", *group
    ).out), "a lag below zero is shown as Kafka's tool shows it"  # fmt: skip


def test_what_one_tool_exports_the_other_restores(tools: BothTools, tmp_path: Path) -> None:
    everyone = ("--group", tools.email, "--group", tools.half, "--group", tools.audit)
    export = ("--reset-offsets", "--all-topics", "--to-current", "--dry-run", "--export")
    wanted = tools.committed_offsets()
    given = ("--bootstrap-server", tools.broker.bootstrap_servers)
    for name, groups in (("one", ("--group", tools.email)), ("all", everyone)):
        theirs = tools.apache.run(CONSUMER_GROUPS, *given, *export, *groups).stdout
        ours = run_ours(*given, *export, *groups).stdout
        for number, text in enumerate((theirs, ours)):
            # The empty line that both print at the end is none of the file's.
            file = tmp_path / f"{name}-{number}.csv"
            file.write_text(text.rstrip("\n") + "\n")
            tools.ours("--reset-offsets", *groups, "--all-topics", "--to-latest", "--execute")
            assert wanted != tools.committed_offsets()
            tools.same("--reset-offsets", *groups, "--from-file", str(file), "--dry-run", in_any_order=True)
            tools.ours("--reset-offsets", *groups, "--from-file", str(file), "--execute")
            # The offset beyond the end went to the end: neither tool restores what is not there any more.
            assert wanted | (
                {tools.audit: {**wanted[tools.audit], (tools.orders, 1): 10}} if name == "all" else {}
            ) == (tools.committed_offsets())
            tools.restore()


FILES = {
    "one partition": ("<orders>,0,4000\n<orders>,1,5\n", "--execute"),
    "with the group": ("<email>,<orders>,0,4000\n", "--execute"),
    "of another group": ("<half>,<orders>,0,4000\n", "--execute"),
    "beyond the end": ("<orders>,0,999999\n<orders>,1,5\n", "--execute"),
    "below the start": ("<orders>,0,1\n", "--dry-run"),
    "with semicolons": ("<orders>;0;4000\n", "--execute"),
    "with an unknown topic": ("nosuch,0,4000\n", "--execute"),
}
TEXTS = {
    "without a last newline": "<orders>,0,4000",
    "quoted": '"<orders>","0"," 4000"\n',
    "of Windows": "<orders>,0,4000\r\n<orders>,1,5\r\n",
    "with a comma at the end": "<orders>,0,4000,\n",
    "without an offset": "<orders>,1\n",
    "with no offset": "<orders>,1,\n",
    "empty": "",
    "of one empty line": "\n",
    "with an empty line": "<orders>,0,4000\n\n<orders>,1,5\n",
    "with a word for the partition": "<orders>,x,4000\n",
    "with a word for the offset": "<orders>,0,four\n",
    "with a fraction": "<orders>,0,4000.5\n",
    "with a number too large": "<orders>,0,99999999999999999999\n",
    "with a partition too large": "<email>,<orders>,99999999999,5\n",
    "with a negative offset": "<orders>,0,-5\n",
    "with too many columns": "<orders>,0,4000,5,6\n",
    "of five columns": "a,<email>,<orders>,0,4000\n",
    "with an open quote": '"<orders>,0,4000\n',
    "with text behind a quote": '<orders>,"0"x,4000\n',
    "of both forms": "<orders>,0,4000\n<email>,<orders>,1,5\n",
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_moves_groups_the_same(tools: BothTools, kind: str, tmp_path: Path) -> None:
    text, way = FILES[kind]
    from_file(tools, tmp_path / "plan.csv", text, way)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_is_read_and_complained_about_the_same(tools_on_kafka: BothTools, kind: str, tmp_path: Path) -> None:
    from_file(tools_on_kafka, tmp_path / "plan.csv", TEXTS[kind], "--dry-run")


def test_a_file_for_several_groups_is_read_the_same(tools_on_kafka: BothTools, tmp_path: Path) -> None:
    file = tmp_path / "plan.csv"
    groups = ("--group", "<email>", "--group", "<half>")
    for text in ("<email>,<orders>,0,4000\n<half>,<orders>,0,2000\n", "<orders>,0,4000\n", "<half>,<orders>,0,2000\n"):
        file.write_text(tools_on_kafka.filled(text))
        for way in (("--dry-run",), ("--dry-run", "--export")):
            tools_on_kafka.same("--reset-offsets", *groups, "--from-file", str(file), *way, in_any_order=True)


def from_file(tools: BothTools, file: Path, text: str, way: str) -> None:
    """Both tools with the same file."""
    file.write_bytes(tools.filled(text).encode())
    line = ("--reset-offsets", "--group", "<email>", "--from-file", str(file), way)
    tools.same(*line, in_any_order=True, changes=way == "--execute")


@pytest.mark.parametrize(
    "line",
    [
        "--delete --group <email>",
        "--delete --group <email> --group <half>",
        "--delete --group <nobody>",
        "--delete --group <email> --group <nobody>",
        "--delete --all-groups",
        "--delete-offsets --group <email> --topic <orders>",
        "--delete-offsets --group <email> --topic <orders>:1",
        "--delete-offsets --group <email> --topic <orders>:1 --topic <orders>:0,1 --topic <users>",
        "--delete-offsets --group <email> --topic <orders>:9,10,2,0",
        "--delete-offsets --group <email> --topic nosuch",
        "--delete-offsets --group <email> --topic nosuch --topic <orders>:0",
        "--delete-offsets --group <email> --topic nosuch:0 --topic <orders>:0",
        "--delete-offsets --group <email> --topic not/legal",
        "--delete-offsets --group <nobody> --topic <orders>",
        "--delete-offsets --group <email> --group <half> --topic <orders>",
    ],
)
def test_deletions_print_and_do_the_same(tools: BothTools, line: str) -> None:
    tools.same(*words(line), in_any_order="--delete-offsets" not in line, changes=True)


REFUSED = [
    "--describe --group <nobody>",
    "--describe --group <nobody> --members",
    "--describe --group <nobody> --state --verbose",
    "--describe --group <email> --group <nobody>",
    "--reset-offsets --group <email> --topic nosuch --to-earliest --execute",
    "--reset-offsets --group <email> --topic nosuch:0 --to-earliest --execute",
    "--reset-offsets --group <email> --topic not/legal --to-earliest --execute",
    "--reset-offsets --group <email> --topic <orders>:7,9 --to-earliest --execute",
    "--reset-offsets --group <email> --topic <orders>:-1 --to-earliest --execute",
    "--reset-offsets --group <half> --topic <orders> --shift-by 1 --execute",
    "--reset-offsets --group <email> --all-topics --by-duration P99999999D --execute",
]
MISTAKEN = [
    "--reset-offsets --group <email> --topic <orders>:0,7 --to-earliest --execute",
    "--reset-offsets --group <email> --topic <orders>:x --to-earliest --execute",
    "--reset-offsets --group <email> --topic <orders>:0:1 --to-earliest --execute",
    "--reset-offsets --group <email> --topic <orders>: --to-earliest --execute",
    "--reset-offsets --group <email> --topic <orders>:,0 --to-earliest --execute",
    "--reset-offsets --group <email> --topic <orders>:0, --to-earliest --dry-run",
    "--reset-offsets --group <email> --topic <orders>:99999999999 --to-earliest --execute",
    "--reset-offsets --group <email> --topic <orders>:0,0 --to-earliest --execute",
    "--reset-offsets --group <email> --topic <orders> --topic <orders>:0 --to-offset 5 --execute",
    "--reset-offsets --group <email> --topic <orders>:0,0 --to-current --execute",
    "--reset-offsets --group <email> --all-topics --to-offset five --execute",
    "--reset-offsets --group <email> --all-topics --to-offset 9223372036854775808 --execute",
    "--reset-offsets --group <email> --all-topics --shift-by 1.5 --execute",
    "--reset-offsets --group <email> --all-topics --shift-by 1 --shift-by 2 --execute",
    "--reset-offsets --group <email> --all-topics --by-duration PT1H --by-duration PT2H --execute",
    "--reset-offsets --group <email> --all-topics --to-datetime yesterday --execute",
    "--reset-offsets --group <email> --all-topics --to-datetime 2024-03-05 --execute",
    "--reset-offsets --group <email> --all-topics --to-datetime 2024-03-05T00:00:00 --execute",
    "--reset-offsets --group <email> --all-topics --to-datetime 2024-13-05T00:00:00.000 --execute",
    "--reset-offsets --group <email> --all-topics --to-datetime 2024-03-05T00:00:00.000+25 --execute",
    "--reset-offsets --group <email> --all-topics --by-duration 1h --execute",
    "--reset-offsets --group <email> --all-topics --by-duration P --execute",
    "--reset-offsets --group <email> --all-topics --execute",
    "--reset-offsets --group <email> --to-earliest --execute",
    "--reset-offsets --group <email> --from-file /nonexistent/plan.csv --execute",
    "--reset-offsets --group <email> --from-file /tmp --execute",
    "--list --state bogus",
    "--list --state empty,bogus",
    "--list --state ,",
    "--list --type share",
    "--list --type classic,no",
    "--list --state empty --state stable",
    "--list --timeout soon",
    "--list --timeout 1 --timeout 2",
    "--list --command-config /nonexistent/client.properties",
    "--list --command-config /tmp",
    "--list --bootstrap-server 127.0.0.1:1",
]


@pytest.mark.parametrize("line", REFUSED)
def test_what_the_broker_refuses_is_told_the_same_and_changes_nothing(tools: BothTools, line: str) -> None:
    before = tools.committed_offsets()
    tools.same(*words(line), in_any_order=True)
    assert before == tools.committed_offsets()


@pytest.mark.parametrize("line", MISTAKEN)
def test_mistakes_in_values_are_told_the_same_and_change_nothing(tools_on_kafka: BothTools, line: str) -> None:
    before = tools_on_kafka.committed_offsets()
    tools_on_kafka.same(*words(line), in_any_order=True)
    assert before == tools_on_kafka.committed_offsets()


USAGE = [
    "",
    "--help",
    "--describe --help",
    "--version",
    "--version --describe --members",
    "--list",
    "--describe",
    "--bootstrap-server b:1",
    "--bootstrap-server b:1 --list --describe --all-groups",
    "--bootstrap-server b:1 --describe",
    "--bootstrap-server b:1 --delete",
    "--bootstrap-server b:1 --delete --group g --topic t",
    "--bootstrap-server b:1 --delete --group g --all-groups",
    "--bootstrap-server b:1 --reset-offsets",
    "--bootstrap-server b:1 --reset-offsets --to-earliest",
    "--bootstrap-server b:1 --reset-offsets --group g --to-earliest --to-latest --dry-run",
    "--bootstrap-server b:1 --reset-offsets --group g --from-file f --to-current --dry-run",
    "--bootstrap-server b:1 --reset-offsets --group g --shift-by 1 --from-file f --dry-run",
    "--bootstrap-server b:1 --reset-offsets --group g --execute --dry-run --to-latest",
    "--bootstrap-server b:1 --delete-offsets --group g",
    "--bootstrap-server b:1 --delete-offsets --topic t",
    "--bootstrap-server b:1 --delete-offsets",
    "--bootstrap-server b:1 --list --group g",
    "--bootstrap-server b:1 --list --topic t",
    "--bootstrap-server b:1 --describe --group g --topic t",
    "--bootstrap-server b:1 --describe --group g --members --offsets",
    "--bootstrap-server b:1 --describe --group g --members --offsets --state",
    "--bootstrap-server b:1 --describe --group g --state stable",
    "--bootstrap-server b:1 --describe --group g --state=",
    "--bootstrap-server b:1 --describe --group g --state a --state b",
    "--bootstrap-server b:1 --list --members",
    "--bootstrap-server b:1 --list --members --verbose --offsets",
    "--bootstrap-server b:1 --delete --group g --state",
    "--bootstrap-server b:1 --describe --group g --type classic",
    "--bootstrap-server",
    "--list --bootstrap-server",
    "--bogus",
    "--bogus=1 --list",
    "--lis",
    "--LIST",
    "-list",
    "-bogus",
    "-b localhost:9092",
    "--group --list --bootstrap-server b:1",
    "--list=now",
    "--",
    "-",
    "stray words",
    "--bootstrap-server b:1 -- --list",
    "--=",
    "--validate-regex foo.*",
    "--validate-regex=[a-z]+",
    "--validate-regex foo[",
    "--validate-regex (?<=x)y",
    "--validate-regex a** --validate-regex b",
    "--validate-regex a --list",
    "--validate-regex a --bootstrap-server b:1 --verbose",
]


@pytest.mark.parametrize("line", USAGE)
def test_wrong_uses_are_told_the_same(apache: JavaTools, line: str) -> None:
    assert of_apache(apache.run(CONSUMER_GROUPS, *words(line))) == of_ours(run_ours(*words(line)))


def test_the_help_names_the_same_options_and_ours_behind_them(apache: JavaTools) -> None:
    theirs, ours = (
        re.findall(r"^(--[a-z][\w-]*(?: [<\[]\w+)?)", text, re.MULTILINE)
        for text in (apache.run(CONSUMER_GROUPS, "--help").stderr, run_ours("--help").stderr)
    )
    assert [*theirs, "--context <String", "--install-shim <String", "--read-only", "--strict"] == ours


class Consumers:
    """Consumers of one group that own four partitions, in a group that has committed more than they own."""

    def __init__(self, tools: BothTools, name: str, protocols: list[str]) -> None:
        broker = tools.broker
        self.topic = broker.create_topic(f"{name}-events", partitions=4)
        self.group = broker.group(name)
        broker.produce(self.topic, ["event"] * 20)
        broker.commit(self.group, {(self.topic, 0): 10, (self.topic, 1): 0, (tools.users, 0): 1})
        self._consumers = [
            broker.consumer(
                self.group,
                client_id=f"worker-{number}",
                group_protocol=protocol,
                **({"group_instance_id": "instance-1"} if number else {}),
                # librdkafka's classic members can go along with the newer protocol's only by this assignor.
                **(
                    {"partition_assignment_strategy": "range", "heartbeat_interval_ms": 100}
                    if protocol == "classic"
                    else {}
                ),
            )
            for number, protocol in enumerate(protocols)
        ]
        for consumer in self._consumers:
            consumer.subscribe([self.topic])
            wait_until(lambda one=consumer: self._polled() and bool(one.assignment()), f"{name}: a partition")
        wait_until(lambda: self._polled() and self._owned() == 4, f"{name}: every partition has an owner")

    def leave(self, tools: BothTools) -> None:
        """The group has no members any more; one with an instance id would stay for a while when it is closed."""
        tools.broker.close()
        jvm = tools.apache.jvm
        settings = jvm.java.util.Properties()
        settings.put("bootstrap.servers", tools.broker.bootstrap_servers)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        everybody = jvm.org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions()
        admin.removeMembersFromConsumerGroup(self.group, everybody).all().get()
        admin.close()

    def _polled(self) -> bool:
        for consumer in self._consumers:
            consumer.poll(0.02)
        return True

    def _owned(self) -> int:
        return sum(len(consumer.assignment()) for consumer in self._consumers)


LIVE = [
    *(f"--describe --group <group> {view}" for view in VIEWS),
    "--describe --all-groups --members",
    "--list --state stable,assigning,reconciling",
    "--list --type consumer --state",
    "--reset-offsets --group <group> --all-topics --to-earliest --execute",
    "--reset-offsets --group <group> --all-topics --to-earliest --dry-run",
    "--reset-offsets --group <group> --group <email> --all-topics --to-earliest --dry-run --export",
    "--reset-offsets --all-groups --all-topics --to-latest --dry-run",
    "--delete --group <group>",
    "--delete-offsets --group <group> --topic <topic>",
    "--delete-offsets --group <group> --topic <topic>:0",
]
# Our broker serves the classic protocol; a group may have members of both while it moves to the newer one.
PROTOCOLS = {
    "logmark": {"classic": ["classic", "classic"]},
    "kafka": {"classic": ["classic", "classic"], "newer": ["consumer", "consumer"], "both": ["consumer", "classic"]},
}


def test_groups_with_members_are_shown_and_refused_the_same(tools: BothTools) -> None:
    for name, protocols in PROTOCOLS[tools.broker.kind].items():
        consumers = Consumers(tools, f"live-{name}", protocols)
        wait_until(lambda: "Stable" in tools.ours("--describe", "--group", consumers.group, "--state").stdout, "stable")  # noqa: B023
        for line in LIVE:
            line = line.replace("<group>", consumers.group).replace("<topic>", consumers.topic)
            tools.same(*words(line), in_any_order="--reset-offsets" in line or "--list" in line)
        verbose = tools.ours("--describe", "--group", consumers.group, "--members", "--verbose").stdout
        assert (name == "both") == ("UPGRADED" in verbose)
        consumers.leave(tools)
        compare_left_group(tools, consumers)
        tools.restore()


LEFT = [
    "--describe --group <group> --verbose",
    "--describe --group <group> --members --verbose",
    "--describe --group <group> --state --verbose",
    "--list --type --state",
    "--reset-offsets --group <group> --all-topics --to-latest --dry-run",
]


def compare_left_group(tools: BothTools, consumers: Consumers) -> None:
    """A group that its members have left is shown the same, and both tools move and delete it."""
    for line in LEFT:
        tools.same(*words(line.replace("<group>", consumers.group)), in_any_order=True)
    to = ("--reset-offsets", "--group", consumers.group, "--topic", f"{consumers.topic}:0", "--execute", "--to-offset")
    given = ("--bootstrap-server", tools.broker.bootstrap_servers)
    for number, reset in enumerate((lambda *args: tools.apache.run(CONSUMER_GROUPS, *given, *args), tools.ours)):
        assert 0 == reset(*to, str(11 + number)).exit_code
        assert 11 + number == tools.broker.committed(consumers.group)[consumers.topic, 0]
    assert "was successful" in tools.ours("--delete", "--group", consumers.group).stdout


EVERYTHING = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@contextmanager
def rights(tools: BothTools, group: AclOperation, topic: AclOperation) -> Iterator[None]:
    """Nobody may do anything but this with the group and the topic."""
    admin = tools.broker.admin

    def known() -> int:
        return len(admin.describe_acls(EVERYTHING).result(60))

    wanted = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", right, AclPermissionType.ALLOW)
        for kind, name, right in (
            (ResourceType.GROUP, tools.email, group),
            (ResourceType.TOPIC, tools.orders, topic),
        )
    ]
    for created in admin.create_acls(wanted).values():
        created.result(60)
    wait_until(lambda: known() == len(wanted), "the broker knows the rights")
    try:
        yield
    finally:
        for deleted in admin.delete_acls([EVERYTHING]).values():
            deleted.result(60)
        wait_until(lambda: known() == 0, "the broker has forgotten the rights")


DESCRIBE, READ, DELETE, OTHER = (
    AclOperation.DESCRIBE, AclOperation.READ, AclOperation.DELETE, AclOperation.ALTER_CONFIGS,
)  # fmt: skip
ACTIONS = {
    "describe": "--describe --group <email>",
    "dry run": "--reset-offsets --group <email> --topic <orders> --to-latest --dry-run",
    "delete offsets": "--delete-offsets --group <email> --topic <orders>:0",
    "delete a topic's offsets": "--delete-offsets --group <email> --topic <orders>",
    "delete": "--delete --group <email>",
    "execute": "--reset-offsets --group <email> --topic <orders> --to-latest --execute",
}
RIGHTS = {
    (DESCRIBE, DESCRIBE): {"describe", "dry run"},
    (READ, DESCRIBE): {"describe", "dry run"},
    (READ, OTHER): {"describe"},
    (READ, READ): {"describe", "dry run", "execute"},
    (DELETE, DESCRIBE): {"describe", "dry run", "delete"},
    (DELETE, READ): {"describe", "dry run", "delete", "delete offsets", "delete a topic's offsets"},
    (OTHER, READ): set(),
}


@pytest.mark.parametrize("group, topic", RIGHTS, ids=lambda right: right.name)
def test_rights_that_are_missing_are_told_the_same_and_nothing_is_changed(
    tools_on_kafka: BothTools, group: AclOperation, topic: AclOperation
) -> None:
    before = tools_on_kafka.committed_offsets()
    with rights(tools_on_kafka, group, topic):
        for action in [one for one in ACTIONS if one not in RIGHTS[group, topic]]:
            tools_on_kafka.same(*words(ACTIONS[action]), in_any_order=True)
            assert 1 == tools_on_kafka.ours(*words(ACTIONS[action]), "--strict").exit_code, action
    assert before == tools_on_kafka.committed_offsets()


@pytest.mark.parametrize("group, topic", [(READ, READ), (DELETE, READ)], ids=lambda right: right.name)
def test_the_documented_rights_are_enough(tools_on_kafka: BothTools, group: AclOperation, topic: AclOperation) -> None:
    with rights(tools_on_kafka, group, topic):
        for action in ("describe", "dry run", "execute" if group is READ else "delete offsets"):
            ran = tools_on_kafka.ours(*words(ACTIONS[action]), "--strict")
            assert 0 == ran.exit_code, ran
        if group is DELETE:
            assert 0 == tools_on_kafka.ours(*words(ACTIONS["delete"]), "--strict").exit_code
    tools_on_kafka.restore()


def test_random_expressions_dates_durations_and_lines_are_read_the_same(apache: JavaTools) -> None:
    compare_readings(apache, random.Random(0), times=250)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 9))
def test_very_many_random_words_are_read_the_same(apache: JavaTools, seed: int) -> None:
    compare_readings(apache, random.Random(seed), times=5000)
