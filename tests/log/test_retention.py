"""What retention deletes of a log, when, and what stays true of the rest."""

import pytest

from logmark.errors import ErrorCode, Refused
from logmark.log.retention_rules import RetentionSegment, count_deletable_segments
from tests.log.directory_driver import NOW_MS, WAL_FILES, LogDriver, batch, settings, values

DAY_MS = 86_400_000


def segments(*sizes: int, ages_ms: tuple[int, ...] = ()) -> list[RetentionSegment]:
    """Segments of ten records each; the last one is active."""
    return [
        RetentionSegment(
            base_offset=at * 10,
            next_base_offset=at * 10 + 10,
            size_bytes=size,
            largest_timestamp=NOW_MS - (ages_ms[at] if ages_ms else 0),
            is_active=at == len(sizes) - 1,
        )
        for at, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("config", "ages_ms", "log_start", "high_watermark", "count"),
    [
        ({}, (9, 9, 9), 0, 30, 0),  # nothing is old
        ({}, (8 * DAY_MS, 7 * DAY_MS, 0), 0, 30, 1),  # exactly seven days is not older than seven days
        ({}, (8 * DAY_MS, 0, 8 * DAY_MS), 0, 30, 1),  # it stops at the first that stays
        ({}, (8 * DAY_MS, 8 * DAY_MS, 8 * DAY_MS), 0, 30, 3),  # the active segment too
        ({}, (8 * DAY_MS, 8 * DAY_MS, 8 * DAY_MS), 0, 25, 2),  # never above the high watermark
        ({}, (-DAY_MS, 8 * DAY_MS, 8 * DAY_MS), 0, 30, 0),  # a time in the future blocks
        ({"retention_ms": -1}, (900 * DAY_MS,) * 3, 0, 30, 0),  # for ever
        ({"retention_ms": -1, "retention_bytes": 200}, (0, 0, 0), 0, 30, 1),
        ({"retention_ms": -1, "retention_bytes": 201}, (0, 0, 0), 0, 30, 0),  # what stays is not below the limit
        ({"retention_ms": -1, "retention_bytes": 0}, (0, 0, 0), 0, 30, 3),
        ({}, (0, 0, 0), 19, 30, 1),  # wholly below the log start
        ({}, (0, 0, 0), 20, 30, 2),
        ({}, (0, 0, 0), 30, 30, 2),  # the active one stays
        ({"cleanup_policy": "compact"}, (8 * DAY_MS,) * 3, 10, 30, 1),  # a compacted log goes by its start only
        ({"cleanup_policy": "compact,delete"}, (8 * DAY_MS, 0, 0), 0, 30, 1),
    ],
)
def test_retention_deletes_what_kafka_deletes(
    config: dict[str, object], ages_ms: tuple[int, ...], log_start: int, high_watermark: int, count: int
) -> None:
    found = count_deletable_segments(
        segments(100, 100, 100, ages_ms=ages_ms),
        settings(**config),
        log_start_offset=log_start,
        high_watermark=high_watermark,
        now_ms=NOW_MS,
    )

    assert count == found


def test_an_empty_active_segment_stays() -> None:
    found = count_deletable_segments(
        segments(100, 0, ages_ms=(8 * DAY_MS, 8 * DAY_MS)), settings(), log_start_offset=0, high_watermark=99,
        now_ms=NOW_MS,
    )  # fmt: skip
    assert 1 == found


def test_old_segments_go_by_age_and_offsets_stay_what_they_were(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300, retention_ms=1000))
    for number in range(20):
        driver.append(partition, b"%02d" % number * 20, timestamp_ms=NOW_MS + number * 100)

    gone = partition.apply_retention(NOW_MS + 2000)
    driver.finish(partition)

    start = partition.log_start_offset
    assert gone > 0
    # Every segment whose last record is older than a second is gone, and no other.
    assert 8 <= start <= 10
    assert {number: b"%02d" % number * 20 for number in range(start, 20)} == values(partition)
    with pytest.raises(Refused) as refused:
        partition.read(start - 1, bytes_max=1)
    assert ErrorCode.OFFSET_OUT_OF_RANGE == refused.value.code
    assert (start, 20) == (lambda again: (again.log_start_offset, again.log_end_offset))(driver.reopen(clean=False))


def test_a_log_that_is_all_expired_ends_empty_at_its_end(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300, retention_ms=1000))
    for number in range(20):
        driver.append(partition, b"%02d" % number * 20)

    partition.apply_retention(NOW_MS + 1001)
    driver.finish(partition)

    assert (20, 20) == (partition.log_start_offset, partition.high_watermark)
    assert ["00000000000000000020.log"] == [path.name for path in driver.folder().glob("*.log")]
    assert 0 == partition.apply_retention(NOW_MS + 10**9)
    for clean in (False, True):
        partition = driver.reopen(clean=clean)
        assert (20, 20) == (partition.log_start_offset, partition.log_end_offset)
    assert 20 == driver.append(partition, b"next").base_offset


def test_the_oldest_segments_go_by_size(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300, retention_bytes=1000, retention_ms=-1))
    for number in range(30):
        driver.append(partition, b"%02d" % number * 20)
    before = partition.size_bytes

    partition.apply_retention(NOW_MS)

    first = partition.segments[0].size
    assert before > partition.size_bytes >= 1000 > partition.size_bytes - first


def test_deleted_files_are_renamed_and_removed_after_the_delay(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300, retention_ms=1000, file_delete_delay_ms=60_000))
    for number in range(6):
        driver.append(partition, b"%02d" % number * 40)
    partition.apply_retention(NOW_MS + 1001)
    driver.finish(partition)

    deleted = {path.name for path in driver.folder().glob("*.deleted")}
    assert {
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "00000000000000000000.timeindex.deleted",
    } <= deleted
    partition.apply_retention(NOW_MS + 1001 + 59_999)
    assert deleted == {path.name for path in driver.folder().glob("*.deleted")}
    partition.apply_retention(NOW_MS + 1001 + 60_000)
    assert [] == list(driver.folder().glob("*.deleted"))


def test_deleted_files_are_gone_after_a_restart(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300, retention_ms=1000))
    for number in range(6):
        driver.append(partition, b"%02d" % number * 40)
    partition.apply_retention(NOW_MS + 1001)
    driver.finish(partition)
    assert list(driver.folder().glob("*.deleted"))

    driver.reopen(clean=False)

    assert [] == list(driver.folder().glob("*.deleted"))


def test_a_segment_without_timestamps_is_as_old_as_its_file(driver: LogDriver) -> None:
    partition = driver.create(config=settings(retention_ms=1000))
    driver.append(partition, b"x", timestamp_ms=-1)
    modified_ms = (driver.folder() / "00000000000000000000.log").stat().st_mtime_ns // 1_000_000

    assert 0 == partition.apply_retention(modified_ms + 1000)
    assert 1 == partition.apply_retention(modified_ms + 1001)


def test_deleting_records_moves_the_log_start_even_inside_a_batch(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"0", b"1", b"2", b"3")
    driver.append(partition, b"4")

    assert 2 == partition.delete_records(2)

    assert {2: b"2", 3: b"3", 4: b"4"} == values(partition)
    assert 2 == partition.delete_records(1)
    assert 5 == partition.delete_records(-1)
    assert {} == values(partition)
    assert 5 == driver.append(partition, b"5").base_offset


@pytest.mark.parametrize("clean", [True, False])
def test_the_log_start_survives_once_it_is_checkpointed(driver: LogDriver, clean: bool) -> None:
    partition = driver.create()
    driver.append(partition, b"0", b"1", b"2", b"3")
    partition.delete_records(2)
    driver.directory.write_checkpoints()

    again = driver.reopen(clean=clean)

    assert {2: b"2", 3: b"3"} == values(again)
    assert "0\n1\nclicks 0 2\n" == (driver.path / "log-start-offset-checkpoint").read_text()
    assert "0\n1\n0 2\n" == (driver.folder() / "leader-epoch-checkpoint").read_text()


@pytest.mark.parametrize("offset", [6, -2, 10**18])
def test_deleting_beyond_the_high_watermark_is_refused(driver: LogDriver, offset: int) -> None:
    partition = driver.create()
    driver.append(partition, *[b"x"] * 5)
    with driver.files.hold_syncs(f"{WAL_FILES}001"):
        partition.append(batch(b"not durable"), now_ms=NOW_MS)
        with pytest.raises(Refused) as refused:
            partition.delete_records(offset)
    assert ErrorCode.OFFSET_OUT_OF_RANGE == refused.value.code


def test_deleting_records_needs_a_topic_that_deletes(driver: LogDriver) -> None:
    compacted = driver.create("compacted", config=settings(cleanup_policy="compact"))
    internal = driver.create("__consumer_offsets")

    with pytest.raises(Refused) as refused:
        compacted.delete_records(0)
    assert ErrorCode.POLICY_VIOLATION == refused.value.code
    with pytest.raises(Refused) as refused:
        internal.delete_records(0)
    assert ErrorCode.INVALID_TOPIC_EXCEPTION == refused.value.code


def test_listeners_hear_of_a_new_log_start(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x", b"y")
    heard: list[int] = []
    partition.change_listeners.add(lambda: heard.append(partition.log_start_offset))

    partition.delete_records(1)

    assert [1] == heard


def test_retention_of_a_log_that_was_only_opened_leaves_it_whole(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300, retention_ms=1000))
    for number in range(20):
        driver.append(partition, b"%02d" % number * 20)

    partition = driver.reopen(config=settings(segment_bytes=300, retention_ms=1000))
    partition.apply_retention(NOW_MS + 1001)
    driver.settle(partition)

    assert (20, 20) == (partition.log_start_offset, partition.high_watermark)
    assert 20 == driver.append(partition, b"next").base_offset
    assert {20: b"next"} == values(driver.reopen(clean=False))
