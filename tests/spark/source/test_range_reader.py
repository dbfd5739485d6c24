"""What an executor reads of a range, on our broker and on Apache Kafka."""

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from logmark.client.answers import FetchedPartition
from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, ClientError, OffsetOutOfRange, RefusedByBroker, UnknownTopic
from logmark.client.fetcher import EMPTY_ANSWERS
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.spark.errors import PermanentlyRefused
from logmark.spark.source.options import SourceOptions, parse_source_options
from logmark.spark.source.parallel_fetch import fetch_in_parallel
from logmark.spark.source.range_reader import (
    COMPRESSED_BYTES_FIRST,
    COMPRESSED_BYTES_MIN,
    WINDOW_BYTES,
    Expansion,
    connect_source,
    read_range,
    read_ranges,
    split_windows,
)
from logmark.spark.source.ranges import Range
from logmark.testing import Broker
from logmark.wire import codecs, columns
from logmark.wire.batches import build
from tests.harness.brokers import BrokerUnderTest
from tests.harness.clocks import read_clock, turn_clock


def options(broker: BrokerUnderTest, topic: str, reset: str | None = None) -> SourceOptions:
    given = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "group.id": "g"}
    return parse_source_options(given | ({"auto.offset.reset": reset} if reset else {}), is_stream=True)


def offsets(wanted: SourceOptions, topic: str, first: int, stop: int) -> list[int]:
    return [
        offset
        for batch in read_range(wanted, Range(TopicPartition(topic, 0), first, stop))
        for offset in batch.column("offset").to_pylist()
    ]


def test_a_range_inside_of_a_batch_is_read_exactly(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("clicks")
    for _ in range(3):
        broker.produce(topic, ["click"] * 100, linger_ms=100)

    for first, stop in ((0, 300), (50, 51), (99, 101), (150, 250), (299, 300), (10, 10)):
        assert list(range(first, stop)) == offsets(options(broker, topic), topic, first, stop)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_records_that_expired_after_the_batch_was_planned_are_skipped_if_that_was_said(
    broker: BrokerUnderTest, reset: str
) -> None:
    topic = broker.create_topic("clicks")
    broker.produce(topic, ["click"] * 100)
    broker.delete_records(topic, 40)
    wanted = options(broker, topic, reset)

    assert list(range(40, 60)) == offsets(wanted, topic, 10, 60)
    assert [] == offsets(wanted, topic, 10, 30)


@pytest.mark.parametrize("reset", ["none", None])
def test_records_that_expired_after_the_batch_was_planned_are_an_error_otherwise(
    broker: BrokerUnderTest, reset: str | None
) -> None:
    topic = broker.create_topic("clicks")
    broker.produce(topic, ["click"] * 100)
    broker.delete_records(topic, 40)

    with pytest.raises(UserError, match=r"At most 30 records were deleted .* have expired since\. Nothing was skipped"):
        offsets(options(broker, topic, reset), topic, 10, 60)


def test_a_broker_that_goes_away_in_the_middle_of_a_range_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as broker:
        topic = "clicks"
        broker.create_topic(topic)
        with Client(broker.bootstrap_servers) as client:
            for first in range(0, 200, 10):
                batch = build([(None, b"x" * 1000)] * 10, timestamp_ms=first)
                client.produce(TopicPartition(topic, 0), batch)
        given = {
            "bootstrap.servers": broker.bootstrap_servers,
            "subscribe": topic,
            "max.partition.fetch.bytes": "20000",
        }
        reading = read_range(parse_source_options(given, is_stream=False), Range(TopicPartition(topic, 0), 0, 200))
        found = next(reading).column("offset").to_pylist()
        broker.stop()
        monkeypatch.setattr("logmark.spark.source.range_reader.TIMEOUT_S", 0.5)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 8:
                broker.start()

        monkeypatch.setattr("time.sleep", pause)

        found += [offset for batch in reading for offset in batch.column("offset").to_pylist()]

    assert list(range(200)) == found
    assert len(pauses) >= 8


@pytest.mark.parametrize(
    ("failure", "patience_s", "raised"),
    [
        (BrokerUnreachable("away"), 120.0, BrokerUnreachable),
        (RefusedByBroker(ErrorCode.LEADER_NOT_AVAILABLE, "no leader"), 120.0, RefusedByBroker),
        (UnknownTopic("no such topic"), 30.0, UnknownTopic),
        (RefusedByBroker(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not yours"), 0.0, PermanentlyRefused),
        (RefusedByBroker(ErrorCode.CORRUPT_MESSAGE, "damaged"), 0.0, PermanentlyRefused),
    ],
)
def test_what_may_pass_is_waited_for_and_what_may_not_is_said_at_once(
    failure: ClientError, patience_s: float, raised: type[UserError], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = turn_clock(monkeypatch)

    def fail(options: SourceOptions) -> Client:
        raise failure

    monkeypatch.setattr("logmark.spark.source.range_reader.connect_source", fail)
    wanted = parse_source_options({"bootstrap.servers": "b:1", "subscribe": "clicks"}, is_stream=False)

    with pytest.raises(raised, match=str(failure)):
        list(read_range(wanted, Range(TopicPartition("clicks", 0), 0, 10)))
    assert patience_s == now[0]


def test_a_task_of_several_ranges_reads_them_in_order_with_one_client(
    our_broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = our_broker.create_topic("clicks", partitions=3)
    for number in range(3):
        our_broker.produce(topic, map(str, range(20)), partition=number)
    clients: list[Client] = []

    def connect(options: SourceOptions) -> Client:
        clients.append(connect_source(options))
        return clients[-1]

    monkeypatch.setattr("logmark.spark.source.range_reader.connect_source", connect)
    ranges = [Range(TopicPartition(topic, number), 5 * number, 20) for number in (2, 0, 1)]

    found = [
        (row["partition"], row["offset"])
        for batch in read_ranges(options(our_broker, topic), ranges)
        for row in batch.select(["partition", "offset"]).to_pylist()
    ]

    assert [(number, offset) for number in (2, 0, 1) for offset in range(5 * number, 20)] == found
    assert 1 == len(clients)


def test_a_read_that_moves_on_is_not_abandoned_however_often_its_broker_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    read_clock(monkeypatch, lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def one_more(fetchers: object, wanted: Range, progress: Any, *_: object) -> Iterator[int]:
        now[0] += 100
        progress.at += 1
        yield progress.at
        raise BrokerUnreachable("away")

    monkeypatch.setattr("logmark.spark.source.range_reader._read", one_more)
    wanted = parse_source_options({"bootstrap.servers": "b:1", "subscribe": "clicks"}, is_stream=False)

    assert [1, 2, 3, 4] == list(read_range(wanted, Range(TopicPartition("clicks", 0), 0, 4)))


@pytest.mark.kafka
def test_transactions_are_read_as_the_isolation_level_says(apache_kafka: BrokerUnderTest) -> None:
    topic = apache_kafka.create_topic("clicks")
    kept: list[int] = []
    producers = [apache_kafka.producer(transactional_id=f"{topic}-{name}", linger_ms=0) for name in "ab"]
    for producer in producers:
        producer.init_transactions(120)
    for turn in range(4):
        for producer in producers:
            producer.begin_transaction()
        partitions: list[list[int]] = [[], []]
        for _ in range(5):
            for producer, told in zip(producers, partitions, strict=True):
                producer.produce(topic, "v", partition=0, on_delivery=lambda _, at, to=told: to.append(at.offset()))
                producer.flush(60)
        for index, producer in enumerate(producers):
            if (turn + index) % 2:
                producer.abort_transaction(120)
            else:
                producer.commit_transaction(120)
                kept += partitions[index]
    end = apache_kafka.end_offset(topic)
    given = {"bootstrap.servers": apache_kafka.bootstrap_servers, "subscribe": topic}
    committed = parse_source_options(given | {"isolation.level": "read_committed"}, is_stream=False)

    assert 40 == len(offsets(parse_source_options(given, is_stream=False), topic, 0, end))
    assert sorted(kept) == offsets(committed, topic, 0, end)
    # A range may begin and end in the middle of a transaction.
    for first, stop in ((3, 9), (7, 8), (12, end - 1)):
        assert [offset for offset in sorted(kept) if first <= offset < stop] == offsets(committed, topic, first, stop)


def test_compressed_answers_are_unpacked_in_small_parts_and_others_at_once() -> None:
    def answer(codec: int) -> memoryview:
        value = random.Random(1).randbytes(100_000)
        batches = [
            build([(None, value)] * 2, timestamp_ms=0, base_offset=2 * number, codec=codec) for number in range(12)
        ]
        return memoryview(b"".join(batches) + b"cut off")

    def decoded(part: memoryview) -> list[int]:
        return list(columns.decode(part, start=0, stop=100, decompressed_bytes_max=1 << 20).offsets)

    plain, packed = answer(codecs.NONE), answer(codecs.GZIP)

    assert [plain] == list(split_windows(plain, Expansion()))
    parts = list(split_windows(packed, Expansion()))
    assert list(range(24)) == [offset for part in parts for offset in decoded(part)]
    assert bytes(packed) == b"".join(parts)
    assert all(len(part) <= COMPRESSED_BYTES_FIRST for part in parts) and len(parts) > 3


def test_the_parts_of_a_compressed_answer_follow_what_the_last_ones_became() -> None:
    expansion = Expansion()

    expansion.saw(100_000, 300_000)
    assert WINDOW_BYTES // 3 == expansion.compressed_bytes

    expansion.saw(100_000, 100_000_000)
    assert COMPRESSED_BYTES_MIN == expansion.compressed_bytes, "a part that became a thousand times as large"

    expansion.saw(100_000, 0)
    assert 4 * COMPRESSED_BYTES_MIN == expansion.compressed_bytes, "one part without a record says little"
    for _ in range(9):
        expansion.saw(100_000, 90_000)
    assert WINDOW_BYTES == expansion.compressed_bytes


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_several_fetches_in_flight_read_the_same_in_the_same_order(broker: BrokerUnderTest, in_flight: int) -> None:
    topic = broker.create_topic("clicks")
    sizes = random.Random(in_flight)
    for _ in range(12):
        broker.produce(topic, ["x" * sizes.randrange(2000)] * 50, linger_ms=50)
    given = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "fetchesInFlight": str(in_flight)}
    wanted = parse_source_options(given | {"max.partition.fetch.bytes": "20000"}, is_stream=False)

    for first, stop in ((0, 600), (17, 583), (300, 301)):
        assert list(range(first, stop)) == offsets(wanted, topic, first, stop)


class ScriptedFetcher:
    """Answers with whole batches of ten offsets each, as many as it is told, and remembers what was asked."""

    partition = TopicPartition("clicks", 0)

    def __init__(self, batches: list[int], asked: list[int], per_answer: int, end: int = 1000) -> None:
        self._batches, self._asked, self._per_answer, self._end = batches, asked, per_answer, end
        self.local: int | None = 0

    def __enter__(self) -> "ScriptedFetcher":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def visible_end(self, answer: FetchedPartition) -> int:
        return answer.high_watermark

    def local_start(self) -> int | None:
        return self.local

    def send(self, offset: int) -> None:
        self._asked.append(offset)
        self._at = offset

    def receive(self) -> FetchedPartition:
        bases = [base for base in self._batches if base + 10 > self._at][: self._per_answer]
        data = b"".join(build([(None, b"")] * 10, timestamp_ms=0, base_offset=base) for base in bases)
        return FetchedPartition(
            records=memoryview(data), high_watermark=self._end, last_stable_offset=-1, log_start_offset=0
        )


@pytest.mark.parametrize("gap", [0, 30, 400])
def test_stripes_are_cut_by_what_answers_hold_and_sent_ahead(gap: int) -> None:
    batches = [*range(0, 300, 10), *range(300 + gap, 1000, 10)]
    asked: list[int] = []
    fetchers: list[Any] = [ScriptedFetcher(batches, asked, per_answer=5) for _ in range(3)]
    read: list[int] = []
    sent_before_answer: list[int] = []
    for answer, stop in fetch_in_parallel(fetchers, 0, 1000, timeout_s=1):
        part = columns.decode(answer.records, start=read[-1] + 1 if read else 0, stop=stop, decompressed_bytes_max=999)
        read += part.offsets
        sent_before_answer.append(len(asked))

    assert [offset for base in batches for offset in range(base, base + 10)] == read
    assert [0, 50, 95, 140] == asked[:4]
    assert 4 == sent_before_answer[0], "three more are under way while the first answer is read"


def test_a_range_beyond_the_log_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    read_clock(monkeypatch, count(1).__next__)
    fetcher: Any = ScriptedFetcher([0, 10], [], per_answer=5, end=20)

    with pytest.raises(OffsetOutOfRange):
        list(fetch_in_parallel([fetcher], 0, 100, timeout_s=5))


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_range_ends_where_the_cleaner_took_the_last_batches_of_the_log_away(
    in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_clock(monkeypatch, lambda: 0.0)
    asked: list[int] = []
    fetchers = iter([ScriptedFetcher([0, 10, 30], asked, per_answer=1, end=90) for _ in range(in_flight)])

    class OneClient:
        def __enter__(self) -> "OneClient":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def fetcher(self, *_: object, **__: object) -> ScriptedFetcher:
            return next(fetchers)

    monkeypatch.setattr("logmark.spark.source.range_reader.connect_source", lambda options: OneClient())
    given = {"bootstrap.servers": "b:1", "subscribe": "clicks", "fetchesInFlight": str(in_flight)}
    wanted = parse_source_options(given, is_stream=False)

    assert [*range(5, 20), *range(30, 40)] == offsets(wanted, "clicks", 5, 90)
    assert EMPTY_ANSWERS == asked.count(40)


@pytest.mark.parametrize("local", [41, None])
def test_empty_answers_of_tiered_or_unknown_storage_are_not_taken_for_the_end_at_once(
    local: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_clock(monkeypatch, count(1).__next__)
    asked: list[int] = []
    fetcher: Any = ScriptedFetcher([0, 10, 20, 30], asked, per_answer=4, end=90)
    fetcher.local = local

    if local is None:
        assert 1 == len(list(fetch_in_parallel([fetcher], 0, 90, timeout_s=30)))
    else:
        with pytest.raises(RefusedByBroker, match="has records up to offset 90, but its leader has sent none") as error:
            list(fetch_in_parallel([fetcher], 0, 90, timeout_s=30))
        assert error.value.code.is_retriable, "tiered storage that is away is waited for"
    assert asked.count(40) > 20
