"""What a broker tells of its own health: each partition and coordinator that cannot do its work, by name and reason."""

import errno
import json
import os
import threading
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from logmark.broker import disk_probe
from logmark.broker.api import describe_log_dirs, find_coordinator, offset_commit
from logmark.broker.disk_probe import DiskProbe
from logmark.broker.health import LISTED_MAX, STALLED_SECONDS
from logmark.broker.server import Broker as Served
from logmark.coordination.group_partition import partition_of_group
from logmark.disk.file_system import RealFileSystem
from logmark.errors import ErrorCode
from logmark.log.segment_cleaner import Cleaned, Done, Plan
from logmark.testing import Broker
from logmark.testing.faulty_file_system import FaultyFileSystem
from logmark.wire import batches, log_dirs
from logmark.wire.fields import Message
from logmark.wire.schema import describe_log_dirs as schema
from tests.coordination.wire import Wire
from tests.harness import wire as by_hand
from tests.harness.node import wait_until

WAL = "logmark.wal/0"
GROUP = "billing"


@pytest.fixture
def files() -> FaultyFileSystem:
    return FaultyFileSystem(RealFileSystem(sync=False))


@pytest.fixture
def broker(files: FaultyFileSystem) -> Iterator[Broker]:
    with Broker(durability="sync", files=files) as broker:
        broker.create_topic("orders", 2)
        assert 0 == write(broker)
        yield broker
        files.heal()


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    connection = Wire(broker)
    yield connection
    connection.close()


def write(broker: Broker, partition: int = 0, topic: str = "orders") -> int:
    batch = by_hand.batch([b"value"])
    return by_hand.produce(broker.bootstrap_servers, topic, batch, partition=partition).error_code


def ask(wire: Wire, version: int = 4) -> dict[str, Any]:
    answer = wire.ask(describe_log_dirs, version, topics=[], wants_health=True)
    found: dict[str, Any] = json.loads(answer.health)
    return found


def states(health: dict[str, Any]) -> dict[str, str]:
    return {f"{one['topic']}-{one['partition']}": one["state"] for one in health["partitions"]["troubled"]}


def test_a_healthy_broker_says_so(wire: Wire) -> None:
    health = ask(wire)

    assert health["accepts_writes"]
    assert {"state": "open", "reason": None} == health["wal"]
    assert {"total": 2, "open": 2, "troubled": [], "left_out": 0} == health["partitions"]
    assert {"total": 0, "ready": 0, "troubled": []} == health["coordinators"]
    assert health["memory"]["used_bytes"] < health["memory"]["max_bytes"]
    assert 1 <= health["connections"]["used"] < health["connections"]["max"]


def test_health_is_told_only_to_those_who_ask_for_it_and_in_every_version_with_tagged_fields(wire: Wire) -> None:
    for version in (2, 3, 4):
        assert ask(wire, version)["accepts_writes"]
        assert wire.ask(describe_log_dirs, version, topics=[]).health is None
    assert 1 == len(wire.ask(describe_log_dirs, 1, topics=[]).results)


def test_the_message_with_health_is_kafkas_message_with_one_tagged_field_more() -> None:
    for ours, kafkas in ((log_dirs.Request, schema.Request), (log_dirs.Response, schema.Response)):
        *same, added = ours.FIELDS
        assert [described(field) for field in kafkas.FIELDS] == [described(field) for field in same]
        assert log_dirs.HEALTH_TAG == added.tag


def described(field: Any) -> tuple[Any, ...]:
    element = field.element
    of: type[Message] | str | None = None if element is None else element.struct or element.kind
    return field.name, field.kind, field.since, field.until, field.nullable_since, field.tag, of


def test_a_partition_on_a_full_disk_is_full_until_a_write_is_taken(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    files.fail_writes("orders-0/", errno.ENOSPC)
    assert ErrorCode.KAFKA_STORAGE_ERROR == write(broker)

    health = ask(wire)
    assert {"orders-0": "full"} == states(health)
    assert "Free some space" in health["partitions"]["troubled"][0]["reason"]
    assert 1 == health["partitions"]["open"]
    assert health["accepts_writes"], "others take records"

    files.heal()
    assert 0 == write(broker)
    assert {} == states(ask(wire))


def test_a_partition_that_the_disk_failed_is_suspect_until_it_was_written_again(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    files.fail_writes("orders-1/", errno.EIO)
    assert ErrorCode.KAFKA_STORAGE_ERROR == write(broker, 1)

    health = ask(wire)
    assert {"orders-1": "suspect"} == states(health)
    assert "The disk failed the log of orders-1" in health["partitions"]["troubled"][0]["reason"]
    assert "The disk failed the log of orders-1" in health["failures"][-1]["event"]

    files.heal()
    broker.advance(61)
    wait_until(lambda: states(ask(wire)) == {}, "the log is open again")


def test_a_failed_write_ahead_log_is_named_and_the_directory_has_an_error(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    (before,) = wire.ask(describe_log_dirs, 4, topics=[]).results
    assert (0, broker.data_dir) == (before.error_code, before.log_dir)
    assert 0 < before.usable_bytes <= before.total_bytes
    files.fail_syncs(WAL, errno.EIO)
    assert ErrorCode.KAFKA_STORAGE_ERROR == write(broker)

    health = ask(wire)
    (after,) = wire.ask(describe_log_dirs, 4, topics=None).results

    assert not health["accepts_writes"]
    assert "failed" == health["wal"]["state"]
    assert "restart the broker" in health["wal"]["reason"]
    assert ErrorCode.KAFKA_STORAGE_ERROR == after.error_code
    assert 2 == sum(len(topic.partitions) for topic in after.topics), "what it holds can be read"


def test_the_coordinators_whose_log_takes_no_records_are_named(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    wire.ask(find_coordinator, 2, key=GROUP)
    assert {"total": 50, "ready": 50, "troubled": []} == ask(wire)["coordinators"]
    here = partition_of_group(GROUP)
    files.fail_writes(f"__consumer_offsets-{here}/", errno.EIO)
    partition = offset_commit.schema.RequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = offset_commit.schema.RequestTopic(name="orders", partitions=[partition])
    wire.ask(offset_commit, 8, group_id=GROUP, topics=[topic])

    def troubled() -> list[tuple[int, str]]:
        return [(one["partition"], one["state"]) for one in ask(wire)["coordinators"]["troubled"]]

    wait_until(lambda: troubled() == [(here, "read-only")], "its groups can only be looked at")
    files.heal()
    broker.advance(61)
    wait_until(lambda: troubled() == [], "its groups can commit again")


def test_many_partitions_that_failed_are_counted_and_only_some_are_named(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    count = LISTED_MAX + 20
    broker.create_topic("many", count)
    files.fail_writes("many-", errno.ENOSPC)
    for partition in range(count):
        assert ErrorCode.KAFKA_STORAGE_ERROR == write(broker, partition, "many")

    found = ask(wire)["partitions"]

    assert (2, LISTED_MAX, 20) == (found["open"], len(found["troubled"]), found["left_out"])


def test_a_failure_of_a_handler_is_among_the_last_failures_with_its_exception(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("on purpose")

    monkeypatch.setattr(find_coordinator, "handle", fail)
    wire.ask(find_coordinator, 2, key=GROUP)

    assert "a handler failed (ValueError: on purpose)" == ask(wire)["failures"][-1]["event"]


def served(broker: Broker) -> Served:
    found = broker._runner._broker  # type: ignore[union-attr]
    assert isinstance(found, Served)
    return found


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (errno.EROFS, "read-only"),
        (errno.ENOSPC, "full"),
        (errno.EIO, "failed"),
        (errno.ENOENT, "writable"),
        (errno.EPERM, "writable"),
    ],
)
def test_the_disk_is_asked_whether_it_takes_writes(broker: Broker, wire: Wire, number: int, state: str) -> None:
    assert "writable" == ask(wire)["disk"]["state"]

    def refuse(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    served(broker).disk_probe = DiskProbe(broker.data_dir, touch=refuse)
    disk = ask(wire)["disk"]

    assert state == disk["state"]
    assert 0 < disk["free_bytes"] <= disk["total_bytes"]
    assert ask(wire)["accepts_writes"], "only a write decides that"


def test_a_disk_with_hardly_any_space_is_full(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_probe, "FREE_BYTES_MIN", 1 << 62)

    assert "full" == ask(wire)["disk"]["state"]


def test_a_disk_that_does_not_answer_holds_up_neither_the_answer_nor_more_than_one_thread(
    broker: Broker, wire: Wire
) -> None:
    may_end, asked = threading.Event(), []

    def hang(path: str) -> None:
        asked.append(path)
        may_end.wait()

    served(broker).disk_probe = DiskProbe(broker.data_dir, touch=hang, seconds_max=0)
    try:
        assert ["silent"] * 3 == [ask(wire)["disk"]["state"] for _ in range(3)]
        wait_until(lambda: len(asked) == 1, "the disk is asked")
        assert "silent" == ask(wire)["disk"]["state"]
        assert 1 == len(asked)
    finally:
        may_end.set()


def test_checkpoints_that_a_full_disk_refuses_are_one_event_without_a_traceback(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    files.fail_writes("checkpoint", errno.ENOSPC)
    served(broker).loop.call_soon_threadsafe(served(broker)._checkpoint_now_and_then)
    wait_until(lambda: ask(wire)["failures"], "the failure is logged")

    (failure,) = ask(wire)["failures"]
    # An exception with a traceback would be named behind the event.
    assert failure["event"].startswith("the offset checkpoints could not be written: [Errno 28]")
    assert "OSError" not in failure["event"]


class HeldWorker:
    """A process of the cleaner that hangs."""

    pid = 4711

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def clean(self, plan: Plan) -> Generator[Cleaned | Done, None, None]:
        self.begun.set()
        self.may_end.wait()
        raise ChildProcessError("killed")
        yield

    def stop(self) -> None:
        self.may_end.set()


def test_a_compaction_without_progress_is_shown_and_after_a_while_a_problem(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    broker.create_topic("profiles", config=compacted)
    for _ in range(3):
        batch = batches.build([(b"key", b"x" * 600_000)], timestamp_ms=by_hand.now_ms(), base_offset=0)
        assert 0 == by_hand.produce(broker.bootstrap_servers, "profiles", batch).error_code
    assert ask(wire)["compaction"] is None
    held, cleaner = HeldWorker(), served(broker).cleaner
    monkeypatch.setattr(cleaner, "_worker", held)
    served(broker).loop.call_soon_threadsafe(cleaner._wake)
    try:
        assert held.begun.wait(60)
        first = ask(wire)["compaction"]
        assert ("profiles-0", False, HeldWorker.pid) == (first["log"], first["is_stalled"], first["pid"])
        broker.advance(STALLED_SECONDS)
        later = ask(wire)["compaction"]
        assert later["is_stalled"] and later["seconds_without_progress"] >= STALLED_SECONDS
    finally:
        held.may_end.set()
    wait_until(lambda: ask(wire)["compaction"] is None, "the compaction has ended")
