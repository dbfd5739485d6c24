"""Joining: who gets in, who waits, and when a generation starts."""

import pytest

from logmark.coordination.classic_group import NEXT, ClassicGroup
from logmark.coordination.commands import Leaver, Protocol
from logmark.coordination.facts import GroupRecorded
from logmark.coordination.group import GroupState
from logmark.coordination.settings import GroupSettings
from logmark.errors import ErrorCode
from tests.coordination.coordinator_driver import GROUP, CoordinatorDriver, subscription


def test_the_first_member_leads_generation_1() -> None:
    driver = CoordinatorDriver()

    joined = driver.joined(driver.join(settle=True))

    assert (1, "app-id1", "app-id1", "range", "consumer") == (
        joined.generation, joined.member_id, joined.leader, joined.protocol, joined.protocol_type
    )
    assert ["app-id1"] == [member.id for member in joined.members]


def test_a_new_group_is_recorded_before_its_first_generation() -> None:
    driver = CoordinatorDriver()

    driver.join()

    (fact,) = driver.facts
    assert fact == GroupRecorded(
        group=GROUP, generation=0, protocol_type=None, protocol=None, leader=None,
        state_changed_at_ms=driver.clock.now_ms(),
    )


def test_only_the_leader_sees_the_members() -> None:
    driver = CoordinatorDriver()
    first, second = driver.join(), driver.join()
    driver.pass_time(0)

    assert ["app-id1", "app-id2"] == [member.id for member in driver.joined(first).members]
    assert () == driver.joined(second).members
    assert driver.joined(second).leader == driver.joined(first).member_id


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
    driver = CoordinatorDriver()

    assert expected == driver.error(driver.join(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"protocol_type": "connect"}, {"protocols": (Protocol("sticky", b""),)}],
)
def test_a_member_that_shares_no_protocol_is_refused(changes: dict[str, object]) -> None:
    driver = CoordinatorDriver()
    driver.stable("one")

    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == driver.error(driver.join(**changes))
    assert GroupState.STABLE is driver.state()


def test_a_dynamic_member_first_gets_an_id_to_join_with() -> None:
    driver = CoordinatorDriver()

    asked = driver.joined(driver.join(must_know_its_id=True))
    assert (ErrorCode.MEMBER_ID_REQUIRED, "app-id1") == (asked.error, asked.member_id)

    joined = driver.joined(driver.join(asked.member_id, must_know_its_id=True, settle=True))
    assert (ErrorCode.NONE, 1) == (joined.error, joined.generation)


def test_an_id_that_nobody_joins_with_is_forgotten_after_its_session() -> None:
    driver = CoordinatorDriver()
    asked = driver.joined(driver.join(must_know_its_id=True))

    driver.pass_time(10_000)

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.error(driver.join(asked.member_id))


def test_a_generation_waits_for_those_who_were_given_an_id() -> None:
    driver = CoordinatorDriver()
    (leader,) = driver.stable("one")
    driver.join(client_id="two", must_know_its_id=True)

    rejoined = driver.join(leader)
    assert driver.waits(rejoined)

    driver.pass_time(10_000)
    assert 2 == driver.joined(rejoined).generation


def test_a_group_takes_no_more_than_its_size() -> None:
    driver = CoordinatorDriver(GroupSettings(initial_rebalance_delay_ms=0, size_max=1))
    (member,) = driver.stable("one")

    assert ErrorCode.GROUP_MAX_SIZE_REACHED == driver.error(driver.join())
    assert ErrorCode.NONE == driver.heartbeat(member, 1)


def test_a_group_that_is_too_large_after_a_restart_keeps_those_who_come_first() -> None:
    driver = CoordinatorDriver()
    one, two = driver.stable("one", "two")
    driver.settings = GroupSettings(initial_rebalance_delay_ms=0, size_max=1)
    driver.reload()
    assert GroupState.PREPARING is driver.state()

    kept = driver.join(two)
    assert ErrorCode.GROUP_MAX_SIZE_REACHED == driver.error(driver.join(one))

    driver.pass_time(60_000)
    assert ["two-id2"] == [member.id for member in driver.joined(kept).members]


def test_the_first_generation_waits_for_more_members_as_long_as_they_come() -> None:
    driver = CoordinatorDriver(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = driver.join()
    driver.pass_time(2_000)
    second = driver.join()

    driver.pass_time(3_999)
    assert driver.waits(first)

    driver.pass_time(1)
    assert 2 == len(driver.joined(first).members)
    assert 1 == driver.joined(second).generation


def test_the_first_wait_is_no_longer_than_the_rebalance_timeout() -> None:
    driver = CoordinatorDriver(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = driver.join(rebalance_timeout_ms=7_000)
    waited_ms = 0
    while driver.waits(first):
        driver.join(rebalance_timeout_ms=7_000)
        driver.pass_time(500)
        waited_ms += 500

    assert 7_000 >= waited_ms


def test_a_member_that_leaves_during_the_first_wait_leaves_an_empty_group() -> None:
    driver = CoordinatorDriver(GroupSettings(initial_rebalance_delay_ms=3_000))
    ticket = driver.join()
    driver.leave(Leaver("app-id1"))
    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.error(ticket)

    driver.pass_time(3_000)
    assert GroupState.EMPTY is driver.state()


def test_somebody_may_join_while_the_first_wait_has_nobody_left() -> None:
    driver = CoordinatorDriver(GroupSettings(initial_rebalance_delay_ms=3_000))
    driver.join()
    driver.leave(Leaver("app-id1"))

    late = driver.join()
    driver.pass_time(6_000)

    assert 1 == driver.joined(late).generation


def test_a_new_member_makes_the_others_join_again() -> None:
    driver = CoordinatorDriver()
    (old,) = driver.stable("one")

    new = driver.join(client_id="two")
    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.heartbeat(old, 1)
    assert driver.waits(new)

    again = driver.join(old)
    assert 2 == driver.joined(again).generation == driver.joined(new).generation
    assert old == driver.joined(new).leader


def test_those_who_do_not_join_again_in_time_are_out() -> None:
    driver = CoordinatorDriver()
    (old,) = driver.stable("one", session_timeout_ms=1_800_000)

    new = driver.join(client_id="two")
    driver.pass_time(59_999)
    assert driver.waits(new)
    driver.pass_time(1)

    assert ["two-id2"] == [member.id for member in driver.joined(new).members]
    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.heartbeat(old, 1)


def test_the_slowest_member_decides_how_long_a_generation_waits() -> None:
    driver = CoordinatorDriver()
    driver.stable("one", session_timeout_ms=1_800_000, rebalance_timeout_ms=200_000)

    new = driver.join(client_id="two", rebalance_timeout_ms=10_000)
    driver.pass_time(199_999)
    assert driver.waits(new)
    driver.pass_time(1)

    assert not driver.waits(new)


def test_a_new_member_whose_client_is_gone_does_not_wait_for_ever() -> None:
    driver = CoordinatorDriver()
    (old,) = driver.stable("one", session_timeout_ms=1_800_000, rebalance_timeout_ms=1_000_000)
    new = driver.join(client_id="two")

    driver.pass_time(300_000)

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.error(new)
    assert GroupState.PREPARING is driver.state()
    assert 2 == driver.joined(driver.join(old)).generation


def test_a_follower_that_lost_its_answer_gets_the_same_generation_again() -> None:
    driver = CoordinatorDriver()
    _, follower = driver.stable("one", "two")

    again = driver.joined(driver.join(follower))

    assert (1, ErrorCode.NONE, ()) == (again.generation, again.error, again.members)
    assert GroupState.STABLE is driver.state()


def test_a_leader_that_joins_again_makes_a_new_generation() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")

    again = driver.join(leader)
    assert GroupState.PREPARING is driver.state()
    driver.join(follower)

    assert 2 == driver.joined(again).generation


def test_a_changed_subscription_makes_a_new_generation() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("one", "two")

    changed = driver.join(follower, protocols=(Protocol("range", subscription("clicks", "orders")),))
    driver.join(leader)

    assert 2 == driver.joined(changed).generation


def test_a_member_that_lost_its_answer_before_the_assignment_gets_it_again() -> None:
    driver = CoordinatorDriver()
    first, second = driver.join(client_id="one"), driver.join(client_id="two")
    driver.pass_time(0)

    leader = driver.joined(driver.join(driver.joined(first).member_id))
    follower = driver.joined(driver.join(driver.joined(second).member_id))

    assert (1, 2) == (leader.generation, len(leader.members))
    assert (1, 0) == (follower.generation, len(follower.members))
    assert GroupState.COMPLETING is driver.state()


def test_the_protocol_with_the_most_votes_is_taken() -> None:
    driver = CoordinatorDriver()
    both = (Protocol("range", b"r"), Protocol("sticky", b"s"))
    tickets = [driver.join(protocols=both), driver.join(protocols=both[::-1]), driver.join(protocols=both[::-1])]
    driver.pass_time(0)

    joined = driver.joined(tickets[0])

    assert "sticky" == joined.protocol
    assert [b"s", b"s", b"s"] == [member.metadata for member in joined.members]


def test_only_what_everybody_supports_can_be_voted_for() -> None:
    driver = CoordinatorDriver()
    tickets = [
        driver.join(protocols=(Protocol("new", b""), Protocol("range", b""))),
        driver.join(protocols=(Protocol("new", b""), Protocol("range", b""))),
        driver.join(protocols=(Protocol("range", b""),)),
    ]
    driver.pass_time(0)

    assert "range" == driver.joined(tickets[0]).protocol


def test_the_same_member_asking_twice_is_answered_twice() -> None:
    driver = CoordinatorDriver()
    leader, _ = driver.stable("one", "two")
    first = driver.join(leader)

    second = driver.join(leader)

    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.error(first)
    assert driver.waits(second)


def test_a_member_id_that_could_not_be_kept_is_refused() -> None:
    driver = CoordinatorDriver()

    assert ErrorCode.INVALID_REQUEST == driver.error(driver.join(client_id="x" * 32_767))


def test_a_group_takes_only_the_steps_that_are_drawn() -> None:
    for state, following in NEXT.items():
        for wanted in GroupState:
            group = ClassicGroup(id="g", state=state)
            if wanted in following:
                group.move_to(wanted, now_ms=1)
                assert wanted is group.state
            else:
                with pytest.raises(AssertionError):
                    group.move_to(wanted, now_ms=1)
