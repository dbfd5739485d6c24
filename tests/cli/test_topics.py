import pytest

from logmark.client.client import Client
from logmark.names import TopicPartition
from tests.cli.conftest import Logmark, as_printed
from tests.harness.brokers import BrokerUnderTest


def test_a_topic_is_created_listed_described_and_deleted(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.unique("orders")

    created = logmark("topics", "create", topic, "--partitions", "3", "--config", "retention.ms=-1")
    assert (0, [f"Created topic {topic}."]) == (created.exit_code, created.lines)

    assert [topic, "3"] in logmark("topics", "list").words
    assert {"topic": topic, "partitions": 3, "internal": False} in logmark("topics", "list", "--output", "json").json

    our_broker.produce(topic, ["a", "b"], partition=1)
    described = logmark("topics", "describe", topic)
    assert f"Topic {topic}: 3 partition(s), settings retention.ms=-1" == described.lines[0]
    assert ["1", "1", "1", "1", "0", "2", "2"] == described.words[3]
    (found,) = logmark("topics", "describe", topic, "-o", "json").json
    assert {"retention.ms": "-1"} == found["config"]
    assert [(0, 0, 0), (1, 0, 2), (2, 0, 0)] == [
        (one["partition"], one["start"], one["end"]) for one in found["partitions"]
    ]

    assert [f"Deleted topic {topic}."] == logmark("topics", "delete", topic, "--yes").lines
    assert topic not in logmark("topics", "list").out


def test_programs_get_the_fields_of_a_topic_in_their_order(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.unique("orders")
    logmark("topics", "create", topic, "--partitions", "2", "--config", "retention.ms=-1")
    our_broker.produce(topic, ["a", "b"], partition=1)

    (listed,) = (one for one in logmark("topics", "list", "-o", "json").json if one["topic"] == topic)
    assert ["topic", "partitions", "internal"] == list(listed)
    expected = {
        "topic": topic,
        "internal": False,
        "config": {"retention.ms": "-1"},
        "partitions": [
            {"partition": number, "leader": 1, "replicas": [1], "in_sync": [1], "start": 0, "end": end}
            for number, end in enumerate((0, 2))
        ],
    }
    assert as_printed([expected]) == logmark("topics", "describe", topic, "-o", "json").out


def test_the_clusters_own_topics_are_shown_only_when_asked_for(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client
) -> None:
    client.commit(our_broker.group("email"), {TopicPartition(our_broker.create_topic("orders"), 0): 0})

    assert "__consumer_offsets" not in logmark("topics", "list").out
    assert ["__consumer_offsets", "50"] in logmark("topics", "list", "--internal").words


def test_a_topic_that_exists_is_not_touched(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("orders")

    again = logmark("topics", "create", topic, "--partitions", "9")

    assert (1, f"logmark: Topic {topic} exists already; nothing was changed.\n") == (again.exit_code, again.error)


@pytest.mark.parametrize("name", ["a b", "a/b", "ä", ".", "..", "x" * 250, ""])
def test_an_illegal_name_is_refused_with_what_is_legal(logmark: Logmark, name: str) -> None:
    refused = logmark("topics", "create", name)

    assert 1 == refused.exit_code
    assert "is not a legal topic name: use up to 249 letters, digits, dots" in refused.error


@pytest.mark.parametrize(
    ("config", "exit_code", "message"),
    [
        ("no.such.setting=1", 1, "Unknown topic config name: no.such.setting"),
        ("retention.ms=soon", 1, "retention.ms"),
        ("retention.ms", 2, "is not NAME=VALUE"),
    ],
)
def test_a_wrong_setting_is_refused_and_creates_nothing(
    our_broker: BrokerUnderTest, logmark: Logmark, config: str, exit_code: int, message: str
) -> None:
    topic = our_broker.unique("orders")

    refused = logmark("topics", "create", topic, "--config", config)

    assert exit_code == refused.exit_code
    assert message in refused.error
    assert topic not in logmark("topics", "list").out


def test_one_wrong_name_deletes_nothing(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic, typo = our_broker.create_topic("orders"), our_broker.unique("ordres")

    refused = logmark("topics", "delete", topic, typo, "--yes")

    assert (1, f"logmark: Topic {typo} does not exist. Nothing was deleted.\n") == (refused.exit_code, refused.error)
    assert topic in logmark("topics", "list").out


def test_describing_what_is_not_there_is_an_error(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    refused = logmark("topics", "describe", our_broker.unique("no"))

    assert 1 == refused.exit_code
    assert "does not exist; `logmark topics list` shows those that do" in refused.error
