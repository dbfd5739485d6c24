"""What groups take is counted, and what does not fit is refused with an error after which clients try again."""

import pytest

from logmark.coordination import group as groups
from logmark.coordination import offsets
from logmark.coordination.commands import Joined, Leaver, Place, Protocol
from logmark.coordination.rebalance import GroupSettings
from logmark.errors import ErrorCode
from tests.coordination.desk import Desk, subscription

FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE
METADATA = 10_000


def protocols(size: int = METADATA) -> tuple[Protocol, ...]:
    return (Protocol("range", subscription("clicks") + bytes(size)),)


def test_a_new_member_is_refused_and_the_others_go_on_when_there_is_no_memory() -> None:
    desk = Desk()
    leader, follower = desk.stable("a", "b", protocols=protocols())
    desk.memory_max = desk.coordinator.memory_bytes

    assert FULL is desk.error(desk.join(protocols=protocols(0)))
    assert FULL is desk.error(desk.join(group="another", protocols=protocols(0)))

    assert ErrorCode.NONE is desk.heartbeat(follower, 1)
    again = [desk.join(member, protocols=protocols()) for member in (leader, follower)]
    joined = [desk.joined(ticket) for ticket in again]
    assert [2, 2] == [each.generation for each in joined]
    desk.sync(leader, 2, {leader: leader.encode(), follower: follower.encode()})
    assert desk.memory_max == desk.coordinator.memory_bytes


def test_a_member_may_not_say_more_than_before_when_there_is_no_memory() -> None:
    desk = Desk()
    (member,) = desk.stable("a", protocols=protocols())
    desk.memory_max = desk.coordinator.memory_bytes

    assert FULL is desk.error(desk.join(member, protocols=protocols(METADATA + 1)))
    assert isinstance(desk.answers[desk.join(member, protocols=protocols(METADATA - 1))], Joined)


def test_a_static_member_that_comes_back_needs_no_memory() -> None:
    desk = Desk()
    desk.stable("a", protocols=protocols(), instance_id="one")
    desk.memory_max = desk.coordinator.memory_bytes

    assert ErrorCode.NONE is desk.error(desk.join(protocols=protocols(), instance_id="one"))


def test_assignments_for_which_there_is_no_memory_are_refused() -> None:
    desk = Desk()
    ticket = desk.join(settle=True)
    member = desk.joined(ticket).member_id
    desk.memory_max = desk.coordinator.memory_bytes + 100

    assert FULL is desk.error(desk.sync(member, 1, {member: bytes(101)}))
    assert ErrorCode.NONE is desk.error(desk.sync(member, 1, {member: bytes(100)}))


def test_new_offsets_are_refused_and_known_ones_move_when_there_is_no_memory() -> None:
    desk = Desk()
    desk.commit(Place("clicks", 0, 1, metadata="old"))
    desk.memory_max = desk.coordinator.memory_bytes + offsets.OFFSET_BYTES

    assert [ErrorCode.NONE, ErrorCode.NONE, FULL, FULL] == desk.commit(
        Place("clicks", 0, 2, metadata="new"),
        Place("clicks", 1, 2),
        Place("clicks", 2, 2),
        Place("clicks", 0, 3, metadata="longer"),
    )
    assert (2, 2, None) == tuple(desk.offset("clicks", index) for index in range(3))


@pytest.mark.parametrize("is_pending", [True, False])
def test_what_is_gone_takes_no_memory(is_pending: bool) -> None:
    desk = Desk()
    desk.commit(Place("clicks", 0, 1, metadata="m" * 100), group="other")
    before = desk.coordinator.memory_bytes
    assert groups.GROUP_BYTES + offsets.OFFSET_BYTES + 100 == before
    desk.commit(Place("clicks", 0, 1), Place("clicks", 1, 1))
    if is_pending:
        ticket = desk.join(must_know_its_id=True)
        member = desk.joined(ticket).member_id
        assert before + groups.PENDING_BYTES < desk.coordinator.memory_bytes
    else:
        (member,) = desk.stable("a", protocols=protocols())
        assert before + groups.MEMBER_BYTES + METADATA < desk.coordinator.memory_bytes
    desk.leave(Leaver(member))
    desk.pass_time(100_000)

    assert ErrorCode.NONE is desk.delete_group()
    assert before == desk.coordinator.memory_bytes


def test_a_join_looks_at_no_other_member(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    counted = groups.protocols_bytes

    def count(protocols: object) -> int:
        looked[-1] += 1
        return counted(protocols)  # type: ignore[arg-type]

    monkeypatch.setattr(groups, "protocols_bytes", count)
    names = groups.Member.protocol_names.fget
    assert names is not None
    monkeypatch.setattr(
        groups.Member, "protocol_names", property(lambda member: (looked.append(looked.pop() + 1), names(member))[1])
    )
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=3000))
    desk.checks = False
    for number in range(50):
        looked.append(0)
        desk.join(client_id=f"c{number}")

    assert [looked[0]] * 50 == looked
