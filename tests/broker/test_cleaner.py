"""The cleaner of a running broker: in a process of its own, gone with the broker, and nobody's clients notice."""

import contextlib
import errno
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from logmark.broker.cleaner import BesideWorker, ProcessWorker
from logmark.disk import file_system
from logmark.disk.file_system import FileSystem, RealFileSystem
from logmark.disk.read_only import ReadOnlyFileSystem
from logmark.errors import UserError
from logmark.log import segment_swap, verification
from logmark.log.segment_cleaner import Cleaned, Done, Plan
from logmark.testing import Broker
from logmark.testing.faulty_file_system import FaultyFileSystem
from logmark.wire import batches
from tests.harness.node import wait_until

QUIET = {"log_level": 0}
# Only when a test asks for it.
SETTINGS = {"log.cleaner.backoff.ms": "86400000"}
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
KEYS = 200


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as made:
        yield made


def fill(broker: Broker, topic: str = "profiles", rounds: int = 12) -> None:
    """Every key again and again, in batches so small that the first of two segments is full wherever they end."""
    small = {"linger.ms": 20, "batch.num.messages": 50}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **small, **QUIET})
    for at in range(rounds):
        for key in range(KEYS):
            producer.produce(topic, key=b"key-%d" % key, value=(b"%d " % at) * 300, partition=0)
    assert 0 == producer.flush(60)


def newest(broker: Broker, topic: str = "profiles") -> dict[bytes, bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True, **QUIET}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[bytes, bytes | None] = {}
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None
            if message.error() is not None:
                assert "_PARTITION_EOF" == message.error().name()
                return found
            found[message.key()] = message.value()
    finally:
        consumer.close()


def log_bytes(broker: Broker, topic: str = "profiles") -> int:
    while True:
        # A cleaning that is under way may rename a file between its listing and its stat.
        with contextlib.suppress(FileNotFoundError):
            return sum(path.stat().st_size for path in Path(broker.data_dir, f"{topic}-0").glob("*.log"))


EXPECTED = {b"key-%d" % key: b"11 " * 300 for key in range(KEYS)}


def test_a_compacted_topic_gets_smaller_and_says_the_same(broker: Broker) -> None:
    broker.create_topic("profiles", config=COMPACT)
    fill(broker)
    before = log_bytes(broker)

    broker.compact()

    assert log_bytes(broker) < before / 2
    assert EXPECTED == newest(broker)
    broker.restart()
    assert EXPECTED == newest(broker)


def test_a_topic_that_is_not_compacted_is_left_alone(broker: Broker) -> None:
    broker.create_topic("profiles", config={"segment.bytes": "1048576"})
    fill(broker)
    before = log_bytes(broker)

    broker.compact()

    assert before == log_bytes(broker)


def test_changed_settings_count_at_once(broker: Broker) -> None:
    broker.create_topic("profiles", config={"segment.bytes": "1048576"})
    fill(broker)
    before = log_bytes(broker)
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in COMPACT.items()]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "profiles", incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(60)

    broker.compact()

    assert log_bytes(broker) < before / 2
    assert EXPECTED == newest(broker)


def test_the_cleaner_looks_for_dirty_logs_by_the_brokers_clock() -> None:
    with Broker({"log.cleaner.backoff.ms": "3600000"}) as broker:
        broker.create_topic("profiles", config=COMPACT)
        fill(broker)
        before = log_bytes(broker)
        broker.advance(3600)
        wait_until(lambda: log_bytes(broker) <= before / 2, "the log is compacted")
        assert EXPECTED == newest(broker)


def test_a_cleaner_that_is_switched_off_does_nothing() -> None:
    with Broker({"log.cleaner.backoff.ms": "1", "log.cleaner.enable": "false"}) as broker:
        broker.create_topic("profiles", config=COMPACT)
        fill(broker)
        before = log_bytes(broker)
        broker.advance(60)
        assert before == log_bytes(broker)


def cleaners(pid: int) -> set[int]:
    """Return the cleaning processes among the children of a process, whose threads and children may end meanwhile."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= {int(child) for child in (thread / "children").read_text().split()}
    return {child for child in found if is_cleaner(child)}


def is_cleaner(pid: int) -> bool:
    try:
        return b"logmark.log.segment_cleaner" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_stopped(process: int) -> bool:
    """Return whether a signal has stopped a process; the kernel takes its time."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def is_gone(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_cleaning_process_is_of_low_priority_and_ends_with_the_broker(end: str) -> None:
    with Broker(SETTINGS, subprocess=True) as broker:
        broker.create_topic("profiles", config=COMPACT)
        fill(broker)
        broker.compact()
        assert broker.pid is not None
        (cleaner,) = cleaners(broker.pid)
        # Nothing is lower than 19, which may be the priority of the tests themselves.
        assert min(os.getpriority(os.PRIO_PROCESS, broker.pid) + 1, 19) <= os.getpriority(os.PRIO_PROCESS, cleaner)
        os.kill(cleaner, signal.SIGINT)  # Ctrl-C at the terminal reaches it too

        broker.stop() if end == "stop" else broker.kill()

        wait_until(lambda: is_gone(cleaner), "the cleaning process has ended with its broker")
        broker.start()
        assert EXPECTED == newest(broker)


def test_no_broker_gets_the_directory_while_the_cleaning_process_of_a_killed_one_may_write_into_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Broker(SETTINGS, subprocess=True) as broker:
        broker.create_topic("profiles", config=COMPACT)
        fill(broker)
        broker.compact()
        assert broker.pid is not None
        (cleaner,) = cleaners(broker.pid)
        os.kill(cleaner, signal.SIGSTOP)  # as long as it sleeps it does not notice that the broker is gone
        wait_until(lambda: is_stopped(cleaner), "the cleaning process sleeps")
        broker.kill()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(file_system, "CHILD_WAIT_S", 0)
                with pytest.raises(UserError, match=r"has not ended: kill it"):
                    Broker(SETTINGS, data_dir=broker.data_dir).start()
                with pytest.raises(UserError, match="in use"):
                    verification.hold(broker.data_dir, ReadOnlyFileSystem())

            def resume_and_sleep(seconds: float) -> None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(cleaner, signal.SIGCONT)
                time.sleep(seconds)

            # The next broker waits for it, and then has the directory for itself.
            with monkeypatch.context() as patch:
                patch.setattr(file_system, "CHILD_WAIT_S", 600)
                patch.setattr(file_system, "sleep", resume_and_sleep)
                with Broker(SETTINGS, data_dir=broker.data_dir) as following:
                    wait_until(lambda: is_gone(cleaner), "the cleaning process has ended")
                    assert EXPECTED == newest(following)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(cleaner, signal.SIGKILL)


def test_a_cleaning_process_ends_silently_when_nobody_reads_its_answers(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "logmark.log.segment_cleaner"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()

    # The first segment is missing, so the process answers at once, into the broken pipe.
    plan = Plan(
        folder=str(tmp_path), bases=[0], sizes=[100], first_dirty_offset=0, end_offset=10, now_ms=0,
        delete_retention_ms=0,
    )  # fmt: skip
    process.stdin.write(plan.encode().encode() + b"\n")
    process.stdin.flush()

    assert 0 == process.wait(60)
    assert b"" == process.stderr.read()


def test_a_cleaning_process_that_was_killed_is_replaced() -> None:
    # In a process of its own: brokers that other tests left in this one have cleaning processes too.
    with Broker(SETTINGS, subprocess=True) as broker:
        broker.create_topic("profiles", config=COMPACT)
        fill(broker)
        broker.compact()
        assert broker.pid is not None
        (cleaner,) = cleaners(broker.pid)
        os.kill(cleaner, signal.SIGKILL)
        fill(broker)
        before = log_bytes(broker)

        broker.compact()  # finds it gone
        broker.compact()

        assert log_bytes(broker) < before / 2
        assert EXPECTED == newest(broker)


def write_segments(folder: Path, bases: Sequence[int]) -> Plan:
    """Write segments of one record each, and return a plan that makes an output of each of them."""
    folder.mkdir()
    for base in bases:
        batch = batches.build([(b"key-%d" % base, b"value")], timestamp_ms=0, base_offset=base)
        (folder / f"{base:020d}.log").write_bytes(batch)
    return Plan(
        folder=str(folder), bases=bases, sizes=[len(batch)] * len(bases), first_dirty_offset=bases[0],
        end_offset=bases[-1] + 1, now_ms=0, delete_retention_ms=0, segment_bytes=1,
    )  # fmt: skip


def test_no_answer_to_a_plan_that_was_given_up_passes_for_one_to_the_next_plan(tmp_path: Path) -> None:
    lock = RealFileSystem().lock(str(tmp_path / ".lock"))
    assert lock is not None
    worker = ProcessWorker(is_syncing=False, lock=lock)
    given_up = worker.clean(write_segments(tmp_path / "given-up", [0, 1, 2, 3]))
    first = next(given_up)
    given_up.close()

    *outputs, done = worker.clean(write_segments(tmp_path / "next", [10, 11]))
    process = worker.pid
    again = list(worker.clean(write_segments(tmp_path / "again", [20])))

    assert isinstance(first, Cleaned) and [0] == first.replaced
    assert [[10], [11]] == [output.replaced for output in outputs if isinstance(output, Cleaned)]
    assert isinstance(done, Done) and 12 == done.cleaned_to
    # A plan that was carried out leaves the process to the next one.
    assert 2 == len(again) and process == worker.pid
    worker.stop()
    lock.release()


class NotedWorker(BesideWorker):
    """Keeps every cleaning that it begins."""

    def __init__(self) -> None:
        super().__init__(RealFileSystem())
        self.cleanings: list[Generator[Cleaned | Done, None, None]] = []

    def clean(self, plan: Plan) -> Generator[Cleaned | Done, None, None]:
        self.cleanings.append(super().clean(plan))
        return self.cleanings[-1]


def test_a_cleaning_whose_output_cannot_be_taken_over_is_ended_before_the_next_one_begins(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: str, cleaned: Cleaned, files: FileSystem) -> segment_swap.Incoming:
        raise OSError(errno.EIO, os.strerror(errno.EIO), folder)

    broker.create_topic("profiles", config=COMPACT)
    fill(broker)
    before = log_bytes(broker)
    noted = NotedWorker()
    monkeypatch.setattr(broker._runner._broker.cleaner, "_worker", noted)  # type: ignore[union-attr]
    with monkeypatch.context() as patched:
        patched.setattr(segment_swap, "load", refuse)
        broker.compact()

    assert [inspect.GEN_CLOSED] == [inspect.getgeneratorstate(cleaning) for cleaning in noted.cleanings]
    broker.compact()
    assert log_bytes(broker) < before / 2
    assert EXPECTED == newest(broker)


def test_a_stop_or_a_deletion_in_the_middle_of_a_cleaning_harms_nothing(broker: Broker) -> None:
    for name in ("profiles", "others"):
        broker.create_topic(name, config=COMPACT)
        fill(broker, name)
    running = threading.Thread(target=broker.compact)
    running.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    admin.delete_topics(["others"])["others"].result(60)
    running.join()
    broker.restart()

    broker.create_topic("others", config=COMPACT)
    assert {} == newest(broker, "others")
    broker.compact()
    assert EXPECTED == newest(broker)


def test_a_log_that_the_disk_refuses_to_rewrite_does_not_keep_others_from_it() -> None:
    files = FaultyFileSystem(RealFileSystem(sync=False))
    with Broker(SETTINGS, files=files) as broker:
        for name in ("profiles", "others"):
            broker.create_topic(name, config=COMPACT)
            fill(broker, name)
        before, before_of_others = log_bytes(broker), log_bytes(broker, "others")
        files.fail_writes("others-0")

        broker.compact()

        assert log_bytes(broker) < before / 2
        assert before_of_others == log_bytes(broker, "others")
        files.heal()
        broker.compact()
        assert log_bytes(broker, "others") < before_of_others / 2
        assert EXPECTED == newest(broker) == newest(broker, "others")


def test_reading_goes_on_while_the_log_is_compacted(broker: Broker) -> None:
    broker.create_topic("profiles", config=COMPACT)
    fill(broker)
    found: list[dict[bytes, bytes | None]] = []
    reading = threading.Thread(target=lambda: found.extend(newest(broker) for _ in range(3)))
    reading.start()
    broker.compact()
    reading.join()

    assert [EXPECTED] * 3 == found


def test_tombstones_go_after_delete_retention_ms(broker: Broker) -> None:
    broker.create_topic("profiles", config={**COMPACT, "delete.retention.ms": "3600000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    producer.produce("profiles", key=b"gone", value=None, partition=0)
    producer.flush(60)
    fill(broker)
    broker.compact()
    assert b"gone" in newest(broker)

    broker.advance(3601)
    fill(broker)
    broker.compact()
    assert b"gone" not in newest(broker)
    assert EXPECTED.items() <= newest(broker).items()


def test_committing_for_years_keeps_the_start_short() -> None:
    """Each commit of an offset replaces the one before: a start reads one for each, and at most one segment more."""
    partitions, times = 300, 220
    with Broker({**SETTINGS, "offsets.topic.segment.bytes": "1048576"}) as broker:
        broker.create_topic("clicks", partitions=partitions)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
        for number in range(times):
            offsets = [TopicPartition("clicks", index, number + index) for index in range(partitions)]
            wanted = ConsumerGroupTopicPartitions("payments", offsets)
            admin.alter_consumer_group_offsets([wanted])["payments"].result(60)
        (folder,) = {path.parent for path in Path(broker.data_dir).glob("__consumer_offsets-*/*.log")}
        before = stored(folder)
        assert before >= partitions * times

        broker.compact()

        assert stored(folder) < before / 3
        broker.restart()
        assert stored(folder) < before / 3
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
        committed: dict[int, int] = {}

        def is_loaded() -> bool:
            answered = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("payments")])["payments"]
            try:
                committed.update({each.partition: each.offset for each in answered.result(60).topic_partitions})
            except KafkaException as error:
                assert "COORDINATOR_LOAD_IN_PROGRESS" == error.args[0].name()
                return False
            return True

        wait_until(is_loaded, "the group is loaded")
        assert {index: times - 1 + index for index in range(partitions)} == committed


def stored(folder: Path) -> int:
    """How many records a start has to read."""
    return sum(len(batches.unpack(path.read_bytes())) for path in folder.glob("*.log"))
