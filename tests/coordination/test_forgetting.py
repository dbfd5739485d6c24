"""Forgetting: deletions by hand, with a topic, and by age."""

import pytest

from logmark.coordination.commands import Leaver, Place, Protocol
from logmark.coordination.facts import GroupForgotten, GroupRecorded, OffsetForgotten
from logmark.coordination.group import GroupState
from logmark.errors import ErrorCode
from tests.coordination.desk import GROUP, Desk, subscription

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


def expire_after(desk: Desk, ms: int) -> None:
    desk.clock.advance(seconds=ms / 1000)
    desk.expire_offsets()


# By hand


def test_a_deleted_offset_is_gone_and_the_others_stay() -> None:
    desk = Desk()
    desk.commit(Place("clicks", 0, 1), Place("clicks", 1, 2))

    assert [ErrorCode.NONE, ErrorCode.NONE] == desk.delete_offsets(("clicks", 0), ("clicks", 7))

    assert (None, 2) == (desk.offset("clicks", 0), desk.offset("clicks", 1))


def test_a_group_of_nothing_but_offsets_is_gone_with_the_last_one() -> None:
    desk = Desk()
    desk.commit(Place("clicks", 0, 1))

    desk.delete_offsets(("clicks", 0))

    assert GroupState.DEAD is desk.state()


def test_offsets_of_a_topic_that_is_read_cannot_be_deleted() -> None:
    desk = Desk()
    (member,) = desk.stable("one")
    desk.commit(Place("clicks", 0, 1), Place("orders", 0, 2), generation=1, member_id=member)

    errors = desk.delete_offsets(("clicks", 0), ("orders", 0))

    assert [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE] == errors
    assert (1, None) == (desk.offset("clicks", 0), desk.offset("orders", 0))


def test_subscriptions_that_cannot_be_read_protect_every_topic() -> None:
    desk = Desk()
    (member,) = desk.stable("one", protocols=(Protocol("range", b"\x00"),))
    desk.commit(Place("orders", 0, 2), generation=1, member_id=member)

    assert [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] == desk.delete_offsets(("orders", 0))


@pytest.mark.parametrize(
    ("group", "expected"), [("", ErrorCode.INVALID_GROUP_ID), ("nobody", ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_offsets_of_no_group_cannot_be_deleted(group: str, expected: ErrorCode) -> None:
    desk = Desk()

    assert expected == desk.delete_offsets(("clicks", 0), group=group)


def test_offsets_of_members_that_are_no_consumers_cannot_be_deleted() -> None:
    desk = Desk()
    desk.stable("one", protocol_type="connect")

    assert ErrorCode.NON_EMPTY_GROUP == desk.delete_offsets(("clicks", 0))


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    desk = Desk()
    (member,) = desk.stable("one")
    desk.commit(Place("clicks", 0, 1), generation=1, member_id=member)
    desk.leave(Leaver(member))

    assert ErrorCode.NONE == desk.delete_group()

    assert [OffsetForgotten(group=GROUP, topic="clicks", partition=0), GroupForgotten(group=GROUP)] == desk.facts[-2:]
    assert (GroupState.DEAD, {}) == (desk.state(), desk.places())


def test_a_group_at_work_or_unknown_cannot_be_deleted() -> None:
    desk = Desk()
    desk.stable("one")

    assert ErrorCode.NON_EMPTY_GROUP == desk.delete_group()
    assert ErrorCode.GROUP_ID_NOT_FOUND == desk.delete_group("nobody")


def test_a_group_that_was_deleted_can_be_made_again() -> None:
    desk = Desk()
    desk.commit(Place("clicks", 0, 1))
    desk.delete_group()

    desk.commit(Place("clicks", 0, 9))

    assert 9 == desk.offset("clicks", 0)


def test_an_id_given_out_by_a_deleted_group_is_unknown() -> None:
    desk = Desk()
    asked = desk.joined(desk.join(must_know_its_id=True))
    desk.delete_group()

    assert ErrorCode.UNKNOWN_MEMBER_ID == desk.error(desk.join(asked.member_id))
    desk.pass_time(60_000)
    assert GroupState.DEAD is desk.state()


# With a topic


def test_a_deleted_topic_takes_its_offsets_in_all_groups_with_it() -> None:
    desk = Desk()
    desk.commit(Place("clicks", 0, 1), Place("orders", 0, 2), group="a")
    desk.commit(Place("clicks", 5, 3), group="b")

    desk.delete_topic("clicks")

    assert {("orders", 0)} == set(desk.places("a"))
    assert {} == desk.places("b")


def test_a_deleted_topic_takes_its_offsets_from_a_group_at_work() -> None:
    desk = Desk()
    (member,) = desk.stable("one")
    desk.commit(Place("clicks", 0, 1), generation=1, member_id=member)

    desk.delete_topic("clicks")

    assert desk.offset("clicks", 0) is None
    assert GroupState.STABLE is desk.state()


# By age


def test_a_place_without_members_is_forgotten_a_week_after_its_commit() -> None:
    desk = Desk()
    desk.commit(Place("clicks", 0, 1))
    expire_after(desk, 3 * DAY_MS)
    desk.commit(Place("clicks", 1, 2))

    expire_after(desk, 4 * DAY_MS - 1)
    assert (1, 2) == (desk.offset("clicks", 0), desk.offset("clicks", 1))

    expire_after(desk, 1)
    assert (None, 2) == (desk.offset("clicks", 0), desk.offset("clicks", 1))

    expire_after(desk, 3 * DAY_MS)
    assert GroupState.DEAD is desk.state()


def test_places_of_a_group_that_had_members_are_forgotten_a_week_after_the_last_one_left() -> None:
    desk = Desk()
    (member,) = desk.stable("one")
    desk.commit(Place("clicks", 0, 1), generation=1, member_id=member)
    for _ in range(10):
        desk.clock.advance(seconds=DAY_MS / 1000)
        desk.heartbeat(member, 1)
    desk.leave(Leaver(member))

    expire_after(desk, WEEK_MS - 1)
    assert 1 == desk.offset("clicks", 0)

    expire_after(desk, 1)
    assert GroupState.DEAD is desk.state()
    assert [OffsetForgotten(group=GROUP, topic="clicks", partition=0), GroupForgotten(group=GROUP)] == desk.facts[-2:]


def test_a_commit_does_not_renew_the_places_of_a_group_that_had_members() -> None:
    desk = Desk()
    (member,) = desk.stable("one")
    desk.leave(Leaver(member))
    desk.clock.advance(seconds=(WEEK_MS - 1) / 1000)
    desk.commit(Place("clicks", 0, 1))

    expire_after(desk, 1)

    assert desk.offset("clicks", 0) is None


def test_the_clock_of_an_empty_group_goes_on_through_a_restart() -> None:
    desk = Desk()
    (member,) = desk.stable("one")
    desk.commit(Place("clicks", 0, 1), generation=1, member_id=member)
    desk.leave(Leaver(member))
    desk.clock.advance(seconds=WEEK_MS / 1000)

    desk.reload()
    desk.expire_offsets()

    assert desk.offset("clicks", 0) is None


def test_an_old_record_without_a_time_counts_from_the_commit() -> None:
    desk = Desk()
    desk.coordinator.apply(
        GroupRecorded(
            group=GROUP, generation=3, protocol_type="consumer", protocol=None, leader=None, state_changed_at_ms=-1
        )
    )
    desk.commit(Place("clicks", 0, 1))

    outcome = desk.coordinator.expire_offsets(now_ms=desk.clock.now_ms() + WEEK_MS)

    assert [OffsetForgotten(group=GROUP, topic="clicks", partition=0), GroupForgotten(group=GROUP)] == outcome.facts


def test_consumers_at_work_lose_only_places_in_topics_they_no_longer_read() -> None:
    desk = Desk()
    (member,) = desk.stable("one")
    desk.commit(Place("clicks", 0, 1), Place("orders", 0, 2), generation=1, member_id=member)

    desk.heartbeat(member, 1)
    expire_after(desk, WEEK_MS)

    assert (1, None) == (desk.offset("clicks", 0), desk.offset("orders", 0))


@pytest.mark.parametrize("change", ["rebalancing", "connect", "unreadable"])
def test_other_groups_with_members_lose_nothing(change: str) -> None:
    desk = Desk()
    changes: dict[str, dict[str, object]] = {
        "rebalancing": {},
        "connect": {"protocol_type": "connect"},
        "unreadable": {"protocols": (Protocol("range", b""),)},
    }
    (member,) = desk.stable("one", **changes[change])
    desk.commit(Place("orders", 0, 2), generation=1, member_id=member)
    if change == "rebalancing":
        desk.join(client_id="two")

    expire_after(desk, 10 * WEEK_MS)

    assert 2 == desk.offset("orders", 0)


def test_a_commit_with_its_own_retention_expires_by_it() -> None:
    desk = Desk()
    desk.commit(Place("clicks", 0, 1), retention_ms=1_000)
    desk.commit(Place("clicks", 1, 2), retention_ms=2 * WEEK_MS)

    expire_after(desk, 1_000)
    assert desk.offset("clicks", 0) is None

    expire_after(desk, 2 * WEEK_MS - 1_001)
    assert 2 == desk.offset("clicks", 1)


def test_an_empty_group_with_nothing_to_remember_is_forgotten() -> None:
    desk = Desk()
    (member,) = desk.stable("one")
    desk.leave(Leaver(member))

    desk.expire_offsets()

    assert GroupState.DEAD is desk.state()


def test_a_group_that_somebody_is_about_to_join_is_not_forgotten() -> None:
    desk = Desk()
    asked = desk.joined(desk.join(must_know_its_id=True))

    desk.expire_offsets()

    assert 1 == desk.joined(desk.join(asked.member_id, settle=True)).generation


def test_offsets_outlive_the_record_of_their_group() -> None:
    desk = Desk()
    desk.commit(Place("clicks", 0, 1))
    desk.coordinator.apply(GroupForgotten(group=GROUP))

    assert 1 == desk.offset("clicks", 0)
    assert GroupState.EMPTY is desk.state()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (subscription(), set()),
        (subscription("a", "b"), {"a", "b"}),
        (subscription("a", version=3) + b"later fields", {"a"}),
    ],
)
def test_every_version_of_a_subscription_is_read_by_its_first_fields(data: bytes, expected: set[str]) -> None:
    desk = Desk()
    (member,) = desk.stable("one", protocols=(Protocol("range", data),))
    desk.commit(Place("a", 0, 1), Place("b", 0, 1), Place("c", 0, 1), generation=1, member_id=member)

    errors = desk.delete_offsets(("a", 0), ("b", 0), ("c", 0))

    refused = {topic for topic, error in zip("abc", errors, strict=True) if error is not ErrorCode.NONE}  # type: ignore[arg-type]
    assert expected == refused


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xff\x00\x00\x00\x00", b"\x00\x01\x7f\xff\xff\xff", b"\x00\x01\x00\x00\x00\x01\x00\x05ab",
     b"\x00\x01\x00\x00\x00\x01\x00\x01\xff", b"\x00\x01\x00\x00\x00\x01\xff\xff"],
)
def test_broken_subscriptions_are_not_known(data: bytes) -> None:
    desk = Desk()
    desk.stable("one", protocols=(Protocol("range", data),))

    assert [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] == desk.delete_offsets(("anything", 0))
