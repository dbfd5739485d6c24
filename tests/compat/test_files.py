"""Apache's DumpLogSegments reads what we wrote and finds nothing wrong."""

import re
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from logmark.log.partition import Partition
from logmark.testing import Broker
from logmark.wire import batches
from tests.cli.conftest import run
from tests.compat import dumped
from tests.compat.clients import CLIENTS, CODECS, Record
from tests.harness.brokers import BrokerUnderTest
from tests.harness.gateway import call_tool
from tests.harness.restartable_broker import OUR_SETTINGS
from tests.harness.tools import DUMP_LOG
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, LogDriver, settings

pytestmark = pytest.mark.kafka

COMPLAINTS = dumped.COMPLAINTS
RECORDS_PER_CALL = 40


def record_of(number: int) -> Record:
    """Keys and none, values, empty ones and tombstones, headers and none."""
    value = None if number % 7 == 1 else b"" if number % 7 == 2 else b"click " * 300
    headers = (("trace", b"%d" % number), ("empty", b"")) if number % 2 else ()
    return Record(None if value and number % 5 == 0 else b"user-%d" % number, value, headers)


def write_all(broker: BrokerUnderTest, topic: str) -> int:
    """Records of every client and codec, over several segments; returns how many."""
    count = 0
    for codec in CODECS:
        for name, client in CLIENTS.items():
            if name == "kcat":
                continue
            records = [record_of(number) for number in range(RECORDS_PER_CALL)]
            client.write(broker, topic, records, codec)
            count += len(records)
    large = [Record(b"large", b"x" * 700_000)] * 4
    CLIENTS["confluent-kafka"].write(broker, topic, large, "none")
    return count + len(large)


@pytest.mark.parametrize("is_killed", [False, True], ids=["after a clean stop", "after a kill and a restart"])
def test_dump_log_segments_finds_nothing_wrong_in_logs_and_indexes(tmp_path: Path, is_killed: bool) -> None:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path), subprocess=is_killed) as ours:
        broker = BrokerUnderTest("logmark", ours.bootstrap_servers, ours)
        topic = broker.create_topic("clicks", config={"segment.bytes": "1048576", "index.interval.bytes": "512"})
        count = write_all(broker, topic)
        broker.close()
        if is_killed:
            ours.kill()
            ours.start()

    folder = tmp_path / f"{topic}-0"
    logs, indexes, time_indexes = (sorted(folder.glob(f"*.{suffix}")) for suffix in ("log", "index", "timeindex"))
    assert len(logs) > 1
    assert len(logs) == len(indexes) == len(time_indexes)
    assert any(file.stat().st_size for file in indexes)
    assert any(file.stat().st_size for file in time_indexes)

    files = ",".join(str(file) for file in (*logs, *indexes, *time_indexes))
    shown = call_tool(DUMP_LOG, "--deep-iteration", "--print-data-log", "--files", files).check()
    assert [] == dumped.complaints(shown.stdout + shown.stderr)
    assert list(range(count)) == [
        int(offset) for offset in re.findall(r"^\| offset: (\d+)", shown.stdout, re.MULTILINE)
    ]
    codecs = set(re.findall(r"compresscodec: (\w+)", shown.stdout))
    assert set(CODECS) == codecs

    check_indexes([*indexes, *time_indexes])


def test_producer_snapshots_are_read_and_hold_ids_from_our_own_range(tmp_path: Path) -> None:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path)) as ours:
        broker = BrokerUnderTest("logmark", ours.bootstrap_servers, ours)
        topic = broker.create_topic("clicks")
        broker.produce(topic, ["a", "b", "c"], enable_idempotence=True)
        broker.close()

    snapshots = sorted((tmp_path / f"{topic}-0").glob("*.snapshot"))
    assert snapshots
    shown = call_tool(DUMP_LOG, "--files", ",".join(map(str, snapshots))).check().stdout
    found = re.findall(r"producerId: (\d+) producerEpoch: 0 coordinatorEpoch: -1 .*lastSequence: 2", shown)
    assert 1 == len(found), shown
    # A fresh Kafka cluster hands out ids from 0: ours must never be mistaken for those.
    assert int(found[0]) >= 2**40


def test_the_offsets_decoder_reads_our_offsets_topic(tmp_path: Path) -> None:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path)) as ours:
        broker = BrokerUnderTest("logmark", ours.bootstrap_servers, ours)
        topic = broker.create_topic("orders")
        broker.produce(topic, ["ORD-1001", "ORD-1002"])
        group = broker.group("email-service")
        consumer = broker.consumer(group, client_id="worker-1")
        consumer.subscribe([topic])
        while consumer.poll(0.1) is None:
            pass
        consumer.commit(asynchronous=False)
        consumer.close()
        broker.commit(broker.group("analytics-team"), {(topic, 0): 142})
        broker.close()

    logs = [file for file in sorted(tmp_path.glob("__consumer_offsets-*/*.log")) if file.stat().st_size]
    shown = call_tool(DUMP_LOG, "--offsets-decoder", "--files", ",".join(map(str, logs))).check()
    assert [] == dumped.complaints(shown.stdout + shown.stderr)
    assert f'"group":"{group}"' in shown.stdout
    assert re.search(rf'"group":"{broker.group("analytics-team")}".*"offset":142', shown.stdout)
    assert '"protocolType":"consumer"' in shown.stdout
    assert '"clientId":"worker-1"' in shown.stdout
    assert "Failed to decode" not in shown.stdout
    # Older Kafkas read version 3 of both values; the newer ones of 4.x would not be read by all of them.
    assert {"3"} == set(re.findall(r'payload: \{"version":"?(\d+)"?', shown.stdout)), shown.stdout


def test_every_folder_is_a_partition_and_every_batch_has_leader_epoch_0(tmp_path: Path) -> None:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path)) as ours:
        broker = BrokerUnderTest("logmark", ours.bootstrap_servers, ours)
        topic = broker.create_topic("orders")
        broker.produce(topic, ["ORD-1001"])
        broker.commit(broker.group("email-service"), {(topic, 0): 1})
        broker.close()

    # Apache Kafka refuses to start on a folder that is no partition.
    folders = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert all(re.fullmatch(r"[\w.-]+-\d+", name) for name in folders), folders
    logs = [file for file in tmp_path.glob("*/*.log") if file.stat().st_size]
    assert len(logs) >= 2
    assert {0} == {struct.unpack_from(">i", file.read_bytes(), 12)[0] for file in logs}


def check_indexes(files: Sequence[Path]) -> None:
    """Kafka's own two checks of indexes find nothing; one without entries is called empty."""
    named = ",".join(map(str, files))
    checked = call_tool(DUMP_LOG, "--index-sanity-check", "--files", named).check()
    assert [] == dumped.complaints(checked.stdout + checked.stderr)
    assert len(files) == checked.stdout.count(" passed sanity check.") + checked.stdout.count("index is empty.")
    verified = call_tool(DUMP_LOG, "--verify-index-only", "--files", named).check()
    assert [] == dumped.complaints(verified.stdout + verified.stderr)


def append(partition: Partition, sequence: int, *, producer_id: int, codec: int = 0) -> None:
    """A transactional batch."""
    built = batches.build(
        [(b"user-1", b"payment " * 20), (b"user-2", None)],
        timestamp_ms=[NOW_MS + sequence, NOW_MS + sequence + 1],
        codec=codec,
        headers=[[("trace", b"7"), ("none", None)], []],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=batches.TRANSACTIONAL_BIT,
    )
    partition.append(batches.own(built), now_ms=NOW_MS)


def test_markers_transaction_indexes_and_snapshots_are_read_as_they_were_written(tmp_path: Path) -> None:
    driver = LogDriver(tmp_path)
    partition = driver.create(config=settings(segment_bytes=2000, index_interval_bytes=200))
    one, two = PRODUCER_ID, PRODUCER_ID + 1
    aborted, markers = [], []
    for turn in range(20):
        first = partition.log_end_offset
        append(partition, 2 * turn, producer_id=one, codec=turn % 5)
        append(partition, 2 * turn, producer_id=two, codec=turn % 5)
        for producer_id, commit in ((two, turn % 3 == 0), (one, turn % 3 == 1)):
            last = partition.append_marker(producer_id, 0, commit=commit, now_ms=NOW_MS).base_offset
            markers.append((last, ("COMMIT" if commit else "ABORT", 0)))
            if not commit:
                # One transaction is open while the other ends, and holds the last stable offset back.
                began, stable = (first + 2, first) if producer_id == two else (first, last + 1)
                aborted.append((producer_id, began, last, stable))
        driver.settle(partition)
    append(partition, 40, producer_id=one)
    undecided = partition.log_end_offset - 2
    end = partition.log_end_offset
    driver.settle(partition)
    driver.stop()
    driver.loop.close()

    folder = driver.folder()
    kinds = {suffix: sorted(folder.glob(f"*{suffix}")) for suffix in (".log", ".index", ".timeindex", ".txnindex")}
    assert all(len(files) > 2 for files in kinds.values())
    snapshots = sorted(folder.glob("*.snapshot"))
    found = dumped.dump([*(file for files in kinds.values() for file in files), *snapshots])

    assert list(range(end)) == [one.offset for file in kinds[".log"] for one in found[file].records]
    assert markers == [
        (one.offset, one.marker) for file in kinds[".log"] for one in found[file].records if one.marker is not None
    ]
    assert {"none", "gzip", "snappy", "lz4", "zstd"} == {
        one.codec for file in kinds[".log"] for one in found[file].batches
    }
    told = "\n".join(line for file in kinds[".txnindex"] for line in found[file].lines)
    assert aborted == [
        tuple(map(int, numbers))
        for numbers in re.findall(
            r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", told
        )
    ]
    last = "\n".join(found[snapshots[-1]].lines)
    assert f"{end:020}.snapshot" == snapshots[-1].name
    assert re.search(
        rf"producerId: {one} producerEpoch: 0 coordinatorEpoch: 0 currentTxnFirstOffset: .*{undecided}", last
    )
    assert re.search(
        rf"producerId: {two} producerEpoch: 0 coordinatorEpoch: 0 currentTxnFirstOffset: .*None|empty", last
    )
    check_indexes([*kinds[".index"], *kinds[".timeindex"]])


def test_a_log_that_our_cleaner_compacted_gives_no_reason_to_complain(tmp_path: Path) -> None:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path)) as ours:
        broker = BrokerUnderTest("logmark", ours.bootstrap_servers, ours)
        config = {
            "cleanup.policy": "compact", "segment.bytes": "1048576", "index.interval.bytes": "512",
            "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "0",
        }  # fmt: skip
        topic = broker.create_topic("profiles", config=config)
        for turn in range(4):
            for codec in CODECS:
                records = [Record(b"user-%d" % number, b"profile %d " % turn * 900) for number in range(30)]
                records.append(Record(b"gone", None))
                CLIENTS["confluent-kafka"].write(broker, topic, records, codec)
        end = broker.end_offset(topic)
        broker.close()
        ours.compact()

    folder = tmp_path / f"{topic}-0"
    logs = sorted(folder.glob("*.log"))
    indexes = sorted((*folder.glob("*.index"), *folder.glob("*.timeindex")))
    found = dumped.dump([*logs, *indexes, *folder.glob("*.snapshot")], is_compacted=True)
    kept = [one for file in logs for one in found[file].records]
    assert 31 <= len(kept) < end // 2, "it was compacted"
    assert end - 1 == found[logs[-1]].batches[-1].last_offset
    check_indexes(indexes)
    assert 0 == run("verify", str(tmp_path)).exit_code


def test_a_repaired_log_gives_no_reason_to_complain_but_for_its_gap(tmp_path: Path) -> None:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path)) as ours:
        broker = BrokerUnderTest("logmark", ours.bootstrap_servers, ours)
        topic = broker.create_topic("clicks")
        for _ in range(30):
            broker.produce(topic, ["click " * 200] * 5)
        broker.close()
    log = tmp_path / f"{topic}-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[len(content) // 2 + 100] ^= 1
    log.write_bytes(content)
    assert 1 == run("verify", str(tmp_path)).exit_code
    assert 0 == run("verify", str(tmp_path), "--repair", "--yes").exit_code

    files = [file for file in sorted(log.parent.iterdir()) if file.suffix in (".log", ".index", ".timeindex")]
    found = dumped.dump(files, is_compacted=True)[log]
    assert [5] == [one.last_offset - one.base_offset + 1 for one in found.batches if not one.record_count]
    assert 145 == len(found.records)
    check_indexes([file for file in files if file != log])
