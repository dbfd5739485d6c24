"""One flipped byte in a cleanly closed directory: every read is right or refused, and nothing is missing in silence."""

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest

from logmark.client.client import Client
from logmark.client.errors import ClientError
from logmark.clock import ManualClock
from logmark.errors import ErrorCode, Refused, UserError
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, Entry
from logmark.log.directory import DataDirectory
from logmark.log.partition import Partition
from logmark.log.settings import TopicSettings
from logmark.names import TopicPartition
from logmark.testing import Broker
from logmark.wire import batches
from tests.crash.broker_logs import SMALL_WAL, InlineCommit
from tests.crash.crash_file_system import CrashFileSystem, Fate, PowerLoss
from tests.crash.pending_requests import PendingProduce
from tests.log.directory_driver import LogDriver, settings

NOW_MS = 1_700_000_000_000
PATH, FOLDER = "/data", "/data/clicks-0"
TOPIC_ID = bytes(range(16))
PRODUCER_ID = 2**40
SUFFIXES = (".log", ".index", ".timeindex", ".snapshot")
CONFIG = TopicSettings({}, {"segment.bytes": "2500", "index.interval.bytes": "300", "retention.ms": "-1"})
COMPACT = settings(segment_bytes=900, index_interval_bytes=200, cleanup_policy="compact", retention_ms=-1)
BATCHES = 60


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Damage is warned of, once for each flip."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def open_log(
    disk: CrashFileSystem, config: TopicSettings = CONFIG
) -> tuple[DataDirectory, Partition, InlineCommit]:
    committer = InlineCommit()
    directory = DataDirectory.open(
        PATH, files=disk, committer=committer, clock=ManualClock(NOW_MS), wal_limits=SMALL_WAL
    )
    if directory.read(CATALOG) is None:
        catalog = Catalog(None)
        catalog.adopt([Entry(name="clicks", id=TOPIC_ID, partitions=1)], catalog.next_producer_id)
        directory.write(CATALOG, catalog.encode())
    return directory, directory.open_partition("clicks", 0, TOPIC_ID, config), committer


def build_batch(number: int, count: int, sequence: int) -> batches.ProducedBatch:
    """A batch of every codec in turn; times come late, twice and out of order."""
    choose = random.Random(number)
    stamps = [NOW_MS + 10 * (number - number % 4) + choose.choice([0, 0, 5, -25]) for _ in range(count)]
    values = [b"%d.%d " % (number, at) + choose.randbytes(choose.randrange(90)) for at in range(count)]
    return batches.own(
        batches.build(
            [(b"key", value) for value in values], timestamp_ms=stamps, codec=number % 5, producer_id=PRODUCER_ID,
            producer_epoch=0, base_sequence=sequence,
        )
    )  # fmt: skip


@cache
def closed() -> tuple[CrashFileSystem, list[batches.Record]]:
    """A directory that was closed cleanly, and the records in it."""
    disk = CrashFileSystem()
    directory, partition, committer = open_log(disk)
    records: list[batches.Record] = []
    for number in range(BATCHES):
        batch = build_batch(number, 1 + number % 3, len(records))
        partition.append(batch, now_ms=NOW_MS)
        records += batches.unpack(batch.data)
    committer.settle()
    assert directory.close() and len(partition.segments) >= 4
    return disk, records


def byte_positions() -> list[tuple[str, int]]:
    """Every byte that can be flipped."""
    disk, _ = closed()
    image = disk.image()
    return [(path, at) for path in sorted(image) if path.endswith(SUFFIXES) for at in range(len(image[path]))]


def flipped(path: str, at: int, mask: int) -> CrashFileSystem:
    disk = closed()[0].killed()
    file = disk.open(path)
    file.pwrite(bytes([file.pread(1, at)[0] ^ mask]), at)
    return disk


def check_reads(partition: Partition, records: list[batches.Record], begin: int) -> int:
    """Reads on from an offset as a consumer does; returns how many reads were refused."""
    offset, refused = begin, 0
    while offset < len(records):
        try:
            data = partition.read(offset, bytes_max=700)
        except Refused as error:
            assert error.code == ErrorCode.CORRUPT_MESSAGE
            offset, refused = offset + 1, refused + 1
            continue
        found = batches.unpack(data)
        assert found[0].offset <= offset <= found[-1].offset, "a record is missing"
        assert records[found[0].offset : found[-1].offset + 1] == found
        offset = found[-1].offset + 1
    return refused


def check_times(partition: Partition, records: list[batches.Record], wanted: list[int]) -> int:
    """Looks times up; returns how many were refused."""
    refused = 0
    for timestamp in wanted:
        expected = next(
            ((record.offset, record.timestamp_ms) for record in records if record.timestamp_ms >= timestamp), None
        )
        try:
            assert expected == partition.offset_for_timestamp(timestamp), f"time {timestamp - NOW_MS}"
        except Refused as error:
            assert error.code == ErrorCode.CORRUPT_MESSAGE
            refused += 1
    largest = max(record.timestamp_ms for record in records)
    expected = next((record.offset, record.timestamp_ms) for record in records if record.timestamp_ms == largest)
    try:
        assert expected == partition.max_timestamp()
    except Refused:
        refused += 1
    return refused


def check_flip(path: str, at: int, mask: int) -> int:
    """Opens the directory with one byte flipped and reads everything; returns how much was refused."""
    _, records = closed()
    choose = random.Random(at)
    _, partition, _ = open_log(flipped(path, at, mask))
    stamps = sorted({record.timestamp_ms for record in records})
    refused = 0
    if choose.random() < 0.5:
        refused += check_times(partition, records, choose.sample(stamps, 4))
    assert (0, len(records)) == (partition.log_start_offset, partition.high_watermark)
    refused += check_reads(partition, records, choose.randrange(len(records)))
    refused += check_reads(partition, records, 0)
    refused += check_times(partition, records, choose.sample(stamps, 4))
    last = build_batch(BATCHES - 1, 1 + (BATCHES - 1) % 3, 0)
    again = build_batch(BATCHES - 1, last.record_count, len(records) - last.record_count)
    try:
        appended = partition.append(again, now_ms=NOW_MS)
        assert appended.is_duplicate, "the producer's state is lost"
    except Refused:
        refused += 1
    return refused


@pytest.mark.parametrize(
    "count", [pytest.param(500, id="some"), pytest.param(10_000, id="many", marks=pytest.mark.soak)]
)
def test_a_flipped_byte_is_never_served(count: int, record_property: Callable[[str, object], None]) -> None:
    choose, all_positions, refused = random.Random(count), byte_positions(), 0
    for number in range(count):
        # Half of them where no checksum helps: the first 21 bytes of a batch, and the indexes.
        path, at = choose.choice(all_positions if number % 2 else unprotected())
        mask = choose.choice([1 << choose.randrange(8), choose.randrange(1, 256)])
        try:
            refused += check_flip(path, at, mask) > 0
        except Exception as error:
            error.add_note(f"byte {at} of {path} flipped by {mask:#04x}")
            raise
    record_property("flips", count)
    record_property("with a read refused", refused)
    record_property("wrong answers", 0)


def test_a_time_entry_that_points_to_another_batch_of_the_same_time_is_not_believed() -> None:
    _, records = closed()
    stamps = sorted({record.timestamp_ms for record in records})[::4]
    for path, at in byte_positions():
        if path.endswith(".timeindex") and at % 12 == 11:
            for mask in (1, 2, 3, 4, 5, 6, 7):
                check_times(open_log(flipped(path, at, mask))[1], records, stamps)


def test_a_time_index_that_was_cut_between_entries_is_built_again() -> None:
    disk, records = closed()
    stamps = sorted({record.timestamp_ms for record in records})
    for path in [path for path in disk.image() if path.endswith(".timeindex")]:
        cut = disk.killed()
        file = cut.open(path)
        file.truncate(file.size() - 12)
        assert 0 == check_times(open_log(cut)[1], records, stamps)


def test_through_a_broker_a_flipped_byte_is_right_or_refused(tmp_path: Path) -> None:
    partition = TopicPartition("clicks", 0)
    with Broker({"log.index.interval.bytes": "100"}, durability="sync", data_dir=str(tmp_path)) as broker:
        broker.create_topic("clicks")
        for number in range(8):
            batch = build_batch(number, 2, 2 * number)
            with PendingProduce(broker.bootstrap_servers, "clicks", 0, bytes(batch.data)) as asked:
                assert (ErrorCode.NONE, 2 * number) == asked.answer()
        with Client(broker.bootstrap_servers) as client:
            records = batches.unpack(client.fetch(partition, 0, max_wait_ms=0).records)
        for suffix in SUFFIXES:
            broker.stop()
            path = sorted(tmp_path.glob(f"clicks-0/*{suffix}"))[-1]
            whole = path.read_bytes()
            at = len(whole) // 2
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
            broker.start()
            check_through_a_client(broker.bootstrap_servers, partition, records)
            broker.stop()
            path.write_bytes(whole)
            broker.start()


def check_through_a_client(bootstrap_servers: str, partition: TopicPartition, records: list[batches.Record]) -> None:
    with Client(bootstrap_servers) as client:
        assert {partition: len(records)} == client.latest([partition])
        client.timeout_s = 1  # what is refused is asked for again until then
        for record in records[::5]:
            with contextlib.suppress(ClientError):
                found = batches.unpack(client.fetch(partition, record.offset, max_wait_ms=0).records)
                assert found and records[found[0].offset : found[-1].offset + 1] == found
            wanted = next(each for each in records if each.timestamp_ms >= record.timestamp_ms)
            with contextlib.suppress(ClientError):
                assert wanted.offset == client.list_offsets({partition: record.timestamp_ms})[partition].offset


@cache
def unprotected() -> list[tuple[str, int]]:
    disk, _ = closed()
    found = []
    for path, data in disk.image().items():
        if path.endswith((".index", ".timeindex")):
            found += [(path, at) for at in range(len(data))]
        elif path.endswith(".log"):
            position = 0
            while position < len(data):
                found += [(path, position + at) for at in range(21)]
                position += batches.read_header(data, position).size
    return sorted(found)


@cache
def crashed() -> tuple[CrashFileSystem, list[batches.Record], list[int]]:
    """A directory that was never flushed, as a crash leaves it; its records, and where each entry of its WAL ends."""
    disk = CrashFileSystem()
    _, partition, committer = open_log(disk)
    records: list[batches.Record] = []
    ends = [0]
    for number in range(12):
        batch = build_batch(number, 1 + number % 3, len(records))
        partition.append(batch, now_ms=NOW_MS)
        records += batches.unpack(batch.data)
        committer.settle()
        ends.append(len(records))
    return disk, records, ends


@pytest.mark.parametrize("is_power_lost", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("step", [pytest.param(97, id="some"), pytest.param(5, id="many", marks=pytest.mark.soak)])
def test_a_flipped_byte_in_the_wal_is_never_served_and_gives_no_offset_out_twice(
    step: int, is_power_lost: bool, record_property: Callable[[str, object], None]
) -> None:
    disk, records, ends = crashed()
    entry_max = max(end - begin for begin, end in pairwise(ends))
    flips = refused_starts = cut = most_refused = 0
    for path, data in sorted(disk.image().items()):
        for at in range(0, len(data or b"") if "/logmark.wal/" in path else 0, step):
            assert data is not None
            if not data[at] and at % 7:
                # Most of it is padding.
                continue
            broken = disk.after(PowerLoss("nothing unsynced kept", {}, Fate.LOST)) if is_power_lost else disk.killed()
            broken.open(path).pwrite(bytes([data[at] ^ (1 << at % 8)]), at)
            flips += 1
            try:
                directory, partition, _ = open_log(broken)
            except UserError:
                refused_starts += 1
                continue
            end = partition.high_watermark
            # In the last entry a flipped bit cannot be told from a torn write.
            assert end in (len(records), ends[-2]), f"byte {at} of {path}: the log ends at {end}"
            cut += end < len(records)
            refused = check_reads(partition, records[:end], 0)
            most_refused = max(most_refused, refused)
            following = batches.own(batches.build([(b"key", b"next")], timestamp_ms=NOW_MS))
            assert end == partition.append(following, now_ms=NOW_MS).base_offset
            assert directory.close()
            _, partition, _ = open_log(broken)
            kept = records[:end] + batches.unpack(following.data)
            assert refused == check_reads(partition, kept, 0), "a restart forgot what the recovery knew"
    record_property("flips", flips)
    record_property("starts refused", refused_starts)
    record_property("in the last entry, which was cut", cut)
    record_property("most offsets refused by one flip", most_refused)
    record_property("wrong answers", 0)
    assert 0 < cut < flips / 2
    # Only where the segment never reached the disk either, something is lost: what the entry held, and no neighbour.
    assert most_refused <= (entry_max if is_power_lost else 0)


def read_all(partition: Partition) -> tuple[list[tuple[int, bytes | None, bytes | None]], int]:
    """Every record that is served, as (offset, key, value), and how many reads were refused."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset, refused = partition.log_start_offset, 0
    while offset < partition.high_watermark:
        try:
            data = partition.read(offset, bytes_max=700)
        except Refused as error:
            assert error.code == ErrorCode.CORRUPT_MESSAGE
            offset, refused = offset + 1, refused + 1
            continue
        if not len(data):
            break
        found += [(record.offset, record.key, record.value) for record in batches.unpack(data)]
        at = 0
        while at < len(data):
            header = batches.read_header(data, at)
            at, offset = at + header.size, header.next_offset
    return found, refused


def compacted(folder: Path) -> CrashFileSystem:
    """A directory that was compacted and closed cleanly."""
    driver = LogDriver(folder)
    partition = driver.create(config=COMPACT)
    for number in range(40):
        driver.append_keyed(partition, *((b"key-%d" % (number * at % 13), b"value %d" % number) for at in (1, 2, 3)))
    assert driver.compact(partition) is not None
    driver.finish(partition)
    assert driver.stop()
    driver.close()
    disk = CrashFileSystem()
    for path in sorted([driver.path, *driver.path.rglob("*")]):
        name = PATH + str(path)[len(str(driver.path)) :]
        if path.is_dir():
            disk.mkdir(name)
        else:
            disk.write(name, path.read_bytes())
    # The copy has other files than those that the stop has listed: a stop lists them as they are here.
    directory, _, _ = open_log(disk, COMPACT)
    assert directory.close()
    return disk


def test_in_a_compacted_log_only_an_offset_that_stays_inside_a_hole_changes_unnoticed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Every bit of every base offset, length and leader epoch: no checksum covers them, and there are holes around."""
    disk = compacted(tmp_path)
    whole, refused = read_all(open_log(disk.killed(), COMPACT)[1])
    holes = set(range(120)) - {offset for offset, _, _ in whole}
    assert not refused and holes
    flips = unnoticed = 0
    for path, data in sorted(disk.image().items()):
        at = 0
        while path.endswith(".log") and at < len(data):
            for byte, mask in product(range(17), (1, 2, 4, 8, 16, 32, 64, 128)):
                broken = disk.killed()
                broken.open(path).pwrite(bytes([data[at + byte] ^ mask]), at + byte)
                partition = open_log(broken, COMPACT)[1]
                found, refused = read_all(partition)
                flips += 1
                assert all(damage.first_offset <= 120 for damage in partition.damage), "a changed offset is believed"
                if refused or found == whole:
                    assert set(found) <= set(whole), "what is served beside damage is not what was written"
                    continue
                unnoticed += 1
                where = f"byte {byte} of the batch at {at} of {path} flipped by {mask:#04x}"
                assert byte < 8, f"a length, a leader epoch or a magic byte changed unnoticed: {where}"
                assert [kept[1:] for kept in whole] == [kept[1:] for kept in found], f"a record is lost: {where}"
                moved = {offset for offset, _, _ in found} - {offset for offset, _, _ in whole}
                assert moved <= holes, f"a record took the place of another: {where}"
            at += batches.read_header(data, at).size
    record_property("flips", flips)
    record_property("unnoticed, because the offset stays inside a hole", unnoticed)
    assert 0 < unnoticed < flips / 20
