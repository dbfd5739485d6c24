"""Static members: a restart within the session costs nobody anything (KIP-345)."""

import pytest

from logmark.coordination.commands import Leaver, OffsetToCommit, Protocol
from logmark.coordination.group import GroupState
from logmark.errors import ErrorCode
from tests.coordination.coordinator_driver import CoordinatorDriver, subscription

BOTH = (Protocol("range", subscription("clicks")), Protocol("sticky", subscription("clicks")))


def static_pair(driver: CoordinatorDriver) -> tuple[str, str]:
    """A stable group of two static members; the first leads."""
    tickets = [driver.join(instance_id=f"i{n}", client_id=f"c{n}", protocols=BOTH) for n in (1, 2)]
    driver.pass_time(0)
    one, two = (driver.joined(ticket).member_id for ticket in tickets)
    driver.sync(two, 1)
    driver.sync(one, 1, {one: b"P0", two: b"P1"})
    assert GroupState.STABLE is driver.state()
    return one, two


def test_a_static_member_needs_no_second_join_for_its_id() -> None:
    driver = CoordinatorDriver()

    joined = driver.joined(driver.join(instance_id="i1", must_know_its_id=True, settle=True))

    assert (ErrorCode.NONE, "i1-id1") == (joined.error, joined.member_id)


def test_a_restarted_static_member_gets_its_assignment_without_a_rebalance() -> None:
    driver = CoordinatorDriver()
    _, two = static_pair(driver)

    back = driver.joined(driver.join(instance_id="i2", protocols=BOTH))

    assert (1, GroupState.STABLE) == (back.generation, driver.state())
    assert two != back.member_id
    assert b"P1" == driver.assignment(driver.sync(back.member_id, 1, instance_id="i2"))


def test_the_new_id_of_a_static_member_outlives_a_restart() -> None:
    driver = CoordinatorDriver()
    _, two = static_pair(driver)
    back = driver.joined(driver.join(instance_id="i2", protocols=BOTH))

    driver.reload()

    assert ErrorCode.NONE == driver.heartbeat(back.member_id, 1, "i2")
    assert ErrorCode.FENCED_INSTANCE_ID == driver.heartbeat(two, 1, "i2")


@pytest.mark.parametrize(
    "act",
    [
        lambda driver, old: driver.heartbeat(old, 1, "i2"),
        lambda driver, old: driver.error(driver.sync(old, 1, instance_id="i2")),
        lambda driver, old: driver.error(driver.join(old, instance_id="i2", protocols=BOTH)),
        lambda driver, old: driver.commit(
            OffsetToCommit("clicks", 1, 7), generation=1, member_id=old, instance_id="i2"
        ),
        lambda driver, old: driver.leave(Leaver(old, "i2"))[0],
    ],
    ids=["heartbeat", "sync", "join", "commit", "leave"],
)
def test_whoever_still_holds_the_old_id_is_fenced(act) -> None:  # type: ignore[no-untyped-def]
    driver = CoordinatorDriver()
    _, two = static_pair(driver)
    driver.join(instance_id="i2", protocols=BOTH)

    assert ErrorCode.FENCED_INSTANCE_ID == act(driver, two)


def test_a_waiting_join_of_the_old_one_is_fenced_at_once() -> None:
    driver = CoordinatorDriver()
    one, two = static_pair(driver)
    waiting = driver.join(two, instance_id="i2", protocols=BOTH[:1])
    assert driver.waits(waiting)

    replaced = driver.join(instance_id="i2", protocols=BOTH)

    assert ErrorCode.FENCED_INSTANCE_ID == driver.error(waiting)
    driver.join(one, instance_id="i1", protocols=BOTH)
    assert 2 == driver.joined(replaced).generation


def test_a_restarted_leader_is_told_not_to_assign() -> None:
    driver = CoordinatorDriver()
    static_pair(driver)

    back = driver.joined(driver.join(instance_id="i1", protocols=BOTH))

    assert back.skip_assignment
    assert back.member_id == back.leader
    assert 2 == len(back.members)


def test_an_older_leader_is_kept_from_assigning_by_the_old_leaders_id() -> None:
    driver = CoordinatorDriver()
    one, _ = static_pair(driver)

    back = driver.joined(driver.join(instance_id="i1", protocols=BOTH, can_skip_assignment=False))

    assert (one, (), False) == (back.leader, back.members, back.skip_assignment)


def test_a_restart_that_changes_the_vote_rebalances() -> None:
    driver = CoordinatorDriver()
    one, _ = static_pair(driver)
    driver.leave(Leaver("", "i2"))
    driver.join(one, instance_id="i1", protocols=BOTH)
    driver.sync(one, 2)

    back = driver.join(instance_id="i1", protocols=BOTH[::-1])

    assert (3, "sticky") == (driver.joined(back).generation, driver.joined(back).protocol)


def test_a_restart_before_the_assignment_rebalances() -> None:
    driver = CoordinatorDriver()
    tickets = [driver.join(instance_id=f"i{n}") for n in (1, 2)]
    driver.pass_time(0)
    one, two = (driver.joined(ticket).member_id for ticket in tickets)
    waiting = driver.sync(two, 1)

    back = driver.join(instance_id="i1")
    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.error(waiting)
    driver.join(two, instance_id="i2")

    assert 2 == driver.joined(back).generation
    assert one != driver.joined(back).member_id


def test_a_static_member_that_does_not_join_again_stays_a_member_until_its_session_ends() -> None:
    driver = CoordinatorDriver()
    one, two = static_pair(driver)
    driver.join(one, instance_id="i1", protocols=BOTH[:1])
    for _ in range(12):
        driver.pass_time(5_000)
        driver.heartbeat(two, 1, "i2")

    assert GroupState.COMPLETING is driver.state()
    assert {one, two} == {member.id for member in driver.describe().members}


def test_a_static_member_is_out_after_its_session() -> None:
    driver = CoordinatorDriver()
    one, two = static_pair(driver)
    driver.pass_time(9_000)
    driver.heartbeat(one, 1, "i1")

    driver.pass_time(1_000)

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.heartbeat(two, 1, "i2")


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    driver = CoordinatorDriver()
    one, _ = static_pair(driver)

    assert [ErrorCode.NONE] == driver.leave(Leaver("", "i2"))

    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.heartbeat(one, 1, "i1")


def test_a_group_of_absent_static_members_ends_with_their_sessions() -> None:
    driver = CoordinatorDriver()
    static_pair(driver)
    driver.reload()

    driver.pass_time(200_000)

    assert GroupState.EMPTY is driver.state()


def test_an_unknown_instance_with_a_member_id_is_unknown() -> None:
    driver = CoordinatorDriver()
    one, _ = static_pair(driver)

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.error(driver.join(one, instance_id="i9", protocols=BOTH))
