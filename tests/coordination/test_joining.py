"""Joining: who gets in, who waits, and when a generation starts."""

import pytest

from logmark.coordination.commands import Leaver, Protocol
from logmark.coordination.facts import GroupRecorded
from logmark.coordination.group import NEXT, Group, GroupState
from logmark.coordination.rebalance import GroupSettings
from logmark.errors import ErrorCode
from tests.coordination.desk import GROUP, Desk, subscription


def test_the_first_member_leads_generation_1() -> None:
    desk = Desk()

    joined = desk.joined(desk.join(settle=True))

    assert (1, "app-id1", "app-id1", "range", "consumer") == (
        joined.generation, joined.member_id, joined.leader, joined.protocol, joined.protocol_type
    )
    assert ["app-id1"] == [member.id for member in joined.members]


def test_a_new_group_is_recorded_before_its_first_generation() -> None:
    desk = Desk()

    desk.join()

    (fact,) = desk.facts
    assert fact == GroupRecorded(
        group=GROUP, generation=0, protocol_type=None, protocol=None, leader=None,
        state_changed_at_ms=desk.clock.now_ms(),
    )


def test_only_the_leader_sees_the_members() -> None:
    desk = Desk()
    first, second = desk.join(), desk.join()
    desk.pass_time(0)

    assert ["app-id1", "app-id2"] == [member.id for member in desk.joined(first).members]
    assert () == desk.joined(second).members
    assert desk.joined(second).leader == desk.joined(first).member_id


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_join_that_cannot_be_is_refused(changes: dict[str, object], expected: ErrorCode) -> None:
    desk = Desk()

    assert expected == desk.error(desk.join(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"protocol_type": "connect"}, {"protocols": (Protocol("sticky", b""),)}],
)
def test_a_member_that_shares_no_protocol_is_refused(changes: dict[str, object]) -> None:
    desk = Desk()
    desk.stable("one")

    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == desk.error(desk.join(**changes))
    assert GroupState.STABLE is desk.state()


def test_a_dynamic_member_first_gets_an_id_to_join_with() -> None:
    desk = Desk()

    asked = desk.joined(desk.join(must_know_its_id=True))
    assert (ErrorCode.MEMBER_ID_REQUIRED, "app-id1") == (asked.error, asked.member_id)

    joined = desk.joined(desk.join(asked.member_id, must_know_its_id=True, settle=True))
    assert (ErrorCode.NONE, 1) == (joined.error, joined.generation)


def test_an_id_that_nobody_joins_with_is_forgotten_after_its_session() -> None:
    desk = Desk()
    asked = desk.joined(desk.join(must_know_its_id=True))

    desk.pass_time(10_000)

    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.error(desk.join(asked.member_id))


def test_a_generation_waits_for_those_who_were_given_an_id() -> None:
    desk = Desk()
    (leader,) = desk.stable("one")
    desk.join(client_id="two", must_know_its_id=True)

    rejoined = desk.join(leader)
    assert desk.waits(rejoined)

    desk.pass_time(10_000)
    assert 2 == desk.joined(rejoined).generation


def test_a_group_takes_no_more_than_its_size() -> None:
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=0, size_max=1))
    (member,) = desk.stable("one")

    assert ErrorCode.GROUP_MAX_SIZE_REACHED == desk.error(desk.join())
    assert ErrorCode.NONE == desk.heartbeat(member, 1)


def test_a_group_that_is_too_large_after_a_restart_keeps_those_who_come_first() -> None:
    desk = Desk()
    one, two = desk.stable("one", "two")
    desk.settings = GroupSettings(initial_rebalance_delay_ms=0, size_max=1)
    desk.reload()
    assert GroupState.PREPARING is desk.state()

    kept = desk.join(two)
    assert ErrorCode.GROUP_MAX_SIZE_REACHED == desk.error(desk.join(one))

    desk.pass_time(60_000)
    assert ["two-id2"] == [member.id for member in desk.joined(kept).members]


def test_the_first_generation_waits_for_more_members_as_long_as_they_come() -> None:
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = desk.join()
    desk.pass_time(2_000)
    second = desk.join()

    desk.pass_time(3_999)
    assert desk.waits(first)

    desk.pass_time(1)
    assert 2 == len(desk.joined(first).members)
    assert 1 == desk.joined(second).generation


def test_the_first_wait_is_no_longer_than_the_rebalance_timeout() -> None:
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = desk.join(rebalance_timeout_ms=7_000)
    waited_ms = 0
    while desk.waits(first):
        desk.join(rebalance_timeout_ms=7_000)
        desk.pass_time(500)
        waited_ms += 500

    assert 7_000 >= waited_ms


def test_a_member_that_leaves_during_the_first_wait_leaves_an_empty_group() -> None:
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=3_000))
    ticket = desk.join()
    desk.leave(Leaver("app-id1"))
    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.error(ticket)

    desk.pass_time(3_000)
    assert GroupState.EMPTY is desk.state()


def test_somebody_may_join_while_the_first_wait_has_nobody_left() -> None:
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=3_000))
    desk.join()
    desk.leave(Leaver("app-id1"))

    late = desk.join()
    desk.pass_time(6_000)

    assert 1 == desk.joined(late).generation


def test_a_new_member_makes_the_others_join_again() -> None:
    desk = Desk()
    (old,) = desk.stable("one")

    new = desk.join(client_id="two")
    assert ErrorCode.REBALANCE_IN_PROGRESS == desk.heartbeat(old, 1)
    assert desk.waits(new)

    again = desk.join(old)
    assert 2 == desk.joined(again).generation == desk.joined(new).generation
    assert old == desk.joined(new).leader


def test_those_who_do_not_join_again_in_time_are_out() -> None:
    desk = Desk()
    (old,) = desk.stable("one", session_timeout_ms=1_800_000)

    new = desk.join(client_id="two")
    desk.pass_time(59_999)
    assert desk.waits(new)
    desk.pass_time(1)

    assert ["two-id2"] == [member.id for member in desk.joined(new).members]
    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.heartbeat(old, 1)


def test_the_slowest_member_decides_how_long_a_generation_waits() -> None:
    desk = Desk()
    desk.stable("one", session_timeout_ms=1_800_000, rebalance_timeout_ms=200_000)

    new = desk.join(client_id="two", rebalance_timeout_ms=10_000)
    desk.pass_time(199_999)
    assert desk.waits(new)
    desk.pass_time(1)

    assert not desk.waits(new)


def test_a_new_member_whose_client_is_gone_does_not_wait_for_ever() -> None:
    desk = Desk()
    (old,) = desk.stable("one", session_timeout_ms=1_800_000, rebalance_timeout_ms=1_000_000)
    new = desk.join(client_id="two")

    desk.pass_time(300_000)

    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.error(new)
    assert GroupState.PREPARING is desk.state()
    assert 2 == desk.joined(desk.join(old)).generation


def test_a_follower_that_lost_its_answer_gets_the_same_generation_again() -> None:
    desk = Desk()
    _, follower = desk.stable("one", "two")

    again = desk.joined(desk.join(follower))

    assert (1, ErrorCode.NONE, ()) == (again.generation, again.error, again.members)
    assert GroupState.STABLE is desk.state()


def test_a_leader_that_joins_again_makes_a_new_generation() -> None:
    desk = Desk()
    leader, follower = desk.stable("one", "two")

    again = desk.join(leader)
    assert GroupState.PREPARING is desk.state()
    desk.join(follower)

    assert 2 == desk.joined(again).generation


def test_a_changed_subscription_makes_a_new_generation() -> None:
    desk = Desk()
    leader, follower = desk.stable("one", "two")

    changed = desk.join(follower, protocols=(Protocol("range", subscription("clicks", "orders")),))
    desk.join(leader)

    assert 2 == desk.joined(changed).generation


def test_a_member_that_lost_its_answer_before_the_assignment_gets_it_again() -> None:
    desk = Desk()
    first, second = desk.join(client_id="one"), desk.join(client_id="two")
    desk.pass_time(0)

    leader = desk.joined(desk.join(desk.joined(first).member_id))
    follower = desk.joined(desk.join(desk.joined(second).member_id))

    assert (1, 2) == (leader.generation, len(leader.members))
    assert (1, 0) == (follower.generation, len(follower.members))
    assert GroupState.COMPLETING is desk.state()


def test_the_protocol_with_the_most_votes_is_taken() -> None:
    desk = Desk()
    both = (Protocol("range", b"r"), Protocol("sticky", b"s"))
    tickets = [desk.join(protocols=both), desk.join(protocols=both[::-1]), desk.join(protocols=both[::-1])]
    desk.pass_time(0)

    joined = desk.joined(tickets[0])

    assert "sticky" == joined.protocol
    assert [b"s", b"s", b"s"] == [member.metadata for member in joined.members]


def test_only_what_everybody_supports_can_be_voted_for() -> None:
    desk = Desk()
    tickets = [
        desk.join(protocols=(Protocol("new", b""), Protocol("range", b""))),
        desk.join(protocols=(Protocol("new", b""), Protocol("range", b""))),
        desk.join(protocols=(Protocol("range", b""),)),
    ]
    desk.pass_time(0)

    assert "range" == desk.joined(tickets[0]).protocol


def test_the_same_member_asking_twice_is_answered_twice() -> None:
    desk = Desk()
    leader, _ = desk.stable("one", "two")
    first = desk.join(leader)

    second = desk.join(leader)

    assert ErrorCode.REBALANCE_IN_PROGRESS == desk.error(first)
    assert desk.waits(second)


def test_a_member_id_that_could_not_be_kept_is_refused() -> None:
    desk = Desk()

    assert ErrorCode.INVALID_REQUEST == desk.error(desk.join(client_id="x" * 32_767))


def test_a_group_takes_only_the_steps_that_are_drawn() -> None:
    for state, following in NEXT.items():
        for wanted in GroupState:
            group = Group(id="g", state=state)
            if wanted in following:
                group.move_to(wanted, now_ms=1)
                assert wanted is group.state
            else:
                with pytest.raises(AssertionError):
                    group.move_to(wanted, now_ms=1)
