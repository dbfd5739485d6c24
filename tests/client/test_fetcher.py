"""Reading raw batches, on our broker and on Apache Kafka."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from logmark.client.answers import FetchedPartition
from logmark.client.client import Client
from logmark.client.errors import OffsetOutOfRange, RefusedByBroker, UnknownTopic
from logmark.client.fetcher import EMPTY_ANSWERS, Fetcher, next_offset
from logmark.errors import Malformed
from logmark.names import TopicPartition
from logmark.wire import columns, fetch
from logmark.wire.batches import build
from tests.harness.brokers import BrokerUnderTest
from tests.harness.clocks import turn_clock
from tests.harness.gateway import call_tool
from tests.harness.tools import CONFIGS

LIMIT = 64 << 20


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers, timeout_s=60) as client:
        yield client


def values(records: memoryview, start: int, stop: int) -> list[bytes]:
    found = columns.decode(records, start=start, stop=stop, decompressed_bytes_max=LIMIT)
    return [bytes(value) for value in found.values() if value is not None]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_range_is_read_once_and_in_order(broker: BrokerUnderTest, client: Client, codec: str) -> None:
    here = TopicPartition(broker.create_topic("clicks"), 0)
    written = [f"{number:05d}" * 20 for number in range(3000)]
    broker.produce(here.topic, written, compression_type=codec, batch_num_messages=100)

    found: list[bytes] = []
    with client.fetcher(here, bytes_max=20_000) as fetcher:
        for answer in fetcher.read(1234, 2345):
            found += values(answer.records, 1234, 2345)

    assert [text.encode() for text in written[1234:2345]] == found


def test_a_fetch_inside_a_batch_gives_the_whole_batch(broker: BrokerUnderTest, client: Client) -> None:
    here = TopicPartition(broker.create_topic("clicks"), 0)
    broker.produce(here.topic, ["a", "b", "c"], linger_ms=200)

    answer = client.fetch(here, 1)

    assert ([b"b", b"c"], 3, 0) == (values(answer.records, 1, 3), answer.high_watermark, answer.log_start_offset)
    assert 3 == next_offset(answer.records, 1)


def test_at_the_end_there_is_nothing_and_that_is_no_error(broker: BrokerUnderTest, client: Client) -> None:
    here = TopicPartition(broker.create_topic("clicks"), 0)

    assert b"" == bytes(client.fetch(here, 0, max_wait_ms=10).records)


def test_an_offset_out_of_range_tells_the_range(broker: BrokerUnderTest, client: Client) -> None:
    here = TopicPartition(broker.create_topic("clicks"), 0)
    broker.produce(here.topic, [str(number) for number in range(10)])
    broker.delete_records(here.topic, 4)

    for offset in (3, 11):
        with pytest.raises(OffsetOutOfRange, match="it holds offsets 4 to 10") as refused:
            client.fetch(here, offset)
        assert (offset, 4, 10) == (refused.value.offset, refused.value.log_start, refused.value.log_end)


def test_a_range_beyond_the_end_is_refused_when_nothing_comes(
    broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = TopicPartition(broker.create_topic("clicks"), 0)
    broker.produce(here.topic, ["only one"])
    clock, waited_s = time.monotonic, 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock() + waited_s)

    with (
        Client(broker.bootstrap_servers, timeout_s=60) as client,
        client.fetcher(here, max_wait_ms=20) as fetcher,
        pytest.raises(OffsetOutOfRange, match="Offset 5 is not in"),
    ):
        for _ in fetcher.read(0, 5):
            assert not waited_s, "more came than was written"
            waited_s = 61.0
    assert waited_s


def test_a_topic_that_is_not_there_is_refused(broker: BrokerUnderTest, client: Client) -> None:
    with pytest.raises(UnknownTopic, match="does not exist"):
        client.fetch(TopicPartition(broker.unique("no"), 0), 0)


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "KAFKA_STORAGE_ERROR", "FENCED_LEADER_EPOCH"])
def test_a_leader_that_moved_is_looked_for_again(our_broker: BrokerUnderTest, error: str) -> None:
    here = TopicPartition(our_broker.create_topic("clicks"), 0)
    our_broker.produce(here.topic, ["a", "b"])

    with Client(our_broker.bootstrap_servers) as client, client.fetcher(here) as fetcher:
        our_broker.control.fail_next("Fetch", error, times=2)
        fetcher.send(0)
        answer = fetcher.receive()

    assert [b"a", b"b"] == values(answer.records, 0, 2)


def test_damaged_records_are_an_error_and_never_data(our_broker: BrokerUnderTest) -> None:
    here = TopicPartition(our_broker.create_topic("clicks"), 0)
    our_broker.control.fail_next("Fetch", "CORRUPT_MESSAGE")

    with (
        Client(our_broker.bootstrap_servers) as client,
        pytest.raises(RefusedByBroker, match="damaged records there and sends none of them"),
    ):
        client.fetch(here, 0)


def test_a_batch_of_an_impossible_length_is_refused() -> None:
    with pytest.raises(Malformed, match="a batch of 3 bytes"):
        next_offset(memoryview(bytes(8) + (3).to_bytes(4, "big") + bytes(60)), 0)


class CompactedLog(Fetcher):
    """Ten records, and after them offsets up to 15 of which the cleaner has left none."""

    def __init__(self, *, read_committed: bool, stable: int, start: int = 0, local: int = 0) -> None:
        self.partition = TopicPartition("clicks", 0)
        self.empty = 0
        self._timeout_s, self._isolation_level = 10.0, int(read_committed)
        self._stable, self._start, self._local = stable, start, local

    def send(self, offset: int) -> None:
        self._at = offset

    def receive(self) -> FetchedPartition:
        records = build([(None, b"v")] * 10, timestamp_ms=0) if self._at < 10 else b""
        self.empty += not records
        return FetchedPartition(
            records=memoryview(records),
            high_watermark=15,
            last_stable_offset=self._stable,
            log_start_offset=self._start,
        )

    def local_start(self) -> int:
        return self._local


@pytest.mark.parametrize(("read_committed", "stable"), [(False, -1), (True, 15)])
def test_a_range_ends_where_the_cleaner_left_no_batch_before_the_end(read_committed: bool, stable: int) -> None:
    log = CompactedLog(read_committed=read_committed, stable=stable)

    assert [b"v"] * 10 == [value for answer in log.read(0, 15) for value in values(answer.records, 0, 15)]
    assert EMPTY_ANSWERS == log.empty


@pytest.mark.parametrize("more", [{"read_committed": True, "stable": 14}, {"start": 11}, {"local": 11}])
def test_silence_is_not_the_end_while_records_may_come(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now.__setitem__(0, now[0] + 1) or now[0])
    log = CompactedLog(**({"read_committed": False, "stable": -1} | more))

    with pytest.raises(RefusedByBroker):
        list(log.read(0, 15))
    assert log.empty > EMPTY_ANSWERS


def test_a_leader_says_which_records_it_has_itself(broker: BrokerUnderTest, client: Client) -> None:
    here = TopicPartition(broker.create_topic("clicks"), 0)
    broker.produce(here.topic, [str(number) for number in range(10)])
    broker.delete_records(here.topic, 4)

    with client.fetcher(here) as fetcher:
        assert 4 == fetcher.local_start()
        fetcher.send(4)
        assert 6 == len(values(fetcher.receive().records, 4, 10))
        assert 4 == fetcher.local_start()


class QuotaConnection:
    """Answers so often without a partition, as a broker does whose client has used its quota up, then with records."""

    def __init__(self, held_back: int) -> None:
        self.sent = 0
        self._held_back = held_back

    def version_of(self, key: int, ours: range) -> int:
        return ours[-1]

    def send(self, *_: object, **__: object) -> None:
        self.sent += 1

    def receive(self, deadline: float) -> memoryview:
        one = fetch.FetchAnswer(0, 0, 1, 1, 0, bytes(build([(None, b"v")], timestamp_ms=0)))
        topics = [("clicks", [one])] if self.sent > self._held_back else []
        buffers = fetch.encode_response(
            fetch.VERSIONS[-1], throttle_time_ms=1000, error_code=0, session_id=0, topics=topics
        )
        return memoryview(b"".join(buffers))

    def close(self) -> None:
        raise AssertionError("a new connection would not be held back, which is not for the client to decide")


def held_back(connection: Any) -> Fetcher:
    return Fetcher(
        TopicPartition("clicks", 0), connect=lambda: connection, moved=lambda: None, bounds=lambda: (0, 1),
        timeout_s=30, bytes_max=1000, max_wait_ms=500, min_bytes=1, read_committed=False,
    )  # fmt: skip


@pytest.mark.parametrize(("times", "is_given_up"), [(1, False), (250, False), (400, True)])
def test_a_client_whose_quota_is_used_up_waits_on_its_connection(
    times: int, is_given_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_clock(monkeypatch)
    connection = QuotaConnection(times)
    fetcher = held_back(connection)
    fetcher.send(0)

    if is_given_up:
        with pytest.raises(RefusedByBroker, match="the broker holds this client back for longer than 30 s") as refused:
            fetcher.receive()
        assert refused.value.code.is_retriable
    else:
        assert [b"v"] == values(fetcher.receive().records, 0, 1)
        assert times + 1 == connection.sent


@pytest.mark.kafka
def test_a_quota_of_the_broker_slows_a_reader_and_nothing_else(apache_kafka: BrokerUnderTest) -> None:
    here = TopicPartition(apache_kafka.create_topic("clicks"), 0)
    written = [f"{number:05d}" * 200 for number in range(30)]
    apache_kafka.produce(here.topic, written, batch_num_messages=1)
    quota = ("--entity-type", "clients", "--entity-name", here.topic)
    change = ("--add-config", "consumer_byte_rate=2700")
    call_tool(CONFIGS, "--alter", *quota, *change, broker=apache_kafka).check()

    found: list[bytes] = []
    with (
        Client(apache_kafka.bootstrap_servers, client_id=here.topic) as client,
        client.fetcher(here, bytes_max=3000) as fetcher,
    ):
        for answer in fetcher.read(0, 30):
            found += values(answer.records, 0, 30)

    assert [text.encode() for text in written] == found
