"""Static members: a restart within the session costs nobody anything (KIP-345)."""

import pytest

from logmark.coordination.commands import Leaver, Place, Protocol
from logmark.coordination.group import GroupState
from logmark.errors import ErrorCode
from tests.coordination.desk import Desk, subscription

BOTH = (Protocol("range", subscription("clicks")), Protocol("sticky", subscription("clicks")))


def static_pair(desk: Desk) -> tuple[str, str]:
    """A stable group of two static members; the first leads."""
    tickets = [desk.join(instance_id=f"i{n}", client_id=f"c{n}", protocols=BOTH) for n in (1, 2)]
    desk.pass_time(0)
    one, two = (desk.joined(ticket).member_id for ticket in tickets)
    desk.sync(two, 1)
    desk.sync(one, 1, {one: b"P0", two: b"P1"})
    assert GroupState.STABLE is desk.state()
    return one, two


def test_a_static_member_needs_no_second_join_for_its_id() -> None:
    desk = Desk()

    joined = desk.joined(desk.join(instance_id="i1", must_know_its_id=True, settle=True))

    assert (ErrorCode.NONE, "i1-id1") == (joined.error, joined.member_id)


def test_a_restarted_static_member_takes_its_place_without_a_rebalance() -> None:
    desk = Desk()
    _, two = static_pair(desk)

    back = desk.joined(desk.join(instance_id="i2", protocols=BOTH))

    assert (1, GroupState.STABLE) == (back.generation, desk.state())
    assert two != back.member_id
    assert b"P1" == desk.assignment(desk.sync(back.member_id, 1, instance_id="i2"))


def test_the_new_id_of_a_static_member_outlives_a_restart() -> None:
    desk = Desk()
    _, two = static_pair(desk)
    back = desk.joined(desk.join(instance_id="i2", protocols=BOTH))

    desk.reload()

    assert ErrorCode.NONE == desk.heartbeat(back.member_id, 1, "i2")
    assert ErrorCode.FENCED_INSTANCE_ID == desk.heartbeat(two, 1, "i2")


@pytest.mark.parametrize(
    "act",
    [
        lambda desk, old: desk.heartbeat(old, 1, "i2"),
        lambda desk, old: desk.error(desk.sync(old, 1, instance_id="i2")),
        lambda desk, old: desk.error(desk.join(old, instance_id="i2", protocols=BOTH)),
        lambda desk, old: desk.commit(Place("clicks", 1, 7), generation=1, member_id=old, instance_id="i2"),
        lambda desk, old: desk.leave(Leaver(old, "i2"))[0],
    ],
    ids=["heartbeat", "sync", "join", "commit", "leave"],
)
def test_whoever_still_holds_the_old_id_is_fenced(act) -> None:  # type: ignore[no-untyped-def]
    desk = Desk()
    _, two = static_pair(desk)
    desk.join(instance_id="i2", protocols=BOTH)

    assert ErrorCode.FENCED_INSTANCE_ID == act(desk, two)


def test_a_waiting_join_of_the_old_one_is_fenced_at_once() -> None:
    desk = Desk()
    one, two = static_pair(desk)
    waiting = desk.join(two, instance_id="i2", protocols=BOTH[:1])
    assert desk.waits(waiting)

    replaced = desk.join(instance_id="i2", protocols=BOTH)

    assert ErrorCode.FENCED_INSTANCE_ID == desk.error(waiting)
    desk.join(one, instance_id="i1", protocols=BOTH)
    assert 2 == desk.joined(replaced).generation


def test_a_restarted_leader_is_told_not_to_assign() -> None:
    desk = Desk()
    static_pair(desk)

    back = desk.joined(desk.join(instance_id="i1", protocols=BOTH))

    assert back.skip_assignment
    assert back.member_id == back.leader
    assert 2 == len(back.members)


def test_an_older_leader_is_kept_from_assigning_by_the_old_leaders_id() -> None:
    desk = Desk()
    one, _ = static_pair(desk)

    back = desk.joined(desk.join(instance_id="i1", protocols=BOTH, can_skip_assignment=False))

    assert (one, (), False) == (back.leader, back.members, back.skip_assignment)


def test_a_restart_that_changes_the_vote_rebalances() -> None:
    desk = Desk()
    one, _ = static_pair(desk)
    desk.leave(Leaver("", "i2"))
    desk.join(one, instance_id="i1", protocols=BOTH)
    desk.sync(one, 2)

    back = desk.join(instance_id="i1", protocols=BOTH[::-1])

    assert (3, "sticky") == (desk.joined(back).generation, desk.joined(back).protocol)


def test_a_restart_before_the_assignment_rebalances() -> None:
    desk = Desk()
    tickets = [desk.join(instance_id=f"i{n}") for n in (1, 2)]
    desk.pass_time(0)
    one, two = (desk.joined(ticket).member_id for ticket in tickets)
    waiting = desk.sync(two, 1)

    back = desk.join(instance_id="i1")
    assert ErrorCode.REBALANCE_IN_PROGRESS == desk.error(waiting)
    desk.join(two, instance_id="i2")

    assert 2 == desk.joined(back).generation
    assert one != desk.joined(back).member_id


def test_a_static_member_that_does_not_join_again_keeps_its_place_until_its_session_ends() -> None:
    desk = Desk()
    one, two = static_pair(desk)
    desk.join(one, instance_id="i1", protocols=BOTH[:1])
    for _ in range(12):
        desk.pass_time(5_000)
        desk.heartbeat(two, 1, "i2")

    assert GroupState.COMPLETING is desk.state()
    assert {one, two} == {member.id for member in desk.describe().members}


def test_a_static_member_is_out_after_its_session() -> None:
    desk = Desk()
    one, two = static_pair(desk)
    desk.pass_time(9_000)
    desk.heartbeat(one, 1, "i1")

    desk.pass_time(1_000)

    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.heartbeat(two, 1, "i2")


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    desk = Desk()
    one, _ = static_pair(desk)

    assert [ErrorCode.NONE] == desk.leave(Leaver("", "i2"))

    assert ErrorCode.REBALANCE_IN_PROGRESS == desk.heartbeat(one, 1, "i1")


def test_a_group_of_absent_static_members_ends_with_their_sessions() -> None:
    desk = Desk()
    static_pair(desk)
    desk.reload()

    desk.pass_time(200_000)

    assert GroupState.EMPTY is desk.state()


def test_an_unknown_instance_with_a_member_id_is_unknown() -> None:
    desk = Desk()
    one, _ = static_pair(desk)

    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.error(desk.join(one, instance_id="i9", protocols=BOTH))
