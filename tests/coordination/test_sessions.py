"""Sessions: who gives no sign of life is out, and the others share what was theirs."""

import pytest

from logmark.coordination.commands import Leaver, OffsetToCommit
from logmark.coordination.facts import GroupRecorded
from logmark.coordination.group import GroupState
from logmark.errors import ErrorCode
from tests.coordination.coordinator_driver import GROUP, CoordinatorDriver

OFFSET = OffsetToCommit("clicks", 0, 5)


@pytest.mark.parametrize(
    "sign",
    [
        lambda driver, member: driver.heartbeat(member, 1),
        lambda driver, member: driver.commit(OFFSET, generation=1, member_id=member),
        lambda driver, member: driver.sync(member, 1),
        lambda driver, member: driver.join(member),
    ],
    ids=["heartbeat", "commit", "sync", "join"],
)
def test_every_sign_of_life_starts_a_new_session(sign) -> None:  # type: ignore[no-untyped-def]
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")
    driver.pass_time(9_000)
    driver.heartbeat(leader, 1)
    sign(driver, follower)

    driver.pass_time(9_999)
    driver.heartbeat(leader, 1)
    assert ErrorCode.NONE == driver.heartbeat(follower, 1)


def test_a_silent_member_is_out_after_its_session() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")
    driver.pass_time(9_999)
    driver.heartbeat(leader, 1)
    assert GroupState.STABLE is driver.state()

    driver.pass_time(1)

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.heartbeat(follower, 1)
    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.heartbeat(leader, 1)


def test_a_group_is_empty_when_its_last_member_is_out() -> None:
    driver = CoordinatorDriver()
    driver.stable("one")

    driver.pass_time(10_000)

    assert GroupState.EMPTY is driver.state()
    assert driver.facts[-1] == GroupRecorded(
        group=GROUP, generation=2, protocol_type="consumer", protocol=None, leader=None,
        state_changed_at_ms=driver.clock.now_ms(),
    )


def test_a_member_that_waits_for_others_needs_no_heartbeat() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two", rebalance_timeout_ms=60_000)
    again = driver.join(leader)
    for _ in range(4):
        driver.pass_time(5_000)
        driver.heartbeat(follower, 1)
    assert driver.waits(again)

    driver.join(follower)

    assert 2 == driver.joined(again).generation


def test_members_have_a_fresh_session_after_a_load() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")
    driver.pass_time(9_000)
    driver.reload()

    driver.pass_time(9_999)
    assert ErrorCode.NONE == driver.heartbeat(leader, 1) == driver.heartbeat(follower, 1)


def test_members_that_do_not_come_back_after_a_load_are_out() -> None:
    driver = CoordinatorDriver()
    driver.stable("one", "two")
    driver.reload()

    driver.pass_time(10_000)
    driver.pass_time(60_000)

    assert GroupState.EMPTY is driver.state()


def test_a_loaded_group_goes_on_where_it_was() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")

    driver.reload()

    assert b"two-id2" == driver.assignment(driver.sync(follower, 1))
    assert [ErrorCode.NONE] == driver.commit(OFFSET, generation=1, member_id=leader)
    new = driver.join(client_id="three")
    driver.join(leader), driver.join(follower)
    assert 2 == driver.joined(new).generation


@pytest.mark.parametrize(
    ("member", "generation", "instance", "group", "expected"),
    [
        ("one-id1", 1, None, "", ErrorCode.INVALID_GROUP_ID),
        ("one-id1", 1, None, "nobody", ErrorCode.UNKNOWN_MEMBER_ID),
        ("stranger", 1, None, GROUP, ErrorCode.UNKNOWN_MEMBER_ID),
        ("one-id1", 1, "unknown", GROUP, ErrorCode.UNKNOWN_MEMBER_ID),
        ("one-id1", 0, None, GROUP, ErrorCode.ILLEGAL_GENERATION),
        ("one-id1", 1, None, GROUP, ErrorCode.NONE),
    ],
)
def test_a_heartbeat_counts_only_for_a_member_of_this_generation(
    member: str, generation: int, instance: str | None, group: str, expected: ErrorCode
) -> None:
    driver = CoordinatorDriver()
    driver.stable("one")

    assert expected == driver.heartbeat(member, generation, instance, group)


def test_a_heartbeat_before_the_assignment_counts() -> None:
    driver = CoordinatorDriver()
    member = driver.joined(driver.join(settle=True)).member_id

    assert ErrorCode.NONE == driver.heartbeat(member, 1)


def test_a_leaver_is_out_at_once() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")

    assert [ErrorCode.NONE] == driver.leave(Leaver(leader))

    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.heartbeat(follower, 1)
    assert follower == driver.joined(driver.join(follower)).leader


def test_the_last_leaver_leaves_an_empty_group_in_a_new_generation() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")

    driver.leave(Leaver(member))

    assert GroupState.EMPTY is driver.state()
    driver.reload()
    assert GroupState.EMPTY is driver.state()
    assert 3 == driver.joined(driver.join(settle=True)).generation


def test_a_leaver_that_waits_is_told_that_it_is_unknown() -> None:
    driver = CoordinatorDriver()
    (old,) = driver.stable("one")
    new = driver.join(client_id="two")

    driver.leave(Leaver("two-id2"))

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.error(new)
    assert 2 == driver.joined(driver.join(old)).generation


def test_an_id_that_was_not_joined_with_can_be_given_back() -> None:
    driver = CoordinatorDriver()
    asked = driver.joined(driver.join(must_know_its_id=True))

    assert [ErrorCode.NONE] == driver.leave(Leaver(asked.member_id))
    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.error(driver.join(asked.member_id))


def test_the_last_absentee_that_leaves_lets_the_others_go_on() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")
    again = driver.join(leader)
    assert driver.waits(again)

    driver.leave(Leaver(follower))

    assert 2 == driver.joined(again).generation


def test_each_leaver_gets_its_own_answer() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")

    errors = driver.leave(Leaver(leader), Leaver("stranger"), Leaver("", "no-instance"), Leaver(follower))

    assert [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE] == errors
    assert GroupState.EMPTY is driver.state()


def test_nobody_can_leave_a_group_that_does_not_exist() -> None:
    driver = CoordinatorDriver()

    assert [ErrorCode.UNKNOWN_MEMBER_ID] == driver.leave(Leaver("m"), group="nobody")
