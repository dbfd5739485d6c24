"""`logmark replay`, the same on our broker and on Apache Kafka."""

import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Message, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.cli.conftest import CommandResult, run
from tests.harness import shared
from tests.harness.brokers import BrokerUnderTest, read, values_of
from tests.harness.node import wait_until
from tests.harness.searches import seed
from tests.harness.terminals import read_until

NOW = 1_700_000_000_000
FOREVER = {"retention.ms": "-1"}
Command = Callable[..., CommandResult]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "logmark" / "replays"


@pytest.fixture
def replay(broker: BrokerUnderTest, state: Path) -> Command:
    return lambda *arguments: run("replay", *arguments, servers=broker.bootstrap_servers)


@pytest.fixture
def orders(broker: BrokerUnderTest) -> str:
    """Two partitions with ten records each, a second apart, with a key and a header."""
    topic = broker.create_topic("orders", 2, FOREVER)
    producer = broker.producer()
    for number in range(20):
        producer.produce(
            topic, f"v{number}", key=f"k{number % 4}", partition=number % 2, timestamp=NOW + number // 2 * 1000,
            headers=[("kind", "even" if number % 4 < 2 else "odd"), *([("rare", b"\xff")] if number == 7 else [])],
        )  # fmt: skip
    producer.flush()
    return topic


def records_of(broker: BrokerUnderTest, topic: str, count: int) -> list[Message]:
    consumer = broker.consumer()
    consumer.subscribe([topic])
    return read(consumer, count)


def came_from(messages: list[Message]) -> list[tuple[int, int]]:
    """The partition and offset that each record was copied from."""
    found = [dict(message.headers()) for message in messages]
    return [(int(one["logmark.replay.partition"]), int(one["logmark.replay.offset"])) for one in found]


RANGES: list[tuple[list[str], list[str]]] = [
    (["--from", "8"], ["v16", "v18", "v17", "v19"]),
    (["--from", "3", "--to", "5"], ["v6", "v8", "v7", "v9"]),
    (["--from", "-1"], ["v18", "v19"]),
    (["--from", "0:9,1:8", "--to", "1:9"], ["v18", "v17"]),
    (["--from", f"@{NOW + 2000}", "--to", f"@{NOW + 4000}"], ["v4", "v6", "v5", "v7"]),
    (["--partition", "1", "--to", "2"], ["v1", "v3"]),
    (["--key", "k3", "--key", "k0", "--to", "4"], ["v0", "v4", "v3", "v7"]),
    (["--key", "6b33", "--key-hex", "--to", "4"], ["v3", "v7"]),
    (["--header", "rare"], ["v7"]),
    (["--header", "kind=odd", "--to", "3"], ["v2", "v3"]),
    (["--header", "kind=odd", "--header", "rare"], ["v7"]),
    (["--value-contains", "v1", "--limit", "3"], ["v10", "v12", "v14"]),
]


def test_a_bounded_and_filtered_range_is_shown_partition_by_partition(replay: Command, orders: str) -> None:
    for arguments, expected in RANGES:
        shown = replay(orders, *arguments)
        assert (0, expected) == (shown.exit_code, shown.lines), f"{arguments}: {shown.error}"


def test_what_is_shown_looks_as_consume_shows_it(broker: BrokerUnderTest, replay: Command, orders: str) -> None:
    for options in (["--with-offsets"], ["--output", "json"]):
        consumed = run("consume", orders, *options, servers=broker.bootstrap_servers)
        assert sorted(consumed.lines) == sorted(replay(orders, *options).lines)


def test_a_copy_is_planned_asked_for_made_and_reported_and_no_group_notices(
    broker: BrokerUnderTest, replay: Command, orders: str
) -> None:
    sandbox, group = broker.unique("sandbox"), broker.group("billing")
    broker.commit(group, {(orders, 0): 3})
    wanted = [orders, "--from", "2", "--to", "4", "--to-topic", sandbox, "--create-topic"]

    unasked = replay(*wanted)
    assert (1, True) == (unasked.exit_code, "no terminal to ask in" in unasked.error)
    done = replay(*wanted, "--yes")

    assert 0 == done.exit_code, done.error
    made = "to be created with 2 partitions, replication factor 1, retention.ms=-1"
    assert f"Replay of {orders} to {sandbox} ({made}), keeping their times:" == done.lines[0]
    assert ["0", "2", "4", "<=", "2", "2023-11-14T22:13:22.000Z", "2023-11-14T22:13:23.000Z"] == done.words[2]
    assert re.fullmatch(rf"Copied 4 records from {orders} to {sandbox} \(replay r-[0-9a-f]{{12}}\)\.", done.lines[-1])
    copies = records_of(broker, sandbox, 4)
    assert [(0, 2), (0, 3), (1, 2), (1, 3)] == sorted(came_from(copies))
    for message in copies:
        headers = message.headers()
        assert message.partition() == came_from([message])[0][0]
        assert orders.encode() == dict(headers)["logmark.replay.topic"]
        assert "kind" == headers[0][0]
        assert str(message.timestamp()[1]).encode() == dict(headers)["logmark.replay.timestamp"]
    assert {(orders, 0): 3} == broker.committed(group)


def test_a_dry_run_counts_exactly_and_writes_nothing(broker: BrokerUnderTest, replay: Command, orders: str) -> None:
    sandbox = broker.create_topic("sandbox", 1, FOREVER)
    before = broker.end_offset(sandbox)
    dry = replay(orders, "--key", "k1", "--from", "2", "--to-topic", sandbox, "--dry-run", "--output", "json")

    assert 0 == dry.exit_code, dry.error
    assert [(0, 0, 8), (1, 4, 4)] == [(row["partition"], row["records"], row["not_selected"]) for row in dry.json]
    assert (NOW + 2000, NOW + 8000) == (dry.json[1]["first_timestamp_ms"], dry.json[1]["last_timestamp_ms"])
    assert before == broker.end_offset(sandbox)
    table = replay(orders, "--key", "k1", "--from", "2", "--to-topic", sandbox, "--dry-run")
    assert "In total: 4 records." == table.lines[-1]
    assert "This was a dry run: nothing was written." in table.error


def test_records_that_a_replay_has_copied_are_left_out_and_counted(
    broker: BrokerUnderTest, replay: Command, orders: str
) -> None:
    sandbox = broker.create_topic("sandbox", 2, FOREVER)
    assert 0 == replay(orders, "--to-topic", sandbox, "--limit", "5", "--yes").exit_code
    back = replay(sandbox, "--to-topic", orders, "--yes")
    again = replay(sandbox, "--to-topic", orders, "--yes", "--max-hops", "2", "--output", "json")

    assert 3 == back.exit_code
    assert "5 records were left out, because replays have copied them before (--max-hops 1)." in back.error
    assert (0, 5) == (again.exit_code, again.json["copied"])


MISTAKES: list[tuple[list[str], str, int]] = [
    (["ordrs-{suffix}"], "does not exist. Did you mean {orders}?", 1),
    (["{orders}", "--to-topic", "sandbx-{suffix}", "--yes"], "Did you mean {sandbox}?", 1),
    (["{orders}", "--to-topic", "{orders}", "--yes"], "would be copied to itself", 1),
    (["{orders}", "--to-topic", "__consumer_offsets", "--yes"], "the cluster's own topic", 1),
    (["{orders}", "--to-topic", "{sandbox}", "--to-partition", "7", "--yes"], "has no partition 7: it has 1", 1),
    (["{orders}", "--to-topic", "{sandbox}", "--from", "999", "--yes"], "Offset 999 is not in partition 0", 1),
    (["{orders}", "--to-topic", "{sandbox}", "--to", "999", "--yes"], "Offset 999 is not in partition 0", 1),
    (
        ["{orders}", "--to-topic", "{sandbox}", "--from", "5", "--to", "4", "--yes"],
        "--to must not lie before --from",
        1,
    ),
    (["{orders}", "--to-topic", "{sandbox}", "--from", "05.03.2024", "--yes"], "is no offset to start at", 1),
    (["{orders}", "--to-topic", "{sandbox}", "--from", "@05.03.2024", "--yes"], "3d ago", 1),
    (["{orders}", "--to-topic", "{sandbox}", "--partition", "9", "--yes"], "has no partition 9: it has 2", 1),
    (["{orders}", "--to-topic", "{sandbox}", "--from", "9:1", "--yes"], "has no partition 9: it has 2", 1),
    (["{orders}", "--to-topic", "{sandbox}", "--rate", "fast", "--yes"], "1000/s", 2),
    (["{orders}", "--to-topic", "{sandbox}", "--key", "zz", "--key-hex", "--yes"], "two digits for each byte", 2),
    (["{orders}", "--to-topic", "{sandbox}", "--header", "=x", "--yes"], "NAME=VALUE", 2),
    (["{orders}", "--to-topic", "{sandbox}", "--to-original", "--yes"], "Choose one of", 2),
    (["{orders}", "--to-topic", "no/name", "--yes"], "not a legal topic name", 1),
    (["{orders}", "--to-topic", "{sandbox}", "--read-only", "--yes"], "forbidden here", 1),
    (["--resume", "r-123456789abc", "--yes"], "There is no replay r-123456789abc", 1),
    (["{orders}", "--to-topic", "{sandbox}", "--id", "../x", "--yes"], "no name for a replay", 2),
    (["--forget", "nonsense"], "There is no replay nonsense", 1),
    ([], "Name the topic to read", 2),
    (["{orders}", "--to-topic", "{sandbox}", "--from", "@now", "--yes"], "There is nothing to copy.", 3),
    (["{orders}", "--key", "nobody"], "There was nothing to show.", 3),
]


def test_a_mistake_is_an_error_and_nothing_is_written(broker: BrokerUnderTest, replay: Command, state: Path) -> None:
    orders, sandbox = broker.create_topic("orders", 2, FOREVER), broker.create_topic("sandbox", 1, FOREVER)
    for partition in (0, 1):
        broker.produce(orders, ["v"] * 6, partition=partition)
    names = {"orders": orders, "sandbox": sandbox, "suffix": orders.removeprefix("orders-")}
    for arguments, expected, exit_code in MISTAKES:
        said = replay(*(argument.format(**names) for argument in arguments))
        assert (exit_code, True) == (said.exit_code, expected.format(**names) in said.error), f"{arguments}: {said}"

    assert (0, 6, 6) == (broker.end_offset(sandbox), broker.end_offset(orders, 0), broker.end_offset(orders, 1))
    assert [] == list(state.glob("*.json"))


def test_no_cluster_there_is_an_error_soon(pauses: list[float]) -> None:
    said = run("replay", "orders", "--to-topic", "sandbox", "--yes", servers="127.0.0.1:1")

    assert 1 == said.exit_code and "127.0.0.1:1" in said.error
    assert 0 < sum(pauses) < 10


def _deny(broker: BrokerUnderTest, topic: str, denied: AclOperation, *allowed: AclOperation) -> None:
    def rule(operation: AclOperation, kind: AclPermissionType) -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, kind
        )  # fmt: skip

    rules = [rule(denied, AclPermissionType.DENY), *(rule(one, AclPermissionType.ALLOW) for one in allowed)]
    for made in broker.admin.create_acls(rules).values():
        made.result(60)


def _allowed(broker: BrokerUnderTest, topic: str) -> set[AclOperation]:
    """Return what this client may do with a topic; nothing if it may not even see it."""
    wanted = TopicCollection([topic])
    (described,) = broker.admin.describe_topics(wanted, include_authorized_operations=True).values()
    try:
        return set(described.result(60).authorized_operations)
    except KafkaException:
        return set()


@pytest.mark.kafka
def test_missing_rights_are_errors_and_a_run_that_lacked_them_resumes(state: Path) -> None:
    node = shared.node(
        "rights",
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    broker = BrokerUnderTest("kafka", node.bootstrap_servers, node)
    orders, sandbox = broker.create_topic("orders"), broker.create_topic("sandbox")
    broker.produce(orders, ["v"] * 3)

    def replay() -> CommandResult:
        return run("replay", orders, "--to-topic", sandbox, "--yes", servers=broker.bootstrap_servers)

    # A controller's answer is a moment ahead of what its brokers know.
    _deny(broker, sandbox, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.READ)
    wait_until(lambda: AclOperation.WRITE not in _allowed(broker, sandbox), "the rule holds")
    unwritable = replay()
    _deny(broker, orders, AclOperation.READ, AclOperation.DESCRIBE)
    wait_until(lambda: AclOperation.READ not in _allowed(broker, orders), "the rule holds")
    unreadable = run("replay", orders, servers=broker.bootstrap_servers)
    _deny(broker, orders, AclOperation.DESCRIBE)
    wait_until(lambda: not _allowed(broker, orders), "the rule holds")
    unseen = run("replay", orders, servers=broker.bootstrap_servers)
    # Only these topics' rules: other tests have theirs on the same node.
    rules = [
        AclBindingFilter(
            ResourceType.TOPIC, name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for name in (orders, sandbox)
    ]
    for gone in broker.admin.delete_acls(rules).values():
        gone.result(60)
    wait_until(lambda: run("replay", orders, servers=broker.bootstrap_servers).exit_code == 0, "the rights are back")
    went_on = replay()

    assert (1, True) == (unwritable.exit_code, "resume it with: logmark replay --resume r-" in unwritable.error)
    assert f"topic {sandbox}: you are not allowed to" in unwritable.error
    assert (1, True) == (unreadable.exit_code, "you are not allowed to read this topic" in unreadable.error)
    assert (1, True) == (unseen.exit_code, orders in unseen.error), unseen.error
    assert (0, 3) == (went_on.exit_code, broker.end_offset(sandbox)), went_on.error
    for said in (unwritable, unreadable, unseen):
        assert "Traceback" not in said.error
    broker.close()


@pytest.mark.kafka
def test_a_copy_goes_to_another_cluster(
    our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest, state: Path
) -> None:
    orders, sandbox = our_broker.create_topic("orders", 1, FOREVER), apache_kafka.unique("sandbox")
    our_broker.produce(orders, ["a", "b", "c"])
    there = ["--to-bootstrap-servers", apache_kafka.bootstrap_servers]
    done = run(
        "replay", orders, "--to-topic", sandbox, "--create-topic", "--yes", *there,
        servers=our_broker.bootstrap_servers,
    )  # fmt: skip

    assert 0 == done.exit_code, done.error
    assert ["a", "b", "c"] == values_of(records_of(apache_kafka, sandbox, 3))


def test_old_times_in_a_topic_that_deletes_them_are_warned_of(
    broker: BrokerUnderTest, replay: Command, orders: str
) -> None:
    sandbox = broker.create_topic("sandbox", 2, {"retention.ms": "86400000"})
    kept = replay(orders, "--to-topic", sandbox)
    renewed = replay(orders, "--to-topic", sandbox, "--timestamp", "now")

    assert "deletes records after 1 d (retention.ms)" in kept.error
    assert "retention.ms" not in renewed.error


def test_an_unfinished_run_is_listed_given_up_or_started_over(
    broker: BrokerUnderTest, replay: Command, state: Path, orders: str
) -> None:
    sandbox = broker.create_topic("sandbox", 1, {**FOREVER, "max.message.bytes": "500"})
    broker.produce(orders, ["x" * 600])
    stopped = [replay(orders, "--to-topic", sandbox, "--from", begin, "--yes") for begin in ("8", "9")]
    known = replay("--runs", "--output", "json").json
    given_up = replay("--forget", known[0]["id"])
    over = replay(orders, "--to-topic", sandbox, "--from", "9", "--yes", "--start-over")
    after = replay("--runs")

    assert [1, 1, 1, 0] == [one.exit_code for one in (*stopped, over, given_up)]
    assert [False, False] == [one["finished"] for one in known]
    assert 1 == len(after.lines[1:]), "giving up forgets a run, and so does starting over"
    assert known[1]["id"] not in after.out
    assert ["unfinished"] == [words[-1] for words in after.words[1:]]
    assert 2 + 1 + 1 == broker.end_offset(sandbox), "what was copied before the large record stays"


def test_dead_letters_are_counted_by_their_topics_and_sent_back_without_the_headers_of_their_death(
    broker: BrokerUnderTest, replay: Command
) -> None:
    dead, orders = broker.create_topic("dead", 1, FOREVER), broker.create_topic("orders", 1, FOREVER)
    producer = broker.producer()
    for value, topic in (("a", orders), ("b", ""), ("c", orders)):
        why = [("kafka_dlt-original-topic", topic), ("kafka_dlt-exception-message", "no"), ("n", "1")]
        producer.produce(dead, value, headers=why if topic else [])
    producer.flush()
    options = [dead, "--to-original", "--strip-headers", "kafka_dlt-"]
    dry = replay(*options, "--dry-run")
    done = replay(*options, "--yes")
    again = replay(dead, "--to-topic", orders, "--value-contains", "b", "--yes")

    assert [f"To {orders}: 2 records.", "To nowhere, because no header names a topic: 1 record."] == dry.lines[-2:]
    assert (0, 0) == (done.exit_code, again.exit_code), done.error
    assert "1 record was left out, because no header names their topic." in done.error
    sent = records_of(broker, orders, 3)
    assert ["a", "c", "b"] == values_of(sent)
    assert ["n", "logmark.replay.id"] == [name for name, _ in sent[0].headers()][:2]


def test_a_named_replay_copies_once_however_often_it_is_run(
    broker: BrokerUnderTest, replay: Command, orders: str
) -> None:
    sandbox = broker.create_topic("sandbox", 1, FOREVER)
    wanted = [orders, "--to-topic", sandbox, "--from", "9", "--yes", "--id", "nightly.1"]
    done = [replay(*wanted) for _ in range(2)]
    other = replay(*wanted, "--limit", "1")

    assert [0, 0] == [one.exit_code for one in done], done[1].error
    assert [f"Copied 2 records from {orders} to {sandbox} (replay nightly.1)."] * 2 == [one.lines[-1] for one in done]
    assert (1, True) == (other.exit_code, "was started with another command. Nothing was copied" in other.error)
    assert 2 == broker.end_offset(sandbox)


def test_a_copy_that_was_killed_before_it_could_tell_its_end_is_told_and_not_made_again(
    broker: BrokerUnderTest, replay: Command, state: Path, orders: str
) -> None:
    sandbox = broker.create_topic("sandbox", 1, FOREVER)
    wanted = [orders, "--to-topic", sandbox, "--from", "9", "--yes"]
    copied = replay(*wanted).lines[-1]
    told = [copied]
    for again in (wanted, ["--resume", next(state.glob("*.json")).stem, "--yes"]):
        path = next(state.glob("*.json"))
        path.write_text(path.read_text().replace('"is_told": true', '"is_told": false'))
        told.append(replay(*again).lines[-1])

    assert [copied] * 3 == told
    assert 2 == broker.end_offset(sandbox)
    replay(*wanted)
    assert 4 == broker.end_offset(sandbox), "what was told is over, and the next one is a replay of its own"


@pytest.mark.parametrize(("answer", "exit_code", "copied"), [(b"y\n", 0, 3), (b"\n", 1, 0)])
def test_a_copy_asks_in_a_terminal(
    our_broker: BrokerUnderTest, state: Path, answer: bytes, exit_code: int, copied: int
) -> None:
    orders, sandbox = our_broker.create_topic("orders"), our_broker.create_topic("sandbox")
    our_broker.produce(orders, ["a", "b", "c"])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "logmark", "replay", orders, "--to-topic", sandbox]
    with subprocess.Popen(
        [*command, "-b", our_broker.bootstrap_servers],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ.copy(),
    ) as asked:
        os.close(theirs)
        shown = read_until(ours, f"Copy this to {sandbox}? [y/N]:".encode())
        os.write(ours, answer)
        assert exit_code == asked.wait(60)
    os.close(ours)

    assert b"at most 3 records" in shown
    assert copied == our_broker.end_offset(sandbox)


def copying(broker: BrokerUnderTest, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "logmark", "replay", *arguments, "-b", broker.bootstrap_servers, "--yes"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy())


@pytest.fixture
def many(broker: BrokerUnderTest) -> str:
    topic = broker.create_topic("many", 1, FOREVER)
    broker.produce(topic, [f"v{number}" for number in range(400)])
    return topic


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_an_interrupted_copy_is_resumed_by_the_same_command_and_copies_each_record_once(
    broker: BrokerUnderTest, replay: Command, state: Path, many: str, how: signal.Signals
) -> None:
    sandbox = broker.create_topic("sandbox", 1, FOREVER)
    wanted = [many, "--to-topic", sandbox]
    process = copying(broker, *wanted, "--rate", "20/s")  # so slow that it cannot end before it is interrupted
    deadline = time.monotonic() + 60
    while broker.end_offset(sandbox) < 4:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(how)
    _, said = process.communicate(timeout=120)
    run_id = next(state.glob("*.json")).stem
    went_on = replay(*wanted, "--yes")
    resumed_again = replay("--resume", run_id, "--yes")

    assert (130 if how is signal.SIGINT else -9) == process.returncode
    if how is signal.SIGINT:
        assert f"esume it with: logmark replay --resume {run_id}" in said
    assert 0 == went_on.exit_code, went_on.error
    assert f"The same command was interrupted before: replay {run_id}, started 20" in went_on.error
    assert f"Copied 400 records from {many} to {sandbox} (replay {run_id})." == went_on.lines[-1]
    assert 400 == broker.end_offset(sandbox)
    assert {(0, offset): 1 for offset in range(400)} == Counter(came_from(records_of(broker, sandbox, 400)))
    assert (3, True) == (resumed_again.exit_code, "is finished: 400 records were copied" in resumed_again.error)


@pytest.mark.soak
def test_a_copy_that_is_killed_many_times_copies_each_record_once(
    broker: BrokerUnderTest, replay: Command, state: Path
) -> None:
    records, chance, kills = 50_000, random.Random(seed(11)), 0
    topic = broker.create_topic("many", 3, FOREVER)
    for partition in range(3):
        broker.produce(topic, [f"v{number}" for number in range(records)], partition=partition)
    sandbox = broker.create_topic("sandbox", 2, FOREVER)

    def written() -> int:
        return sum(broker.end_offset(sandbox, number) for number in range(2))

    def go_on(until: int) -> int | None:
        """Copies until so much is written and is killed then; its exit code if it came to its end before."""
        process = copying(broker, topic, "--to-topic", sandbox, "--rate", "20k/s", "--id", "many")
        wait_until(lambda: written() >= until or process.poll() is not None, "more is written", deadline_s=60)
        ended = process.poll()
        process.kill()
        process.communicate()
        return ended

    while (ended := go_on(written() + chance.randrange(1, 10_000))) is None:
        kills += 1

    assert (0, 3 * records) == (ended, written())
    found = Counter(came_from(records_of(broker, sandbox, 3 * records)))
    assert {(number, offset): 1 for number in range(3) for offset in range(records)} == found
    assert kills >= 10, "the copy was hardly disturbed"
