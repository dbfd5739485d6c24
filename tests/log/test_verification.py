"""A verification finds every flipped byte of a closed log, and a repair of it loses nothing that was not hit."""

import asyncio
import json
import random
import shutil
from pathlib import Path

import pytest

from logmark import properties
from logmark.broker.recovery import recover
from logmark.clock import ManualClock
from logmark.disk.file_system import RealFileSystem
from logmark.disk.read_only import ReadOnlyFileSystem
from logmark.errors import ErrorCode, Refused, UserError
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, Entry, text_of_id
from logmark.log.damage import Damage
from logmark.log.directory import DataDirectory
from logmark.log.disk_worker import Done, Job
from logmark.log.findings import FindingKind
from logmark.log.group_commit import GroupCommit
from logmark.log.producers import Producers
from logmark.log.repair import Repair
from logmark.log.scanner import Scanner, Stretch
from logmark.log.segment import SNAPSHOT, file_name
from logmark.log.verification import Verification, Verified
from logmark.log.wal.entries import partition_key
from logmark.log.wal.log import FOLDER as WAL
from logmark.log.wal.log import WriteAheadLog
from logmark.log.wal.recovery_points import RecoveryPoint
from logmark.wire import batches
from tests.crash.crash_file_system import CrashFileSystem
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, TOPIC_ID, LogDriver, settings

SEED = 20_240_917
BATCHES = 60
# What nobody can find by looking: the one field of a transaction index that says nothing of the log but when it was
# written. Kafka reads it to end a search sooner; our own reader does not believe it.
LAST_STABLE_OFFSET = range(26, 34)
ABORTED_ENTRY_BYTES = 34


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed directory: every codec, several segments, idempotent and transactional producers, aborts."""
    driver = LogDriver(tmp_path_factory.mktemp("verification"))
    partition = driver.create(config=settings(segment_bytes=2500, index_interval_bytes=300))
    sequences = [0, 0]
    for turn in range(BATCHES):
        who = turn % 3
        values = [b"click %d %d " % (turn, number) * 8 for number in range(turn % 4 + 1)]
        built = batches.build(
            [(b"user-%d" % turn, value if number else None) for number, value in enumerate(values)],
            timestamp_ms=[NOW_MS + turn * 10 + number for number in range(len(values))],
            codec=turn % 5,
            producer_id=PRODUCER_ID + who if who < 2 else -1,
            producer_epoch=0 if who < 2 else -1,
            base_sequence=sequences[who] if who < 2 else -1,
            attributes=batches.TRANSACTIONAL_BIT if who == 1 else 0,
        )
        partition.append(batches.own(built), now_ms=NOW_MS)
        if who < 2:
            sequences[who] += len(values)
        if who == 1 and turn % 2:
            partition.append_marker(PRODUCER_ID + 1, 0, commit=turn % 4 == 1, now_ms=NOW_MS + turn * 10)
        driver.settle(partition)
    driver.stop()
    driver.loop.close()
    topic = {"name": "clicks", "id": text_of_id(TOPIC_ID), "partitions": 1, "overrides": {}}
    document = {"version": 1, "next_producer_id": PRODUCER_ID + 2, "topics": [topic]}
    (driver.path / "logmark.catalog").write_text(json.dumps(document))
    return driver.path


def verified(path: Path) -> Verified:
    return Verification(str(path), ReadOnlyFileSystem()).run()


def records(path: Path) -> dict[int, bytes | None]:
    """Every record of the sound batches."""
    found: dict[int, bytes | None] = {}
    logs = sorted((path / "clicks-0").glob("*.log"))
    for log, following in zip(logs, [*logs[1:], None], strict=True):
        file = RealFileSystem(sync=False).open(str(log))
        next_base = None if following is None else int(following.stem)
        for part in Scanner(file, file.size(), base_offset=int(log.stem), is_dense=True, next_base=next_base):
            if isinstance(part, Stretch):
                found.update((one.offset, one.value) for one in batches.unpack(part.data))
        file.close()
    return found


def flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def is_undetectable(path: Path, at: int) -> bool:
    return path.suffix == ".txnindex" and at % ABORTED_ENTRY_BYTES in LAST_STABLE_OFFSET


def all_bytes(path: Path) -> list[tuple[Path, int]]:
    files = [file for file in sorted((path / "clicks-0").iterdir()) if file.name[:20].isdigit()]
    return [(file, at) for file in files for at in range(file.stat().st_size) if not is_undetectable(file, at)]


def test_files_that_wait_for_their_removal_are_nothing_to_report(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path / "data")
    folder = tmp_path / "data" / "clicks-0"
    oldest = min(folder.glob("*.log"))
    shutil.copy(oldest, f"{oldest}.deleted")
    assert [] == verified(tmp_path / "data").found

    shutil.copy(oldest, f"{oldest}.cleaned")

    assert [FindingKind.NOTE] == [finding.kind for finding in verified(tmp_path / "data").found]


def test_the_directory_is_found_to_be_whole(written: Path) -> None:
    found = verified(written)

    assert [] == found.findings
    assert found.is_ours
    assert found.segments > 3
    assert list((written / "clicks-0").glob("*.txnindex"))


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.soak)])
def test_every_flipped_byte_is_found(written: Path, tmp_path: Path, count: int) -> None:
    data = Path(shutil.copytree(written, tmp_path / "data"))
    chosen = random.Random(SEED)
    positions = all_bytes(data)
    for path, at in chosen.sample(positions, min(count, len(positions))):
        bit = chosen.randrange(8)
        right = path.read_bytes()
        flip(path, at, bit)
        found = verified(data).findings
        assert found, f"bit {bit} of byte {at} of {path.name} was flipped, and nobody saw"
        path.write_bytes(right)
    assert [] == verified(data).findings


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_repair_of_a_flipped_byte_loses_its_batch_at_most(written: Path, tmp_path: Path, count: int) -> None:
    chosen = random.Random(SEED)
    whole = records(written)
    files = RealFileSystem(sync=False)
    positions = all_bytes(written)
    for number, (path, at) in enumerate(chosen.sample(positions, min(count, len(positions)))):
        data = Path(shutil.copytree(written, tmp_path / str(number)))
        flip(data / "clicks-0" / path.name, at, chosen.randrange(8))
        found = verified(data)
        ranges = [
            range(finding.first_offset, finding.next_offset or 0)
            for finding in found.findings
            if finding.kind is FindingKind.RECORDS and finding.first_offset is not None
        ]
        assert sum(map(len, ranges)) <= 4, f"one batch, not more: {ranges}"
        lost = {offset for each in ranges for offset in each}
        Repair(found, files).apply()

        where = f"byte {at} of {path.name}"
        assert [] == verified(data).findings, where
        assert {offset: value for offset, value in whole.items() if offset not in lost} == records(data), where
        shutil.rmtree(data)


def spoil(folder: Path, chosen: random.Random) -> None:
    """Does something to one of the files of a log that disks and people do."""
    files = [file for file in sorted(folder.iterdir()) if file.name[:20].isdigit() and file.stat().st_size]
    path = chosen.choice(files)
    content = bytearray(path.read_bytes())
    at = chosen.randrange(len(content))
    match chosen.randrange(5):
        case 0:
            content[at] ^= 1 << chosen.randrange(8)
        case 1:
            size = chosen.randrange(1, 300)
            content[at : at + size] = bytes(len(content[at : at + size]))
        case 2:
            size = chosen.randrange(1, 300)
            content[at : at + size] = chosen.randbytes(len(content[at : at + size]))
        case 3:
            del content[at:]
        case 4:
            if path.suffix != ".log":
                path.unlink()
                return
            del content[at : at + chosen.randrange(1, 300)]
    path.write_bytes(content)


@pytest.mark.parametrize("count", [25, pytest.param(600, marks=pytest.mark.soak)])
def test_whatever_is_done_to_a_log_is_found_and_repaired_without_losing_more(
    written: Path, tmp_path: Path, count: int
) -> None:
    whole = records(written)
    files = RealFileSystem(sync=False)
    for seed in range(count):
        chosen = random.Random(seed)
        data = Path(shutil.copytree(written, tmp_path / str(seed)))
        for _ in range(chosen.randrange(1, 5)):
            spoil(data / "clicks-0", chosen)
        found = verified(data)
        sound = records(data)
        Repair(found, files).apply()
        again = Repair(verified(data), files)
        assert not again.losses, f"seed {seed}"
        again.apply()  # what was hidden by the damage

        assert [] == verified(data).findings, f"seed {seed}"
        left = records(data)
        assert sound.items() <= left.items() <= whole.items(), f"seed {seed}"
        shutil.rmtree(data)


def test_a_scanner_goes_on_behind_any_damage_and_through_a_whole_file_of_it(tmp_path: Path) -> None:
    log = tmp_path / "00000000000000000000.log"
    chosen = random.Random(SEED)
    good = b"".join(
        bytes(batches.build([(b"k", b"v" * 100)], timestamp_ms=NOW_MS, base_offset=offset)) for offset in range(3)
    )
    for junk in (bytes(5000), chosen.randbytes(5000), b"\x00" * 12 + b"\x00\x00\x00\x00\x02" * 900, good[:70]):
        log.write_bytes(good + junk)
        file = RealFileSystem(sync=False).open(str(log))
        parts = list(Scanner(file, file.size(), base_offset=0, is_dense=True))
        file.close()
        assert [Stretch, Damage] == [type(part) for part in parts]
        assert (len(good), len(junk), 3, None) == parts[1][:4]


@pytest.mark.parametrize("at", [11, 26, 20, 16, 70], ids=["length", "delta", "checksum", "magic", "record"])
def test_a_repair_takes_no_batch_out_of_a_value(tmp_path: Path, at: int) -> None:
    driver = LogDriver(tmp_path)
    partition = driver.create(config=settings(index_interval_bytes=100))
    chain = b"".join(
        bytes(batches.build([(None, b"forged")], timestamp_ms=NOW_MS, base_offset=offset)) for offset in range(2, 5)
    )
    # The last byte of the chain is the last byte of the record, its count of headers.
    for values in ([b"0"], [b"1", b"2", b"3", chain[:-1]], [b"5"], [b"6"]):
        driver.append(partition, *values)
    position = batches.read_header(partition.read(0, bytes_max=1)).size
    driver.stop()
    driver.loop.close()
    log = driver.path / "clicks-0" / "00000000000000000000.log"
    flip(log, position + at, 0)
    files = RealFileSystem(sync=False)

    Repair(verified(driver.path), files).apply()

    kept = records(driver.path)
    assert b"forged" not in kept.values(), "a repair made a batch of the log from a record's value"
    assert {0: b"0", 5: b"5", 6: b"6"}.items() <= kept.items(), "a repair lost a neighbour of the damage"


# Power losses


DATA = "/data"


def on_a_disk(source: Path) -> CrashFileSystem:
    """A directory's files on a disk that has synced them all."""
    disk = CrashFileSystem()
    disk.mkdir(DATA)
    for path in sorted(source.rglob("*")):
        target = f"{DATA}/{path.relative_to(source)}"
        if path.is_dir():
            disk.mkdir(target)
        else:
            disk.write(target, path.read_bytes())
    for folder in (f"{DATA}/clicks-0", DATA, "/"):
        disk.sync_directory(folder)
    return disk


def served(disk: CrashFileSystem) -> dict[int, bytes | None]:
    """What a broker serves that starts on a disk, to a reader who passes every offset that is refused."""
    loop = asyncio.new_event_loop()
    committer = GroupCommit(loop, durability="sync")
    directory = DataDirectory.open(DATA, files=disk, committer=committer, clock=ManualClock(NOW_MS))
    partition = directory.open_partition("clicks", 0, TOPIC_ID, settings())
    found: dict[int, bytes | None] = {}
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        try:
            data = partition.read(offset, bytes_max=1 << 20)
        except Refused as refused:
            assert ErrorCode.CORRUPT_MESSAGE == refused.code
            offset += 1
            continue
        found.update((one.offset, one.value) for one in batches.unpack(data) if one.offset >= offset)
        at = 0
        while at < len(data):
            header = batches.read_header(data, at)
            offset, at = header.next_offset, at + header.size
    directory.close(clean=False)
    committer.close()
    loop.close()
    return found


def test_a_power_loss_at_any_moment_of_a_repair_leaves_every_sound_record(written: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(written, tmp_path / "data"))
    whole = records(data)
    first, second, *_, last = sorted((data / "clicks-0").glob("*.log"))
    flip(first, 40, 0)
    flip(second, 3, 1)  # an offset, which is put right
    for suffix in (".index", ".txnindex"):
        flip(last.with_suffix(suffix), 9, 2)
    disk = on_a_disk(data)
    found = Verification(DATA, disk).run()
    lost = {
        offset
        for finding in found.findings
        if finding.kind is FindingKind.RECORDS
        for offset in range(finding.first_offset or 0, finding.next_offset or 0)
    }
    assert lost
    moments: list[CrashFileSystem] = []
    disk.before_change = lambda: moments.append(disk.killed())
    Repair(found, disk).apply()
    disk.before_change = lambda: None
    moments.append(disk.killed())

    kept = {offset: value for offset, value in whole.items() if offset not in lost}
    # Before its head is right a batch is whole and not served.
    may_wait = set(range(int(second.stem), int(second.stem) + 4))
    states = set()
    for moment in moments:
        for loss in moment.power_losses():
            after = moment.after(loss)
            image = frozenset(after.image().items())
            if image in states:
                continue
            states.add(image)
            again = Verification(DATA, after).run()
            Repair(again, after).apply()
            assert [] == Verification(DATA, after).run().findings, loss
            assert kept == served(after), loss
            shown = served(moment.after(loss))
            assert shown.items() <= kept.items(), loss
            assert kept.keys() - shown.keys() <= may_wait, loss
    assert len(states) > 50, len(states)


# After a crash, with a write-ahead log

CRASHED = "/var/data"


class InlineWorker:
    """Runs jobs without a thread, so that every run of a test does the same: at once, or when it is to finish."""

    def __init__(self, *, is_held: bool) -> None:
        self._is_held = is_held
        self._waiting: list[tuple[Job, Done]] = []

    def run(self, job: Job, done: Done) -> None:
        self._waiting.append((job, done))
        if not self._is_held:
            self.finish()

    def finish(self) -> None:
        while self._waiting:
            job, done = self._waiting.pop(0)
            for _ in job:
                pass
            done(None)

    def close(self) -> None:
        self.finish()


@pytest.fixture(scope="module")
def crashed() -> tuple[CrashFileSystem, int]:
    """A disk on which a broker was killed, and how many records it had acknowledged; some of them were flushed."""
    disk, loop = CrashFileSystem(), asyncio.new_event_loop()
    # Entries so small that there are several of them.
    committer = GroupCommit(
        loop, worker=lambda name: InlineWorker(is_held=name == "logmark-flush"), entry_bytes_max=4096
    )
    directory = DataDirectory.open(CRASHED, files=disk, committer=committer, clock=ManualClock(NOW_MS))
    topics = Catalog(None)
    topics.adopt([Entry(name="clicks", id=TOPIC_ID, partitions=1)], PRODUCER_ID + 2)
    directory.write(CATALOG, topics.encode())
    partition = directory.create_partition(
        "clicks", 0, TOPIC_ID, settings(segment_bytes=2500, index_interval_bytes=300)
    )
    records = 0
    for turn in range(40):
        built = batches.build(
            [(b"user", b"click %d " % turn * 12)] * (turn % 3 + 1),
            timestamp_ms=NOW_MS + turn,
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=records,
            attributes=batches.TRANSACTIONAL_BIT,
        )
        partition.append(batches.own(built), now_ms=NOW_MS)
        records += turn % 3 + 1
        if turn == 15:
            loop.run_until_complete(asyncio.sleep(0))
            committer.flusher.mark(partition)
            committer.flusher.settle()
    partition.append_marker(PRODUCER_ID, 0, commit=False, now_ms=NOW_MS + 40)
    loop.run_until_complete(asyncio.sleep(0))
    assert partition.high_watermark == partition.log_end_offset == records + 1
    assert len(partition.segments) > 3
    left = disk.killed()
    directory.close(clean=False)
    loop.close()
    return left, records + 1


def crash_states(disk: CrashFileSystem, count: int) -> list[tuple[str, CrashFileSystem]]:
    """States in which a power loss may leave the disk: one of each kind, and others by chance."""
    chosen = random.Random(SEED)
    losses = list(disk.power_losses())
    losses = [*losses[:4], *chosen.sample(losses[4:], min(count, len(losses) - 4))]
    losses += [disk.any_power_loss(chosen) for _ in range(count)]
    return [("killed", disk.killed()), *((loss.name, disk.after(loss)) for loss in losses)]


def test_whatever_a_power_loss_leaves_a_verification_sees_what_the_recovery_makes_of_it(
    crashed: tuple[CrashFileSystem, int],
) -> None:
    left, acknowledged = crashed
    for state, disk in crash_states(left, 30):
        before = disk.image()
        found = Verification(CRASHED, disk).run()
        assert [] == [str(one) for one in found.findings], f"{state}: a crash alone is no damage"
        assert acknowledged == found.partitions[0].log_end_offset, f"{state}: an acknowledged record is not seen"
        assert any(one.path == WAL for one in found.notes), state
        assert before == disk.image(), f"{state}: a verification changes nothing"

        done = recover(CRASHED, files=disk, clock=ManualClock(NOW_MS))
        assert ((), ()) == (tuple(done.damage), tuple(done.damaged_entries)), state
        cut = {(str(one.path), one.problem) for one in found.notes if " cuts " in one.problem}
        assert cut == {(one.path, f"a recovery cuts {one.size_bytes} bytes from byte {one.position} on")
                       for one in done.cuts}, f"{state}: what was announced is what was cut"  # fmt: skip
        after = Verification(CRASHED, disk).run()
        assert ([], []) == ([str(one) for one in after.findings], [str(one) for one in after.notes]), state
        assert acknowledged == after.partitions[0].log_end_offset, state


def test_a_repair_refuses_what_was_not_recovered(crashed: tuple[CrashFileSystem, int]) -> None:
    disk = crashed[0].killed()

    with pytest.raises(UserError, match="must not go before its recovery"):
        Repair(Verification(CRASHED, disk).run(), disk)


def test_what_rots_in_a_crashed_directory_is_found(crashed: tuple[CrashFileSystem, int]) -> None:
    left, _ = crashed
    segments = [name for name in left.listdir(f"{CRASHED}/clicks-0") if name.endswith(".log")]
    files = [f"clicks-0/{segments[0]}", f"{WAL}/recovery-points"]
    for name in files:
        content = left.read(f"{CRASHED}/{name}")
        for at in range(0, len(content), max(len(content) // 40, 1)):
            disk = left.killed()
            disk.write(f"{CRASHED}/{name}", content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            assert Verification(CRASHED, disk).run().findings, f"byte {at} of {name} was flipped, and nobody saw"


def test_a_snapshot_of_records_that_were_never_acknowledged_is_no_damage(crashed: tuple[CrashFileSystem, int]) -> None:
    disk, acknowledged = crashed[0].killed(), crashed[1]
    snapshot = f"{CRASHED}/clicks-0/{file_name(acknowledged + 5, SNAPSHOT)}"
    disk.write(snapshot, Producers().encode())

    assert [] == Verification(CRASHED, disk).run().findings
    recover(CRASHED, files=disk, clock=ManualClock(NOW_MS))
    assert not disk.exists(snapshot)


def test_what_rots_at_the_flushed_end_of_a_log_is_found_and_not_taken_for_a_torn_tail(
    crashed: tuple[CrashFileSystem, int],
) -> None:
    disk, acknowledged = crashed[0].killed(), crashed[1]
    recover(CRASHED, files=disk, clock=ManualClock(NOW_MS))
    disk.remove(f"{CRASHED}/.kafka_cleanshutdown")
    disk.remove(f"{CRASHED}/recovery-point-offset-checkpoint")
    disk.remove(f"{CRASHED}/replication-offset-checkpoint")
    names = disk.listdir(f"{CRASHED}/clicks-0")
    for name in names:
        if name.endswith(".snapshot"):
            disk.remove(f"{CRASHED}/clicks-0/{name}")
    last = max(name for name in names if name.endswith(".log"))
    content = disk.read(f"{CRASHED}/clicks-0/{last}")
    disk.write(f"{CRASHED}/clicks-0/{last}", content[:-1] + bytes([content[-1] ^ 1]))
    assert [] == Verification(CRASHED, disk).run().findings, "without a write-ahead log it may be a torn tail"
    point = RecoveryPoint(acknowledged, int(last[:20]), len(content))
    meta = properties.parse(disk.read(f"{CRASHED}/meta.properties").decode())
    wal = WriteAheadLog(CRASHED, checkpoints.id_bytes(meta["directory.id"]), disk)
    wal.create({partition_key(TOPIC_ID, 0): point})

    (found,) = Verification(CRASHED, disk).run().findings

    assert (FindingKind.RECORDS, acknowledged) == (found.kind, found.next_offset)


def test_an_entry_that_rots_is_found_and_named(crashed: tuple[CrashFileSystem, int]) -> None:
    left, _ = crashed
    name = f"{CRASHED}/{WAL}/0001.wal"
    content = left.read(name)
    at = content.index(b"click 20 ")
    disk = left.killed()
    disk.write(name, content[:at] + b"X" + content[at + 1 :])

    found = Verification(CRASHED, disk).run().findings

    assert ["cannot be read" in one.problem for one in found] == [True], "the segment still has its records"
    assert (FindingKind.RECORDS, WAL) == (found[0].kind, found[0].path)


@pytest.mark.parametrize("start", ["killed", "nothing unsynced kept"])
def test_a_power_loss_at_any_moment_of_a_recovery_is_put_right_by_the_next_one(
    crashed: tuple[CrashFileSystem, int], start: str
) -> None:
    left, acknowledged = crashed
    first = left.killed() if start == "killed" else left.after(next(left.power_losses()))
    chosen = random.Random(SEED)
    moments: list[CrashFileSystem] = []
    running = first.killed()
    running.before_change = lambda: moments.append(running.killed())
    recover(CRASHED, files=running, clock=ManualClock(NOW_MS))
    assert len(moments) > 20
    for at, moment in enumerate(moments):
        for loss in (*list(moment.power_losses())[:2], moment.any_power_loss(chosen)):
            disk = moment.after(loss)
            state = f"power lost before change {at} of the recovery: {loss.name}"
            found = Verification(CRASHED, disk).run()
            assert [] == [str(one) for one in found.findings], state
            assert acknowledged == found.partitions[0].log_end_offset, state
            recover(CRASHED, files=disk, clock=ManualClock(NOW_MS))
            after = Verification(CRASHED, disk).run()
            assert ([], False) == ([str(one) for one in after.findings], after.has_wal), state
            assert after.is_clean, state


@pytest.mark.parametrize("lost", ["folder", "segments"])
def test_a_log_that_was_taken_away_is_found_by_what_the_checkpoints_say(driver: LogDriver, lost: str) -> None:
    partition = driver.create()
    for number in range(5):
        driver.append(partition, b"%d" % number)
    assert driver.stop()
    if lost == "folder":
        shutil.rmtree(driver.folder())
    else:
        for path in driver.folder().glob("0*"):
            path.unlink()

    (finding,) = [one for one in verified(driver.path).found if one.kind is FindingKind.RECORDS]

    assert ("clicks-0", 0, 5) == (finding.path, finding.first_offset, finding.next_offset)
