"""Behind a damaged batch only true batches are believed, whatever a record's value holds, and the search is linear."""

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate

import google_crc32c
import pytest

from logmark.log.damage import CHECKS_MAX, BadBatch, Damage, DamageScan, read_header_at
from logmark.log.findings import of_damage
from logmark.log.partition import Partition
from logmark.wire import batches
from logmark.wire.batches import HEADER_BYTES
from tests.log.directory_driver import NOW_MS, LogDriver, settings

BASE = 1000
LENGTH, DELTA, CRC = range(8, 12), range(23, 27), range(17, 21)


class MemoryFile:
    """A file of batches in memory, which counts the bytes that are read of it."""

    base_offset = 0

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.bytes_read = 0

    def read(self, position: int, size: int) -> bytes:
        found = self.data[position : position + size]
        self.bytes_read += len(found)
        return found


def build(offset: int, *values: bytes) -> bytes:
    return bytes(batches.build([(None, value) for value in values], timestamp_ms=NOW_MS, base_offset=offset))


def move(batch: bytes, offset: int) -> bytes:
    return struct.pack(">q", offset) + batch[8:]


class Log:
    """A dense log: a batch of one record, the one that will be damaged, and some behind it."""

    def __init__(self, *values: bytes, behind: Sequence[int] = (1, 2, 1)) -> None:
        self.batches = [build(BASE, b"before"), build(BASE + 1, *values)]
        offset = BASE + 1 + len(values)
        for count in behind:
            self.batches.append(build(offset, *(b"behind %d" % offset for _ in range(count))))
            offset += count
        self.data = b"".join(self.batches)
        self.positions = [0, *accumulate(map(len, self.batches))]
        self.bad, self.next = self.positions[1:3]
        self.end_offset = offset

    def scan(self, data: bytes, *, known: bool = True, entries: Sequence[tuple[int, int]] = ()) -> int | None:
        """Return the position that is believed behind the bad batch."""
        found = DamageScan(
            MemoryFile(data), len(data), is_dense=True, entries=entries,
            known_offset=self.end_offset if known else None,
        ).next_batch(self.bad, expected=BASE + 1)  # fmt: skip
        return None if found is None else found[0]

    def entry(self, number: int) -> tuple[int, int]:
        """Return the index entry of a batch."""
        return batches.read_header(self.batches[number]).last_offset, self.positions[number]


def flips(log: Log, fields: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    """Yield the log with every single bit of some bytes of the bad batch changed, one at a time."""
    for at in fields:
        for bit in range(8):
            data = bytearray(log.data)
            data[log.bad + at] ^= 1 << bit
            yield f"bit {bit} of byte {at}", bytes(data)


def damages(log: Log) -> Iterator[tuple[str, bytes]]:
    """Yield the log with every bit of the header changed, every field pair, and stretches of zeros and ones."""
    yield from flips(log, range(HEADER_BYTES))
    for begin in range(0, HEADER_BYTES + 20, 3):
        for size in (4, 16, 40, 100):
            for filling in (b"\x00", b"\xff"):
                at = log.bad + begin
                stop = min(at + size, log.next)
                yield f"{size} bytes {filling!r} at {begin}", log.data[:at] + filling * (stop - at) + log.data[stop:]


@pytest.mark.parametrize("known", [True, False], ids=["with a known end", "with an unknown end"])
def test_one_flipped_bit_costs_no_neighbour(known: bool) -> None:
    log = Log(b"one", b"two" * 100, b"three")
    for what, data in flips(log, range(len(log.batches[1]))):
        assert log.next == log.scan(data, known=known), f"the batches behind the damage are lost: {what}"


def test_whatever_happens_to_a_header_only_true_batches_are_believed() -> None:
    log = Log(b"one", b"two" * 100, b"three")
    for what, data in damages(log):
        assert log.scan(data) in (log.next, None), what
        entry = log.entry(3)
        assert log.scan(data, entries=[entry]) in (log.next, entry[1]), f"an index entry is not used: {what}"


def test_two_damaged_batches_cost_what_lies_between_them_and_the_next_index_entry() -> None:
    log = Log(b"one", b"two", behind=(1, 1, 1, 1))
    data = bytearray(log.data)
    data[log.bad + 70] ^= 1
    data[log.positions[3] + 70] ^= 1

    assert log.positions[5] == log.scan(bytes(data), entries=[log.entry(3), log.entry(5)])
    assert None is log.scan(bytes(data))


def test_an_index_entry_is_believed_only_if_the_log_confirms_it() -> None:
    log = Log(b"one", b"two" + build(BASE + 2, b"forged") * 4, behind=(1, 1, 1, 1))
    data = bytearray(log.data)
    data[log.bad : log.bad + HEADER_BYTES] = bytes(HEADER_BYTES)
    offset, position = log.entry(4)
    for wrong in [(offset + 1, position), (offset, position + 1), (offset, position - 1), (offset, len(data) + 7)]:
        assert None is log.scan(bytes(data), entries=[wrong]), f"{wrong} is believed"
        assert log.positions[5] == log.scan(bytes(data), entries=[wrong, log.entry(5)])
    assert position == log.scan(bytes(data), entries=[(offset, position)])


# What a record's value can hold


def check_never_forged(log: Log) -> None:
    believed = 0
    for what, data in damages(log):
        for entries in ((), [log.entry(3)]):
            for known in (True, False):
                found = log.scan(data, known=known, entries=entries)
                assert found is None or found in log.positions, f"a batch inside a value is believed: {what}"
                believed += found == log.next
    assert believed, "no damage is survived"


@pytest.mark.parametrize("offset", range(BASE - 1, BASE + 9))
def test_a_batch_inside_a_value_is_never_believed(offset: int) -> None:
    check_never_forged(Log(b"one", build(offset, b"forged"), b"three"))


@pytest.mark.parametrize("first", range(BASE, BASE + 8))
def test_a_long_chain_inside_a_value_is_never_believed(first: int) -> None:
    chain = b"".join(build(offset, b"forged") for offset in range(first, first + 20))
    check_never_forged(Log(b"one", chain, b"three"))


def chain_to_the_end(first: int, last: int) -> bytes:
    """Return a value with a chain of batches that ends exactly where the record does.

    The last byte of a batch is the count of headers of its last record, and so is the last byte of the record itself.
    """
    chain = b"".join(build(offset, b"forged") for offset in range(first, last))
    assert chain.endswith(b"\x00")
    return chain[:-1]


@pytest.mark.parametrize("records", [2, 3, 9])
def test_a_chain_that_joins_the_next_batch_at_its_exact_offset_is_never_believed(records: int) -> None:
    for first in range(BASE + 1, BASE + 1 + records):
        values = [b"%d" % number for number in range(records - 1)]
        log = Log(*values, chain_to_the_end(first, BASE + 1 + records))
        inside = log.next - sum(len(build(offset, b"forged")) for offset in range(first, BASE + 1 + records))
        assert read_header_at(MemoryFile(log.data), inside, len(log.data)) is not None, "the chain is not in place"
        check_never_forged(log)


def test_a_chain_where_every_wrong_length_leads_is_never_believed() -> None:
    """Every bit of the length, if it is flipped, leads to a batch with the very offset that comes next."""
    records = 4
    forged = build(BASE + 1 + records, b"f")
    value = bytearray(b"x" * 1500)
    for _ in range(3):
        size = len(Log(b"1", b"2", b"3", bytes(value)).batches[1])
        start = Log(b"1", b"2", b"3", bytes(value)).batches[1].index(b"xx")
        for bit in range(7, 11):
            wrong = (size - 12) ^ (1 << bit)
            if start <= wrong + 12 < size - len(forged):
                at = wrong + 12 - start
                value[at : at + len(forged)] = forged
    log = Log(b"1", b"2", b"3", bytes(value))
    lengths = [struct.unpack_from(">i", data, log.bad + 8)[0] for _, data in flips(log, LENGTH)]
    led = [log.data[log.bad + 12 + length :][: len(forged)] for length in lengths if 0 < length < size]
    assert forged in led, "no wrong length leads into the value"
    check_never_forged(log)


def test_a_batch_that_claims_the_batches_behind_it_is_never_believed() -> None:
    """Who writes two batches in a row knows the bytes of both, and can cover the second by a batch in the first."""
    records = 3
    behind = build(BASE + 1 + records, b"known")
    # The forged batch has one record, whose value is the rest of the first batch and the whole second one.
    head = build(BASE + 1 + records, b"\x00" + behind[:-1])
    assert head.endswith(b"\x00" + behind)
    forged = head[: -len(behind)]
    first = build(BASE + 1, b"1", b"2", forged[:-1])
    log = Log(b"1", b"2", forged[:-1])
    log.batches[1:3] = [first, behind]
    log.data = b"".join(log.batches)
    log.positions = [0, *accumulate(map(len, log.batches))]
    log.next = log.positions[2]
    at = log.next - len(forged)
    found = read_header_at(MemoryFile(log.data), at, len(log.data))
    assert found is not None and batches.crc_is_right(log.data, at, found.size), "the forged batch is not sound"
    assert log.positions[3] == at + found.size
    data = bytearray(log.data)
    struct.pack_into(">i", data, log.bad + 8, at - log.bad - 12)
    assert log.scan(bytes(data)) in (None, *log.positions), "a wrong length leads to a forged batch"
    check_never_forged(log)


def test_a_header_whose_length_and_delta_are_both_wrong_names_nothing() -> None:
    records = 4
    log = Log(b"1", b"2", b"3", chain_to_the_end(BASE + 3, BASE + 1 + records))
    inside = log.batches[1].index(build(BASE + 3, b"forged"))
    # Not 1: that leads to the forged batch too, and two fields that agree are believed.
    for delta in (0, 2, 7, 2**31 - 1):
        data = bytearray(log.data)
        struct.pack_into(">i", data, log.bad + 8, inside - 12)
        struct.pack_into(">i", data, log.bad + 23, delta)
        for known in (True, False):
            found = log.scan(bytes(data), known=known)
            assert found in (None, *log.positions), f"a wrong length is believed with delta {delta}"


def make_checksums_equal(batch: bytearray, at: int, spare: int) -> None:
    """Set four spare bytes so that the checksum of a batch is right up to a position too; CRC-32C is linear."""

    def difference(value: int) -> int:
        struct.pack_into(">I", batch, spare, value)
        return int(google_crc32c.value(bytes(batch[21:at])) ^ google_crc32c.value(bytes(batch[21:])))

    target, chosen = difference(0), 0
    rows = [(difference(1 << bit) ^ target, 1 << bit) for bit in range(32)]
    for bit in reversed(range(32)):
        pivot = next((row for row in rows if row[0] >> bit & 1), None)
        if pivot is not None:
            others = [row for row in rows if row != pivot]
            rows = [(row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> bit & 1 else row for row in others]
            if target >> bit & 1:
                target, chosen = target ^ pivot[0], chosen ^ pivot[1]
    assert not target and not difference(chosen)
    struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))


def test_a_value_that_makes_its_checksum_right_twice_makes_nobody_believe_it() -> None:
    """CRC-32C is no signature: the writer of a batch can make it right for a part of the batch too."""
    forged = build(BASE + 3, b"forged")
    log = Log(b"1", b"spare" + b"x" * 50 + forged[:-1], behind=())
    bad = bytearray(log.batches[1])
    at = len(bad) - len(forged)
    make_checksums_equal(bad, at, bad.index(b"spare"))
    assert bad.endswith(forged) and batches.crc_is_right(bad, 0, len(bad)), "the batch is not as it was meant"
    log.batches[1] = bytes(bad)
    log.data = b"".join(log.batches)
    data = bytearray(log.data)
    struct.pack_into(">i", data, log.bad + 8, at - 12)

    assert None is log.scan(bytes(data), known=False), "a wrong length leads to a forged batch"


# The work


def fake_headers(size: int, offset: int) -> bytes:
    """Return bytes that are nothing but headers, each of which claims all that follows it."""
    header = build(offset, b"")[:HEADER_BYTES]
    count = size // HEADER_BYTES
    return b"".join(
        header[:8] + struct.pack(">i", (count - number) * HEADER_BYTES) + header[12:] for number in range(count)
    )


@pytest.mark.parametrize("field", [LENGTH, CRC, DELTA, range(8), range(16, 17)], ids=str)
def test_sixteen_megabytes_of_fake_headers_are_searched_in_linear_work(field: range) -> None:
    for fakes in (fake_headers(16 << 20, BASE + 3), fake_headers(16 << 20, BASE + 2)):
        log = Log(b"1", fakes)
        data = bytearray(log.data)
        data[log.bad + field[-1]] ^= 1
        for is_dense in (True, False):
            file = MemoryFile(bytes(data))
            scan = DamageScan(file, len(data), is_dense=is_dense)

            found = scan.next_batch(log.bad, expected=BASE + 1)

            assert found is None or found[0] in log.positions
            assert found is not None or not is_dense, "the batches behind the damage are lost"
            work = file.bytes_read / len(data)
            assert work <= CHECKS_MAX + 0.1, f"{work:.1f} times the segment was read, so the work is not linear"


def test_a_segment_full_of_damage_is_searched_in_linear_work() -> None:
    """Every second batch is bad, and every batch has its index entry."""
    offsets = range(BASE, BASE + 2000)
    built = [build(offset, b"value" * 20) for offset in offsets]
    positions = [0, *accumulate(map(len, built))]
    data = bytearray(b"".join(built))
    for position in positions[:-1:2]:
        data[position + 80] ^= 1
    entries = list(zip(offsets, positions, strict=False))
    file = MemoryFile(bytes(data))
    for number in range(0, 2000, 2):
        scan = DamageScan(file, len(data), is_dense=True, entries=entries[number + 1 :])
        found = scan.next_batch(positions[number], expected=BASE + number)
        assert found is not None and found[0] == positions[number + 1]
    # Headers and searches come to the checksums.
    assert file.bytes_read <= (CHECKS_MAX + 2) * len(data)


# Logs with holes


def test_in_a_log_with_holes_a_batch_inside_a_value_is_not_believed_where_the_length_tells() -> None:
    log = Log(b"one", build(BASE + 5, b"forged"), b"three")
    # A hole: what follows has later offsets.
    moved = [move(batch, batches.read_header(batch).base_offset + 50) for batch in log.batches[2:]]
    data = b"".join([*log.batches[:2], *moved])
    for field in (range(18, 22), CRC, range(40, 44), range(80, 90)):
        for at in field:
            bad = bytearray(data)
            bad[log.bad + at] ^= 1
            scan = DamageScan(MemoryFile(bytes(bad)), len(bad), is_dense=False)
            found = scan.next_batch(log.bad, expected=BASE + 1)
            assert found is not None and found[0] == log.next, f"byte {at}"
    for bit in range(31):
        bad = bytearray(data)
        struct.pack_into(">i", bad, log.bad + 8, (len(log.batches[1]) - 12) ^ (1 << bit))
        found = DamageScan(MemoryFile(bytes(bad)), len(bad), is_dense=False).next_batch(log.bad, expected=BASE + 1)
        assert found is None or found[0] in log.positions, f"bit {bit} of the length"


def test_the_description_of_a_bad_batch_says_where_the_search_begins() -> None:
    assert (5, 7) == (BadBatch(5, 0, "?").behind, BadBatch(5, 0, "?", behind=7).behind)


# Through a partition


INDEXED = settings(index_interval_bytes=100)
CHAIN = chain_to_the_end(2, 5)
a_byte_of_a_batch = pytest.mark.parametrize(
    "at", [11, 26, 20, 16, 70], ids=["length", "delta", "checksum", "magic", "record"]
)


def fill(driver: LogDriver) -> Partition:
    """Append a batch whose last value holds a chain of batches, and others around it."""
    partition = driver.create(config=INDEXED)
    for values in ([b"0"], [b"1", b"2", b"3", CHAIN], [b"5"], [b"6"]):
        driver.append(partition, *values)
    return partition


def flip(driver: LogDriver, at: int) -> None:
    """Change a bit of a byte of the second batch."""
    path = driver.folder() / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[batches.read_header(data).size + at] ^= 1
    path.write_bytes(data)


def read_each(partition: Partition) -> dict[int, bytes | None]:
    """Return what is served of each offset; any other is refused as damaged."""
    served = {}
    for offset in range(partition.high_watermark):
        try:
            served.update((one.offset, one.value) for one in batches.unpack(partition.read(offset, bytes_max=1)))
        except Exception as error:  # noqa: BLE001
            assert "damaged" in str(error)
    return served


@pytest.mark.parametrize("clean", [True, False])
@a_byte_of_a_batch
def test_a_partition_serves_the_neighbours_and_never_what_a_value_holds(
    driver: LogDriver, clean: bool, at: int,
) -> None:
    driver.finish(fill(driver))
    driver.stop(clean=clean)
    flip(driver, at)

    again = driver.reopen(config=INDEXED)

    assert {0: b"0", 5: b"5", 6: b"6"} == read_each(again)
    assert 7 == driver.append(again, b"7").base_offset


@a_byte_of_a_batch
def test_after_an_unclean_stop_the_wal_restores_the_acknowledged_records_exactly(driver: LogDriver, at: int) -> None:
    partition = fill(driver)
    driver.stop(clean=False)
    assert 0 == partition.recovery_point, "the batch is below the recovery point, so the WAL leaves it alone"
    flip(driver, at)

    again = driver.reopen(config=INDEXED)

    assert {0: b"0", 1: b"1", 2: b"2", 3: b"3", 4: CHAIN, 5: b"5", 6: b"6"} == read_each(again)
    assert [] == again.damage
    assert 7 == driver.append(again, b"7").base_offset


def wipe(driver: LogDriver, begin: int, end: int) -> None:
    """Write zeros over some bytes of the first segment, as a disk may return a page that it has lost."""
    path = driver.folder() / "00000000000000000000.log"
    data = path.read_bytes()
    path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])


@pytest.mark.parametrize("restarts", [0, 1], ids=["of this run", "of a recovery"])
def test_a_lost_page_costs_no_more_after_a_crash_than_an_index_interval(driver: LogDriver, restarts: int) -> None:
    partition = driver.create(config=INDEXED)
    for number in range(20):
        driver.append(partition, b"%d" % number)
    driver.finish(partition)
    for _ in range(restarts):
        # The start rebuilds the index, and the next one needs it.
        partition = driver.reopen(clean=False, config=INDEXED)
    driver.stop(clean=False)
    # The whole batch, header included: only the index leads past it.
    size = batches.read_header((driver.folder() / "00000000000000000000.log").read_bytes()).size
    wipe(driver, 5 * size, 6 * size)

    again = driver.reopen(config=INDEXED)

    lost = set(range(20)) - read_each(again).keys()
    assert 5 in lost and lost <= {5, 6}, "more is lost than up to the next entry of the index"
    assert 20 == again.log_end_offset
    (damage,) = again.damage
    assert "what follows them is" in str(damage)


@pytest.mark.parametrize("first", [4, 2, 0], ids=["a batch", "several batches", "all that was flushed"])
def test_damage_below_the_recovery_point_costs_nothing_that_the_wal_has(driver: LogDriver, first: int) -> None:
    partition = driver.create()
    for number in range(10):
        driver.append(partition, b"%d" % number)
        if number == 4:
            driver.finish(partition)
    driver.stop(clean=False)
    path = driver.folder() / "00000000000000000000.log"
    assert not path.with_suffix(".index").read_bytes(), "no entry of the index leads past the damage"
    size = batches.read_header(path.read_bytes()).size
    wipe(driver, first * size, 5 * size)

    for clean in (False, True, False):
        again = driver.reopen(clean=clean)

        assert {number: b"%d" % number for number in (*range(first), *range(5, 10))} == read_each(again)
        assert 10 == again.log_end_offset


def test_entries_of_records_that_a_recovery_has_cut_do_not_stay_in_the_index(driver: LogDriver) -> None:
    partition = driver.create(config=INDEXED)
    for number in range(10):
        driver.append(partition, b"%d" % number)
    driver.finish(partition)
    index = driver.folder() / "00000000000000000000.index"
    true_entries = index.read_bytes()
    driver.stop(clean=False)
    index.write_bytes(true_entries + struct.pack(">ii", 99, 9999))

    driver.reopen(config=INDEXED)

    assert true_entries == index.read_bytes()


def test_after_a_clean_stop_entries_are_added_to_the_index_that_is_there(driver: LogDriver) -> None:
    partition = driver.create(config=INDEXED)
    for number in range(10):
        driver.append(partition, b"%d" % number)
    partition = driver.reopen(config=INDEXED)
    index = driver.folder() / "00000000000000000000.index"
    before, inode = index.read_bytes(), index.stat().st_ino
    for number in range(10, 15):
        driver.append(partition, b"%d" % number)
    driver.finish(partition)

    assert before == index.read_bytes()[: len(before)] < index.read_bytes()
    assert index.read_bytes() == bytes(partition.segments[-1].offset_index.data)
    assert inode == index.stat().st_ino


def test_a_full_disk_costs_only_the_saved_index_and_the_next_flush_saves_all_of_it(driver: LogDriver) -> None:
    partition = driver.create(config=INDEXED)
    index = driver.folder() / "00000000000000000000.index"
    driver.append(partition, b"0")
    for number in range(1, 5):
        driver.append(partition, b"%d" % number)
    driver.finish(partition)
    saved = index.read_bytes()
    assert saved
    index.unlink()
    for number in range(5, 9):
        driver.append(partition, b"%d" % number)
    driver.finish(partition)
    assert not index.exists(), "the entries were to be added to the file, which is not there"
    driver.append(partition, b"9")
    driver.append(partition, b"10")
    driver.finish(partition)

    assert saved == index.read_bytes()[: len(saved)] < index.read_bytes()
    assert partition.failure is None


def test_damage_up_to_the_end_of_a_segment_does_not_say_that_something_follows() -> None:
    damage = Damage(8, 92, 3, None, "the CRC of the batch is wrong", path="t-0/0.log")

    assert str(damage).endswith("The bytes are kept and not served, up to the end of the segment.")
    assert "behind" not in of_damage("t-0/0.log", damage).meaning
