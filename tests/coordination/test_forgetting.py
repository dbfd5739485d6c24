"""Forgetting: deletions by hand, with a topic, and by age."""

import pytest

from logmark.coordination.commands import Leaver, OffsetToCommit, Protocol
from logmark.coordination.facts import GroupForgotten, GroupRecorded, OffsetForgotten
from logmark.coordination.group import GroupState
from logmark.errors import ErrorCode
from tests.coordination.coordinator_driver import GROUP, CoordinatorDriver, subscription

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


def expire_after(driver: CoordinatorDriver, ms: int) -> None:
    driver.clock.advance(seconds=ms / 1000)
    driver.expire_offsets()


# By hand


def test_a_deleted_offset_is_gone_and_the_others_stay() -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1), OffsetToCommit("clicks", 1, 2))

    assert [ErrorCode.NONE, ErrorCode.NONE] == driver.delete_offsets(("clicks", 0), ("clicks", 7))

    assert (None, 2) == (driver.offset("clicks", 0), driver.offset("clicks", 1))


def test_a_group_of_nothing_but_offsets_is_gone_with_the_last_one() -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1))

    driver.delete_offsets(("clicks", 0))

    assert GroupState.DEAD is driver.state()


def test_offsets_of_a_topic_that_is_read_cannot_be_deleted() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.commit(OffsetToCommit("clicks", 0, 1), OffsetToCommit("orders", 0, 2), generation=1, member_id=member)

    errors = driver.delete_offsets(("clicks", 0), ("orders", 0))

    assert [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE] == errors
    assert (1, None) == (driver.offset("clicks", 0), driver.offset("orders", 0))


def test_subscriptions_that_cannot_be_read_protect_every_topic() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one", protocols=(Protocol("range", b"\x00"),))
    driver.commit(OffsetToCommit("orders", 0, 2), generation=1, member_id=member)

    assert [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] == driver.delete_offsets(("orders", 0))


@pytest.mark.parametrize(
    ("group", "expected"), [("", ErrorCode.INVALID_GROUP_ID), ("nobody", ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_offsets_of_no_group_cannot_be_deleted(group: str, expected: ErrorCode) -> None:
    driver = CoordinatorDriver()

    assert expected == driver.delete_offsets(("clicks", 0), group=group)


def test_offsets_of_members_that_are_no_consumers_cannot_be_deleted() -> None:
    driver = CoordinatorDriver()
    driver.stable("one", protocol_type="connect")

    assert ErrorCode.NON_EMPTY_GROUP == driver.delete_offsets(("clicks", 0))


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.commit(OffsetToCommit("clicks", 0, 1), generation=1, member_id=member)
    driver.leave(Leaver(member))

    assert ErrorCode.NONE == driver.delete_group()

    assert [OffsetForgotten(group=GROUP, topic="clicks", partition=0), GroupForgotten(group=GROUP)] == driver.facts[-2:]
    assert (GroupState.DEAD, {}) == (driver.state(), driver.committed())


def test_a_group_at_work_or_unknown_cannot_be_deleted() -> None:
    driver = CoordinatorDriver()
    driver.stable("one")

    assert ErrorCode.NON_EMPTY_GROUP == driver.delete_group()
    assert ErrorCode.GROUP_ID_NOT_FOUND == driver.delete_group("nobody")


def test_a_group_that_was_deleted_can_be_made_again() -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1))
    driver.delete_group()

    driver.commit(OffsetToCommit("clicks", 0, 9))

    assert 9 == driver.offset("clicks", 0)


def test_an_id_given_out_by_a_deleted_group_is_unknown() -> None:
    driver = CoordinatorDriver()
    asked = driver.joined(driver.join(must_know_its_id=True))
    driver.delete_group()

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.error(driver.join(asked.member_id))
    driver.pass_time(60_000)
    assert GroupState.DEAD is driver.state()


# With a topic


def test_a_deleted_topic_takes_its_offsets_in_all_groups_with_it() -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1), OffsetToCommit("orders", 0, 2), group="a")
    driver.commit(OffsetToCommit("clicks", 5, 3), group="b")

    driver.delete_topic("clicks")

    assert {("orders", 0)} == set(driver.committed("a"))
    assert {} == driver.committed("b")


def test_a_deleted_topic_takes_its_offsets_from_a_group_at_work() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.commit(OffsetToCommit("clicks", 0, 1), generation=1, member_id=member)

    driver.delete_topic("clicks")

    assert driver.offset("clicks", 0) is None
    assert GroupState.STABLE is driver.state()


# By age


def test_an_offset_without_members_is_forgotten_a_week_after_its_commit() -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1))
    expire_after(driver, 3 * DAY_MS)
    driver.commit(OffsetToCommit("clicks", 1, 2))

    expire_after(driver, 4 * DAY_MS - 1)
    assert (1, 2) == (driver.offset("clicks", 0), driver.offset("clicks", 1))

    expire_after(driver, 1)
    assert (None, 2) == (driver.offset("clicks", 0), driver.offset("clicks", 1))

    expire_after(driver, 3 * DAY_MS)
    assert GroupState.DEAD is driver.state()


def test_offsets_of_a_group_that_had_members_are_forgotten_a_week_after_the_last_one_left() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.commit(OffsetToCommit("clicks", 0, 1), generation=1, member_id=member)
    for _ in range(10):
        driver.clock.advance(seconds=DAY_MS / 1000)
        driver.heartbeat(member, 1)
    driver.leave(Leaver(member))

    expire_after(driver, WEEK_MS - 1)
    assert 1 == driver.offset("clicks", 0)

    expire_after(driver, 1)
    assert GroupState.DEAD is driver.state()
    assert [OffsetForgotten(group=GROUP, topic="clicks", partition=0), GroupForgotten(group=GROUP)] == driver.facts[-2:]


def test_a_commit_does_not_renew_the_offsets_of_a_group_that_had_members() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.leave(Leaver(member))
    driver.clock.advance(seconds=(WEEK_MS - 1) / 1000)
    driver.commit(OffsetToCommit("clicks", 0, 1))

    expire_after(driver, 1)

    assert driver.offset("clicks", 0) is None


def test_the_clock_of_an_empty_group_goes_on_through_a_restart() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.commit(OffsetToCommit("clicks", 0, 1), generation=1, member_id=member)
    driver.leave(Leaver(member))
    driver.clock.advance(seconds=WEEK_MS / 1000)

    driver.reload()
    driver.expire_offsets()

    assert driver.offset("clicks", 0) is None


def test_an_old_record_without_a_time_counts_from_the_commit() -> None:
    driver = CoordinatorDriver()
    driver.coordinator.apply(
        GroupRecorded(
            group=GROUP, generation=3, protocol_type="consumer", protocol=None, leader=None, state_changed_at_ms=-1
        )
    )
    driver.commit(OffsetToCommit("clicks", 0, 1))

    outcome = driver.coordinator.expire_offsets(now_ms=driver.clock.now_ms() + WEEK_MS)

    assert [OffsetForgotten(group=GROUP, topic="clicks", partition=0), GroupForgotten(group=GROUP)] == outcome.facts


def test_consumers_at_work_lose_only_offsets_in_topics_they_no_longer_read() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.commit(OffsetToCommit("clicks", 0, 1), OffsetToCommit("orders", 0, 2), generation=1, member_id=member)

    driver.heartbeat(member, 1)
    expire_after(driver, WEEK_MS)

    assert (1, None) == (driver.offset("clicks", 0), driver.offset("orders", 0))


@pytest.mark.parametrize("change", ["rebalancing", "connect", "unreadable"])
def test_other_groups_with_members_lose_nothing(change: str) -> None:
    driver = CoordinatorDriver()
    changes: dict[str, dict[str, object]] = {
        "rebalancing": {},
        "connect": {"protocol_type": "connect"},
        "unreadable": {"protocols": (Protocol("range", b""),)},
    }
    (member,) = driver.stable("one", **changes[change])
    driver.commit(OffsetToCommit("orders", 0, 2), generation=1, member_id=member)
    if change == "rebalancing":
        driver.join(client_id="two")

    expire_after(driver, 10 * WEEK_MS)

    assert 2 == driver.offset("orders", 0)


def test_a_commit_with_its_own_retention_expires_by_it() -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1), retention_ms=1_000)
    driver.commit(OffsetToCommit("clicks", 1, 2), retention_ms=2 * WEEK_MS)

    expire_after(driver, 1_000)
    assert driver.offset("clicks", 0) is None

    expire_after(driver, 2 * WEEK_MS - 1_001)
    assert 2 == driver.offset("clicks", 1)


def test_an_empty_group_with_nothing_to_remember_is_forgotten() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.leave(Leaver(member))

    driver.expire_offsets()

    assert GroupState.DEAD is driver.state()


def test_a_group_that_somebody_is_about_to_join_is_not_forgotten() -> None:
    driver = CoordinatorDriver()
    asked = driver.joined(driver.join(must_know_its_id=True))

    driver.expire_offsets()

    assert 1 == driver.joined(driver.join(asked.member_id, settle=True)).generation


def test_offsets_outlive_the_record_of_their_group() -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1))
    driver.coordinator.apply(GroupForgotten(group=GROUP))

    assert 1 == driver.offset("clicks", 0)
    assert GroupState.EMPTY is driver.state()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (subscription(), set()),
        (subscription("a", "b"), {"a", "b"}),
        (subscription("a", version=3) + b"later fields", {"a"}),
    ],
)
def test_every_version_of_a_subscription_is_read_by_its_first_fields(data: bytes, expected: set[str]) -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one", protocols=(Protocol("range", data),))
    driver.commit(*(OffsetToCommit(topic, 0, 1) for topic in "abc"), generation=1, member_id=member)

    errors = driver.delete_offsets(("a", 0), ("b", 0), ("c", 0))

    refused = {topic for topic, error in zip("abc", errors, strict=True) if error is not ErrorCode.NONE}  # type: ignore[arg-type]
    assert expected == refused


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xff\x00\x00\x00\x00", b"\x00\x01\x7f\xff\xff\xff", b"\x00\x01\x00\x00\x00\x01\x00\x05ab",
     b"\x00\x01\x00\x00\x00\x01\x00\x01\xff", b"\x00\x01\x00\x00\x00\x01\xff\xff"],
)
def test_broken_subscriptions_are_not_known(data: bytes) -> None:
    driver = CoordinatorDriver()
    driver.stable("one", protocols=(Protocol("range", data),))

    assert [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] == driver.delete_offsets(("anything", 0))
