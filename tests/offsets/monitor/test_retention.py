"""How long unread records and idle groups still have, by stated formulas."""

import math

import pytest

from logmark.client.answers import Committed, GroupMember
from logmark.names import TopicPartition
from logmark.offsets.lag.sample import GroupSample
from logmark.offsets.monitor.retention import IdleGroup, idle_groups, seconds_until_deletion

DAY_MS = 86_400_000
# What it is about, age in seconds, retention in ms, records above the log start, rate of the start, of the group, left.
LEFT = [
    ("retention less age", 86_000.0, DAY_MS, 100, None, 0.0, 400.0),
    ("older than retention: any moment", 90_000.0, DAY_MS, 100, None, 0.0, 0.0),
    ("the start comes nearer", None, None, 100, 2.0, 0.0, 50.0),
    ("the group runs before it", None, None, 100, 2.0, 1.5, 200.0),
    ("the group is faster", None, None, 100, 2.0, 2.0, math.inf),
    ("nothing was deleted so far", None, None, 100, 0.0, 0.0, math.inf),
    ("the less of both", 86_000.0, DAY_MS, 100, 2.0, 0.0, 50.0),
    ("the less of both, the other way", 86_380.0, DAY_MS, 100, 2.0, 0.0, 20.0),
    ("at the start already", 0.0, DAY_MS, 0, 2.0, 0.0, 0.0),
    ("time deletes nothing", 1e9, -1, 100, None, 0.0, math.inf),
    ("time deletes nothing, but size does", 1e9, -1, 100, 1.0, 0.0, 100.0),
    ("the age is not known", None, DAY_MS, 100, None, 0.0, None),
    ("nobody may say", 5.0, None, 100, None, 0.0, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("age", "retention", "headroom", "start", "read", "left"), [row[1:] for row in LEFT], ids=[row[0] for row in LEFT]
)
def test_what_is_unread_is_there_for_so_long(
    age: float | None, retention: int | None, headroom: int, start: float | None, read: float, left: float | None
) -> None:
    found = seconds_until_deletion(
        age_s=age, retention_ms=retention, headroom=headroom, start_per_s=start, read_per_s=read
    )

    assert left == (None if found is None else pytest.approx(found))


def group(offset: int = 5, *, state: str = "Empty", metadata: str = "", problem: str = "") -> GroupSample:
    commit = Committed(offset=offset, metadata=metadata)
    members = () if state == "Empty" else (GroupMember(member_id="m", instance_id=None, client_id="c", host="h"),)
    return GroupSample(
        group="g", state=state, members=members, committed={TopicPartition("t", 0): commit}, problem=problem
    )


def test_a_group_is_idle_since_it_was_first_seen_without_members_and_with_these_commits() -> None:
    first = idle_groups({}, [group()], 1000)
    later = idle_groups(first, [group()], 5000)

    assert 1000 == later["g"].since_ms


@pytest.mark.parametrize("changed", [group(6), group(metadata="renewed")], ids=["moved", "renewed"])
def test_a_commit_ends_the_idle_time(changed: GroupSample) -> None:
    assert 5000 == idle_groups(idle_groups({}, [group()], 1000), [changed], 5000)["g"].since_ms


def test_a_group_with_members_is_not_idle() -> None:
    assert {} == idle_groups(idle_groups({}, [group()], 1000), [group(state="Stable")], 5000)


def test_a_group_that_cannot_be_read_stays_as_it_was() -> None:
    known = {"g": IdleGroup("mark", 7)}

    assert known == idle_groups(known, [group(problem="No.")], 5000)
