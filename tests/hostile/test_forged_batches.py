"""A record may hold what looks like batches: a start after a crash takes none of it for the log's own."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.disk.file_system import Bytes, RealFile, RealFileSystem
from logmark.errors import ErrorCode
from logmark.log.group_commit import Durability
from logmark.names import TopicPartition
from logmark.testing import Broker
from logmark.wire import batches
from tests.cli.conftest import run
from tests.harness import wire
from tests.harness.node import wait_until

TOPIC = "orders"
FIRST = TopicPartition(TOPIC, 0)
LARGE = {"max.message.bytes": "20000000"}
FORGED_OFFSET = 1_500_000_000
LOG = f"{0:020d}.log"


def stored(values: list[bytes], offset: int) -> bytes:
    """A batch as a log holds it: with its offset, and with leader epoch 0, which no checksum covers."""
    made = bytearray(wire.batch(values, base_offset=offset))
    made[12:16] = bytes(4)
    return bytes(made)


FORGED = stored([b"forged"], FORGED_OFFSET)


def value_of(number: int) -> bytes:
    """A value of about 900 kB that is full of well-formed batches."""
    return b"%08d" % number + FORGED * (900_000 // len(FORGED))


def read_log(bootstrap_servers: str) -> list[tuple[int, bytes | None]]:
    """Every record that a reader is served, with its offset."""
    found: list[tuple[int, bytes | None]] = []
    with Client(bootstrap_servers) as client:
        end = client.latest([FIRST])[FIRST]
        offset = client.earliest([FIRST])[FIRST]
        while offset < end:
            fetched = client.fetch(FIRST, offset, bytes_max=4 << 20, max_wait_ms=0)
            records = [record for record in batches.unpack(fetched.records) if record.offset >= offset]
            assert records, f"nothing is served at offset {offset}, below the log end offset {end}"
            found += [(record.offset, record.value) for record in records]
            offset = records[-1].offset + 1
    return found


class Sender(threading.Thread):
    """Produces large batches one after the other until its broker dies."""

    def __init__(self, bootstrap_servers: str, first_number: int) -> None:
        super().__init__(daemon=True)
        self._bootstrap_servers = bootstrap_servers
        self.acknowledged: dict[int, bytes] = {}
        self.number = first_number

    def run(self) -> None:
        while True:
            value = value_of(self.number)
            try:
                answer = wire.produce(self._bootstrap_servers, TOPIC, wire.batch([value]))
            except (OSError, AssertionError):
                return
            assert ErrorCode.NONE == answer.error_code, answer
            self.acknowledged[answer.base_offset] = value
            self.number += 1


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_no_batch_inside_a_record_is_served_after_kill_9_in_the_middle_of_writes(durability: Durability) -> None:
    acknowledged: dict[int, bytes] = {}
    attempted = 0
    with Broker(subprocess=True, durability=durability) as broker:
        broker.create_topic(TOPIC, 1, {"segment.bytes": "8388608"})
        for turn in range(4):
            senders = [Sender(broker.bootstrap_servers, 1000 * turn + 100 * each) for each in range(2)]
            for sender in senders:
                sender.start()
            wait_until(lambda made=senders: sum(len(one.acknowledged) for one in made) >= 5, "there are some records")
            broker.kill()
            for sender in senders:
                sender.join()
                assert not acknowledged.keys() & sender.acknowledged.keys(), "an offset was given out again"
                acknowledged |= sender.acknowledged
                attempted += len(sender.acknowledged) + 1
            broker.start()

            found = read_log(broker.bootstrap_servers)

            assert list(range(len(found))) == [offset for offset, _ in found], "offsets are not dense"
            assert len(found) <= attempted
            assert all(value == value_of(int(value[:8])) for _, value in found if value), "a forged record is served"
            assert acknowledged.items() <= dict(found).items(), "an acknowledged record is lost"


TORN_BYTES_MIN = 50_000


class TornFile(RealFile):
    """A file whose process is killed when half of a large batch is written to a segment."""

    __slots__ = ()

    def pwrite(self, data: Bytes, at: int) -> None:
        if self.path.endswith(".log") and len(data) >= TORN_BYTES_MIN:
            super().pwrite(data[: len(data) // 2], at)
            os.kill(os.getpid(), signal.SIGKILL)
        super().pwrite(data, at)


class TornFileSystem(RealFileSystem):
    """Opens files whose large writes kill the process."""

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        file.__class__ = TornFile
        return file


def serve_until_torn(data_dir: str, durability: Durability, parent: Connection) -> None:
    """Run a broker that a large batch kills; it ends with its parent at the latest."""
    with Broker(data_dir=data_dir, durability=durability, files=TornFileSystem()) as broker:
        broker.create_topic(TOPIC)
        parent.send(broker.bootstrap_servers)
        with suppress(EOFError):
            parent.recv()


def kill_in_the_middle_of_a_batch(data: Path, durability: Durability, value: bytes) -> None:
    """Have a broker acknowledge two records, and kill it when half of a third one is in the segment."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve_until_torn, args=(str(data), durability, there))
    process.start()
    there.close()
    with here:
        bootstrap_servers = here.recv()
        for number in range(2):
            assert (0, number) == wire.produce(bootstrap_servers, TOPIC, wire.batch([b"%d" % number]))[:2]
        with pytest.raises((OSError, AssertionError)):
            wire.produce(bootstrap_servers, TOPIC, wire.batch([value]))
    process.join()
    assert -signal.SIGKILL == process.exitcode
    assert stored([value], 2)[100:20_000] in (data / f"{TOPIC}-0" / LOG).read_bytes(), "nothing of it was written"


@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("offset", [2, 3, FORGED_OFFSET])
def test_no_batch_inside_a_record_is_served_after_kill_9_when_half_of_the_record_is_written(
    tmp_path: Path, durability: Durability, offset: int
) -> None:
    forged = stored([b"forged"], offset)
    kill_in_the_middle_of_a_batch(tmp_path / "data", durability, b"x" * 1000 + forged + b"x" * 100_000)

    with Broker(data_dir=str(tmp_path / "data"), durability=durability) as broker:
        with Client(broker.bootstrap_servers) as client:
            assert {FIRST: 2} == client.latest([FIRST])
        assert [(0, b"0"), (1, b"1")] == read_log(broker.bootstrap_servers)
        answer = wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"next"]))
        assert (ErrorCode.NONE, 2) == answer[:2]
        broker.restart()
        assert [(0, b"0"), (1, b"1"), (2, b"next")] == read_log(broker.bootstrap_servers)
    # Whoever knows from the write-ahead log where the log ends cuts the rest; whoever does not keeps what was cut.
    kept = list((tmp_path / "data" / f"{TOPIC}-0").glob("*.cut"))
    assert len(kept) == (0 if durability == "sync" else 1)


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_no_repair_makes_a_batch_of_the_log_from_a_record_that_is_half_written(
    tmp_path: Path, durability: Durability
) -> None:
    data = tmp_path / "data"
    kill_in_the_middle_of_a_batch(data, durability, b"x" * 1000 + FORGED + b"x" * 100_000)
    if durability == "sync":
        assert 0 == run("recover", str(data)).exit_code

    repaired = run("verify", str(data), "--repair", "--yes")

    assert 0 == repaired.exit_code, repaired.error
    with Broker(data_dir=str(data)) as broker:
        assert [(0, b"0"), (1, b"1")] == read_log(broker.bootstrap_servers)


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_no_batch_inside_a_record_is_served_when_the_header_around_it_is_destroyed(
    tmp_path: Path, durability: Durability
) -> None:
    with Broker(subprocess=True, durability=durability, data_dir=str(tmp_path / "data")) as broker:
        broker.create_topic(TOPIC)
        for number in range(3):
            assert (0, number) == wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([value_of(number)]))[:2]
        broker.kill()
        log = tmp_path / "data" / f"{TOPIC}-0" / LOG
        with log.open("r+b") as file:
            # Of the last batch everything before the first forged one.
            file.seek(2 * log.stat().st_size // 3)
            file.write(bytes(61))
        broker.start()

        found = read_log(broker.bootstrap_servers)

        kept = 3 if durability == "sync" else 2
        assert [(number, value_of(number)) for number in range(kept)] == found
        answer = wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"next"]))
        assert (ErrorCode.NONE, kept) == answer[:2]
        if durability == "os":
            (cut,) = log.parent.glob("*.cut")
            assert FORGED in cut.read_bytes(), "what was cut is not kept"


def torn_batch(first_offset: int) -> bytes:
    """The first half of a batch that a kill has interrupted, full of well-formed batches."""
    batch = stored([value_of(first_offset)], first_offset)
    return batch[: len(batch) // 2]


def torn_middle(first_offset: int) -> bytes:
    """Four batches, and zeros in the place of a sector of the second one."""
    made = [bytearray(stored([b"%d" % at * 2000], first_offset + at)) for at in range(4)]
    made[1][512:1024] = bytes(512)
    return b"".join(made)


@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize(("tail", "sound"), [(torn_batch, 0), (torn_middle, 1)])
def test_what_a_crash_leaves_of_batches_that_were_never_acknowledged_is_cut(
    tmp_path: Path, durability: Durability, tail: Callable[[int], bytes], sound: int
) -> None:
    with Broker(subprocess=True, durability=durability, data_dir=str(tmp_path / "data")) as broker:
        broker.create_topic(TOPIC)
        for number in range(2):
            assert (0, number) == wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"%d" % number]))[:2]
        broker.kill()
        with (tmp_path / "data" / f"{TOPIC}-0" / LOG).open("ab") as file:
            file.write(tail(2))
        broker.start()

        # Without a write-ahead log nobody knows what was acknowledged: what is sound before the first bad one stays.
        kept = [b"0", b"1"] + ([b"0" * 2000] if sound and durability == "os" else [])
        assert list(enumerate(kept)) == read_log(broker.bootstrap_servers)
        answer = wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"next"]))
        assert (ErrorCode.NONE, len(kept)) == answer[:2]
        assert [*enumerate(kept), (len(kept), b"next")] == read_log(broker.bootstrap_servers)


@pytest.mark.parametrize("is_flushed", [False, True], ids=["in the WAL", "flushed"])
def test_a_flipped_bit_in_the_first_batch_costs_no_other_record_and_no_offset_twice(
    tmp_path: Path, is_flushed: bool
) -> None:
    with Broker(subprocess=True, durability="sync", data_dir=str(tmp_path / "data")) as broker:
        broker.create_topic(TOPIC)
        sent = [bytes(10_000)]
        assert (0, 0) == wire.produce(broker.bootstrap_servers, TOPIC, wire.batch(sent))[:2]
        for number in range(100):
            values = [b"%d-%d" % (number, each) for each in range(10)]
            assert (0, len(sent)) == wire.produce(broker.bootstrap_servers, TOPIC, wire.batch(values))[:2]
            sent += values
        if is_flushed:
            broker.restart()
            assert (0, len(sent)) == wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"last"]))[:2]
            sent.append(b"last")
        broker.kill()
        with (tmp_path / "data" / f"{TOPIC}-0" / LOG).open("r+b") as file:
            # The page of zeros behind it stays one: it must not pass for a page that a crash has lost.
            file.seek(100)
            file.write(b"\x01")
        broker.start()

        answer = wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"next"]))
        assert (ErrorCode.NONE, len(sent)) == answer[:2]
        with Client(broker.bootstrap_servers) as client:
            if is_flushed:
                # The only copy is damaged: a reader gets an error and not other bytes.
                with pytest.raises(RefusedByBroker):
                    client.fetch(FIRST, 0, max_wait_ms=0)
            else:
                (first, *_) = batches.unpack(client.fetch(FIRST, 0, max_wait_ms=0).records)
                assert (0, sent[0]) == (first.offset, first.value)
            rest = batches.unpack(client.fetch(FIRST, 1, max_wait_ms=0).records)
        assert [*sent[1:], b"next"] == [record.value for record in rest]


def flip(at: int) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[at] ^= 1

    return change


def wipe(batch: bytearray) -> None:
    batch[:61] = bytes(61)


DAMAGE = {"length": flip(10), "checksum": flip(18), "value": flip(100), "whole header": wipe}


@pytest.mark.parametrize("what", DAMAGE)
def test_no_batch_inside_a_damaged_record_takes_the_place_of_the_ones_behind_it(tmp_path: Path, what: str) -> None:
    # They have the offsets that the log gives out next, and right checksums.
    forged = b"".join(stored([b"forged"], offset) for offset in range(3, 6))
    values = [b"0", b"1", b"x" * 100 + forged, b"3", b"4", b"5", b"6"]
    log = tmp_path / "data" / f"{TOPIC}-0" / LOG
    with Broker(subprocess=True, durability="sync", data_dir=str(tmp_path / "data")) as broker:
        broker.create_topic(TOPIC)
        ends = []
        for offset, value in enumerate(values):
            if offset == len(values) - 1:
                # Everything before is flushed, and no write-ahead log has it any more.
                broker.restart()
            assert (0, offset) == wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([value]))[:2]
            ends.append(log.stat().st_size)
        broker.kill()
        data = bytearray(log.read_bytes())
        batch = data[ends[1] : ends[2]]
        DAMAGE[what](batch)
        data[ends[1] : ends[2]] = batch
        log.write_bytes(data)
        broker.start()

        served: dict[int, bytes | None] = {}
        with Client(broker.bootstrap_servers) as client:
            assert {FIRST: len(values)} == client.latest([FIRST])
            for offset in range(len(values)):
                with suppress(RefusedByBroker):
                    found = batches.unpack(client.fetch(FIRST, offset, max_wait_ms=0).records)
                    served |= {record.offset: record.value for record in found}

    assert 2 not in served
    assert served.items() <= dict(enumerate(values)).items(), "a forged record is served"
    assert {0, 1} <= served.keys(), "a sound record before the damage is not served"
    assert what == "whole header" or {3, 4, 5, 6} <= served.keys(), "a sound record behind the damage is not served"


class CountingFile(RealFile):
    """A file that counts what is read from it and from all others like it."""

    __slots__ = ()
    read_bytes = 0

    def pread(self, size: int, at: int) -> bytes:
        data = super().pread(size, at)
        CountingFile.read_bytes += len(data)
        return data


class CountingFileSystem(RealFileSystem):
    """Opens files that count."""

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        file.__class__ = CountingFile
        return file


def fake_headers(size: int) -> bytes:
    """Headers that each promise a batch almost up to the end of the data: only a checksum tells that there is none."""
    step = len(FORGED[:61])
    made = bytearray(FORGED[:61] * (size // step))
    for at in range(0, len(made) - 10 * step, step):
        made[at + 8 : at + 12] = (len(made) - 5 * step - at - 12).to_bytes(4, "big")
    return bytes(made)


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_start_reads_a_cut_batch_of_fake_headers_a_bounded_number_of_times(
    tmp_path: Path, durability: Durability
) -> None:
    with Broker(subprocess=True, durability=durability, data_dir=str(tmp_path / "data")) as broker:
        broker.create_topic(TOPIC, 1, LARGE)
        assert (0, 0) == wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"first"]))[:2]
        payload = fake_headers(500_000)
        assert (0, 1) == wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([payload]))[:2]
        broker.kill()
    log = tmp_path / "data" / f"{TOPIC}-0" / LOG
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 10)
    CountingFile.read_bytes = 0

    with Broker(data_dir=str(tmp_path / "data"), files=CountingFileSystem(sync=False)) as broker:
        read_bytes = CountingFile.read_bytes
        with Client(broker.bootstrap_servers) as client:
            assert {FIRST: 2 if durability == "sync" else 1} == client.latest([FIRST])

    assert len(payload) <= read_bytes <= 10 * len(payload)


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_start_reads_what_kill_9_has_left_of_fake_headers_a_bounded_number_of_times(
    tmp_path: Path, durability: Durability
) -> None:
    payload = fake_headers(400_000)
    # The half that is written ends behind what the headers promise.
    kill_in_the_middle_of_a_batch(tmp_path / "data", durability, payload + b"x" * 500_000)
    CountingFile.read_bytes = 0

    with Broker(data_dir=str(tmp_path / "data"), files=CountingFileSystem(sync=False)) as broker:
        read_bytes = CountingFile.read_bytes
        with Client(broker.bootstrap_servers) as client:
            assert {FIRST: 2} == client.latest([FIRST])

    assert read_bytes <= 10 * len(payload)
