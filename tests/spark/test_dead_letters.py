"""Records that do not fit their schema go to the dead-letter topic before anything behind them goes on."""

from typing import Any

import pytest

from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.dead_letters.dead_letter import DeadLetter, parse_dead_letter
from logmark.spark.dead_letters import check_dead_letter_topic
from logmark.spark.source import range_reader
from logmark.spark.source.data_source import DefaultSource
from logmark.spark.source.options import parse_source_options
from logmark.spark.source.range_reader import read_range
from logmark.spark.source.ranges import Range
from tests.harness.brokers import BrokerUnderTest
from tests.spark.sink_rows import rows

GOOD, BAD = b'{"n": 1}', b'{"n": "x"}'


def given(broker: BrokerUnderTest, topic: str, dead: str, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "group.id": "billing",
        "value.format": "json", "value.schema": "n INT", "deadLetters.topic": dead, **more,
    }  # fmt: skip


def read(broker: BrokerUnderTest, topic: str, dead: str, stop: int, **more: str) -> list[int]:
    options = parse_source_options(given(broker, topic, dead, **more), is_stream=True)
    found = list(read_range(options, Range(TopicPartition(topic, 0), 0, stop)))
    last = "headers" if "includeHeaders" in more else "timestampType"
    assert all(batch.schema.names[-1] == last and batch.num_rows for batch in found)
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def dead_letters_in(broker: BrokerUnderTest, topic: str, partitions: int = 1) -> list[tuple[bytes, DeadLetter]]:
    found = []
    for number in range(partitions):
        for row in rows(broker, topic, number):
            headers = [(name.encode(), value) for name, value in row["headers"]]
            letter = parse_dead_letter(row["value"], headers)
            assert letter is not None
            found.append((row["key"], letter))
    return sorted(found, key=lambda pair: pair[1].offset)


def test_what_does_not_fit_is_a_dead_letter_with_all_that_the_record_was_and_the_rest_are_rows(
    broker: BrokerUnderTest,
) -> None:
    topic, dead = broker.create_topic("clicks"), broker.create_topic("dead", 2)
    broker.produce(topic, [GOOD, BAD, None, b"{", GOOD])
    producer = broker.producer()
    producer.produce(topic, BAD, key=b"\xff", headers=[("trace", b"7")], partition=0, timestamp=1_700_000_000_123)
    assert 0 == producer.flush(60)

    assert [0, 2, 4] == read(broker, topic, dead, 6)
    assert [4] == read(broker, topic, broker.create_topic("other"), 5, includeHeaders="true")[2:]

    found = dead_letters_in(broker, dead, 2)
    assert [
        (1, BAD, "n: a string where INT is wanted, at byte 6"),
        (3, b"{", "no name where one must be, at byte 1"),
        (5, BAD, "n: a string where INT is wanted, at byte 6"),
    ] == [(letter.offset, letter.value, letter.error) for _, letter in found]
    key, last = found[-1]
    assert f'["{topic}",0,5]'.encode() == key
    assert (b"\xff", [(b"trace", b"7")], 1_700_000_000_123) == (last.key, list(last.headers), last.timestamp_ms)
    assert {("billing", 1)} == {(letter.pipeline, letter.attempts) for _, letter in found}


def test_a_part_whose_dead_letters_cannot_be_sent_is_read_again_and_no_row_is_skipped_or_doubled(
    our_broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, dead = our_broker.create_topic("clicks"), our_broker.create_topic("dead")
    our_broker.produce(topic, [GOOD, BAD] * 10)
    produce, fails = Client.produce, [True]

    def fail_once(self: Client, *arguments: Any) -> int:
        offset = produce(self, *arguments)
        if fails.pop() if fails else False:
            raise BrokerUnreachable("The answer got lost.")
        return offset

    monkeypatch.setattr(Client, "produce", fail_once)
    monkeypatch.setattr(range_reader, "PAUSE_S", 0)
    monkeypatch.setattr("logmark.spark.sink.outbox.retry_call", lambda call, *_: call())

    assert list(range(0, 20, 2)) == read(our_broker, topic, dead, 20)

    offsets = [letter.offset for _, letter in dead_letters_in(our_broker, dead)]
    assert set(range(1, 20, 2)) == set(offsets)
    assert 20 == len(offsets), "the dead letters of the failed try are there as well: at least once"


def test_a_value_that_no_dead_letter_can_hold_is_left_where_it_is_and_the_dead_letter_says_so(
    our_broker: BrokerUnderTest,
) -> None:
    topic = our_broker.create_topic("clicks")
    dead = our_broker.create_topic("dead", config={"max.message.bytes": "60000"})
    our_broker.produce(topic, [b"x" * 100_000, GOOD])

    assert [1] == read(our_broker, topic, dead, 2, **{"deadLetters.pipeline": "fraud"})

    [(_, letter)] = dead_letters_in(our_broker, dead)
    assert (None, 0, "fraud") == (letter.value, letter.offset, letter.pipeline)
    assert "The value has 100000 bytes, too many for this topic (max.message.bytes)." == letter.missing


def test_a_source_with_dead_letters_has_neither_errors_nor_raw_values(our_broker: BrokerUnderTest) -> None:
    plain = given(our_broker, "clicks", "dead")

    assert {"value", "timestampType"} < set(DefaultSource(plain).schema().names)
    assert not {"error", "raw"} & set(DefaultSource(plain).schema().names)
    with pytest.raises(UserError, match=r"deadLetters\.topic needs value\.format=json"):
        DefaultSource({"bootstrap.servers": "b", "subscribe": "c", "deadLetters.topic": "d"}).schema()
    with pytest.raises(UserError, match=r"Did you mean deadLetters\.topic\?"):
        DefaultSource({"bootstrap.servers": "b", "subscribe": "c", "deadLetter.topic": "d"}).schema()


def test_a_topic_that_cannot_take_dead_letters_is_an_error_at_the_start(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("clicks")

    with Client(our_broker.bootstrap_servers) as client:
        check_dead_letter_topic(client, topic, reads=["other"])
        with pytest.raises(
            UserError, match=r"There is no dead-letter topic none.*`logmark topics create none` creates it"
        ):
            check_dead_letter_topic(client, "none")
        with pytest.raises(UserError, match="each dead letter would be read and refused again"):
            check_dead_letter_topic(client, topic, reads=[topic])
    for reader in ("reader", "streamReader"):
        source = DefaultSource(given(our_broker, topic, "none"))
        made = getattr(source, reader)(source.schema())
        with pytest.raises(UserError, match="There is no dead-letter topic none"):
            made.partitions() if reader == "reader" else made.initialOffset()
