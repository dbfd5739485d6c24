"""Sessions: who gives no sign of life is out, and the others share what was theirs."""

import pytest

from logmark.coordination.commands import Leaver, Place
from logmark.coordination.facts import GroupRecorded
from logmark.coordination.group import GroupState
from logmark.errors import ErrorCode
from tests.coordination.desk import GROUP, Desk

PLACE = Place("clicks", 0, 5)


@pytest.mark.parametrize(
    "sign",
    [
        lambda desk, member: desk.heartbeat(member, 1),
        lambda desk, member: desk.commit(PLACE, generation=1, member_id=member),
        lambda desk, member: desk.sync(member, 1),
        lambda desk, member: desk.join(member),
    ],
    ids=["heartbeat", "commit", "sync", "join"],
)
def test_every_sign_of_life_starts_a_new_session(sign) -> None:  # type: ignore[no-untyped-def]
    desk = Desk()
    leader, follower = desk.stable("one", "two")
    desk.pass_time(9_000)
    desk.heartbeat(leader, 1)
    sign(desk, follower)

    desk.pass_time(9_999)
    desk.heartbeat(leader, 1)
    assert ErrorCode.NONE == desk.heartbeat(follower, 1)


def test_a_silent_member_is_out_after_its_session() -> None:
    desk = Desk()
    leader, follower = desk.stable("one", "two")
    desk.pass_time(9_999)
    desk.heartbeat(leader, 1)
    assert GroupState.STABLE is desk.state()

    desk.pass_time(1)

    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.heartbeat(follower, 1)
    assert ErrorCode.REBALANCE_IN_PROGRESS == desk.heartbeat(leader, 1)


def test_a_group_is_empty_when_its_last_member_is_out() -> None:
    desk = Desk()
    desk.stable("one")

    desk.pass_time(10_000)

    assert GroupState.EMPTY is desk.state()
    assert desk.facts[-1] == GroupRecorded(
        group=GROUP, generation=2, protocol_type="consumer", protocol=None, leader=None,
        state_changed_at_ms=desk.clock.now_ms(),
    )


def test_a_member_that_waits_for_others_needs_no_heartbeat() -> None:
    desk = Desk()
    leader, follower = desk.stable("one", "two", rebalance_timeout_ms=60_000)
    again = desk.join(leader)
    for _ in range(4):
        desk.pass_time(5_000)
        desk.heartbeat(follower, 1)
    assert desk.waits(again)

    desk.join(follower)

    assert 2 == desk.joined(again).generation


def test_members_have_a_fresh_session_after_a_load() -> None:
    desk = Desk()
    leader, follower = desk.stable("one", "two")
    desk.pass_time(9_000)
    desk.reload()

    desk.pass_time(9_999)
    assert ErrorCode.NONE == desk.heartbeat(leader, 1) == desk.heartbeat(follower, 1)


def test_members_that_do_not_come_back_after_a_load_are_out() -> None:
    desk = Desk()
    desk.stable("one", "two")
    desk.reload()

    desk.pass_time(10_000)
    desk.pass_time(60_000)

    assert GroupState.EMPTY is desk.state()


def test_a_loaded_group_goes_on_where_it_was() -> None:
    desk = Desk()
    leader, follower = desk.stable("one", "two")

    desk.reload()

    assert b"two-id2" == desk.assignment(desk.sync(follower, 1))
    assert [ErrorCode.NONE] == desk.commit(PLACE, generation=1, member_id=leader)
    new = desk.join(client_id="three")
    desk.join(leader), desk.join(follower)
    assert 2 == desk.joined(new).generation


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
    desk = Desk()
    desk.stable("one")

    assert expected == desk.heartbeat(member, generation, instance, group)


def test_a_heartbeat_before_the_assignment_counts() -> None:
    desk = Desk()
    member = desk.joined(desk.join(settle=True)).member_id

    assert ErrorCode.NONE == desk.heartbeat(member, 1)


def test_a_leaver_is_out_at_once() -> None:
    desk = Desk()
    leader, follower = desk.stable("one", "two")

    assert [ErrorCode.NONE] == desk.leave(Leaver(leader))

    assert ErrorCode.REBALANCE_IN_PROGRESS == desk.heartbeat(follower, 1)
    assert follower == desk.joined(desk.join(follower)).leader


def test_the_last_leaver_leaves_an_empty_group_in_a_new_generation() -> None:
    desk = Desk()
    (member,) = desk.stable("one")

    desk.leave(Leaver(member))

    assert GroupState.EMPTY is desk.state()
    desk.reload()
    assert GroupState.EMPTY is desk.state()
    assert 3 == desk.joined(desk.join(settle=True)).generation


def test_a_leaver_that_waits_is_told_that_it_is_unknown() -> None:
    desk = Desk()
    (old,) = desk.stable("one")
    new = desk.join(client_id="two")

    desk.leave(Leaver("two-id2"))

    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.error(new)
    assert 2 == desk.joined(desk.join(old)).generation


def test_an_id_that_was_not_joined_with_can_be_given_back() -> None:
    desk = Desk()
    asked = desk.joined(desk.join(must_know_its_id=True))

    assert [ErrorCode.NONE] == desk.leave(Leaver(asked.member_id))
    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.error(desk.join(asked.member_id))


def test_the_last_absentee_that_leaves_lets_the_others_go_on() -> None:
    desk = Desk()
    leader, follower = desk.stable("one", "two")
    again = desk.join(leader)
    assert desk.waits(again)

    desk.leave(Leaver(follower))

    assert 2 == desk.joined(again).generation


def test_each_leaver_gets_its_own_answer() -> None:
    desk = Desk()
    leader, follower = desk.stable("one", "two")

    errors = desk.leave(Leaver(leader), Leaver("stranger"), Leaver("", "no-instance"), Leaver(follower))

    assert [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE] == errors
    assert GroupState.EMPTY is desk.state()


def test_nobody_can_leave_a_group_that_does_not_exist() -> None:
    desk = Desk()

    assert [ErrorCode.UNKNOWN_MEMBER_ID] == desk.leave(Leaver("m"), group="nobody")
