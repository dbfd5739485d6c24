"""Appending to and reading from one partition."""

import pytest

from logmark.errors import ErrorCode, Refused
from logmark.log.appender import EARLY_ROLL_BYTES, MANY_SEGMENTS, PRODUCERS_OF_A_SNAPSHOT
from logmark.log.partition import NeedsRoll
from logmark.wire import batches
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, LogDriver, batch, settings, topic_id, values


def test_records_get_offsets_in_the_order_in_which_they_come(driver: LogDriver) -> None:
    partition = driver.create()

    first = driver.append(partition, b"ORD-1001", b"ORD-1002", b"ORD-1003")
    second = driver.append(partition, b"ORD-1004")

    assert (0, 2) == (first.base_offset, first.last_offset)
    assert (3, 3) == (second.base_offset, second.last_offset)
    assert {0: b"ORD-1001", 1: b"ORD-1002", 2: b"ORD-1003", 3: b"ORD-1004"} == values(partition)


def test_a_batch_is_kept_byte_for_byte_but_for_its_offset_and_epoch(driver: LogDriver) -> None:
    partition = driver.create()
    sent = [batch(b"a" * 10, codec=codec) for codec in range(5)]
    tails = [bytes(each.data[16:]) for each in sent]
    for each in sent:
        partition.append(each, now_ms=NOW_MS)
    driver.settle(partition)

    data = bytes(partition.read(0, bytes_max=10**6))

    kept = []
    at = 0
    while at < len(data):
        header = batches.read_header(data, at)
        kept.append((header.base_offset, header.leader_epoch, data[at + 16 : at + header.size]))
        at += header.size
    assert [(offset, 0, tail) for offset, tail in enumerate(tails)] == kept


def test_a_read_begins_with_the_batch_that_holds_the_offset(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"0", b"1", b"2")
    driver.append(partition, b"3", b"4")

    assert [0, 1, 2, 3, 4] == [record.offset for record in batches.unpack(partition.read(1, bytes_max=10**6))]
    assert [3, 4] == [record.offset for record in batches.unpack(partition.read(4, bytes_max=10**6))]


def test_a_read_at_the_end_is_empty_and_beyond_it_is_refused(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"only")

    assert b"" == partition.read(1, bytes_max=100)
    for offset in (-1, 2):
        with pytest.raises(Refused) as refused:
            partition.read(offset, bytes_max=100)
        assert ErrorCode.OFFSET_OUT_OF_RANGE == refused.value.code


def test_an_empty_partition_reads_as_nothing(driver: LogDriver) -> None:
    partition = driver.create()

    assert b"" == partition.read(0, bytes_max=100)
    assert partition.offset_for_timestamp(0) is None
    assert partition.max_timestamp() is None
    assert 0 == partition.size_bytes


def test_a_first_batch_larger_than_the_limit_is_whole_or_left_out(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x" * 5000)
    driver.append(partition, b"y")

    whole = partition.read(0, bytes_max=100)

    assert [b"x" * 5000] == [record.value for record in batches.unpack(whole)]
    assert b"" == partition.read(0, bytes_max=100, at_least_one=False)
    assert b"" == partition.read(0, bytes_max=0, at_least_one=False)
    assert [0] == [record.offset for record in batches.unpack(partition.read(0, bytes_max=0))]


def test_a_read_is_cut_at_whole_batches(driver: LogDriver) -> None:
    partition = driver.create()
    for number in range(10):
        driver.append(partition, b"%d" % number)
    size = partition.size_bytes // 10

    data = partition.read(2, bytes_max=size * 3 + size // 2)

    assert [2, 3, 4] == [record.offset for record in batches.unpack(data)]


def test_reads_go_on_through_all_segments(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300, index_interval_bytes=100))
    expected = {}
    for number in range(40):
        driver.append(partition, b"value-%d" % number)
        expected[number] = b"value-%d" % number

    assert len(partition.segments) > 10
    assert expected == values(partition)
    for start in range(40):
        assert start == next(iter(values(partition, start)))


def test_a_batch_larger_than_a_segment_is_refused_as_kafka_does(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300))

    with pytest.raises(Refused) as refused:
        partition.append(batch(b"x" * 400), now_ms=NOW_MS)

    assert ErrorCode.RECORD_LIST_TOO_LARGE == refused.value.code
    assert 0 == partition.log_end_offset


def test_a_segment_is_not_larger_than_segment_bytes(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=500))
    for _ in range(30):
        driver.append(partition, b"x" * 50)

    assert all(segment.size <= 500 for segment in partition.segments)
    assert [0, 4, 8] == [segment.base_offset for segment in partition.segments][:3]


def test_a_segment_rolls_when_a_batch_is_later_than_its_first_by_segment_ms(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_ms=1000))

    for later_ms in (0, 500, 1000, 1001, 1500, 2002):
        driver.append(partition, b"x", timestamp_ms=NOW_MS + later_ms)

    # 1001 is more than 1000 behind 0; 2002 is more than 1000 behind 1001.
    assert [0, 3, 5] == [segment.base_offset for segment in partition.segments]


def test_a_segment_without_timestamps_rolls_by_the_clock(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_ms=1000))
    driver.append(partition, b"x", timestamp_ms=-1)
    driver.clock.advance(seconds=1)
    driver.append(partition, b"x", timestamp_ms=-1)
    driver.clock.advance(seconds=1)
    driver.append(partition, b"x", timestamp_ms=-1)

    assert [0, 2] == [segment.base_offset for segment in partition.segments]


def test_a_segment_rolls_when_its_index_is_full(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_index_bytes=48, index_interval_bytes=0))
    for _ in range(20):
        driver.append(partition, b"x")

    # 48 bytes hold six offset entries, and four time entries of which one is reserved; timestamps are all equal.
    assert all(len(segment.offset_index) <= 6 for segment in partition.segments)
    assert [0, 7, 14] == [segment.base_offset for segment in partition.segments]


@pytest.mark.parametrize("config", [{"segment_ms": 1}, {"segment_index_bytes": 24, "index_interval_bytes": 0}])
def test_a_partition_with_many_segments_begins_an_early_one_with_many_bytes_or_after_a_minute(
    driver: LogDriver, config: dict[str, int]
) -> None:
    partition = driver.create(config=settings(**config))

    def append(value: bytes = b"x") -> int:
        driver.append(partition, value, timestamp_ms=NOW_MS + 10 * partition.log_end_offset)
        return len(partition.segments)

    while append() < MANY_SEGMENTS:
        assert partition.log_end_offset <= 3 * MANY_SEGMENTS
    assert {MANY_SEGMENTS} == {append() for _ in range(100)}

    append(bytes(EARLY_ROLL_BYTES))
    assert MANY_SEGMENTS + 1 == append()
    assert {MANY_SEGMENTS + 1} == {append() for _ in range(10)}
    driver.clock.advance(seconds=60)
    assert MANY_SEGMENTS + 2 == append()
    assert {MANY_SEGMENTS + 2} == {append() for _ in range(10)}


def test_a_partition_with_many_producers_has_fewer_early_segments(driver: LogDriver) -> None:
    partition = driver.create()
    for number in range(PRODUCERS_OF_A_SNAPSHOT):
        partition.append(batch(b"x", producer=(PRODUCER_ID + number, 0, 0)), now_ms=NOW_MS)
    driver.settle(partition)
    partition.configure(settings(segment_ms=1))

    for later_ms in range(0, 10 * MANY_SEGMENTS, 10):
        driver.append(partition, b"x", timestamp_ms=NOW_MS + 10 + later_ms)
        driver.finish(partition)

    assert MANY_SEGMENTS // 2 == len(partition.segments)
    for _ in range(2):
        driver.append(partition, bytes(EARLY_ROLL_BYTES), timestamp_ms=NOW_MS + 100_000)
    assert MANY_SEGMENTS // 2 == len(partition.segments)
    driver.append(partition, b"x", timestamp_ms=NOW_MS + 100_000)
    assert MANY_SEGMENTS // 2 + 1 == len(partition.segments)


def test_segments_by_size_are_begun_however_many_there_are(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=100))
    for _ in range(2 * MANY_SEGMENTS):
        driver.append(partition, b"x")

    assert 2 * MANY_SEGMENTS == len(partition.segments)


def test_an_append_that_may_not_begin_a_segment_leaves_no_trace(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_ms=1))
    first, later = batch(b"x", producer=(PRODUCER_ID, 0, 0)), batch(b"y", timestamp_ms=NOW_MS + 10)
    for sent, count in ((first, 0), (later, 1)):
        with pytest.raises(NeedsRoll):
            partition.append(sent, now_ms=NOW_MS, may_roll=False)
        assert (count, count) == (partition.log_end_offset, len(partition.segments))
        partition.append(sent, now_ms=NOW_MS)
    assert [0, 1] == [segment.base_offset for segment in partition.segments]
    assert {0: b"x", 1: b"y"} == values(driver.reopen())


def test_offsets_in_a_segment_never_outgrow_its_index(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x")
    partition._state.load(0, 2**31 + 5)
    driver.append(partition, b"y")

    assert [0, 2**31 + 5] == [segment.base_offset for segment in partition.segments]


def test_new_settings_hold_from_the_next_append(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x" * 100)

    partition.configure(settings(segment_bytes=250))
    driver.append(partition, b"x" * 100)
    driver.append(partition, b"x" * 100)

    assert [0, 1, 2] == [segment.base_offset for segment in partition.segments]


def test_a_log_may_begin_near_259_billion(driver: LogDriver) -> None:
    first = 259_000_000_000
    partition = driver.create(first_offset=first, config=settings(segment_bytes=400, index_interval_bytes=100))
    for number in range(20):
        driver.append(partition, b"%d" % number, timestamp_ms=NOW_MS + number)

    assert (driver.folder() / "00000000259000000000.log").exists()
    assert (first, first + 20) == (partition.log_start_offset, partition.high_watermark)
    assert {first + number: b"%d" % number for number in range(20)} == values(partition)
    assert (first + 7, NOW_MS + 7) == partition.offset_for_timestamp(NOW_MS + 7)
    assert (first + 19, NOW_MS + 19) == partition.max_timestamp()
    for clean in (True, False):
        partition = driver.reopen(clean=clean)
        assert (first, first + 20) == (partition.log_start_offset, partition.log_end_offset)
        assert b"13" == values(partition)[first + 13]


def test_only_a_few_old_segments_stay_open(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300))
    for number in range(60):
        driver.append(partition, b"value-%d" % number)
    values(partition)
    driver.finish(partition)

    assert sum(segment.is_open for segment in partition.segments) <= 10


def test_listeners_hear_of_new_records_and_of_the_close(driver: LogDriver) -> None:
    partition = driver.create()
    heard: list[int] = []
    partition.change_listeners.add(lambda: heard.append(partition.high_watermark))

    driver.append(partition, b"x")
    driver.append(partition, b"y")
    driver.stop()

    assert [1, 2, 2] == heard


def test_the_leader_epoch_is_zero_and_ends_at_the_high_watermark(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x", b"y")

    assert (0, 2) == partition.end_offset_for_epoch(0)
    assert (-1, -1) == partition.end_offset_for_epoch(1)
    assert (-1, -1) == partition.end_offset_for_epoch(-1)


def test_log_append_time_is_told_to_the_producer(driver: LogDriver) -> None:
    partition = driver.create(config=settings(message_timestamp_type="LogAppendTime"))

    appended = driver.append(partition, b"x", timestamp_ms=NOW_MS + 5)

    assert NOW_MS + 5 == appended.log_append_time_ms
    assert -1 == driver.append(driver.create("other"), b"x").log_append_time_ms


def test_a_lazy_partition_gets_its_folder_with_its_first_record(driver: LogDriver) -> None:
    directory = driver.open()
    driver.enter("__consumer_offsets")
    wanted = topic_id("__consumer_offsets")
    partitions = directory.create_partitions("__consumer_offsets", range(50), wanted, settings(), lazily=True)
    assert [] == driver.partition_folders()

    driver.append(partitions[7], b"x")

    assert ["__consumer_offsets-7"] == driver.partition_folders()
    driver.stop(clean=False)
    again = driver.open().open_partition("__consumer_offsets", 7, wanted, settings())
    assert {0: b"x"} == values(again)
    assert 0 == driver.directory.open_partition("__consumer_offsets", 8, wanted, settings()).log_end_offset
