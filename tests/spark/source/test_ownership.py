"""Which commits show a running owner of a group, and which were made too late: decisions on paper."""

import os
import subprocess
import sys
import threading
import uuid

import pytest

from logmark.client.errors import BrokerUnreachable
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata, Heartbeat, QueryState
from logmark.spark.source import ownership
from logmark.spark.source.heartbeat import HeartbeatThread
from logmark.spark.source.ownership import find_owner, has_ended, is_late, is_on_this_machine, name_process
from logmark.spark.source.position import GroupCommit

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
NOW_MS = 1_700_000_000_000
ELSEWHERE = "host-b/4026531836/7/0badcafe"


def commit(
    offset: int = 10,
    *,
    says: int | None = None,
    query: str = "a",
    generation: int = 5,
    age_s: float | None = 0,
    state: QueryState = QueryState.RUNNING,
    process: str = ELSEWHERE,
    owner: str = "",
) -> GroupCommit:
    beat = None
    if age_s is not None:
        beat = Heartbeat(at_ms=NOW_MS - round(age_s * 1000), state=state, process=process, owner=owner)
    mark = CommitMetadata(
        query=query, generation=generation, offset=offset if says is None else says, heartbeat=beat
    )
    return GroupCommit(offset=offset, mark=mark)


def owner_of(*here: GroupCommit, elsewhere: GroupCommit | None = None, owner: str = "") -> str | None:
    commits = {TopicPartition("clicks", number): one for number, one in enumerate(here)}
    others = {} if elsewhere is None else {TopicPartition("clicks", 9): elsewhere}
    found = find_owner(commits, commits | others, now_ms=NOW_MS, owner=owner)
    return None if found is None else found.query


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (commit(age_s=0), "a"),
        (commit(age_s=119), "a"),
        (commit(age_s=120), None),
        (commit(age_s=-3600), "a"),  # the clock of its driver is ahead
        (commit(age_s=None), None),  # an earlier version
        (commit(age_s=1, state=QueryState.STOPPED), None),
        (commit(says=99), "a"),  # a tool has moved the group and kept the metadata
        (GroupCommit(offset=10, mark=None), None),
    ],
)
def test_a_running_query_owns_its_group_for_two_minutes_after_its_last_heartbeat(
    one: GroupCommit, expected: str | None
) -> None:
    assert expected == owner_of(one)


def test_a_heartbeat_counts_for_all_partitions_of_the_query() -> None:
    old = commit(age_s=3600)

    assert "a" == owner_of(old, elsewhere=commit(age_s=5))
    assert None is owner_of(old, elsewhere=commit(query="b", age_s=5)), "the query of another topic is no owner"


def test_the_newest_heartbeat_of_a_query_counts() -> None:
    stopped, running = commit(age_s=5, state=QueryState.STOPPED), commit(age_s=20)

    assert None is owner_of(running, stopped)
    assert "a" == owner_of(running, commit(age_s=60, state=QueryState.STOPPED))


def test_a_query_with_the_same_owner_may_be_followed_at_once() -> None:
    assert None is owner_of(commit(owner="home-1"), owner="home-1")
    assert "a" == owner_of(commit(owner="home-1"), owner="home-2")
    assert "a" == owner_of(commit(owner=""), owner="")


def test_a_process_of_this_machine_that_has_ended_owns_nothing() -> None:
    child = subprocess.run(
        [sys.executable, "-c", "from logmark.spark.source.ownership import name_process; print(name_process())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ended, here = child.stdout.strip(), name_process()

    assert (True, True) == (is_on_this_machine(ended), has_ended(ended))
    assert (True, False) == (is_on_this_machine(here), has_ended(here))
    assert (False, False) == (is_on_this_machine(ELSEWHERE), has_ended(ELSEWHERE))
    assert [False] * 3 == [has_ended(name) for name in ("", "nonsense", f"{uuid.uuid4()}/x/{os.getpid()}")]
    assert None is owner_of(commit(process=ended))
    assert "a" == owner_of(commit(process=here))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (commit(age_s=1), True),
        (commit(age_s=1, says=9), False),  # a tool moved it
        (commit(age_s=2), False),  # the very commit that was there
        (commit(age_s=3), False),  # one from before, which a tool has restored
        (commit(age_s=1, generation=6), False),
        (commit(age_s=1, query="b"), False),
        (commit(age_s=1, process="me"), False),
        (commit(age_s=None), False),
        (GroupCommit(offset=10, mark=None), False),
    ],
)
def test_a_commit_of_another_process_is_late_if_it_repeats_what_was_there_with_a_newer_heartbeat(
    now: GroupCommit, expected: bool
) -> None:
    assert expected == is_late(now, commit(8, age_s=2), process="me")
    assert not is_late(now, None, process="me")
    assert not is_late(now, commit(8, age_s=None), process="me"), "the version before wrote no heartbeats"


def test_the_refusal_names_the_query_its_process_and_until_when_its_heartbeat_counts() -> None:
    mark = commit(age_s=12).mark
    assert mark is not None

    message = ownership.describe_owner("billing", mark, now_ms=NOW_MS)

    assert "Group billing is in use by the query a (since 1970-01-01 00:00:00 UTC)" in message
    assert "which runs in process 7 on host-b" in message
    assert "its last heartbeat was 12 s ago. Nothing was read or committed" in message
    assert "counts until 2023-11-14 22:15:08 UTC" in message


def test_the_refusal_says_that_clocks_differ() -> None:
    mark = commit(age_s=-300).mark
    assert mark is not None

    assert "300 s ahead of the clock of this machine" in ownership.describe_owner("billing", mark, now_ms=NOW_MS)


def test_a_heartbeat_that_finds_no_broker_is_one_line_in_the_log_and_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    beaten = threading.Event()
    failures = [BrokerUnreachable("The broker at b:1 did not answer.")]

    def beat() -> None:
        if failures:
            raise failures.pop()
        beaten.set()

    thread = HeartbeatThread(beat, every_s=0.001)
    assert beaten.wait(60)
    thread.stop()

    (record,) = [one for one in caplog.records if one.threadName == "logmark heartbeat"]
    assert record.exc_info is None and "The broker at b:1 did not answer." in record.getMessage()
