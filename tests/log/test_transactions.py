"""Transactions as the log sees them: markers, the last stable offset, what was aborted, and that after a restart."""

import struct
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from logmark.errors import ErrorCode, Malformed, Refused
from logmark.log import checkpoints, transactions
from logmark.log.producers import Producers
from logmark.log.segment import Segment
from logmark.log.transactions import Aborted, AbortedTransactions, Marker
from logmark.wire import batches
from tests.harness.searches import examples
from tests.log.directory_driver import NOW_MS, WAL_FILES, LogDriver, settings

A, B, C = 2**40 + 1, 2**40 + 2, 2**40 + 3
SMALL = settings(segment_bytes=600, index_interval_bytes=200)
HOUR_MS = 3_600_000


class Writer:
    """Transactional producers that count their sequences."""

    def __init__(self, driver: LogDriver, partition) -> None:
        self.driver, self.partition = driver, partition
        self.sequences: dict[int, int] = {}

    def data(self, producer_id: int, *, settle: bool = True, transactional: bool = True) -> int:
        sequence = self.sequences.get(producer_id, 0)
        built = batches.build(
            [(None, b"x" * 30)],
            timestamp_ms=NOW_MS,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=batches.TRANSACTIONAL_BIT if transactional else 0,
        )
        appended = self.partition.append(batches.own(built), now_ms=self.driver.clock.now_ms())
        self.sequences[producer_id] = sequence + 1
        if settle:
            self.driver.settle(self.partition)
        return appended.base_offset

    def end(self, producer_id: int, *, commit: bool, settle: bool = True, **more) -> int:
        appended = self.partition.append_marker(producer_id, 0, commit=commit, now_ms=NOW_MS + 5, **more)
        if settle:
            self.driver.settle(self.partition)
        return appended.base_offset


def entries(partition) -> list[Aborted]:
    return [entry for segment in partition.segments for entry in segment.aborted.entries]


def committed(partition) -> list[int]:
    """The offsets that a reader of committed records sees, filtered as clients filter them."""
    seen, offset = [], partition.log_start_offset
    while True:
        data, aborted = partition.fetch(offset, bytes_max=300, at_least_one=True, is_committed=True)[:2]
        if not len(data):
            return seen
        waiting, leaving_out, at = sorted(aborted, key=lambda each: each[1]), set(), 0
        while at < len(data):
            header = batches.read_header(data, at)
            while waiting and waiting[0][1] <= header.last_offset:
                leaving_out.add(waiting.pop(0)[0])
            if header.is_control:
                leaving_out.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in leaving_out) and header.base_offset >= offset:
                seen.append(header.base_offset)
            at += header.size
        offset = header.next_offset


def test_a_marker_has_kafkas_78_bytes(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    writer.data(A)

    offset = writer.end(A, commit=True, coordinator_epoch=7)

    marker = (driver.folder() / "00000000000000000000.log").read_bytes()[-78:]
    header = batches.read_header(marker)
    assert (1, 78, 0x30, 0, NOW_MS + 5, NOW_MS + 5, A, 0, -1, 1) == (
        header.base_offset, header.size, header.attributes, header.last_offset_delta, header.base_timestamp,
        header.max_timestamp, header.producer_id, header.producer_epoch, header.base_sequence, header.record_count,
    )  # fmt: skip
    assert bytes.fromhex("20 00 00 00 08 0000 0001 0c 0000 00000007 00") == marker[61:]
    assert batches.crc_is_right(marker, 0, 78)
    assert Marker(True, 7) == transactions.read_marker(marker)
    assert 1 == offset


def test_the_last_stable_offset_is_where_the_oldest_open_transaction_begins(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    writer.data(C, transactional=False)
    seen = [partition.last_stable_offset]
    for step in (
        lambda: writer.data(A),
        lambda: writer.data(B),
        lambda: writer.data(A),
        lambda: writer.end(A, commit=True),
        lambda: writer.end(B, commit=False),
    ):
        step()
        seen.append(partition.last_stable_offset)

    assert [1, 1, 1, 1, 2, 6] == seen
    assert [0, 1, 3] == committed(partition)
    assert [Aborted(B, 2, 5, 6)] == entries(partition)


def test_an_abort_notes_the_stable_offset_that_it_makes_possible(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    for producer in (A, B):
        writer.data(producer)
    writer.end(B, commit=False)
    writer.end(A, commit=False)

    assert [Aborted(B, 1, 2, 0), Aborted(A, 0, 3, 4)] == entries(partition)
    data = (driver.folder() / "00000000000000000000.txnindex").read_bytes()
    assert struct.pack(">hqqqq", 0, B, 1, 2, 0) + struct.pack(">hqqqq", 0, A, 0, 3, 4) == data


def test_the_transaction_index_comes_with_the_first_abort_of_its_segment_only(driver: LogDriver) -> None:
    partition = driver.create(config=SMALL)
    writer = Writer(driver, partition)
    for number in range(12):
        writer.data(A)
        writer.end(A, commit=number != 7)
    driver.stop()

    found = [path.name for path in driver.folder().iterdir() if path.suffix == ".txnindex"]

    assert len(partition.segments) > 3
    assert 1 == len(found)


def test_a_marker_that_is_not_durable_leaves_its_transaction_open_for_readers(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    writer.data(A)
    with driver.files.hold_syncs(WAL_FILES):
        writer.end(A, commit=False, settle=False)
        driver.turn()
        driver.files.wait_for_held_sync()
        driver.turn()

        assert (1, 0) == (partition.high_watermark, partition.last_stable_offset)
        assert (b"", []) == partition.fetch(0, bytes_max=1000, at_least_one=True, is_committed=True)[:2]
        assert [] == partition.aborted_transactions(0, 10)
    driver.settle(partition)

    assert (2, 2) == (partition.high_watermark, partition.last_stable_offset)
    assert [(A, 0)] == partition.aborted_transactions(0, 10)


def test_an_abort_is_known_after_a_kill_although_its_index_was_never_synced(driver: LogDriver) -> None:
    """The marker is in the WAL, and a recovery makes the index from it."""
    partition = driver.create()
    writer = Writer(driver, partition)
    writer.data(A)
    with driver.files.hold_syncs(".txnindex"):
        writer.end(A, commit=False)
        assert (2, [(A, 0)]) == (partition.last_stable_offset, partition.aborted_transactions(0, 10))
        driver.stop(clean=False)
    next(driver.folder().glob("*.txnindex")).write_bytes(b"")

    again = driver.reopen()

    assert (2, [(A, 0)]) == (again.last_stable_offset, again.aborted_transactions(0, 10))


def test_a_batch_outside_the_open_transaction_is_refused(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    writer.data(A)

    with pytest.raises(Refused) as refused:
        writer.data(A, transactional=False)

    assert ErrorCode.INVALID_TXN_STATE == refused.value.code
    assert 1 == partition.log_end_offset
    writer.end(A, commit=True)
    assert 2 == writer.data(A, transactional=False)


@pytest.mark.parametrize(
    ("epoch", "more", "code"),
    [
        (1, {}, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, {"coordinator_epoch": 4}, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (2, {"coordinator_epoch": 5, "is_bumped": True}, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_marker_of_the_past_is_refused_with_kafkas_code(
    driver: LogDriver, epoch: int, more: dict, code: ErrorCode,
) -> None:
    partition = driver.create()
    transactional = {"timestamp_ms": NOW_MS, "producer_id": A, "attributes": batches.TRANSACTIONAL_BIT}
    partition.append_marker(A, 1, commit=True, coordinator_epoch=5, now_ms=NOW_MS)
    built = batches.build([(None, b"x")], producer_epoch=2, base_sequence=0, **transactional)
    partition.append(batches.own(built), now_ms=NOW_MS)

    with pytest.raises(Refused) as refused:
        partition.append_marker(A, epoch, commit=True, now_ms=NOW_MS, **more)

    assert code == refused.value.code
    assert 2 == partition.log_end_offset


def test_a_bumped_marker_may_be_sent_again(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    writer.data(A)
    for _ in range(2):
        partition.append_marker(A, 1, commit=False, now_ms=NOW_MS, is_bumped=True)
    driver.settle(partition)

    assert [(A, 0)] == partition.aborted_transactions(0, 10)
    assert 3 == partition.last_stable_offset


def test_a_marker_without_data_ends_nothing_and_is_remembered(driver: LogDriver) -> None:
    partition = driver.create()

    partition.append_marker(A, 3, commit=False, coordinator_epoch=2, now_ms=NOW_MS)
    driver.settle(partition)

    assert (1, []) == (partition.last_stable_offset, entries(partition))
    body = Producers.decode(partition.producers.encode(), now_ms=0).encode()[10:]
    assert struct.pack(">qhiqiqiq", A, 3, -1, -1, 0, NOW_MS, 2, -1) == body


def test_a_producer_with_an_open_transaction_never_expires(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    writer.data(A)
    writer.data(B, transactional=False)

    assert 1 == partition.expire_producers(now_ms=NOW_MS + 1000 * HOUR_MS, expiration_ms=HOUR_MS)
    writer.end(A, commit=True)
    assert 1 == partition.expire_producers(now_ms=NOW_MS + 1000 * HOUR_MS, expiration_ms=HOUR_MS)


def busy(driver: LogDriver, config=SMALL):
    """Transactions over many segments: committed, aborted, one that spans segments, and one that stays open."""
    partition = driver.create(config=config)
    writer = Writer(driver, partition)
    writer.data(C)
    for number in range(8):
        writer.data(A)
        writer.data(B)
        writer.data(A)
        writer.end(A, commit=number % 2 == 0)
        writer.end(B, commit=number % 3 != 0)
    writer.end(C, commit=False)
    writer.data(B)
    writer.data(A)
    writer.end(A, commit=False)
    return partition


def state(partition) -> tuple:
    return (
        partition.log_end_offset, partition.last_stable_offset, entries(partition), committed(partition),
        sorted(
            (key, each.producer_epoch, each.coordinator_epoch, each.transaction_first_offset, each.last_timestamp,
             [written[:4] for written in each.batches[-1:]])
            for key, each in partition.producers
        ),
    )  # fmt: skip


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_knows_every_transaction_as_before(driver: LogDriver, clean: bool) -> None:
    before = state(busy(driver))
    files = {path.name: path.read_bytes() for path in driver.folder().iterdir() if path.suffix == ".txnindex"}

    partition = driver.reopen(clean=clean, config=SMALL)

    assert before == state(partition)
    assert len(files) > 3
    assert files == {path.name: path.read_bytes() for path in driver.folder().iterdir() if path.suffix == ".txnindex"}
    partition.append_marker(B, 0, commit=True, now_ms=NOW_MS)
    driver.settle(partition)
    assert partition.log_end_offset == partition.last_stable_offset


@pytest.mark.parametrize("lost", ["snapshot", "txnindex", "txnindex snapshot", "index"])
def test_a_clean_directory_that_lacks_files_shows_nothing_that_was_aborted(driver: LogDriver, lost: str) -> None:
    before = state(busy(driver))
    driver.stop()
    for path in list(driver.folder().iterdir()):
        if path.suffix[1:] in lost.split():
            path.unlink()

    partition = driver.reopen(config=SMALL)

    assert before == state(partition)


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize("at", [0, 1, 10, 18, 26, 33])
def test_an_index_that_cannot_be_is_made_again(driver: LogDriver, at: int, is_noted: bool) -> None:
    before = state(busy(driver))
    driver.stop()
    if not is_noted:
        (driver.path / "logmark.segments").unlink()
    path = sorted(driver.folder().glob("*.txnindex"))[1]
    data = bytearray(path.read_bytes())
    data[at] ^= 0x80
    path.write_bytes(data[:-1] if at == 33 else data)

    partition = driver.reopen(config=SMALL)

    assert before == state(partition)


def test_a_flipped_bit_in_an_index_shows_nothing_that_was_aborted(driver: LogDriver) -> None:
    before = state(busy(driver))
    driver.stop()
    path = sorted(driver.folder().glob("*.txnindex"))[2]
    sound = path.read_bytes()
    for at in range(len(sound)):
        data = bytearray(sound)
        data[at] ^= 1
        path.write_bytes(data)

        assert before == state(driver.reopen(config=SMALL)), f"byte {at}"

        driver.stop()
        assert sound == path.read_bytes()


def noted_indexes(driver: LogDriver) -> list[str]:
    """Return the lines of segments that have a transaction index."""
    listed = checkpoints.SegmentList.decode((driver.path / "logmark.segments").read_bytes()).segments
    return [f"{key} {base}" for key, found in listed.items() for base, one in found.items() if one.aborted_checksum]


def test_what_a_clean_stop_noted_of_indexes_is_forgotten_with_the_last_of_them(driver: LogDriver) -> None:
    partition = busy(driver)
    driver.stop()
    assert noted_indexes(driver)
    partition = driver.reopen(config=SMALL)
    Writer(driver, partition).end(B, commit=True)
    partition.configure(settings(segment_bytes=600, retention_ms=0))
    partition.apply_retention(NOW_MS + HOUR_MS)
    driver.finish(partition)

    driver.stop()

    assert not noted_indexes(driver)
    assert partition.log_end_offset == driver.reopen(config=SMALL).last_stable_offset


def test_a_clean_start_with_transactions_reads_no_more_than_the_end(
    driver: LogDriver, monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = busy(driver).size_bytes
    driver.stop()
    read: list[int] = []
    whole = Segment.read
    monkeypatch.setattr(Segment, "read", lambda self, at, size: read.append(size) or whole(self, at, size))
    monkeypatch.setattr("logmark.log.loader.TAIL_BYTES", 300)

    driver.reopen(config=SMALL)

    assert sum(read) < size / 2


def test_the_index_of_a_deleted_segment_goes_with_it(driver: LogDriver) -> None:
    partition = busy(driver)
    Writer(driver, partition).end(B, commit=True)
    driver.append(partition, b"y" * 500)
    driver.append(partition, b"new", timestamp_ms=NOW_MS + 10 * HOUR_MS)
    partition.configure(settings(segment_bytes=600, retention_ms=HOUR_MS, file_delete_delay_ms=1000))
    driver.clock.advance(seconds=5 * 3600)

    count = partition.apply_retention(driver.clock.now_ms())
    driver.finish(partition)
    marked = [path.name for path in driver.folder().iterdir() if path.name.endswith(".txnindex.deleted")]
    partition.remove_deleted(driver.clock.now_ms() + 1000)

    assert count > 3
    assert marked
    assert not [path.name for path in driver.folder().iterdir() if "txnindex" in path.name]
    assert partition.last_stable_offset >= partition.log_start_offset


def test_the_last_stable_offset_never_lies_below_the_log_start(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    for _ in range(3):
        writer.data(A)
    partition.delete_records(2)

    assert 2 == partition.last_stable_offset
    assert (b"", []) == partition.fetch(2, bytes_max=100, at_least_one=True, is_committed=True)[:2]


def test_a_reader_above_the_last_stable_offset_waits_and_above_the_end_is_refused(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    for _ in range(3):
        writer.data(A)

    for offset in range(4):
        assert (b"", []) == partition.fetch(offset, bytes_max=100, at_least_one=True, is_committed=True)[:2]
    with pytest.raises(Refused) as refused:
        partition.fetch(4, bytes_max=100, at_least_one=True, is_committed=True)[:2]
    assert ErrorCode.OFFSET_OUT_OF_RANGE == refused.value.code


def test_the_aborted_transactions_of_a_range_are_those_that_reach_into_it() -> None:
    known = AbortedTransactions(
        [Aborted(A, 0, 10, 11), Aborted(B, 5, 15, 13), Aborted(C, 18, 35, 25), Aborted(A, 32, 50, 40)]
    )

    def producers(offset: int, end: int) -> list[int]:
        return [entry.first_offset for entry in known.overlapping(offset, end)]

    assert [0, 5, 18, 32] == producers(0, 100)
    assert [0, 5, 18] == producers(0, 32)
    assert [0, 5, 18, 32] == producers(0, 35)
    assert [0, 5] == producers(10, 18)
    assert [5] == producers(11, 18)
    assert [] == producers(51, 100)
    assert [] == producers(16, 18)


def test_a_failed_index_stops_the_log_before_its_recovery_point_moves(driver: LogDriver) -> None:
    partition = driver.create()
    writer = Writer(driver, partition)
    writer.data(A)
    driver.finish(partition)
    driver.files.fail_syncs(".txnindex")
    writer.end(A, commit=False)
    driver.finish(partition)

    assert partition.failure is not None
    assert (2, 1) == (partition.high_watermark, partition.recovery_point)
    driver.files.heal()
    assert [(A, 0)] == driver.reopen(clean=False).aborted_transactions(0, 10)


def test_half_an_index_entry_is_malformed() -> None:
    with pytest.raises(Malformed):
        AbortedTransactions.decode(b"\0" * 33, base_offset=0)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.sampled_from([A, B, C])),
        st.tuples(st.just("commit"), st.sampled_from([A, B, C])),
        st.tuples(st.just("abort"), st.sampled_from([A, B, C])),
        st.tuples(st.sampled_from(["stop", "kill"]), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@hypothesis.settings(max_examples=examples(25, soak=1000))
@hypothesis.given(operations=OPERATIONS)
def test_readers_of_committed_records_see_exactly_those(operations: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        driver = LogDriver(Path(folder), durability="os")
        partition = driver.create(config=SMALL)
        writer = Writer(driver, partition)
        open_at: dict[int, list[int]] = {}
        visible: set[int] = set()
        for kind, producer in operations:
            if kind == "data":
                open_at.setdefault(producer, []).append(writer.data(producer))
            elif kind in ("stop", "kill"):
                writer.partition = partition = driver.reopen(clean=kind == "stop", config=SMALL)
            else:
                writer.end(producer, commit=kind == "commit")
                ended = open_at.pop(producer, [])
                visible.update(ended if kind == "commit" else [])
            stable = min((offsets[0] for offsets in open_at.values()), default=partition.log_end_offset)

            assert stable == partition.last_stable_offset
            assert sorted(offset for offset in visible if offset < stable) == committed(partition)
        driver.close()


def test_what_was_noted_of_a_deleted_partitions_indexes_goes_with_it(driver: LogDriver) -> None:
    busy(driver)
    driver.reopen(config=SMALL)
    driver.directory.delete_partition("clicks", 0)

    driver.stop()

    assert "1\n0\n" == checkpoints.unseal((driver.path / "logmark.segments").read_bytes()).decode()
