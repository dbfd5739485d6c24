"""A driver of the group coordinator: commands in, facts through their bytes, answers by ticket, time by hand.

Whatever a test does here is also a recovery test: after every command a second coordinator, loaded from the bytes
alone, must know the same offsets and the same groups.
"""

import itertools
import struct
from collections import Counter
from collections.abc import Iterable, Mapping

from logmark.clock import ManualClock
from logmark.coordination import group_records
from logmark.coordination.classic_group import protocols_bytes
from logmark.coordination.commands import (
    Answer,
    CommitOffsets,
    DeleteOffsets,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    OffsetToCommit,
    Protocol,
    Sync,
)
from logmark.coordination.committed_offsets import CommittedOffset
from logmark.coordination.facts import Fact
from logmark.coordination.group import GroupDescription, GroupState
from logmark.coordination.group_coordinator import GroupCoordinator
from logmark.coordination.outcome import Outcome, Reply, Ticket
from logmark.coordination.settings import GroupSettings
from logmark.errors import ErrorCode, Refused

GROUP = "billing"


def subscription(*topics: str, version: int = 1) -> bytes:
    """A consumer's subscription as clients send it."""
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", version, len(topics)) + named + struct.pack(">i", -1)


class CoordinatorDriver:
    """Decides, journals as bytes, applies, and remembers who was told what."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.clock = ManualClock()
        self.records: list[tuple[bytes, bytes | None]] = []
        self.facts: list[Fact] = []
        self.answers: dict[Ticket, Answer | Refused] = {}
        self._ids = itertools.count(1)
        self._tickets = itertools.count(1)
        # What the groups of the broker may take, and whether every command is followed by checks of everything.
        self.memory_max: int | None = None
        self.checks = True
        self.coordinator = self._new()

    def _new(self) -> GroupCoordinator:
        return GroupCoordinator(self.settings, new_id=lambda: f"id{next(self._ids)}", has_room=self._has_room)

    def _has_room(self, size_bytes: int) -> bool:
        return self.memory_max is None or self.coordinator.memory_bytes + size_bytes <= self.memory_max

    # Commands

    def join(self, member_id: str = "", *, settle: bool = False, **changes: object) -> Ticket:
        """A consumer joins; `settle` lets the phase of joining end when nobody is missing."""
        values: dict[str, object] = {
            "group": GROUP,
            "member_id": member_id,
            "client_id": "app",
            "client_host": "/127.0.0.1",
            "protocol_type": "consumer",
            "protocols": (Protocol("range", subscription("clicks")),),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "must_know_its_id": False,
        }
        command = Join(**(values | changes))  # type: ignore[arg-type]
        ticket = self._run(lambda ticket, now: self.coordinator.join(command, ticket, now_ms=now))
        if settle:
            self.pass_time(0)
        return ticket

    def sync(
        self, member_id: str, generation: int, assignments: Mapping[str, bytes] | None = None, **more: object
    ) -> Ticket:
        values: dict[str, object] = {"group": GROUP, "instance_id": None}
        values |= {"member_id": member_id, "generation": generation, "assignments": assignments or {}}
        command = Sync(**(values | more))  # type: ignore[arg-type]
        return self._run(lambda ticket, now: self.coordinator.sync(command, ticket, now_ms=now))

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None = None, group: str = GROUP
    ) -> ErrorCode:
        command = Heartbeat(group=group, generation=generation, member_id=member_id, instance_id=instance_id)
        return self.error(self._run(lambda ticket, now: self.coordinator.heartbeat(command, ticket, now_ms=now)))

    def leave(self, *leavers: Leaver, group: str = GROUP) -> list[ErrorCode]:
        command = Leave(group=group, leavers=leavers)
        answer = self.answer(self._run(lambda ticket, now: self.coordinator.leave(command, ticket, now_ms=now)))
        return [error for _, error in answer.errors]  # type: ignore[union-attr]

    def commit(self, *offsets: OffsetToCommit, group: str = GROUP, **more: object) -> list[ErrorCode] | ErrorCode:
        command = CommitOffsets(group=group, offsets=offsets, **more)  # type: ignore[arg-type]
        ticket = self._run(lambda ticket, now: self.coordinator.commit_offsets(command, ticket, now_ms=now))
        answer = self.answer(ticket)
        return answer.code if isinstance(answer, Refused) else list(answer.errors)  # type: ignore[union-attr]

    def delete_offsets(self, *partitions: tuple[str, int], group: str = GROUP) -> list[ErrorCode] | ErrorCode:
        command = DeleteOffsets(group=group, partitions=partitions)
        ticket = self._run(lambda ticket, now: self.coordinator.delete_offsets(command, ticket, now_ms=now))
        answer = self.answer(ticket)
        return answer.code if isinstance(answer, Refused) else list(answer.errors)  # type: ignore[union-attr]

    def delete_group(self, group: str = GROUP) -> ErrorCode:
        return self.error(self._run(lambda ticket, now: self.coordinator.delete_group(group, ticket, now_ms=now)))

    def delete_topic(self, topic: str) -> None:
        self._take(self.coordinator.forget_topics(lambda name: name == topic))

    def expire_offsets(self) -> None:
        self._take(self.coordinator.expire_offsets(now_ms=self.clock.now_ms()))

    # Time

    def pass_time(self, ms: int) -> None:
        """Time passes, deadline by deadline."""
        end_ms = self.clock.now_ms() + ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.clock.advance(seconds=max(deadline_ms - self.clock.now_ms(), 0) / 1000)
            self._take(self.coordinator.expire(now_ms=self.clock.now_ms()))
        self.clock.advance(seconds=(end_ms - self.clock.now_ms()) / 1000)

    # What is known

    def answer(self, ticket: Ticket) -> Answer | Refused:
        return self.answers[ticket]

    def waits(self, ticket: Ticket) -> bool:
        return ticket not in self.answers

    def joined(self, ticket: Ticket) -> Joined:
        answer = self.answers[ticket]
        assert isinstance(answer, Joined), answer
        return answer

    def error(self, ticket: Ticket) -> ErrorCode:
        answer = self.answers[ticket]
        return answer.code if isinstance(answer, Refused) else getattr(answer, "error", ErrorCode.NONE)

    def assignment(self, ticket: Ticket) -> bytes:
        answer = self.answers[ticket]
        return answer.assignment  # type: ignore[union-attr]

    def state(self, group: str = GROUP) -> GroupState:
        found = self.coordinator.describe(group)
        return GroupState.DEAD if found is None else found.state

    def describe(self, group: str = GROUP) -> GroupDescription:
        found = self.coordinator.describe(group)
        assert found is not None
        return found

    def committed(self, group: str = GROUP) -> dict[tuple[str, int], CommittedOffset]:
        return dict(self.coordinator.committed_offsets(group))

    def offset(self, topic: str, partition: int, group: str = GROUP) -> int | None:
        stored = self.committed(group).get((topic, partition))
        return None if stored is None else stored.offset

    # Shortcuts

    def stable(self, *client_ids: str, **changes: object) -> list[str]:
        """A stable group of dynamic members, the first one leading; returns their ids."""
        tickets = [self.join(client_id=client_id, **changes) for client_id in client_ids]
        self.pass_time(0)
        members = [self.joined(ticket).member_id for ticket in tickets]
        generation = self.joined(tickets[0]).generation
        for member in reversed(members):
            self.sync(member, generation, {each: each.encode() for each in members})
        assert self.state() is GroupState.STABLE
        return members

    def reload(self) -> None:
        """The process stops and another one loads the journal."""
        self.coordinator = self._loaded(self.records)
        self._take(self.coordinator.resume(now_ms=self.clock.now_ms()))

    # Inside

    def _run(self, decide) -> Ticket:  # type: ignore[no-untyped-def]
        ticket = Ticket(next(self._tickets))
        while True:
            try:
                outcome = decide(ticket, self.clock.now_ms())
            except Refused as refused:
                outcome = Outcome(replies=[Reply(ticket, refused)])
            self._take(outcome)
            if not outcome.again:
                return ticket

    def _take(self, outcome: Outcome) -> None:
        for fact in outcome.facts:
            record = group_records.encode(fact)
            assert fact == group_records.decode(*record)
            self.records.append(record)
            self.facts.append(fact)
            self.coordinator.apply(fact)
        for reply in outcome.replies:
            assert reply.ticket not in self.answers, "a ticket is answered once"
            self.answers[reply.ticket] = reply.answer
        if self.checks:
            self._check_a_load_agrees()
            self._check_sums()

    def _check_sums(self) -> None:
        """What is kept as a sum is the sum of what it is kept for."""
        total = 0
        for group in self.coordinator._groups.values():
            members = group.members.values()
            assert group.joined_count == sum(member.joining is not None for member in members)
            assert group.protocols_bytes == sum(protocols_bytes(member.protocols) for member in members)
            assert group.assignments_bytes == sum(len(member.assignment) for member in members)
            assert group.supporters == Counter(name for member in members for name in member.protocol_names)
            total += group.memory_bytes
            total += sum(stored.memory_bytes for stored in self.coordinator.committed_offsets(group.id).values())
        assert total == self.coordinator.memory_bytes

    def _loaded(self, records: Iterable[tuple[bytes, bytes | None]]) -> GroupCoordinator:
        coordinator = self._new()
        for key, value in records:
            fact = group_records.decode(key, value)
            assert fact is not None
            coordinator.apply(fact)
        return coordinator

    def _check_a_load_agrees(self) -> None:
        compacted: dict[bytes, bytes | None] = {}
        for key, value in self.records:
            compacted.pop(key, None)
            compacted[key] = value
        cleaned = {key: value for key, value in compacted.items() if value is not None}
        for loaded in map(self._loaded, (self.records, compacted.items(), cleaned.items())):
            groups = {group.id for group in self.coordinator.list_groups()}
            for group in groups:
                assert self.committed(group) == dict(loaded.committed_offsets(group))
                live, after = self.coordinator.describe(group), loaded.describe(group)
                if live is not None and live.state is GroupState.STABLE:
                    assert live == after
            assert {group.id for group in loaded.list_groups()} <= groups
