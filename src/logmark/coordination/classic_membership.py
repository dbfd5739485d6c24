"""The membership of classic groups: joins, syncs, heartbeats, leaves and the deadlines behind them.

A decision changes what only this process knows (who waits, since when, which votes). What the log keeps changes when
the facts are applied. After a failed write the runtime drops the whole coordinator and loads another one, so neither
half outlives the other.
"""

from collections.abc import Callable
from typing import NamedTuple

from logmark.coordination.classic_group import (
    GROUP_BYTES,
    MEMBER_BYTES,
    PENDING_BYTES,
    ClassicGroup,
    Member,
    protocols_bytes,
)
from logmark.coordination.commands import (
    Heartbeat,
    HeartbeatAccepted,
    Join,
    Joined,
    Leave,
    Leaver,
    Left,
    Sync,
    Synced,
)
from logmark.coordination.deadlines import Deadlines
from logmark.coordination.facts import GroupOutcome, GroupRecorded
from logmark.coordination.group import GroupState
from logmark.coordination.outcome import Outcome, Reply, Ticket
from logmark.coordination.settings import GroupSettings
from logmark.errors import ErrorCode, Refused

MEMBER_ID_BYTES_MAX = 2**15 - 1
# Clients send as many as they have assignors: one to five. To choose among thousands would hold the event loop.
PROTOCOLS_MAX = 100


class SessionOf(NamedTuple):
    """The deadline for a member's next sign of life."""

    group: str
    member_id: str


class JoinPhaseOf(NamedTuple):
    """The deadline for everybody to join again."""

    group: str


class SyncPhaseOf(NamedTuple):
    """The deadline for everybody to ask for their assignment."""

    group: str
    generation: int


Deadline = SessionOf | JoinPhaseOf | SyncPhaseOf


class ClassicMembership:
    """Decides everything that concerns membership of the groups of one internal partition."""

    def __init__(
        self,
        groups: dict[str, ClassicGroup],
        settings: GroupSettings,
        new_id: Callable[[], str],
        has_room: Callable[[int], bool],
    ) -> None:
        """Take the groups; `has_room` says whether all groups of the broker may take so much more memory."""
        self._groups = groups
        self._settings = settings
        self._new_id = new_id
        self._has_room = has_room
        self.deadlines: Deadlines[Deadline] = Deadlines()

    # Joining

    def join(self, command: Join, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide a JoinGroup: the member waits for the next generation, or gets this one again."""
        settings = self._settings
        if not command.group:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        if not settings.session_timeout_ms_min <= command.session_timeout_ms <= settings.session_timeout_ms_max:
            raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self._groups.get(command.group)
        self._check_size(group, command)
        if group is None:
            if command.member_id:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            return Outcome(facts=[_created(command.group, now_ms=now_ms)], again=True)
        if not self._has_room_for(group, command.member_id):
            self._drop(group, command.member_id)
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not group.accepts(command.protocol_type, command.protocols):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if command.member_id:
            return self._join_known(group, command, ticket, now_ms=now_ms)
        return self._join_unknown(group, command, ticket, now_ms=now_ms)

    def _check_size(self, group: ClassicGroup | None, command: Join) -> None:
        """Refuse metadata that is too large: every member's is kept, and sent to the leader."""
        if len(command.protocols) > PROTOCOLS_MAX:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"A member may send {PROTOCOLS_MAX} protocols, and this one sent {len(command.protocols)}.",
            )
        size = protocols_bytes(command.protocols)
        if size > self._settings.member_bytes_max:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A member may send {self._settings.member_bytes_max} bytes of metadata, and this one sent {size}.",
            )
        if group is None:
            kept, growth = size, GROUP_BYTES + MEMBER_BYTES + size
        else:
            member = group.members.get(command.member_id or group.instances.get(command.instance_id or "", ""))
            before = 0 if member is None else protocols_bytes(member.protocols)
            kept, growth = size + group.protocols_bytes - before, size - before
            if member is None:
                growth += MEMBER_BYTES + PENDING_BYTES
        if kept > self._settings.group_bytes_max:
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
        self._check_memory(growth)

    def _check_memory(self, growth: int) -> None:
        """Refuse what the memory for groups cannot hold now; clients retry this error."""
        if growth > 0 and not self._has_room(growth):
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The groups take all of the memory that they may take.")

    def _has_room_for(self, group: ClassicGroup, member_id: str) -> bool:
        member = group.members.get(member_id)
        match group.state:
            case GroupState.PREPARING:
                # Those who wait are counted, not the members: after the limit was lowered, the last ones to
                # join again are refused.
                return (member is not None and member.joining is not None) or (
                    group.joined_count < self._settings.size_max
                )
            case GroupState.COMPLETING | GroupState.STABLE:
                return member is not None or len(group.members) < self._settings.size_max
            case _:
                return True

    def _join_unknown(self, group: ClassicGroup, command: Join, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        member_id = f"{command.client_id if command.instance_id is None else command.instance_id}-{self._new_id()}"
        if len(member_id.encode()) > MEMBER_ID_BYTES_MAX:
            raise Refused(ErrorCode.INVALID_REQUEST, "the client id is too long to make a member id of it")
        if command.instance_id is not None:
            if command.instance_id in group.instances:
                return self._replace_static(group, command, member_id, ticket, now_ms=now_ms)
            return self._add(group, command, member_id, ticket, now_ms=now_ms)
        if not command.must_know_its_id:
            return self._add(group, command, member_id, ticket, now_ms=now_ms)
        # A client that gives up and asks again leaves only a pending id behind, not a member that nobody will be.
        group.pending.add(member_id)
        self.deadlines.set(SessionOf(group.id, member_id), now_ms + command.session_timeout_ms)
        return Outcome(replies=[Reply(ticket, Joined(member_id=member_id, error=ErrorCode.MEMBER_ID_REQUIRED))])

    def _join_known(self, group: ClassicGroup, command: Join, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        if command.member_id in group.pending:
            if command.instance_id is not None:
                raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "a pending member cannot be static")
            return self._add(group, command, command.member_id, ticket, now_ms=now_ms)
        member = group.check_member(command.member_id, command.instance_id)
        # A member that lost the answer joins again as it did; only the leader of a stable group, who may have seen
        # new partitions, and members that changed their minds make a new generation.
        is_same = member.protocols == command.protocols
        may_stay = group.state is GroupState.COMPLETING or (
            group.state is GroupState.STABLE and group.leader != member.id
        )
        if is_same and may_stay:
            self._expect(group, member, now_ms=now_ms)
            return Outcome(replies=[Reply(ticket, _joined(group, member))])
        outcome: GroupOutcome = Outcome()
        self._update(group, member, command, ticket, outcome)
        self._rebalance(group, outcome, now_ms=now_ms)
        return outcome

    def _add(self, group: ClassicGroup, command: Join, member_id: str, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        member = Member(
            id=member_id,
            instance_id=command.instance_id,
            client_id=command.client_id,
            client_host=command.client_host,
            session_timeout_ms=command.session_timeout_ms,
            rebalance_timeout_ms=command.rebalance_timeout_ms,
            protocols=command.protocols,
            is_new=True,
            joining=ticket,
        )
        group.has_grown = group.state is GroupState.PREPARING and group.is_first_rebalance
        group.add(member, protocol_type=command.protocol_type)
        # It cannot send heartbeats while it waits, and a client that went away cannot be told from one that waits.
        self.deadlines.set(SessionOf(group.id, member_id), now_ms + self._settings.new_member_join_timeout_ms)
        outcome: GroupOutcome = Outcome()
        self._rebalance(group, outcome, now_ms=now_ms)
        return outcome

    def _replace_static(
        self, group: ClassicGroup, command: Join, new_id: str, ticket: Ticket, *, now_ms: int
    ) -> GroupOutcome:
        """Replace a static member that has restarted; a client that still has the old id is fenced."""
        assert command.instance_id is not None
        old_id = group.instances[command.instance_id]
        led_by = group.leader
        outcome: GroupOutcome = Outcome()
        member = group.rename(old_id, new_id)
        for waiting in (member.joining, member.syncing):
            if waiting is not None:
                outcome.replies.append(Reply(waiting, Refused(ErrorCode.FENCED_INSTANCE_ID)))
        group.set_joining(member, None)
        member.syncing = None
        member.client_id, member.client_host = command.client_id, command.client_host
        self.deadlines.cancel(SessionOf(group.id, old_id))
        self._update(group, member, command, ticket, outcome)
        self._expect(group, member, now_ms=now_ms)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol:
            # Nothing changes for the others, so nobody rebalances; the new id must outlive a restart.
            group.set_joining(member, None)
            outcome.facts.append(group.record(now_ms=now_ms))
            leads = group.leader == new_id
            answer = _joined(group, member)
            if not command.can_skip_assignment:
                # Before version 9 only the old leader's id in the answer keeps this member from assigning.
                answer = _joined(group, member, leader=led_by or "")
            elif leads:
                answer = _joined(group, member, skip_assignment=True)
            outcome.replies.append(Reply(ticket, answer))
        else:
            self._rebalance(group, outcome, now_ms=now_ms)
        return outcome

    def _update(
        self, group: ClassicGroup, member: Member, command: Join, ticket: Ticket, outcome: GroupOutcome
    ) -> None:
        if member.joining is not None:
            # The same member asked twice. The connection of the first is most likely gone; were it not, "join again"
            # is an answer that does no harm.
            outcome.replies.append(Reply(member.joining, Refused(ErrorCode.REBALANCE_IN_PROGRESS)))
        group.set_protocols(member, command.protocols)
        member.session_timeout_ms = command.session_timeout_ms
        member.rebalance_timeout_ms = command.rebalance_timeout_ms
        group.set_joining(member, ticket)

    # The join phase

    def _rebalance(self, group: ClassicGroup, outcome: GroupOutcome, *, now_ms: int) -> None:
        """Prepare a new generation, and begin it if nobody is missing."""
        if group.state is GroupState.PREPARING:
            if not group.is_first_rebalance and group.has_everybody_joined:
                self._end_join_phase(group, outcome, now_ms=now_ms)
            return
        if group.state is GroupState.COMPLETING:
            self._refuse_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, outcome, now_ms=now_ms)
        self.deadlines.cancel(SyncPhaseOf(group.id, group.generation))
        group.unsynced.clear()
        group.move_to(GroupState.PREPARING, now_ms=now_ms)
        if group.is_first_rebalance:
            # Consumers of one application start together: a short wait saves a rebalance for each of them.
            group.delay_ms = self._settings.initial_rebalance_delay_ms
            group.delay_left_ms = max(group.rebalance_timeout_ms - group.delay_ms, 0)
            group.has_grown = False
            self.deadlines.set(JoinPhaseOf(group.id), now_ms + group.delay_ms)
        elif group.has_everybody_joined:
            self._end_join_phase(group, outcome, now_ms=now_ms)
        else:
            self.deadlines.set(JoinPhaseOf(group.id), now_ms + group.rebalance_timeout_ms)

    def _end_join_phase(self, group: ClassicGroup, outcome: GroupOutcome, *, now_ms: int) -> None:
        """Begin the next generation: dynamic members that did not join are out, static ones stay."""
        self.deadlines.cancel(JoinPhaseOf(group.id))
        for member in list(group.members.values()):
            if member.joining is None and member.instance_id is None:
                self._drop(group, member.id)
        if not group.members:
            outcome.facts.append(_emptied(group, now_ms=now_ms))
            return
        if not group.elect_joined_leader():
            # Only static members that did not come back: their sessions end them, one by one.
            self.deadlines.set(JoinPhaseOf(group.id), now_ms + group.rebalance_timeout_ms)
            return
        group.start_generation(now_ms=now_ms)
        for member in group.members.values():
            if member.joining is not None:
                outcome.replies.append(Reply(member.joining, _joined(group, member)))
                group.set_joining(member, None)
            member.is_new = False
            self._expect(group, member, now_ms=now_ms)
        self.deadlines.set(SyncPhaseOf(group.id, group.generation), now_ms + group.rebalance_timeout_ms)

    def _refuse_syncs(self, group: ClassicGroup, code: ErrorCode, outcome: GroupOutcome, *, now_ms: int) -> None:
        group.clear_assignments()
        for member in group.members.values():
            if member.syncing is not None:
                outcome.replies.append(Reply(member.syncing, Refused(code)))
                member.syncing = None
                self._expect(group, member, now_ms=now_ms)

    # Syncing

    def sync(self, command: Sync, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide a SyncGroup: the member gets its assignment, perhaps after the leader has brought it."""
        if not command.group:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(command.group)
        if group is None or group.state is GroupState.EMPTY:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.check_member(command.member_id, command.instance_id)
        if command.generation != group.generation:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        if command.protocol_type not in (None, group.protocol_type) or command.protocol not in (None, group.protocol):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        if any(len(assignment) > self._settings.member_bytes_max for assignment in command.assignments.values()):
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The assignment of one member may have {self._settings.member_bytes_max} bytes.",
            )
        if group.state is GroupState.COMPLETING and group.leader == member.id:
            self._check_memory(sum(map(len, command.assignments.values())) - group.assignments_bytes)
        self._has_synced(group, member)
        if group.state is GroupState.STABLE:
            self._expect(group, member, now_ms=now_ms)
            return Outcome(replies=[Reply(ticket, _synced(group, member.assignment))])
        outcome: GroupOutcome = Outcome()
        if member.syncing is not None:
            outcome.replies.append(Reply(member.syncing, Refused(ErrorCode.REBALANCE_IN_PROGRESS)))
        member.syncing = ticket
        if group.leader == member.id:
            self._assign(group, dict(command.assignments), outcome, now_ms=now_ms)
        return outcome

    def _assign(
        self, group: ClassicGroup, assignments: dict[str, bytes], outcome: GroupOutcome, *, now_ms: int
    ) -> None:
        """Record the generation that the leader has assigned, and answer everybody who waits for it."""
        outcome.facts.append(group.record(now_ms=now_ms, assignments=assignments))
        for member in group.members.values():
            if member.syncing is not None:
                outcome.replies.append(Reply(member.syncing, _synced(group, assignments.get(member.id, b""))))
                member.syncing = None
                # Its session may have run out while it waited, which was no fault of its own.
                self._expect(group, member, now_ms=now_ms)

    def _has_synced(self, group: ClassicGroup, member: Member) -> None:
        group.unsynced.discard(member.id)
        if not group.unsynced:
            self.deadlines.cancel(SyncPhaseOf(group.id, group.generation))

    # Living and leaving

    def heartbeat(self, command: Heartbeat, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide a Heartbeat: the member has another session timeout."""
        if not command.group:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(command.group)
        if group is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.check_member(command.member_id, command.instance_id)
        if command.generation != group.generation:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        self._expect(group, member, now_ms=now_ms)
        rebalances = group.state is GroupState.PREPARING
        return Outcome(replies=[Reply(ticket, HeartbeatAccepted(error=_rebalancing(rebalances)))])

    def leave(self, command: Leave, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide a LeaveGroup: the others share what the leavers had."""
        if not command.group:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(command.group)
        if group is None:
            left = Left(errors=tuple((leaver, ErrorCode.UNKNOWN_MEMBER_ID) for leaver in command.leavers))
            return Outcome(replies=[Reply(ticket, left)])
        outcome: GroupOutcome = Outcome()
        errors = tuple((leaver, self._leave(group, leaver, outcome)) for leaver in command.leavers)
        if any(error is ErrorCode.NONE for _, error in errors) and group.state is not GroupState.EMPTY:
            self._rebalance(group, outcome, now_ms=now_ms)
        outcome.replies.append(Reply(ticket, Left(errors=errors)))
        return outcome

    def _leave(self, group: ClassicGroup, leaver: Leaver, outcome: GroupOutcome) -> ErrorCode:
        member_id = leaver.member_id
        if not member_id:
            member_id = group.instances.get(leaver.instance_id or "", "")
            if not member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id in group.pending:
            self._drop(group, member_id)
            return ErrorCode.NONE
        else:
            try:
                group.check_member(member_id, leaver.instance_id)
            except Refused as refusal:
                return refusal.code
        self._dismiss(group, group.members[member_id], outcome)
        return ErrorCode.NONE

    def keep_alive(self, group: ClassicGroup, member_id: str, *, now_ms: int) -> None:
        """Prolong a member's session by a commit while the group is stable or prepares."""
        member = group.members.get(member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING):
            self._expect(group, member, now_ms=now_ms)

    # Time

    def expire(self, deadline: Deadline, *, now_ms: int) -> GroupOutcome:
        """Decide what follows from a deadline that has passed."""
        outcome: GroupOutcome = Outcome()
        group = self._groups.get(deadline.group)
        if group is None:
            return outcome
        match deadline:
            case SessionOf():
                self._end_session(group, deadline.member_id, outcome, now_ms=now_ms)
            case JoinPhaseOf():
                self._end_wait(group, outcome, now_ms=now_ms)
            case SyncPhaseOf():
                self._end_sync_phase(group, outcome, now_ms=now_ms)
        return outcome

    def _end_session(self, group: ClassicGroup, member_id: str, outcome: GroupOutcome, *, now_ms: int) -> None:
        if member_id in group.pending:
            self._drop(group, member_id)
            if group.state is GroupState.PREPARING and group.has_everybody_joined:
                self._end_join_phase(group, outcome, now_ms=now_ms)
            return
        member = group.members.get(member_id)
        if member is None or member.is_waiting:
            return  # whoever waits for the group gets a new session with the answer
        self._dismiss(group, member, outcome)
        if group.state is not GroupState.PREPARING:
            self._rebalance(group, outcome, now_ms=now_ms)
        elif group.has_everybody_joined:
            self._end_join_phase(group, outcome, now_ms=now_ms)

    def _end_wait(self, group: ClassicGroup, outcome: GroupOutcome, *, now_ms: int) -> None:
        if group.state is not GroupState.PREPARING:
            return
        if group.is_first_rebalance and group.has_grown and group.delay_left_ms:
            group.has_grown = False
            delay_ms = min(self._settings.initial_rebalance_delay_ms, group.delay_left_ms)
            group.delay_left_ms = max(group.delay_left_ms - group.delay_ms, 0)
            group.delay_ms = delay_ms
            self.deadlines.set(JoinPhaseOf(group.id), now_ms + delay_ms)
            return
        self._end_join_phase(group, outcome, now_ms=now_ms)

    def _end_sync_phase(self, group: ClassicGroup, outcome: GroupOutcome, *, now_ms: int) -> None:
        if group.state not in (GroupState.COMPLETING, GroupState.STABLE) or not group.unsynced:
            return
        for member_id in list(group.unsynced):
            self._drop(group, member_id)
        self._rebalance(group, outcome, now_ms=now_ms)

    def resume(self, *, now_ms: int) -> GroupOutcome:
        """Decide what follows from a load: every member has a new session; a group that is now too large rebalances."""
        outcome: GroupOutcome = Outcome()
        for group in list(self._groups.values()):
            for member in group.members.values():
                self._expect(group, member, now_ms=now_ms)
            if len(group.members) > self._settings.size_max:
                self._rebalance(group, outcome, now_ms=now_ms)
        return outcome

    def forget(self, group: ClassicGroup) -> None:
        """Cancel the deadlines of a group that is gone."""
        self.deadlines.cancel(JoinPhaseOf(group.id))
        self.deadlines.cancel(SyncPhaseOf(group.id, group.generation))
        for member_id in (*group.members, *group.pending):
            self.deadlines.cancel(SessionOf(group.id, member_id))

    def _expect(self, group: ClassicGroup, member: Member, *, now_ms: int) -> None:
        self.deadlines.set(SessionOf(group.id, member.id), now_ms + member.session_timeout_ms)

    def _dismiss(self, group: ClassicGroup, member: Member, outcome: GroupOutcome) -> None:
        """Remove a member; if it still waits, the answer makes a live client join as a new one."""
        for waiting in (member.joining, member.syncing):
            if waiting is not None:
                outcome.replies.append(Reply(waiting, Refused(ErrorCode.UNKNOWN_MEMBER_ID)))
        group.set_joining(member, None)
        member.syncing = None
        self._drop(group, member.id)

    def _drop(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        self.deadlines.cancel(SessionOf(group.id, member_id))


def _created(group: str, *, now_ms: int) -> GroupRecorded:
    return GroupRecorded(
        group=group, generation=0, protocol_type=None, protocol=None, leader=None, state_changed_at_ms=now_ms
    )


def _emptied(group: ClassicGroup, *, now_ms: int) -> GroupRecorded:
    return GroupRecorded(
        group=group.id,
        generation=group.generation + 1,
        protocol_type=group.protocol_type,
        protocol=None,
        leader=None,
        state_changed_at_ms=now_ms,
    )


def _joined(group: ClassicGroup, member: Member, *, leader: str | None = None, skip_assignment: bool = False) -> Joined:
    leads = group.leader == member.id and leader in (None, member.id)
    return Joined(
        member_id=member.id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=(group.leader or "") if leader is None else leader,
        members=group.as_leader_sees() if leads else (),
        skip_assignment=skip_assignment,
    )


def _synced(group: ClassicGroup, assignment: bytes) -> Synced:
    return Synced(protocol_type=group.protocol_type, protocol=group.protocol, assignment=assignment)


def _rebalancing(rebalances: bool) -> ErrorCode:
    return ErrorCode.REBALANCE_IN_PROGRESS if rebalances else ErrorCode.NONE
