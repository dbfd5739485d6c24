"""Apache's DumpLogSegments reads what we wrote and finds nothing wrong."""

import re
import struct
from pathlib import Path

import pytest

from logmark.testing import Broker
from tests.compat.clients import CLIENTS, CODECS, Record
from tests.harness.brokers import BrokerUnderTest
from tests.harness.own import OUR_SETTINGS
from tests.harness.tools import DUMP_LOG, run_tool

pytestmark = pytest.mark.kafka

COMPLAINTS = ("Mismatches", "non-consecutive", "Found timestamp mismatch", "isvalid: false", "WARNING", "corrupt")
RECORDS_PER_CALL = 40


def write_all(broker: BrokerUnderTest, topic: str) -> int:
    """Records of every client and codec, over several segments; returns how many."""
    count = 0
    for codec in CODECS:
        for name, client in CLIENTS.items():
            if name == "kcat":
                continue
            records = [Record(b"user-%d" % number, b"click " * 300) for number in range(RECORDS_PER_CALL)]
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
    dumped = run_tool(DUMP_LOG, "--deep-iteration", "--print-data-log", "--files", files).check()
    for complaint in COMPLAINTS:
        assert complaint not in dumped.stdout + dumped.stderr
    assert list(range(count)) == [
        int(offset) for offset in re.findall(r"^\| offset: (\d+)", dumped.stdout, re.MULTILINE)
    ]
    codecs = set(re.findall(r"compresscodec: (\w+)", dumped.stdout))
    assert set(CODECS) == codecs

    # Kafka's own sanity check of an index; one with a single batch has no entry.
    every_index = ",".join(map(str, (*indexes, *time_indexes)))
    checked = run_tool(DUMP_LOG, "--index-sanity-check", "--files", every_index).check().stdout
    assert len(indexes) + len(time_indexes) == checked.count(" passed sanity check.") + checked.count("index is empty.")
    verified = run_tool(DUMP_LOG, "--verify-index-only", "--files", every_index).check()
    for complaint in COMPLAINTS:
        assert complaint not in verified.stdout + verified.stderr


def test_producer_snapshots_are_read_and_hold_ids_from_our_own_range(tmp_path: Path) -> None:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path)) as ours:
        broker = BrokerUnderTest("logmark", ours.bootstrap_servers, ours)
        topic = broker.create_topic("clicks")
        broker.produce(topic, ["a", "b", "c"], enable_idempotence=True)
        broker.close()

    snapshots = sorted((tmp_path / f"{topic}-0").glob("*.snapshot"))
    assert snapshots
    dumped = run_tool(DUMP_LOG, "--files", ",".join(map(str, snapshots))).check().stdout
    found = re.findall(r"producerId: (\d+) producerEpoch: 0 coordinatorEpoch: -1 .*lastSequence: 2", dumped)
    assert 1 == len(found), dumped
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
    dumped = run_tool(DUMP_LOG, "--offsets-decoder", "--files", ",".join(map(str, logs))).check()
    for complaint in COMPLAINTS:
        assert complaint not in dumped.stdout + dumped.stderr
    assert f'"group":"{group}"' in dumped.stdout
    assert re.search(rf'"group":"{broker.group("analytics-team")}".*"offset":142', dumped.stdout)
    assert '"protocolType":"consumer"' in dumped.stdout
    assert '"clientId":"worker-1"' in dumped.stdout
    assert "Failed to decode" not in dumped.stdout
    # Older Kafkas read version 3 of both values; the newer ones of 4.x would not be read by all of them.
    assert {"3"} == set(re.findall(r'payload: \{"version":"?(\d+)"?', dumped.stdout)), dumped.stdout


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
