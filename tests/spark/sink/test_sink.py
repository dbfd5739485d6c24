"""What the sink writes, task by task, without Spark: on our broker and on Apache Kafka."""

import datetime
import sys
import time

import pytest
from confluent_kafka.admin import NewPartitions

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.dead_letters.dead_letter import origin_key, parse_origin_key
from logmark.spark.sink import outbox as outbox_module
from logmark.spark.sink.delivery import EPOCHS, FIRST_ID, DeliveryPlan, make_sender
from logmark.spark.sink.options import CODECS
from logmark.spark.sink.outbox import Outbox, connect_sink
from logmark.spark.sink.topics import ids_in_topic
from logmark.testing import Broker
from tests.harness.brokers import BrokerUnderTest
from tests.harness.clocks import start_on_first_pause
from tests.spark.sink_rows import Killed, Query, Row, kill_after, rows, values


def numbered(count: int, start: int = 0, **more: object) -> list[Row]:
    return [{"value": f"v{number}", **more} for number in range(start, start + count)]


def small(broker: BrokerUnderTest, topic: str, **given: str) -> Query:
    """A query whose record batches hold about four of these rows each."""
    return Query(broker.bootstrap_servers, topic, **{"id": broker.unique("alerts"), "batch.size": "140", **given})


def at(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_in_the_topic_is_what_was_written(broker: BrokerUnderTest, codec: str) -> None:
    topic = broker.create_topic("mixed", config={"retention.ms": "-1"})
    pairs = [{"key": "trace", "value": b"\x00\xff"}, {"key": "größe", "value": None}]
    given: list[Row] = [
        {"key": "k", "value": "plain", "timestamp": at(1_700_000_000_123), "headers": pairs},
        {"key": None, "value": "Übung 🙂", "timestamp": at(1_700_000_000_001)},
        {"key": "", "value": None, "headers": [], "timestamp": at(1_700_000_000_000)},
        {"key": "k", "value": "x" * 20_000, "id": "click-7", "timestamp": at(1_600_000_000_000)},
    ]

    Query(broker.bootstrap_servers, topic, id=broker.unique("a"), **{"compression.type": codec}).run(0, given)

    assert [
        {"key": b"k", "value": b"plain", "timestamp": 1_700_000_000_123,
         "headers": [("trace", b"\x00\xff"), ("größe", None)]},
        {"key": None, "value": "Übung 🙂".encode(), "headers": [], "timestamp": 1_700_000_000_001},
        {"key": b"", "value": None, "headers": [], "timestamp": 1_700_000_000_000},
        {"key": b"k", "value": b"x" * 20_000, "headers": [("logmark.id", b"click-7")], "timestamp": 1_600_000_000_000},
    ] == rows(broker, topic)  # fmt: skip


def test_rows_without_a_timestamp_have_the_time_of_writing(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("now")
    before = time.time_ns() // 1_000_000

    Query(broker.bootstrap_servers, topic, id=broker.unique("a")).run(0, numbered(1))

    assert before <= rows(broker, topic)[0]["timestamp"] <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("has_numpy", [True, False])
def test_keys_go_where_librdkafka_sends_them_by_javas_rule(
    broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch, has_numpy: bool
) -> None:
    if not has_numpy:
        monkeypatch.setitem(sys.modules, "logmark.spark.sink.key_hashes", None)
    ours, theirs = broker.create_topic("ours", partitions=7), broker.create_topic("theirs", partitions=7)
    keys = ["", "a", "ab", "abc", "abcd", "größe", "🙂", *(f"user-{number}" for number in range(200))]
    producer = broker.producer(partitioner="murmur2_random")
    for key in keys:
        producer.produce(theirs, key, key)
    assert 0 == producer.flush(60)

    Query(broker.bootstrap_servers, ours, id=broker.unique("a")).run(0, [{"key": key, "value": key} for key in keys])

    found = values(broker, ours, 7)
    # An empty key is none for librdkafka, which then chooses by chance; Java hashes it.
    assert [[value for value in part if value] for part in values(broker, theirs, 7)] == [
        [value for value in part if value] for part in found
    ]
    assert [681] == [681 for part in found if "" in part]


def test_rows_name_their_topic_and_partition_themselves(broker: BrokerUnderTest) -> None:
    one, two = broker.create_topic("one", partitions=3), broker.create_topic("two")
    query = Query(broker.bootstrap_servers, None, id=broker.unique("a"))

    query.run(0, [{"value": "a", "topic": one, "partition": 2}, {"value": "b", "topic": two}])
    query.run(1, [{"value": "c", "topic": two, "partition": 0}])

    assert [[], [], ["a"]] == values(broker, one, 3)
    assert [["b", "c"]] == values(broker, two)


def test_rows_without_a_key_stick_to_a_partition_and_the_next_batch_takes_another(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("clicks", partitions=3)
    query = Query(broker.bootstrap_servers, topic, id=broker.unique("a"))

    query.run(0, numbered(1500))
    query.run(1, numbered(10))

    assert [1000, 510, 0] == [len(part) for part in values(broker, topic, 3)]


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_batch_that_died_after_any_write_is_completed_and_not_repeated(
    broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    given = [{"key": f"k{number % 5}", "value": f"v{number}"} for number in range(24)]
    for killed_after in range(1, 8):
        topic = broker.create_topic(f"killed-{killed_after}", partitions=2)
        query = small(broker, topic, id=broker.unique(f"killed-{killed_after}"))
        query.run(0, numbered(3, 1000, key="k0"))
        with monkeypatch.context() as patch:
            kill_after(Client, patch, killed_after, is_answered=is_answered)
            with pytest.raises(Killed):
                query.run(1, given)
        broker.produce(topic, ["of another writer"] * 3)

        query.run(1, given)
        query.run(2, numbered(3, 2000, key="k0"))

        found = [value for part in values(broker, topic, 2) for value in part]
        assert sorted([*(row["value"] for row in [*given, *numbered(3, 1000), *numbered(3, 2000)]),
                       *["of another writer"] * 3]) == sorted(found)  # fmt: skip


def test_a_batch_that_was_committed_is_not_written_again_though_spark_repeats_it(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("committed")
    query = small(broker, topic)
    query.run(0, numbered(10))
    broker.delete_records(topic, 10)  # the tail would not tell

    query.run(0, numbered(10))

    assert (10, 10) == (broker.start_offset(topic), broker.end_offset(topic))


def test_the_last_batch_is_known_again_in_whatever_order_its_rows_come(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("reordered")
    query = small(broker, topic)
    query.run(0, numbered(6, key="k"), [{"key": None, "value": None}], [])

    query.run(0, [], numbered(3, 3, key="k"), [{"key": None, "value": None}, *reversed(numbered(3, key="k"))])

    assert 7 == broker.end_offset(topic)


@pytest.mark.parametrize(
    "others",
    [numbered(10, 50), numbered(9), numbered(11), numbered(10, key="k")],
    ids=["other values", "fewer", "more", "other keys"],
)
def test_the_last_batch_with_other_rows_is_an_error_and_they_are_not_lost_silently(
    broker: BrokerUnderTest, others: list[Row]
) -> None:
    topic = broker.create_topic("planned-anew")
    query = small(broker, topic)
    query.run(0, numbered(4, 1000))
    query.run(1, numbered(10))

    # The machine went down, and Spark had not synced what it had planned: the batch has the records of now.
    with pytest.raises(UserError, match=rf"Batch 1 was written before with other rows \(10 then, {len(others)} now\)"):
        query.run(1, others)

    assert 14 == broker.end_offset(topic)
    query.run(1, numbered(10))
    query.run(2, numbered(1, 2000))
    assert 15 == broker.end_offset(topic), "a true repetition is silent, and the next batch comes behind it"


def test_a_batch_before_the_last_one_is_an_error(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("restored")
    query = small(broker, topic)
    for number in range(3):
        query.run(number, numbered(2, 2 * number))

    for given in (numbered(2, 2), numbered(2, 50)):  # the checkpoint came from a backup
        with pytest.raises(UserError, match=r"would write batch 1, and batch 2 was written before: its checkpoint"):
            query.run(1, given)

    query.run(1, [])
    query.run(3, numbered(1, 6))
    assert [[row["value"] for row in numbered(7)]] == values(broker, topic)


def test_a_batch_without_rows_leaves_none_out_and_the_mark_where_it_is(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("seek")
    query = small(broker, topic)
    for number in range(3):
        query.run(number, numbered(2, 2 * number))

    query.run(1, [])  # as a group is followed to where it stands, with state that is asked in every batch
    query.run(2, [])

    query.run(2, numbered(2, 4))
    assert [[row["value"] for row in numbered(6)]] == values(broker, topic)


def test_the_last_batch_of_an_older_logmark_is_left_out_by_its_number(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("noted")
    query = small(broker, topic)
    query.run(0, numbered(3))
    with Client(broker.bootstrap_servers) as client:
        client.commit(query.group, {TopicPartition(topic, 0): Committed(offset=3, metadata="q 0")})

    query.run(0, numbered(3))
    query.run(1, numbered(2, 3))

    assert [[row["value"] for row in numbered(5)]] == values(broker, topic)


def test_the_same_batch_number_of_a_query_with_a_new_checkpoint_is_another_batch(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("anew")
    small(broker, topic, query="first").run(0, numbered(5))

    small(broker, topic, query="second").run(0, numbered(5, 5))

    assert [[row["value"] for row in numbered(10)]] == values(broker, topic)


def test_two_attempts_of_a_task_at_the_same_time_write_each_row_once(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("speculative")
    given = numbered(60)
    slow, quick = small(broker, topic), small(broker, topic, **{"batch.size": "330"})
    planned = slow.plan()

    now_ms = time.time_ns() // 1_000_000

    with connect_sink(slow.options) as client:
        outbox = Outbox(client, slow.options, planned, slow.attempt(0))
        for number, row in enumerate(given):
            if number == 20:
                quick.task(planned, 0, given[:43])
            outbox.put(None, None, None, row["value"].encode(), (), now_ms)
        outbox.close()

    assert [[row["value"] for row in given]] == values(broker, topic)


def test_a_late_attempt_of_an_older_batch_is_refused_by_the_broker(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("late")
    query = small(broker, topic)
    planned = query.plan()
    query.run(0, numbered(4))
    query.run(1, numbered(4, 4))

    with pytest.raises(
        UserError, match=r"A later batch of this query has written .* late attempt of Spark partition 0"
    ):
        query.task(planned, 0, numbered(4))

    assert [[row["value"] for row in numbered(8)]] == values(broker, topic)


def test_tasks_of_a_batch_are_told_apart(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("tasks")
    query = small(broker, topic)
    planned = query.plan()
    query.task(planned, 0, numbered(6), task=0)

    query.run(0, numbered(6), numbered(6, 6))

    assert [[row["value"] for row in numbered(12)]] == values(broker, topic)


def test_a_batch_is_recognised_when_its_broker_has_forgotten_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker({"log.retention.ms": "-1"}) as running:
        broker = BrokerUnderTest("logmark", running.bootstrap_servers, running)
        topic = broker.create_topic("slept")
        query = small(broker, topic)
        query.run(0, numbered(3, 1000))
        with monkeypatch.context() as patch:
            kill_after(Client, patch, 2)
            with pytest.raises(Killed):
                query.run(1, numbered(20))
        running.advance(3 * 86_400)
        running.restart()

        query.run(1, numbered(20))
        assert [[row["value"] for row in [*numbered(3, 1000), *numbered(20)]]] == values(broker, topic)

        with Client(broker.bootstrap_servers) as client:
            client.delete_records({TopicPartition(topic, 0): 23})
        running.advance(3 * 86_400)
        running.restart()
        query.run(1, numbered(20))  # it is committed, though nothing else is left to tell of it
        assert [[]] == values(broker, topic)
        broker.close()


@pytest.mark.parametrize("is_planned", [True, False])
def test_a_batch_that_is_repeated_with_other_rows_is_an_error_and_loses_none(
    broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch, is_planned: bool
) -> None:
    topic = broker.create_topic("other")
    query = small(broker, topic, **{"compression.type": "lz4"})
    before = query.plan()
    with monkeypatch.context() as patch:
        kill_after(Client, patch, 2)
        with pytest.raises(Killed):
            query.task(before, 0, numbered(20))
    there = values(broker, topic)

    with pytest.raises(UserError, match=r"Spark partition 0 of batch 0 is repeated with other rows than before: row 0"):
        query.task(query.plan() if is_planned else before, 0, numbered(20, 50), is_first=is_planned)

    assert there == values(broker, topic)


def test_new_partitions_are_used_from_the_next_batch_on(
    our_broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = our_broker
    topic = broker.create_topic("grown")
    query = small(broker, topic)
    given = [{"key": f"k{number}", "value": f"v{number}"} for number in range(20)]
    with monkeypatch.context() as patch:
        kill_after(Client, patch, 2)
        with pytest.raises(Killed):
            query.run(0, given)
    broker.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)

    query.run(0, given)
    assert [[row["value"] for row in given], [], []] == values(broker, topic, 3)

    query.run(1, [{"key": f"k{number}", "value": "later"} for number in range(20)])
    named = query.plan()
    broker.admin.create_partitions([NewPartitions(topic, 4)])[topic].result(60)
    query.task(named, 2, [{"value": "named", "partition": 3}, *({"key": f"k{at}", "value": "x"} for at in range(20))])
    assert ["named"] == values(broker, topic, 4)[3]
    assert [True, True, True] == ["later" in part for part in values(broker, topic, 3)]


def test_at_least_once_repeats_what_was_written_and_keeps_no_group(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("often")
    query = small(broker, topic, delivery="at-least-once")
    for _ in range(2):
        query.task(DeliveryPlan(), 0, numbered(5))

    assert [[row["value"] for row in numbered(5)] * 2] == values(broker, topic)
    assert {} == broker.committed(query.group)


def test_the_ids_that_a_topic_holds_are_found_in_a_bounded_range(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("alerts")
    partition = TopicPartition(topic, 0)
    query = small(broker, topic, **{"compression.type": "zstd"})
    query.run(0, [{"value": "v", "id": f"id-{number}"} for number in range(30)])

    with Client(broker.bootstrap_servers) as client:
        wanted = ["id-3", "id-12", "id-29", "id-77"]
        assert {"id-3", "id-12", "id-29"} == ids_in_topic(client, wanted, starts={partition: 0})
        assert {"id-12"} == ids_in_topic(client, wanted, starts={partition: 4}, ends={partition: 29})
        assert set() == ids_in_topic(client, wanted, starts={partition: 30})


def test_a_dead_letters_key_names_the_record_that_it_came_from() -> None:
    assert '["clicks",3,42]' == origin_key("clicks", 3, 42)
    assert (TopicPartition("clicks", 3), 42) == parse_origin_key(b'["clicks",3,42]')
    with pytest.raises(UserError, match="does not name a record"):
        parse_origin_key(b"clicks-3")


def error_of(broker: BrokerUnderTest, topic: str | None, given: list[Row], **options: str) -> str:
    query = Query(broker.bootstrap_servers, topic, id=broker.unique("bad"), **options)
    with pytest.raises(UserError) as failure:
        query.run(0, given)
    return str(failure.value)


def test_bad_rows_are_errors_and_write_nothing(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("clicks", config={"max.message.bytes": "2000"})
    compacted = broker.create_topic("compacted", config={"cleanup.policy": "compact"})
    messages = {
        f"Topic {topic}s does not exist. Did you mean {topic}?": error_of(broker, f"{topic}s", numbered(1)),
        "Row 1 of Spark partition 0 of batch 0 names no topic": error_of(broker, None, [{"value": "a", "topic": None}]),
        f"Row 1 of Spark partition 0 of batch 0 is for partition 4 of topic {topic}, which has": error_of(
            broker, topic, [{"value": "a", "partition": 4}]
        ),
        "A row of Spark partition 0 of batch 0 makes a record of": error_of(broker, topic, [{"value": "x" * 3000}]),
        "A header has no key": error_of(broker, topic, [{"value": "a", "headers": [{"key": None, "value": b""}]}]),
        f"Partition 0 of topic {compacted}": error_of(broker, compacted, [{"value": "without a key"}]),
    }

    assert [] == [(begin, text) for begin, text in messages.items() if not text.startswith(begin)]
    assert 0 == broker.end_offset(topic)


def test_a_large_row_fits_when_it_is_compressed(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("squeezed", config={"max.message.bytes": "2000"})

    Query(broker.bootstrap_servers, topic, id=broker.unique("a"), **{"compression.type": "zstd"}).run(
        0, [{"value": "x" * 3000}, *numbered(400)]
    )

    assert 401 == broker.end_offset(topic)


def test_a_broker_that_restarts_under_a_task_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as running:
        broker = BrokerUnderTest("logmark", running.bootstrap_servers, running)
        topic = broker.create_topic("restarted")
        query = small(broker, topic)
        planned = query.plan()
        running.stop()
        monkeypatch.setattr(outbox_module, "TIMEOUT_S", 0.3)
        start_on_first_pause(monkeypatch, running.start)

        query.commit(0, query.task(planned, 0, numbered(9)))

        assert [[row["value"] for row in numbered(9)]] == values(broker, topic)
        broker.close()


def test_a_broker_that_stays_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "TIMEOUT_S", 0.1)
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    with pytest.raises(UserError, match=r"The broker at 127\.0\.0\.1:1 refused the connection"):
        Query("127.0.0.1:1", "clicks", waitForBroker="0s").run(0, numbered(1))


def test_every_batch_has_a_sender_of_its_own_and_a_later_one_outranks_it() -> None:
    first, second = make_sender("q", 0, 3), make_sender("q", 1, 3)

    assert first.producer_id == second.producer_id
    assert first.producer_epoch < second.producer_epoch
    assert FIRST_ID <= first.producer_id < 2**63
    assert 32_767 == make_sender("q", EPOCHS - 1, 3).producer_epoch
    assert make_sender("q", EPOCHS, 3).producer_id != first.producer_id
    assert 4 == len({make_sender(query, 0, task).producer_id for query in "qr" for task in (0, 1)})
