"""Syncing: the leader assigns, everybody learns what is theirs, and a restart knows it too."""

import pytest

from logmark.coordination.facts import GroupRecorded
from logmark.coordination.group import GroupState
from logmark.errors import ErrorCode
from tests.coordination.coordinator_driver import GROUP, CoordinatorDriver


def completing(driver: CoordinatorDriver) -> tuple[str, str]:
    """A group whose leader has yet to assign: the ids of the leader and of a follower."""
    tickets = driver.join(client_id="one"), driver.join(client_id="two")
    driver.pass_time(0)
    leader, follower = (driver.joined(ticket).member_id for ticket in tickets)
    assert GroupState.COMPLETING is driver.state()
    return leader, follower


def test_members_wait_for_the_leader_and_get_what_it_assigned() -> None:
    driver = CoordinatorDriver()
    leader, follower = completing(driver)

    waiting = driver.sync(follower, 1)
    assert driver.waits(waiting)
    brought = driver.sync(leader, 1, {leader: b"P0", follower: b"P1"})

    assert (b"P0", b"P1") == (driver.assignment(brought), driver.assignment(waiting))
    assert GroupState.STABLE is driver.state()


def test_the_assignment_is_recorded_with_its_generation() -> None:
    driver = CoordinatorDriver()
    leader, follower = completing(driver)
    driver.sync(leader, 1, {leader: b"P0", follower: b"P1"})

    fact = driver.facts[-1]

    assert isinstance(fact, GroupRecorded)
    assert (1, "consumer", "range", leader) == (fact.generation, fact.protocol_type, fact.protocol, fact.leader)
    assert {leader: b"P0", follower: b"P1"} == {member.id: member.assignment for member in fact.members}


def test_a_member_that_the_leader_left_out_owns_nothing() -> None:
    driver = CoordinatorDriver()
    leader, follower = completing(driver)
    waiting = driver.sync(follower, 1)

    driver.sync(leader, 1, {leader: b"P0", "nobody": b"P9"})

    assert b"" == driver.assignment(waiting)


def test_who_syncs_late_gets_the_stored_assignment() -> None:
    driver = CoordinatorDriver()
    leader, follower = completing(driver)
    driver.sync(leader, 1, {leader: b"P0", follower: b"P1"})

    assert b"P1" == driver.assignment(driver.sync(follower, 1))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_sync_that_cannot_be_is_refused(changes: dict[str, object], expected: ErrorCode) -> None:
    driver = CoordinatorDriver()
    leader, _ = completing(driver)
    values: dict[str, object] = {"member_id": leader, "generation": 1, "group": GROUP} | changes

    assert expected == driver.error(driver.sync(**values))  # type: ignore[arg-type]


def test_a_sync_while_others_join_is_told_to_join() -> None:
    driver = CoordinatorDriver()
    leader, _ = driver.stable("one", "two")
    driver.join(client_id="three")

    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.error(driver.sync(leader, 1))


def test_a_member_of_an_empty_group_is_unknown() -> None:
    driver = CoordinatorDriver()
    driver.commit(group=GROUP)

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.error(driver.sync("m", 1))


def test_a_join_before_the_assignment_sends_the_waiting_back_to_join() -> None:
    driver = CoordinatorDriver()
    _, follower = completing(driver)
    waiting = driver.sync(follower, 1)

    driver.join(client_id="three")

    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.error(waiting)
    assert GroupState.PREPARING is driver.state()


def test_a_leader_that_never_assigns_is_out_after_the_rebalance_timeout() -> None:
    driver = CoordinatorDriver()
    leader, follower = completing(driver)
    waiting = driver.sync(follower, 1)
    for _ in range(12):
        driver.heartbeat(leader, 1)
        driver.pass_time(5_000)

    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.error(waiting)
    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.heartbeat(leader, 1)
    assert follower == driver.joined(driver.join(follower)).leader


def test_a_member_that_never_asks_for_its_assignment_is_out_after_the_rebalance_timeout() -> None:
    driver = CoordinatorDriver()
    leader, follower = completing(driver)
    driver.sync(leader, 1, {leader: b"P0", follower: b"P1"})
    for _ in range(12):
        driver.heartbeat(leader, 1)
        driver.heartbeat(follower, 1)
        driver.pass_time(5_000)

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.heartbeat(follower, 1)
    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.heartbeat(leader, 1)


def test_nobody_is_out_when_everybody_synced_in_time() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")
    for _ in range(30):
        assert ErrorCode.NONE == driver.heartbeat(leader, 1) == driver.heartbeat(follower, 1)
        driver.pass_time(5_000)


def test_a_member_may_wait_longer_for_the_leader_than_its_session() -> None:
    driver = CoordinatorDriver()
    leader, follower = completing(driver)
    waiting = driver.sync(follower, 1)
    for _ in range(4):
        driver.heartbeat(leader, 1)
        driver.pass_time(5_000)

    driver.sync(leader, 1, {leader: b"P0", follower: b"P1"})

    assert b"P1" == driver.assignment(waiting)
    driver.pass_time(9_999)
    assert ErrorCode.NONE == driver.heartbeat(follower, 1)


def test_the_same_member_syncing_twice_is_answered_twice() -> None:
    driver = CoordinatorDriver()
    leader, follower = completing(driver)
    first, second = driver.sync(follower, 1), driver.sync(follower, 1)

    driver.sync(leader, 1, {follower: b"P1"})

    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.error(first)
    assert b"P1" == driver.assignment(second)
