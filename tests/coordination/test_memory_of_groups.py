"""What groups take is counted, and what does not fit is refused with an error after which clients try again."""

import pytest

from logmark.coordination import classic_group as groups
from logmark.coordination import committed_offsets as offsets
from logmark.coordination.commands import Joined, Leaver, OffsetToCommit, Protocol
from logmark.coordination.settings import GroupSettings
from logmark.errors import ErrorCode
from tests.coordination.coordinator_driver import CoordinatorDriver, subscription

FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE
METADATA = 10_000


def protocols(size: int = METADATA) -> tuple[Protocol, ...]:
    return (Protocol("range", subscription("clicks") + bytes(size)),)


def test_a_new_member_is_refused_and_the_others_go_on_when_there_is_no_memory() -> None:
    driver = CoordinatorDriver()
    leader, follower = driver.stable("a", "b", protocols=protocols())
    driver.memory_max = driver.coordinator.memory_bytes

    assert FULL is driver.error(driver.join(protocols=protocols(0)))
    assert FULL is driver.error(driver.join(group="another", protocols=protocols(0)))

    assert ErrorCode.NONE is driver.heartbeat(follower, 1)
    again = [driver.join(member, protocols=protocols()) for member in (leader, follower)]
    joined = [driver.joined(ticket) for ticket in again]
    assert [2, 2] == [each.generation for each in joined]
    driver.sync(leader, 2, {leader: leader.encode(), follower: follower.encode()})
    assert driver.memory_max == driver.coordinator.memory_bytes


def test_a_member_may_not_say_more_than_before_when_there_is_no_memory() -> None:
    driver = CoordinatorDriver()
    (member,) = driver.stable("a", protocols=protocols())
    driver.memory_max = driver.coordinator.memory_bytes

    assert FULL is driver.error(driver.join(member, protocols=protocols(METADATA + 1)))
    assert isinstance(driver.answers[driver.join(member, protocols=protocols(METADATA - 1))], Joined)


def test_a_static_member_that_comes_back_needs_no_memory() -> None:
    driver = CoordinatorDriver()
    driver.stable("a", protocols=protocols(), instance_id="one")
    driver.memory_max = driver.coordinator.memory_bytes

    assert ErrorCode.NONE is driver.error(driver.join(protocols=protocols(), instance_id="one"))


def test_assignments_for_which_there_is_no_memory_are_refused() -> None:
    driver = CoordinatorDriver()
    ticket = driver.join(settle=True)
    member = driver.joined(ticket).member_id
    driver.memory_max = driver.coordinator.memory_bytes + 100

    assert FULL is driver.error(driver.sync(member, 1, {member: bytes(101)}))
    assert ErrorCode.NONE is driver.error(driver.sync(member, 1, {member: bytes(100)}))


def test_new_offsets_are_refused_and_known_ones_move_when_there_is_no_memory() -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1, metadata="old"))
    driver.memory_max = driver.coordinator.memory_bytes + offsets.OFFSET_BYTES

    assert [ErrorCode.NONE, ErrorCode.NONE, FULL, FULL] == driver.commit(
        OffsetToCommit("clicks", 0, 2, metadata="new"),
        OffsetToCommit("clicks", 1, 2),
        OffsetToCommit("clicks", 2, 2),
        OffsetToCommit("clicks", 0, 3, metadata="longer"),
    )
    assert (2, 2, None) == tuple(driver.offset("clicks", index) for index in range(3))


@pytest.mark.parametrize("is_pending", [True, False])
def test_what_is_gone_takes_no_memory(is_pending: bool) -> None:
    driver = CoordinatorDriver()
    driver.commit(OffsetToCommit("clicks", 0, 1, metadata="m" * 100), group="other")
    before = driver.coordinator.memory_bytes
    assert groups.GROUP_BYTES + offsets.OFFSET_BYTES + 100 == before
    driver.commit(OffsetToCommit("clicks", 0, 1), OffsetToCommit("clicks", 1, 1))
    if is_pending:
        ticket = driver.join(must_know_its_id=True)
        member = driver.joined(ticket).member_id
        assert before + groups.PENDING_BYTES < driver.coordinator.memory_bytes
    else:
        (member,) = driver.stable("a", protocols=protocols())
        assert before + groups.MEMBER_BYTES + METADATA < driver.coordinator.memory_bytes
    driver.leave(Leaver(member))
    driver.pass_time(100_000)

    assert ErrorCode.NONE is driver.delete_group()
    assert before == driver.coordinator.memory_bytes


def test_a_join_looks_at_no_other_member(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    counted = groups.protocols_bytes

    def count(protocols: object) -> int:
        looked[-1] += 1
        return counted(protocols)  # type: ignore[arg-type]

    monkeypatch.setattr(groups, "protocols_bytes", count)
    names = vars(groups.Member)["protocol_names"].fget
    assert names is not None
    monkeypatch.setattr(
        groups.Member, "protocol_names", property(lambda member: (looked.append(looked.pop() + 1), names(member))[1])
    )
    driver = CoordinatorDriver(GroupSettings(initial_rebalance_delay_ms=3000))
    driver.checks = False
    for number in range(50):
        looked.append(0)
        driver.join(client_id=f"c{number}")

    assert [looked[0]] * 50 == looked
