"""groups, lag and offsets reset."""

from dataclasses import replace
from pathlib import Path

import pytest

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.journal.journal import open_journal
from logmark.spark.pipelines.home import Home
from tests.cli.conftest import Logmark, as_printed, run
from tests.harness.brokers import BrokerUnderTest, read


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the journal of this test is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_lag_is_shown_to_people_in_both_notations(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client
) -> None:
    topic, group = our_broker.create_topic("orders", partitions=3), our_broker.group("email")
    for partition, records in enumerate((4, 2, 1)):
        our_broker.produce(topic, ["x"] * records, partition=partition)
    client.commit(group, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 0, TopicPartition(topic, 2): 1})

    shown = logmark("lag", group)

    assert [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "COMMITTED",
        "LAST",
        "PROCESSED",
        "START",
        "END",
        "LAG",
        "BEHIND",
    ] == shown.words[0]
    lines = [" ".join(words) for words in shown.words[1:]]
    assert f"{group} {topic} 2 1 0 0 1 0 0 s" == lines[2]
    for line, begin in zip(
        lines,
        (
            f"{group} {topic} 0 3 2 0 4 1 ",
            f"{group} {topic} 1 0 nothing 0 2 2 ",
            f"{group} {topic} 2 ",
            f"Group {group}: 3 records behind in total, the oldest unread record is ",
        ),
        strict=True,
    ):
        assert line.startswith(begin)


def test_lag_in_json_is_a_list_of_objects(our_broker: BrokerUnderTest, logmark: Logmark, client: Client) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("email")
    our_broker.produce(topic, ["x"] * 10)
    our_broker.delete_records(topic, 2)
    client.commit(group, {TopicPartition(topic, 0): 3})

    (row,) = logmark("lag", group, "--output", "json").json
    assert 0 <= row.pop("seconds") < 60
    assert {
        "group": group, "topic": topic, "partition": 0, "committed": 3, "last_processed": 2,
        "start": 2, "end": 10, "lag": 7, "lost": 0, "seconds_bound": 0, "seconds_method": "record",
        "verdict": None, "evidence": None, "note": "",
    } == row  # fmt: skip


def test_lag_without_a_name_is_that_of_every_group(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client
) -> None:
    topic = our_broker.create_topic("clicks")
    our_broker.produce(topic, ["x"] * 1000)
    groups = {our_broker.group("billing"): 1000, our_broker.group("fraud"): 850, our_broker.group("features"): 0}
    for group, offset in groups.items():
        client.commit(group, {TopicPartition(topic, 0): offset})

    rows = [row for row in logmark("lag", "-o", "json").json if row["topic"] == topic]

    assert {group: 1000 - offset for group, offset in groups.items()} == {row["group"]: row["lag"] for row in rows}


def test_records_that_expired_unread_are_reported_as_lost(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client
) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("weekly")
    our_broker.produce(topic, ["x"] * 10)
    client.commit(group, {TopicPartition(topic, 0): 2})
    our_broker.delete_records(topic, 6)

    assert "4 records lost: expired before they were read" in logmark("lag", group).out
    assert [(4, 4)] == [(row["lag"], row["lost"]) for row in logmark("lag", group, "-o", "json").json]


def test_a_group_that_is_not_there_is_an_error(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    group = our_broker.group("nobody")

    for command in (("lag", group), ("groups", "describe", group)):
        refused = logmark(*command)
        assert 1 == refused.exit_code
        assert f"Group {group} does not exist" in refused.error
        assert "`logmark groups list` shows those that do." in refused.error


def test_groups_are_listed_and_described_with_their_members(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("email")
    our_broker.produce(topic, ["a", "b"])
    consumer = our_broker.consumer(group, client_id="worker-1")
    consumer.subscribe([topic])
    read(consumer, 1)
    consumer.commit(asynchronous=False)

    assert [group, "Stable", "classic"] in logmark("groups", "list").words
    listed = {"group": group, "state": "Stable", "type": "classic", "protocol_type": "consumer"}
    assert [as_printed(listed)] == [
        as_printed(one) for one in logmark("groups", "list", "-o", "json").json if one["group"] == group
    ]

    shown = logmark("groups", "describe", group)
    assert f"Group {group}: Stable, 1 member, assignor range" == shown.lines[0]
    assert ["worker-1", "127.0.0.1", f"{topic}-0"] == shown.words[2][1:]
    (described,) = logmark("groups", "describe", group, "-o", "json").json
    (member,) = described["members"]
    assert ("worker-1", [{"topic": topic, "partition": 0}]) == (member["client_id"], member["partitions"])
    assert [(1, 1, member["member_id"])] == [
        (row["committed"], row["lag"], row["member_id"]) for row in described["offsets"]
    ]


def test_groups_are_deleted_all_or_none(our_broker: BrokerUnderTest, logmark: Logmark, client: Client) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("email")
    client.commit(group, {TopicPartition(topic, 0): 0})

    refused = logmark("groups", "delete", group, our_broker.group("typo"))
    assert 1 == refused.exit_code
    assert "does not exist. Nothing was deleted." in refused.error

    assert [f"Deleted group {group}."] == logmark("groups", "delete", group).lines
    assert {} == client.committed(group)


def test_a_deleted_group_is_in_the_journal_and_comes_back_by_an_undo(broker: BrokerUnderTest, state: Path) -> None:
    topic, group = broker.create_topic("orders", partitions=2), broker.group("email")
    broker.produce(topic, ["a"] * 5)
    broker.commit(group, {(topic, 0): (3, "mark"), (topic, 1): 0})

    deleted = run("groups", "delete", group, servers=broker.bootstrap_servers)

    assert ([f"Deleted group {group}."], {}) == (deleted.lines, broker.committed(group))
    with Client(broker.bootstrap_servers) as client:
        (change,) = open_journal(client).changes(name=group)
        assert ("delete", "done") == (change.action, change.state)
        assert f"To undo it: logmark offsets undo {change.id}" in deleted.error
        assert 0 == run("offsets", "undo", change.id, "--yes", servers=broker.bootstrap_servers).exit_code
        assert change.before == client.committed(group)
    assert {(topic, 0): 3, (topic, 1): 0} == broker.committed(group)


def test_a_group_is_not_deleted_where_the_journal_cannot_be_written(
    our_broker: BrokerUnderTest, logmark: Logmark, state: Path
) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("email")
    our_broker.commit(group, {(topic, 0): 0})
    state.write_text("no folder")

    refused = logmark("groups", "delete", group)

    assert (1, []) == (refused.exit_code, refused.lines)
    assert "Nothing was changed" in refused.error
    assert {(topic, 0): 0} == our_broker.committed(group)


def test_an_active_group_is_not_deleted(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("email")
    our_broker.produce(topic, ["a"])
    consumer = our_broker.consumer(group)
    consumer.subscribe([topic])
    read(consumer, 1)

    refused = logmark("groups", "delete", group)

    assert 1 == refused.exit_code
    assert "has active members (Stable). Nothing was deleted; stop them first." in refused.error


@pytest.fixture
def fraud(our_broker: BrokerUnderTest, client: Client) -> TopicPartition:
    """A group of that name stands at 850 of 1000 in this partition."""
    partition = TopicPartition(our_broker.create_topic("clicks", config={"retention.ms": "-1"}), 0)
    our_broker.produce(partition.topic, ["x"] * 1000, timestamp_ms=1_709_640_000_000)
    client.commit(our_broker.group("fraud"), {partition: 850})
    return partition


@pytest.mark.parametrize(
    ("scenario", "to", "read_again", "skipped"),
    [
        (["--to-earliest"], 0, 850, 0),
        (["--to-latest"], 1000, 0, 150),
        (["--to-offset", "500"], 500, 350, 0),
        (["--to-datetime", "2024-03-05T00:00:00.000"], 0, 850, 0),
        (["--to-datetime", "2024-03-06"], 1000, 0, 150),
        (["--by-duration", "3d"], 1000, 0, 150),
        (["--by-duration", "P9999D"], 0, 850, 0),
        (["--shift-by", "-50"], 800, 50, 0),
        (["--shift-by", "100"], 950, 0, 100),
    ],
)
def test_a_reset_shows_its_plan_and_applies_it(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client, fraud: TopicPartition,
    scenario: list[str], to: int, read_again: int, skipped: int,
) -> None:  # fmt: skip
    group = our_broker.group("fraud")

    done = logmark("offsets", "reset", group, "--topic", fraud.topic, *scenario, "--yes")

    assert 0 == done.exit_code
    assert done.lines[0].startswith(f"Plan for group {group}, ")
    shown = " ".join(done.words[2])
    expected = f"{fraud.topic} 0 850 849 {to} {read_again} {skipped} {1000 - to}"
    assert shown.startswith(expected)
    assert done.lines[3].startswith(f"In total: {read_again} records to read again, {skipped} records skipped")
    assert to == client.committed(group)[fraud].offset


def test_a_dry_run_shows_the_same_and_changes_nothing(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client, fraud: TopicPartition
) -> None:
    group = our_broker.group("fraud")

    shown = logmark("offsets", "reset", group, "--topic", fraud.topic, "--to-offset", "500", "--dry-run", "-o", "json")

    assert (0, "This was a dry run: nothing was changed.\n") == (shown.exit_code, shown.error)
    plan = shown.json
    assert (group, "to offset 500", 350, 0, False, None) == tuple(
        plan[name] for name in ("group", "how", "read_again", "skipped", "applied", "change")
    )
    (move,) = plan["moves"]
    assert {
        "topic": fraud.topic, "partition": 0, "from": 850, "last_processed": 849, "to": 500, "start": 0, "end": 1000,
        "read_again": 350, "skipped": 0, "lag_after": 500, "is_upper_bound": False, "is_change": True, "note": "",
    }.items() <= move.items()  # fmt: skip
    assert 850 == client.committed(group)[fraud].offset


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--to-earliest"], 2, "there is no terminal to ask in. Add --yes to apply this plan."),
        (["--to-offset", "5000", "--yes"], 1, "Offset 5000 is out of range in partition 0"),
        (["--shift-by", "-851", "--yes"], 1, "Offset -1 is out of range"),
        (["--to-datetime", "yesterday", "--yes"], 1, "'yesterday' is not a point in time that is understood"),
        (["--by-duration", "1 fortnight", "--yes"], 1, "is not a length of time that is understood"),
        (["--yes"], 2, "Say where the group shall go, with one of --to-earliest"),
        (["--to-earliest", "--to-latest", "--yes"], 2, "with one of --to-earliest"),
        (["--to-offset", "many", "--yes"], 2, "--to-offset"),
    ],
)
def test_a_reset_that_cannot_be_is_an_error_and_changes_nothing(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client, fraud: TopicPartition,
    arguments: list[str], exit_code: int, message: str,
) -> None:  # fmt: skip
    group = our_broker.group("fraud")

    refused = logmark("offsets", "reset", group, "--topic", fraud.topic, *arguments)

    assert exit_code == refused.exit_code
    assert message in refused.error
    assert 850 == client.committed(group)[fraud].offset


def test_a_reset_of_a_group_with_state_names_the_replay_of_its_pipeline(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client, fraud: TopicPartition,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    group = our_broker.group("fraud")
    mark = CommitMetadata(query="q7", generation=5, offset=850, is_stateful=True)
    client.commit(group, {fraud: Committed(offset=850, metadata=mark.to_text())})
    monkeypatch.setenv("LOGMARK_PIPELINES", str(tmp_path))
    command = ("offsets", "reset", group, "--topic", fraud.topic, "--to-earliest", "--yes")

    unknown = logmark(*command)
    Home(tmp_path, "sessions").change(lambda record: replace(record, group=group))
    refused = logmark(*command)

    assert [1, 1] == [unknown.exit_code, refused.exit_code]
    assert "`logmark pipelines replay NAME` reads the records again" in unknown.error
    assert f"Group {group} belongs to the query q7, which keeps state" in refused.error
    assert "`logmark pipelines replay sessions` reads the records again into a new version" in refused.error
    assert 850 == client.committed(group)[fraud].offset
    assert 0 == logmark(*command, "--force").exit_code
    assert 0 == client.committed(group)[fraud].offset


def test_a_clamp_is_asked_for_and_shown(our_broker: BrokerUnderTest, logmark: Logmark, fraud: TopicPartition) -> None:
    done = logmark(
        "offsets", "reset", our_broker.group("fraud"), "--topic", fraud.topic, "--to-offset", "5000", "--clamp", "--yes"
    )

    assert "5000 is beyond the end" in done.out


def test_a_typo_in_the_group_creates_nothing(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client, fraud: TopicPartition
) -> None:
    typo = our_broker.group("fruad")
    command = ("offsets", "reset", typo, "--topic", fraud.topic, "--to-earliest", "--yes")

    refused = logmark(*command)
    assert 1 == refused.exit_code
    assert f"Group {typo} does not exist. Did you mean {our_broker.group('fraud')}?" in refused.error
    assert {} == client.committed(typo)

    assert 0 == logmark(*command, "--create-group").exit_code
    assert 0 == client.committed(typo)[fraud].offset
