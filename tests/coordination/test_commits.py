"""Committed offsets: who may commit one, and what is kept of it."""

import pytest

from logmark.coordination.commands import Leaver, OffsetToCommit
from logmark.coordination.facts import OffsetCommitted
from logmark.coordination.group import GroupState
from logmark.errors import ErrorCode
from tests.coordination.coordinator_driver import GROUP, CoordinatorDriver

OFFSET = OffsetToCommit("clicks", 0, 53)


def test_an_offset_is_kept_with_its_metadata_its_leader_epoch_and_its_time() -> None:
    driver = CoordinatorDriver()

    assert [ErrorCode.NONE] == driver.commit(OffsetToCommit("clicks", 3, 142, 0, "batch-42"))

    assert [
        OffsetCommitted(
            group=GROUP, topic="clicks", partition=3, offset=142, leader_epoch=0, metadata="batch-42",
            committed_at_ms=driver.clock.now_ms(),
        )
    ] == driver.facts
    assert 142 == driver.offset("clicks", 3)


def test_a_commit_without_members_makes_a_group() -> None:
    driver = CoordinatorDriver()

    driver.commit(OFFSET, group="tool")

    assert GroupState.EMPTY is driver.state("tool")
    assert "" == driver.describe("tool").protocol_type


def test_a_later_commit_replaces_an_earlier_one_also_with_a_lower_offset() -> None:
    driver = CoordinatorDriver()
    driver.commit(OFFSET)

    driver.commit(OffsetToCommit("clicks", 0, 5))

    assert 5 == driver.offset("clicks", 0)


def test_the_last_of_two_offsets_in_one_commit_stands() -> None:
    driver = CoordinatorDriver()

    driver.commit(OFFSET, OffsetToCommit("clicks", 0, 54))

    assert 54 == driver.offset("clicks", 0)


def test_offsets_beyond_any_32_bits_are_kept() -> None:
    driver = CoordinatorDriver()

    driver.commit(OffsetToCommit("clicks", 0, 259_000_000_000))

    assert 259_000_000_000 == driver.offset("clicks", 0)


@pytest.mark.parametrize("unknown_group_error", [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.ILLEGAL_GENERATION])
def test_a_generation_of_a_group_that_does_not_exist_is_refused(unknown_group_error: ErrorCode) -> None:
    driver = CoordinatorDriver()

    assert unknown_group_error == driver.commit(
        OFFSET, generation=0, member_id="m", unknown_group_error=unknown_group_error
    )
    assert GroupState.DEAD is driver.state()


@pytest.mark.parametrize(
    ("committer", "expected"),
    [
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger", "generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "one-id1"}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "one-id1", "generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "one-id1", "generation": 1, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_group_at_work_takes_commits_of_its_generation_only(
    committer: dict[str, object], expected: ErrorCode
) -> None:
    driver = CoordinatorDriver()
    driver.stable("one")

    assert expected == driver.commit(OFFSET, **committer)
    assert driver.offset("clicks", 0) is None


def test_a_member_may_commit_while_the_others_join() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.join(client_id="two")
    assert GroupState.PREPARING is driver.state()

    assert [ErrorCode.NONE] == driver.commit(OFFSET, generation=1, member_id=member)


def test_a_member_that_does_not_know_yet_what_it_owns_cannot_commit() -> None:
    driver = CoordinatorDriver()
    member = driver.joined(driver.join(settle=True)).member_id

    assert ErrorCode.REBALANCE_IN_PROGRESS == driver.commit(OFFSET, generation=1, member_id=member)


def test_an_empty_group_takes_commits_without_members_only() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("one")
    driver.leave(Leaver(member))

    assert ErrorCode.UNKNOWN_MEMBER_ID == driver.commit(OFFSET, generation=2, member_id=member)
    assert [ErrorCode.NONE] == driver.commit(OFFSET)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("x" * 4096, ErrorCode.NONE),
        ("x" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("é" * 4096, ErrorCode.NONE),
        ("\N{SLIGHTLY SMILING FACE}" * 2048, ErrorCode.NONE),
        ("\N{SLIGHTLY SMILING FACE}" * 2048 + "x", ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_is_limited_in_utf_16_code_units(metadata: str, expected: ErrorCode) -> None:
    driver = CoordinatorDriver()

    assert [expected] == driver.commit(OffsetToCommit("clicks", 0, 1, -1, metadata))


def test_an_offset_with_too_much_metadata_does_not_hold_up_the_others() -> None:
    driver = CoordinatorDriver()

    errors = driver.commit(OffsetToCommit("clicks", 0, 1, -1, "x" * 5000), OffsetToCommit("clicks", 1, 2))

    assert [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE] == errors
    assert (None, 2) == (driver.offset("clicks", 0), driver.offset("clicks", 1))


def test_groups_do_not_see_each_others_offsets() -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1000), group="billing")
    driver.commit(OffsetToCommit("clicks", 0, 850), group="fraud")

    assert [1000, 850, None] == [driver.offset("clicks", 0, group) for group in ("billing", "fraud", "features")]


def test_a_load_finds_every_offset() -> None:
    driver = CoordinatorDriver()
    for partition in range(3):
        driver.commit(OffsetToCommit("clicks", partition, partition * 10))
    before = driver.committed()

    driver.reload()

    assert before == driver.committed()
