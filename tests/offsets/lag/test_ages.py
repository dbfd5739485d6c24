"""Lag in seconds, checked against producers whose timestamps are known."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.lag import ages
from logmark.offsets.lag.ages import Age, Method, compute_ages
from logmark.offsets.lag.history import History
from logmark.offsets.lag.sample import Sample, take_sample
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.harness.restartable_broker import RestartableBroker, own_broker

HOUR_MS = 3_600_000


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


class AgeScenario:
    """One topic, one group, and a producer that says when its records were written."""

    def __init__(self, broker: BrokerUnderTest, client: Client, **config: str) -> None:
        self.broker, self.client = broker, client
        self.topic = broker.create_topic("timed", config={name.replace("_", "."): v for name, v in config.items()})
        self.partition = TopicPartition(self.topic, 0)
        self.group = broker.group("timed")

    def write(self, *timestamps_ms: int) -> None:
        for one in timestamps_ms:
            self.broker.produce(self.topic, ["x"], timestamp_ms=one)

    def commit(self, offset: int) -> None:
        self.client.commit(self.group, {self.partition: offset})

    def sample(self, *, read_committed: bool = False, now_ms: int | None = None) -> Sample:
        clock = None if now_ms is None else (lambda: now_ms)
        return take_sample(self.client, [self.group], read_committed=read_committed, now_ms=clock)

    def age(self, sample: Sample, **how: int) -> Age:
        return compute_ages(sample, client=self.client, **how).of(self.group, self.partition)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def scenario(broker: BrokerUnderTest, client: Client) -> AgeScenario:
    return AgeScenario(broker, client)


def test_the_age_is_that_of_the_record_at_the_committed_offset(scenario: AgeScenario) -> None:
    began = now_ms() - HOUR_MS
    scenario.write(*(began + index * 60_000 for index in range(10)))
    for offset in (0, 3, 9):
        scenario.commit(offset)
        sample = scenario.sample()

        age = scenario.age(sample)

        assert (sample.at_ms - (began + offset * 60_000), 0, Method.RECORD) == age[:3]


def test_an_age_is_found_by_times_alone_within_its_bound(scenario: AgeScenario) -> None:
    began = now_ms() - HOUR_MS
    # An uneven pace: what offsets suggest is far off at first.
    stamps = [began + index**2 * 10 for index in range(200)]
    scenario.write(*stamps)
    for offset in (0, 7, 120, 199):
        scenario.commit(offset)
        sample = scenario.sample()

        before = scenario.client.requests_sent
        age = scenario.age(sample, records_max=0)

        assert Method.TIMES == age.method and age.ms is not None
        assert abs(age.ms - (sample.at_ms - stamps[offset])) <= age.bound_ms + 1
        assert age.bound_ms <= max(1_000, 0.01 * age.ms)
        assert scenario.client.requests_sent - before <= ages.STEPS_MAX


def test_a_budget_of_few_steps_gives_a_wider_bound_and_never_a_wrong_one(scenario: AgeScenario) -> None:
    began = now_ms() - HOUR_MS
    stamps = [began + index * 17_000 for index in range(100)]
    scenario.write(*stamps)
    scenario.commit(33)
    sample = scenario.sample()

    age = scenario.age(sample, records_max=0, steps_max=3)

    assert age.ms is not None and 1_000 < age.bound_ms
    assert abs(age.ms - (sample.at_ms - stamps[33])) <= age.bound_ms + 1
    assert scenario.age(sample, records_max=0, steps_max=0) == ages.UNKNOWN, "without a budget it is not known"


def test_who_may_not_read_the_records_still_learns_their_age(
    scenario: AgeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RefusedByBroker(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")

    began = now_ms() - HOUR_MS
    scenario.write(began, began + 60_000)
    scenario.commit(1)
    monkeypatch.setattr(ages, "first_record", refused)
    sample = scenario.sample()

    assert (sample.at_ms - began - 60_000, 0, Method.TIMES) == scenario.age(sample)[:3]


def test_a_group_at_the_end_is_no_second_behind_however_old_the_last_record_is(scenario: AgeScenario) -> None:
    scenario.write(now_ms() - 6 * HOUR_MS)
    scenario.commit(1)

    assert ages.CAUGHT_UP == scenario.age(scenario.sample())


def test_on_an_idle_topic_the_age_of_what_is_unread_grows_with_the_clock(scenario: AgeScenario) -> None:
    written = now_ms() - HOUR_MS
    scenario.write(written)
    scenario.commit(0)

    found = [scenario.age(scenario.sample(now_ms=written + later)).ms for later in (HOUR_MS, 2 * HOUR_MS)]

    assert [HOUR_MS, 2 * HOUR_MS] == found


def test_a_producer_whose_clock_is_ahead_makes_no_negative_age_and_is_said(scenario: AgeScenario) -> None:
    ahead = now_ms() + HOUR_MS // 2
    scenario.write(ahead)
    scenario.commit(0)
    sample = scenario.sample()

    for how in ({}, {"records_max": 0}):
        age = scenario.age(sample, **how)
        assert 0 == age.ms
        assert "in the future: the clocks disagree" in age.note


def test_with_times_out_of_order_the_record_itself_counts_and_times_alone_never_make_it_older(
    scenario: AgeScenario,
) -> None:
    began = now_ms() - HOUR_MS
    stamps = [began + minute * 60_000 for minute in (30, 10, 20, 5, 40)]
    scenario.write(*stamps)
    scenario.commit(3)
    sample = scenario.sample()

    own = scenario.age(sample)
    by_times = scenario.age(sample, records_max=0)

    assert sample.at_ms - stamps[3] == own.ms
    assert by_times.ms is not None and own.ms is not None and by_times.ms <= own.ms + by_times.bound_ms
    assert by_times.ms >= sample.at_ms - max(stamps[:4]) - by_times.bound_ms - 1


def test_with_log_append_time_the_brokers_clock_counts(broker: BrokerUnderTest, client: Client) -> None:
    scenario = AgeScenario(broker, client, message_timestamp_type="LogAppendTime")
    before = now_ms()
    scenario.write(before - 5 * HOUR_MS)
    scenario.commit(0)
    sample = scenario.sample()

    for how in ({}, {"records_max": 0}):
        age = scenario.age(sample, **how)
        assert age.ms is not None and age.ms <= sample.at_ms - before + age.bound_ms


def test_below_the_log_start_the_age_is_that_of_the_first_record_left(scenario: AgeScenario) -> None:
    began = now_ms() - HOUR_MS
    scenario.write(*(began + index * 60_000 for index in range(6)))
    scenario.commit(1)
    scenario.broker.delete_records(scenario.topic, 4)
    sample = scenario.sample()
    lag = sample.lag(scenario.group, scenario.partition)

    assert lag is not None and (2, 3) == (lag.records, lag.lost)
    for how in ({}, {"records_max": 0}):
        assert sample.at_ms - (began + 4 * 60_000) == scenario.age(sample, **how).ms


def test_stored_samples_tell_when_the_end_passed_an_offset(scenario: AgeScenario, tmp_path: Path) -> None:
    """The producer's own clock is hours off here, and it does not matter."""
    t0 = now_ms()
    scenario.commit(0)
    with History(tmp_path / "h.sqlite") as history:
        for index in range(5):
            history.add(scenario.sample(now_ms=t0 + index * 10_000))
            scenario.write(*[t0 - 9 * HOUR_MS] * 10)
        now = scenario.sample(now_ms=t0 + 50_000)
        for offset in (5, 25, 49):
            # Records 10 n to 10 n + 9 came between samples n and n + 1.
            scenario.commit(offset)
            sample = scenario.sample(now_ms=now.at_ms)

            before = scenario.client.requests_sent
            age = compute_ages(sample, history=history, client=scenario.client).of(scenario.group, scenario.partition)

            low, high = t0 + offset // 10 * 10_000, t0 + offset // 10 * 10_000 + 10_000
            assert Method.SAMPLES == age.method and age.ms is not None
            assert age.bound_ms <= 10_000
            assert now.at_ms - high <= age.ms <= now.at_ms - low
            assert before == scenario.client.requests_sent, "it takes no request"


def test_a_topic_created_again_does_not_inherit_the_times_of_the_old_one(scenario: AgeScenario, tmp_path: Path) -> None:
    t0 = now_ms()
    with History(tmp_path / "h.sqlite") as history:
        scenario.write(*[t0] * 8)
        scenario.commit(2)
        history.add(scenario.sample(now_ms=t0))
        history.add(_with_end(scenario.sample(now_ms=t0 + 10_000), 3))
        sample = _with_end(scenario.sample(now_ms=t0 + 20_000), 6)

        assert Method.UNKNOWN == compute_ages(sample, history=history).of(scenario.group, scenario.partition).method
        scenario.commit(4)
        sample = _with_end(scenario.sample(now_ms=t0 + 20_000), 6)
        assert Method.SAMPLES == compute_ages(sample, history=history).of(scenario.group, scenario.partition).method


def _with_end(sample: Sample, end: int) -> Sample:
    from dataclasses import replace

    return replace(sample, ends=dict.fromkeys(sample.ends, end))


def test_a_wide_gap_between_samples_gives_way_to_the_record_itself(scenario: AgeScenario, tmp_path: Path) -> None:
    t0 = now_ms() - 10 * HOUR_MS
    with History(tmp_path / "h.sqlite") as history:
        scenario.commit(0)
        history.add(scenario.sample(now_ms=t0))
        scenario.write(t0 + HOUR_MS)
        sample = scenario.sample(now_ms=t0 + 9 * HOUR_MS)

        own = compute_ages(sample, history=history, client=scenario.client).of(scenario.group, scenario.partition)
        rough = compute_ages(sample, history=history).of(scenario.group, scenario.partition)

    assert (8 * HOUR_MS, Method.RECORD) == (own.ms, own.method)
    assert (Method.SAMPLES, 9 * HOUR_MS) == (rough.method, rough.bound_ms), "better than nothing, with its bound"


@pytest.mark.kafka
def test_an_open_transaction_neither_blocks_nor_counts(apache_kafka: BrokerUnderTest) -> None:
    with Client(apache_kafka.bootstrap_servers) as client:
        scenario = AgeScenario(apache_kafka, client)
        producer = apache_kafka.producer(transactional_id=apache_kafka.unique("open"))
        producer.init_transactions(120)
        written = now_ms() - HOUR_MS
        scenario.write(written, written + 1_000)
        producer.begin_transaction()
        producer.produce(scenario.topic, "open", partition=0, timestamp=written + 2_000)
        producer.flush(60)
        scenario.commit(2)

        began = time.monotonic()
        committed, uncommitted = scenario.sample(read_committed=True), scenario.sample()
        at_the_stable_end = scenario.age(committed)
        open_record = scenario.age(uncommitted)
        took = time.monotonic() - began
        scenario.commit(1)
        behind = scenario.sample(read_committed=True)
        before_the_transaction = scenario.age(behind)
        producer.abort_transaction(120)
        scenario.commit(2)
        wait_until(
            lambda: scenario.sample(read_committed=True).total().records == 2, "the marker of the abort is there"
        )
        aborted = scenario.sample(read_committed=True)
        only_an_aborted_record = scenario.age(aborted)

    assert (0, Method.CAUGHT_UP) == (at_the_stable_end.ms, at_the_stable_end.method)
    assert uncommitted.at_ms - written - 2_000 == open_record.ms, "who reads what is uncommitted is behind by it"
    assert took < 25, "nothing waits for the transaction to end"
    assert behind.at_ms - written - 1_000 == before_the_transaction.ms
    assert (0, Method.RECORD) == (only_an_aborted_record.ms, only_an_aborted_record.method)
    assert "nothing to read" in only_an_aborted_record.note


@pytest.mark.kafka
def test_a_transactions_marker_is_nothing_to_read(apache_kafka: BrokerUnderTest) -> None:
    with Client(apache_kafka.bootstrap_servers) as client:
        scenario = AgeScenario(apache_kafka, client)
        producer = apache_kafka.producer(transactional_id=apache_kafka.unique("marker"))
        producer.init_transactions(120)
        producer.begin_transaction()
        producer.produce(scenario.topic, "done", partition=0)
        producer.commit_transaction(120)
        scenario.commit(1)
        wait_until(lambda: scenario.sample().total().records == 1, "the marker is there")

        age = scenario.age(scenario.sample())

    assert (0, "nothing to read") == (age.ms, age.note[:15])


def _compacted(own: RestartableBroker) -> None:
    broker = own.clients
    with Client(broker.bootstrap_servers) as client:
        scenario = AgeScenario(
            broker, client, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01",
            min_compaction_lag_ms="0", retention_ms="-1",
        )  # fmt: skip
        began = now_ms() - HOUR_MS
        producer = broker.producer()
        for index in range(50):
            producer.produce(scenario.topic, str(index), key="k", partition=0, timestamp=began + index * 10_000)
            producer.flush(60)

        def is_cleaned() -> bool:
            # A new record rolls the segment, so that all before it may be cleaned.
            producer.produce(scenario.topic, "last", key="last", partition=0)
            producer.flush(60)
            first = ages.first_record(client, scenario.partition, 0)
            return first is not None and first.offset == 49

        wait_until(is_cleaned, "the log is compacted", deadline_s=60)
        scenario.commit(5)
        sample = scenario.sample()

        assert sample.at_ms - (began + 49 * 10_000) == scenario.age(sample).ms, "the first record behind the hole"
        assert sample.at_ms - (began + 49 * 10_000) == scenario.age(sample, records_max=0).ms


def test_in_a_compacted_log_the_age_is_that_of_the_next_record_that_is_left(tmp_path: Path) -> None:
    with own_broker("logmark", tmp_path, {"log.cleaner.backoff.ms": "100"}) as own:
        _compacted(own)


@pytest.mark.kafka
def test_in_a_compacted_log_of_apache_kafka_too(tmp_path: Path) -> None:
    with own_broker("kafka", tmp_path, {"log.cleaner.backoff.ms": "100"}) as own:
        _compacted(own)
