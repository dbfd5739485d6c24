"""A commit over a socket is answered when the disk has it, and never when the disk has failed."""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logmark.broker.api import describe_groups, find_coordinator, offset_commit, offset_fetch
from logmark.coordination.group_partition import partition_of_group
from logmark.disk.file_system import RealFileSystem
from logmark.errors import ErrorCode
from logmark.testing import Broker
from logmark.testing.faulty_file_system import FaultyFileSystem
from tests.coordination.wire import Wire
from tests.harness.node import wait_until

HERE, ELSEWHERE = "billing", "fraud"
LOG = f"__consumer_offsets-{partition_of_group(HERE)}/"
# The files of the write-ahead log that hold entries, not the recovery points beside them.
WAL = "logmark.wal/0"
# Without the next one, which is made in the background and may fail by itself.
FIRST_WAL_FILE = "logmark.wal/0001"


@pytest.fixture
def files() -> FaultyFileSystem:
    return FaultyFileSystem(RealFileSystem(sync=True))


@pytest.fixture
def broker(files: FaultyFileSystem) -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": "0"}, durability="sync", files=files) as broker:
        broker.create_topic("clicks")
        wire = Wire(broker)
        wire.ask(find_coordinator, 2, key=HERE)  # the first question makes the internal topic
        wire.ask(offset_commit, 8, **commit("any", 0))  # the first commit makes the write-ahead log
        wire.close()
        yield broker
        files.heal()


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    connection = Wire(broker)
    yield connection
    connection.close()


def commit(group: str, offset: int) -> dict[str, Any]:
    schema = offset_commit.schema
    partition = schema.RequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    return {"group_id": group, "topics": [schema.RequestTopic(name="clicks", partitions=[partition])]}


def fetch(group: str) -> dict[str, Any]:
    schema = offset_fetch.schema
    return {"group_id": group, "topics": [schema.RequestTopic(name="clicks", partition_indexes=[0])]}


def error_of(answer: Any) -> int:
    return answer.topics[0].partitions[0].error_code


def offset_in(answer: Any) -> int:
    return answer.topics[0].partitions[0].committed_offset


def test_partitions_differ() -> None:
    assert partition_of_group(HERE) != partition_of_group(ELSEWHERE)


def test_while_the_sync_is_held_back_there_is_no_answer_and_nobody_sees_the_commit(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    reader, other = Wire(broker), Wire(broker)
    with files.hold_syncs(WAL):
        wire.send(offset_commit, 8, **commit(HERE, 53))
        files.wait_for_held_sync()
        reader.send(offset_fetch, 7, **fetch(HERE))
        # Its partition is another one, but both wait for the one write-ahead log.
        other.send(offset_commit, 8, **commit(ELSEWHERE, 7))
        third = Wire(broker)
        assert 0 == third.ask(find_coordinator, 2, key=ELSEWHERE).error_code
        third.close()

        assert not wire.has_answer
        assert not reader.has_answer
        assert not other.has_answer

    assert 0 == error_of(wire.receive(offset_commit, 8))
    assert 53 == offset_in(reader.receive(offset_fetch, 7))
    assert 0 == error_of(other.receive(offset_commit, 8))
    reader.close()
    other.close()


def test_a_commit_does_not_wait_for_the_files_of_its_partition(files: FaultyFileSystem, wire: Wire) -> None:
    with files.hold_syncs(LOG):
        assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 53)))
        assert 53 == offset_in(wire.ask(offset_fetch, 7, **fetch(HERE)))


def commit_when_loaded(wire: Wire, group: str, offset: int) -> int:
    """Commit as a client does, which asks again while the coordinator loads."""
    while True:
        error = error_of(wire.ask(offset_commit, 8, **commit(group, offset)))
        if error != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return error


def offset_when_loaded(wire: Wire, group: str) -> int:
    """Ask for a committed offset as a client does, which asks again while the coordinator loads."""
    while True:
        answer = wire.ask(offset_fetch, 7, **fetch(group))
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return offset_in(answer)


def test_a_failed_sync_is_never_acknowledged_and_what_was_committed_is_told_until_and_after_a_restart(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 53)))
    assert 0 == error_of(wire.ask(offset_commit, 8, **commit(ELSEWHERE, 7)))
    files.fail_syncs(WAL, errno.EIO)

    assert ErrorCode.NOT_COORDINATOR == error_of(wire.ask(offset_commit, 8, **commit(HERE, 54)))
    # The disk may be good again, but the write-ahead log is not: only a restart finds out what it holds.
    files.heal()
    for group in (HERE, ELSEWHERE):
        assert ErrorCode.NOT_COORDINATOR == commit_when_loaded(wire, group, 55)
    # No group can commit now, also none that had nothing in the failed round.
    for group in (HERE, ELSEWHERE, "some-other-group"):
        assert ErrorCode.COORDINATOR_NOT_AVAILABLE == wire.ask(find_coordinator, 2, key=group).error_code
    assert [53, 7] == [offset_when_loaded(wire, group) for group in (HERE, ELSEWHERE)]

    broker.restart()
    again = Wire(broker)
    # The failed sync may have reached the disk: then the commit without an answer is there, and only that one.
    assert offset_in(again.ask(offset_fetch, 7, **fetch(HERE))) in (53, 54)
    assert 7 == offset_in(again.ask(offset_fetch, 7, **fetch(ELSEWHERE)))
    assert 0 == error_of(again.ask(offset_commit, 8, **commit(HERE, 56)))
    again.close()


def test_a_failed_write_is_never_acknowledged_and_the_disk_keeps_what_it_had(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 53)))
    files.fail_writes(LOG, errno.ENOSPC)

    assert ErrorCode.NOT_COORDINATOR == error_of(wire.ask(offset_commit, 8, **commit(HERE, 54)))
    files.heal()
    broker.restart()

    again = Wire(broker)
    assert 53 == offset_in(again.ask(offset_fetch, 7, **fetch(HERE)))
    assert 0 == error_of(again.ask(offset_commit, 8, **commit(HERE, 55)))
    (group,) = again.ask(describe_groups, 5, groups=[HERE]).groups
    assert "Empty" == group.group_state
    again.close()


def test_a_commit_on_a_full_disk_is_refused_alone_and_the_next_is_taken_when_there_is_space(
    files: FaultyFileSystem, wire: Wire
) -> None:
    assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 53)))
    files.fail_writes(LOG, errno.ENOSPC)

    for _ in range(3):
        assert ErrorCode.NOT_COORDINATOR == error_of(wire.ask(offset_commit, 8, **commit(HERE, 54)))
        assert 53 == offset_in(wire.ask(offset_fetch, 7, **fetch(HERE)))
        (group,) = wire.ask(describe_groups, 5, groups=[HERE]).groups
        assert (0, "Empty") == (group.error_code, group.group_state)
    files.heal()

    assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 55)))
    assert 55 == offset_in(wire.ask(offset_fetch, 7, **fetch(HERE)))


def test_a_sync_of_commits_that_finds_the_disk_full_is_made_good_without_a_restart(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 53)))
    files.fail_syncs(WAL, errno.ENOSPC)
    assert ErrorCode.NOT_COORDINATOR == error_of(wire.ask(offset_commit, 8, **commit(HERE, 54)))
    broker.advance(5)
    assert ErrorCode.NOT_COORDINATOR == commit_when_loaded(wire, HERE, 54)
    assert 53 == offset_when_loaded(wire, HERE)

    files.heal()
    broker.advance(5)

    def is_taken() -> bool:
        return error_of(wire.ask(offset_commit, 8, **commit(HERE, 55))) == 0

    wait_until(is_taken, "the log has come back")
    assert 55 == offset_when_loaded(wire, HERE)
    broker.restart()
    again = Wire(broker)
    assert 55 == offset_in(again.ask(offset_fetch, 7, **fetch(HERE)))
    again.close()


def test_groups_are_loaded_again_after_their_log_failed_and_was_written_again_from_the_write_ahead_log(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    # A flush that begins with the first commit must not make it durable.
    with files.hold_syncs(LOG):
        assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 53)))
        # The disk fails the log and has dropped what was not synced: its groups cannot be loaded from it either.
        files.fail_syncs(LOG, errno.EIO)
        files.fail_writes(LOG, errno.EIO)
        (segment,) = Path(broker.data_dir, LOG).glob("*.log")
        segment.write_bytes(bytes(segment.stat().st_size))
    assert ErrorCode.NOT_COORDINATOR == error_of(wire.ask(offset_commit, 8, **commit(HERE, 54)))
    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS == wire.ask(offset_fetch, 7, **fetch(HERE)).error_code

    files.heal()
    broker.advance(61)  # the longest back-off

    wait_until(lambda: wire.ask(offset_fetch, 7, **fetch(HERE)).error_code == 0, "the groups are loaded again")
    assert 53 == offset_in(wire.ask(offset_fetch, 7, **fetch(HERE)))
    assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 55)))
    assert 55 == offset_in(wire.ask(offset_fetch, 7, **fetch(HERE)))


def test_commits_are_taken_again_by_themselves_after_there_was_no_descriptor(
    broker: Broker, files: FaultyFileSystem, wire: Wire
) -> None:
    assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 53)))
    files.fail_opens("", errno.EMFILE)
    errors = [error_of(wire.ask(offset_commit, 8, **commit(HERE, 54))) for _ in range(5)]
    assert ErrorCode.NONE not in errors
    files.heal()

    wait_until(lambda: error_of(wire.ask(offset_commit, 8, **commit(HERE, 55))) == 0, "the commit is taken")

    assert 55 == offset_in(wire.ask(offset_fetch, 7, **fetch(HERE)))


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of failures; how long the event loop was held depends on the machine."""
    return [record.getMessage() for record in caplog.records if not hasattr(record, "work")]


def test_a_write_that_the_disk_fails_is_one_event_which_says_what_it_means_and_what_to_do(
    files: FaultyFileSystem, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    assert 0 == error_of(wire.ask(offset_commit, 8, **commit(HERE, 53)))
    with caplog.at_level(logging.WARNING, "logmark"):
        files.fail_writes(LOG, errno.EIO)
        for _ in range(3):
            assert ErrorCode.NONE != error_of(wire.ask(offset_commit, 8, **commit(HERE, 54)))

        (event,) = events(caplog)
    assert f"The disk failed the log of __consumer_offsets-{partition_of_group(HERE)}" in event
    assert "what was acknowledged is kept" in event
    assert "Its consumer groups cannot commit until then." in event
    assert "repair it" in event


@pytest.mark.parametrize(
    ("error", "meaning", "remedy"),
    [
        (errno.EIO, "what was acknowledged is kept and readable", "Repair the disk, then restart the broker."),
        (errno.ENOSPC, "Until then these logs take no records: __consumer_offsets-", "Free some space"),
    ],
)
def test_a_round_of_many_partitions_that_the_disk_fails_is_one_event(
    broker: Broker, files: FaultyFileSystem, wire: Wire, caplog: pytest.LogCaptureFixture, error: int, meaning: str,
    remedy: str,
) -> None:  # fmt: skip
    others = [Wire(broker), Wire(broker)]
    with caplog.at_level(logging.WARNING, "logmark"):
        with files.hold_syncs(FIRST_WAL_FILE):
            wire.send(offset_commit, 8, **commit("any", 1))
            files.wait_for_held_sync()
            for other, group in zip(others, (HERE, ELSEWHERE), strict=True):
                other.send(offset_commit, 8, **commit(group, 54))
            third = Wire(broker)
            assert 0 == third.ask(find_coordinator, 2, key=ELSEWHERE).error_code
            third.close()
            files.fail_syncs(FIRST_WAL_FILE, error)
        for each in (wire, *others):
            assert ErrorCode.NOT_COORDINATOR == error_of(each.receive(offset_commit, 8))

        (event,) = events(caplog)
    assert "write-ahead log" in event
    assert meaning in event
    assert remedy in event
    for other in others:
        other.close()
