"""A side topic goes into the topic itself: each id once, whatever was sent before and wherever it was stopped."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.records import read_records
from logmark.spark.pipelines.declaration import side_topic_name
from logmark.spark.pipelines.replay import publication
from logmark.spark.pipelines.replay.publication import Publication, create_side_topic, publish_side_topic, record_id
from logmark.wire import batches
from tests.harness.brokers import BrokerUnderTest

NOW_MS = time.time_ns() // 1_000_000  # older ones might expire


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers, timeout_s=20.0) as client:
        yield client


class AlertTopics:
    """A topic of alerts, and the side topic of version 2 of what makes them."""

    def __init__(self, broker: BrokerUnderTest, client: Client) -> None:
        self.topic = broker.create_topic("alerts", 2)
        self.side = side_topic_name(self.topic, 2)
        self._client = client
        create_side_topic(client, self.topic, self.side, is_new=True)

    def send(self, topic: str, *ids: str | None, partition: int = 0) -> None:
        """Sends alerts with these ids."""
        if ids:
            headers = [[("kind", b"burst"), *([("logmark.id", one.encode())] if one else [])] for one in ids]
            records = [((one or "none").encode(), f"alert {one}".encode()) for one in ids]
            batch = batches.build(records, timestamp_ms=[NOW_MS + at for at in range(len(ids))], headers=headers)
            self._client.produce(TopicPartition(topic, partition), batch)

    def publish(self, missing_id: str | None = None) -> Publication:
        return publish_side_topic(self._client, self.side, self.topic, missing_id=missing_id)

    def records(self, topic: str | None = None) -> list[tuple[int, batches.Record]]:
        """What the topic has, with the partitions."""
        partitions = [TopicPartition(topic or self.topic, number) for number in (0, 1)]
        ends = self._client.latest(partitions)
        return [
            (one.partition, record) for one in partitions for record in read_records(self._client, one, 0, ends[one])
        ]

    def ids(self) -> Counter[str | None]:
        return Counter(record_id(record) for _, record in self.records())


@pytest.fixture
def alerts(broker: BrokerUnderTest, client: Client) -> AlertTopics:
    return AlertTopics(broker, client)


def test_only_what_was_not_sent_before_is_sent_and_it_is_the_very_record(alerts: AlertTopics) -> None:
    alerts.send(alerts.topic, "a", "b", partition=1)
    alerts.send(alerts.side, "a", "c", partition=1)
    alerts.send(alerts.side, "d", "d")

    released = alerts.publish()

    assert Publication(sent=2, known=1) == released
    assert Counter("abcd") == alerts.ids()
    [(partition, record)] = [one for one in alerts.records() if record_id(one[1]) == "c"]
    assert (1, b"c", b"alert c", NOW_MS + 1) == (partition, record.key, record.value, record.timestamp_ms)
    assert [(b"kind", b"burst"), (b"logmark.id", b"c")] == list(record.headers)


def test_a_second_publication_sends_nothing(alerts: AlertTopics) -> None:
    alerts.send(alerts.side, "a", "b")
    alerts.publish()

    assert Publication(sent=0, known=2) == alerts.publish()
    assert Counter("ab") == alerts.ids()


@pytest.mark.parametrize("written", [0, 1, 2])
@pytest.mark.parametrize("arrives", [False, True])
def test_a_publication_that_was_stopped_is_made_again(
    alerts: AlertTopics, client: Client, monkeypatch: pytest.MonkeyPatch, written: int, arrives: bool
) -> None:
    ids = [f"id-{number}" for number in range(8)]
    alerts.send(alerts.topic, ids[3])
    alerts.send(alerts.side, *ids)
    monkeypatch.setattr(publication, "_BATCH_BYTES_MAX", 200)
    produce, calls = client.produce, []

    def failing(partition: TopicPartition, batch: bytearray) -> int:
        calls.append(partition)
        if len(calls) > written:
            if arrives:
                produce(partition, batch)
            raise BrokerUnreachable("The broker went away.")
        return produce(partition, batch)

    monkeypatch.setattr(client, "produce", failing)
    with pytest.raises(BrokerUnreachable):
        alerts.publish()
    monkeypatch.setattr(client, "produce", produce)

    alerts.publish()

    assert Counter(ids) == alerts.ids()


def test_records_without_an_id_are_an_error_until_somebody_says_what_becomes_of_them(alerts: AlertTopics) -> None:
    alerts.send(alerts.side, "a", None, None)

    with pytest.raises(UserError, match=r"2 of the records .* have no id"):
        alerts.publish()
    assert not alerts.ids()
    assert Publication(sent=1, known=0, missing_id=2) == alerts.publish("skip")
    assert Counter(["a", None, None]) == (alerts.publish("send"), alerts.ids())[1]


def test_the_side_topic_keeps_everything_and_is_made_once(alerts: AlertTopics, client: Client) -> None:
    settings = client.topic_settings([alerts.side], ["retention.ms", "cleanup.policy"])[alerts.side]
    assert {"retention.ms": "-1", "cleanup.policy": "delete"} == settings

    create_side_topic(client, alerts.topic, alerts.side, is_new=True)
    alerts.send(alerts.side, "a")
    create_side_topic(client, alerts.topic, alerts.side, is_new=False)
    with pytest.raises(UserError, match="has records already"):
        create_side_topic(client, alerts.topic, alerts.side, is_new=True)
