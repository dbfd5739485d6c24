"""Groups under delayed and failing syncs, restarts and the passing of time.

Whatever anybody was told can be derived from what was durable when they were told:
- a commit that was acknowledged is in the durable journal;
- a fetch, a listing and a description show what a load of some durable journal shows;
- an assignment is that of a durable record, and in one generation no partition has two owners;
- a deletion that was acknowledged is durable;
- committed offsets change only by what stands in the journal;
and once the disk is well again, the members come to a stable generation in which every partition has one owner.
"""

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from logmark.broker.event_loop_turns import run_at_once
from logmark.broker.group_runtime import GroupRuntime
from logmark.clock import ManualClock
from logmark.coordination import group_records
from logmark.coordination.commands import (
    CommitOffsets,
    DeleteOffsets,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    OffsetsCommitted,
    OffsetToCommit,
    Protocol,
    Sync,
    Synced,
)
from logmark.coordination.facts import GroupForgotten, GroupRecorded, OffsetCommitted
from logmark.coordination.group import GroupState
from logmark.coordination.group_coordinator import GroupCoordinator
from logmark.coordination.settings import GroupSettings
from logmark.errors import ErrorCode, Refused
from tests.coordination.coordinator_driver import subscription
from tests.coordination.fakes import Entry, FakeInternalLog, FakeTimers
from tests.harness.searches import examples

GROUP = "billing"
PARTITIONS = range(4)
CLIENTS = st.integers(0, 3)
INSTANCES = (None, None, "i2", "i3")
GROUP_SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, session_timeout_ms_min=1, offsets_retention_ms=60_000)


@dataclass
class Client:
    """A consumer as simple as can be: it knows its id, its generation and what it was given."""

    name: str
    instance_id: str | None
    member_id: str = ""
    joined: Joined | None = None
    owns: bytes | None = None
    joining: asyncio.Future[Any] | None = None
    syncing: asyncio.Future[Any] | None = None

    def start_over(self) -> None:
        self.member_id, self.joined, self.owns = "", None, None


@dataclass
class AssignmentRecord:
    """What members were told they own, in one life of the group, generation by generation."""

    by_generation: dict[int, dict[str, bytes]] = field(default_factory=dict)

    def add(self, generation: int, owner: str, assignment: bytes) -> None:
        owners = self.by_generation.setdefault(generation, {})
        assert owners.setdefault(owner, assignment) == assignment, "told two things in one generation"
        partitions = [partition for each in owners.values() for partition in each]
        assert len(partitions) == len(set(partitions)), f"two owners in generation {generation}: {owners}"


def load(entries: list[Entry]) -> GroupCoordinator:
    coordinator = GroupCoordinator(GROUP_SETTINGS, new_id=str)
    for key, value in entries:
        fact = group_records.decode(key, value)
        assert fact is not None
        coordinator.apply(fact)
    return coordinator


class GroupsUnderFaults(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.timers = FakeTimers(self.clock)
        self.journal = FakeInternalLog(is_held=True)
        self.clients = [Client(name=f"c{n}", instance_id=instance) for n, instance in enumerate(INSTANCES)]
        self.ids = itertools.count(1)
        self.commits = itertools.count(1)
        self.told: dict[int, AssignmentRecord] = {}
        self.unanswered: list[tuple[asyncio.Future[Any], Any]] = []
        self.runtime = self.new_runtime()

    def new_runtime(self) -> GroupRuntime:
        runtime = GroupRuntime(
            0,
            self.journal,
            settings=GROUP_SETTINGS,
            clock=self.clock,
            timers=self.timers,
            has_topic=lambda name: True,
            new_id=lambda: str(next(self.ids)),
        )
        self.run(runtime.load_now)
        return runtime

    def run(self, act) -> Any:  # type: ignore[no-untyped-def]
        """Does something on the loop, and lets everything happen that follows at once."""

        async def acting() -> Any:
            try:
                done = act()
            except Refused:
                done = None
            if isinstance(done, asyncio.Future):
                # Nobody hears the refusals that come after a client was restarted or the power failed.
                done.add_done_callback(lambda answered: answered.cancelled() or answered.exception())
            for _ in range(4):
                await asyncio.sleep(0)
            return done

        return self.loop.run_until_complete(acting())

    def ask(self, decide, check) -> asyncio.Future[Any] | None:  # type: ignore[no-untyped-def]
        """Asks, and holds the answer against the durable journal when it comes."""
        future: asyncio.Future[Any] | None = self.run(lambda: self.runtime.ask(decide))
        if future is not None:
            self.unanswered.append((future, check))
        return future

    def settle(self) -> None:
        """Every answer that has come is checked, once."""
        waiting, self.unanswered = self.unanswered, []
        for future, check in waiting:
            if not future.done():
                self.unanswered.append((future, check))
            elif future.exception() is None:
                check(future.result())
        for client in self.clients:
            self.learn(client)

    def learn(self, client: Client) -> None:
        if client.joining is not None and client.joining.done():
            answer, client.joining = _result(client.joining), None
            if isinstance(answer, Joined):
                client.member_id, client.owns = answer.member_id, None
                client.joined = answer if answer.error is ErrorCode.NONE else None
            elif answer in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.start_over()
        if client.syncing is not None and client.syncing.done():
            answer, client.syncing = _result(client.syncing), None
            if isinstance(answer, Synced):
                client.owns = answer.assignment
            else:
                client.joined = None
                if answer in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    client.start_over()

    @property
    def durable(self) -> list[Entry]:
        return self.journal.entries[: self.journal.durable_end]

    def durable_facts(self) -> list[Any]:
        return [group_records.decode(*entry) for entry in self.durable]

    def start_of_life(self) -> int:
        """Return where in the journal the group's present life starts: after each deletion generations count anew."""
        facts = [group_records.decode(*entry) for entry in self.journal.entries]
        return max((at + 1 for at, fact in enumerate(facts) if isinstance(fact, GroupForgotten)), default=0)

    def durable_facts_of_life(self, start: int) -> list[Any]:
        """Return the durable facts of one life of the group, up to its deletion."""
        facts = self.durable_facts()[start:]
        return list(itertools.takewhile(lambda fact: not isinstance(fact, GroupForgotten), facts))

    # Members

    @rule(client=CLIENTS, wants_an_id=st.booleans())
    def join(self, client: int, wants_an_id: bool) -> None:
        who = self.clients[client]
        if who.joining is not None or who.syncing is not None:
            return
        command = Join(
            group=GROUP,
            member_id=who.member_id,
            instance_id=who.instance_id,
            client_id=who.name,
            client_host="/127.0.0.1",
            protocol_type="consumer",
            protocols=(Protocol("range", subscription("clicks")),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            must_know_its_id=wants_an_id,
        )
        who.joining = self.ask(lambda at, ticket, now: at.join(command, ticket, now_ms=now), lambda answer: None)

    @rule(client=CLIENTS)
    def restart_client(self, client: int) -> None:
        self.clients[client].start_over()
        self.clients[client].joining = self.clients[client].syncing = None

    @rule(client=CLIENTS)
    def sync(self, client: int) -> None:
        who = self.clients[client]
        if who.joined is None or who.joining is not None or who.syncing is not None:
            return
        joined, owner = who.joined, who.instance_id or who.member_id
        # The answer may come after the group was deleted and created again; it belongs to the life it was asked in.
        life = self.start_of_life()
        assignments: dict[str, bytes] = {}
        if joined.leader == who.member_id and not joined.skip_assignment:
            members = [member.id for member in joined.members]
            for partition in PARTITIONS:
                mine = members[partition % len(members)]
                assignments[mine] = assignments.get(mine, b"") + bytes([partition])
        command = Sync(
            group=GROUP,
            generation=joined.generation,
            member_id=who.member_id,
            instance_id=who.instance_id,
            assignments=assignments,
        )

        def check(answer: Synced) -> None:
            recorded = {
                (member.instance_id or member.id): member.assignment
                for fact in self.durable_facts_of_life(life)
                if isinstance(fact, GroupRecorded) and fact.generation == joined.generation
                for member in fact.members
            }
            assert recorded[owner] == answer.assignment, "told to own what is not recorded"
            self.told.setdefault(life, AssignmentRecord()).add(joined.generation, owner, answer.assignment)

        who.syncing = self.ask(lambda at, ticket, now: at.sync(command, ticket, now_ms=now), check)

    @rule(client=CLIENTS)
    def heartbeat(self, client: int) -> None:
        who = self.clients[client]
        if who.joined is None:
            return
        command = Heartbeat(
            group=GROUP, generation=who.joined.generation, member_id=who.member_id, instance_id=who.instance_id
        )
        self.ask(lambda at, ticket, now: at.heartbeat(command, ticket, now_ms=now), lambda answer: None)

    @rule(client=CLIENTS)
    def leave(self, client: int) -> None:
        who = self.clients[client]
        if who.joining is not None or who.syncing is not None or not who.member_id:
            return
        command = Leave(group=GROUP, leavers=(Leaver(who.member_id, who.instance_id),))
        self.ask(lambda at, ticket, now: at.leave(command, ticket, now_ms=now), lambda answer: None)
        who.start_over()

    @rule(client=CLIENTS)
    def act(self, client: int) -> None:
        """The client does what a client would do next."""
        who = self.clients[client]
        if who.joined is None:
            self.join(client=client, wants_an_id=True)
        elif who.owns is None:
            self.sync(client=client)
        elif self.is_told_to_rejoin(who):
            who.joined = who.owns = None
        self.settle()

    @rule(times=st.integers(1, 4))
    def the_group_goes_on(self, times: int) -> None:
        """Everybody acts, on a quick disk: most of what happens in a life starts from a stable group."""
        for _ in range(times):
            self.everybody_acts()
            self.run(self.journal.sync)
            self.settle()
            self.time_passes(ms=100)

    # Offsets

    @rule(client=CLIENTS, partition=st.sampled_from(PARTITIONS), offset=st.integers(0, 100))
    def commit_as_member(self, client: int, partition: int, offset: int) -> None:
        who = self.clients[client]
        if who.joined is not None:
            self.commit(partition, offset, generation=who.joined.generation, member_id=who.member_id)

    @rule(partition=st.sampled_from(PARTITIONS), offset=st.integers(0, 100))
    def commit_as_nobody(self, partition: int, offset: int) -> None:
        self.commit(partition, offset, generation=-1, member_id="")

    def commit(self, partition: int, offset: int, *, generation: int, member_id: str) -> None:
        name = str(next(self.commits))
        committed = OffsetToCommit("clicks", partition, offset, 0, name)
        command = CommitOffsets(group=GROUP, generation=generation, member_id=member_id, offsets=(committed,))

        def check(answer: OffsetsCommitted) -> None:
            assert (ErrorCode.NONE,) == answer.errors
            kept = [
                (fact.partition, fact.offset)
                for fact in self.durable_facts()
                if isinstance(fact, OffsetCommitted) and fact.metadata == name
            ]
            assert [(partition, offset)] == kept, "acknowledged, not durable"

        self.ask(lambda at, ticket, now: at.commit_offsets(command, ticket, now_ms=now), check)

    @rule(partition=st.sampled_from(PARTITIONS))
    def delete_offset(self, partition: int) -> None:
        command = DeleteOffsets(group=GROUP, partitions=(("clicks", partition),))
        self.ask(lambda at, ticket, now: at.delete_offsets(command, ticket, now_ms=now), lambda answer: None)

    @rule()
    def delete_group(self) -> None:
        def check(answer: object) -> None:
            assert any(isinstance(fact, GroupForgotten) for fact in self.durable_facts())

        self.ask(lambda at, ticket, now: at.delete_group(GROUP, ticket, now_ms=now), check)

    @rule()
    def look(self) -> None:
        """A reader sees what a load of the journal, as written when it asked, shows; and by then it is durable."""
        written = list(self.journal.entries)
        has_failed = self.journal.failure is not None

        def check(seen: tuple[Any, Any]) -> None:
            entries = written[: self.journal.durable_end] if has_failed else written
            assert self.durable[: len(entries)] == entries, "shown before it was durable"
            committed, description = seen
            loaded = load(entries)
            assert dict(loaded.committed_offsets(GROUP)) == committed
            if description is not None and description.state is GroupState.STABLE:
                assert loaded.describe(GROUP) == description

        future = self.run(
            lambda: self.runtime.read(lambda at: (dict(at.committed_offsets(GROUP)), at.describe(GROUP)))
        )
        if future is not None:
            self.unanswered.append((future, check))

    @rule()
    def expire_offsets(self) -> None:
        self.run(lambda: run_at_once(self.runtime.expire_offsets()))

    # The world

    @rule(ms=st.sampled_from([0, 100, 5_000, 10_000, 20_000, 60_000]))
    def time_passes(self, ms: int) -> None:
        self.run(lambda: self.timers.advance(ms))

    @rule(batches=st.integers(1, 3))
    def the_disk_syncs_some(self, batches: int) -> None:
        self.run(lambda: self.journal.sync(batches))

    @rule()
    def the_disk_syncs_all(self) -> None:
        self.run(self.journal.sync)

    @rule(is_held=st.booleans())
    def the_disk_is_slow_or_quick(self, is_held: bool) -> None:
        self.journal.is_held = is_held

    @precondition(lambda self: not self.journal.failure is not None)
    @rule()
    def the_sync_fails(self) -> None:
        self.run(self.journal.fail)

    @precondition(lambda self: not self.journal.failure is not None)
    @rule()
    def the_next_write_fails(self) -> None:
        self.journal.fails_next_write = True

    @rule(surviving=st.integers(0, 3))
    def the_power_fails(self, surviving: int) -> None:
        self.run(self.runtime.close)
        self.journal = self.journal.after_power_loss(surviving_batches=surviving)
        self.unanswered.clear()
        for client in self.clients:
            client.joining = client.syncing = None
        self.runtime = self.new_runtime()

    # What always holds

    @invariant()
    def answers_rest_on_what_is_durable(self) -> None:
        self.settle()

    @invariant()
    def the_live_state_is_what_was_written(self) -> None:
        coordinator = self.runtime._coordinator
        if coordinator is None:
            return
        loaded = load(self.durable if self.journal.failure is not None else self.journal.entries)
        assert dict(loaded.committed_offsets(GROUP)) == dict(coordinator.committed_offsets(GROUP))
        description = coordinator.describe(GROUP)
        if description is None:
            assert loaded.describe(GROUP) is None
        elif description.state is GroupState.STABLE:
            assert loaded.describe(GROUP) == description

    def teardown(self) -> None:
        try:
            self.the_power_fails(surviving=0)
            self.journal.is_held = False
            self.come_to_rest()
        finally:
            self.run(self.runtime.close)
            self.loop.close()

    def come_to_rest(self) -> None:
        """Everybody acts as clients do, and time passes: in the end each partition has one owner.

        A client that was restarted may have left a member behind that owns partitions until its session ends.
        """
        for _ in range(60):
            self.everybody_acts()
            if self.is_at_rest():
                return
            self.time_passes(ms=2_000)
        raise AssertionError(f"no stable generation in which every partition has one owner: {self.clients}")

    def is_at_rest(self) -> bool:
        """Return whether every client knows what it owns in one generation, and together they own everything once."""
        generations = {client.joined.generation if client.joined else None for client in self.clients}
        owned = sorted(partition for client in self.clients for partition in client.owns or b"")
        everybody_knows = all(client.owns is not None for client in self.clients)
        return everybody_knows and len(generations) == 1 and owned == list(PARTITIONS)

    def everybody_acts(self) -> None:
        for number in range(len(self.clients)):
            self.act(client=number)

    def is_told_to_rejoin(self, client: Client) -> bool:
        assert client.joined is not None
        command = Heartbeat(
            group=GROUP,
            generation=client.joined.generation,
            member_id=client.member_id,
            instance_id=client.instance_id,
        )
        future = self.run(lambda: self.runtime.ask(lambda at, ticket, now: at.heartbeat(command, ticket, now_ms=now)))
        if future is None or not future.done():
            return False  # not now, or not yet: it will ask again
        answer = _result(future)
        if answer in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.start_over()
        return isinstance(answer, ErrorCode) or answer.error is not ErrorCode.NONE


def _result(future: asyncio.Future[Any]) -> Any:
    error = future.exception()
    if error is None:
        return future.result()
    assert isinstance(error, Refused)
    return error.code


GroupsUnderFaults.TestCase.settings = settings(
    max_examples=examples(80, soak=2000),
    stateful_step_count=examples(50, soak=80),
    suppress_health_check=list(HealthCheck),
)
test_no_answer_contradicts_what_a_load_finds = GroupsUnderFaults.TestCase

# Lives in which a search once raised an alarm, in the fewest steps that raised it. Put what a soak finds here as well.
FOUND_LIVES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "an answer that comes after the group was deleted and created again": [
        ("the_disk_is_slow_or_quick", {"is_held": False}),
        *[("act", {"client": 0})] * 2,
        ("time_passes", {"ms": 0}),
        ("the_disk_is_slow_or_quick", {"is_held": True}),
        ("commit_as_member", {"client": 0, "partition": 0, "offset": 1}),
        ("sync", {"client": 0}),
        ("time_passes", {"ms": 10_000}),
        ("delete_group", {}),
        ("act", {"client": 1}),
        ("the_disk_syncs_all", {}),
        ("act", {"client": 1}),
        ("time_passes", {"ms": 0}),
        ("act", {"client": 1}),
        ("the_disk_syncs_all", {}),
    ],
    "an answer to a static member of a group that was deleted and created again": [
        ("the_group_goes_on", {"times": 1}),
        ("restart_client", {"client": 0}),
        ("the_group_goes_on", {"times": 2}),
        ("time_passes", {"ms": 10_000}),
        ("sync", {"client": 2}),
        ("time_passes", {"ms": 10_000}),
        ("delete_group", {}),
        ("the_group_goes_on", {"times": 4}),
        ("restart_client", {"client": 0}),
    ],
    "a member that a restarted client has left behind": [
        ("the_group_goes_on", {"times": 4}),
        ("time_passes", {"ms": 10_000}),
        ("the_group_goes_on", {"times": 4}),
        ("restart_client", {"client": 0}),
        ("the_group_goes_on", {"times": 2}),
    ],
}


@pytest.mark.parametrize("life", FOUND_LIVES)
def test_no_answer_contradicts_what_a_load_finds_in_a_life_that_was_found(life: str) -> None:
    groups = GroupsUnderFaults()
    try:
        for step, values in FOUND_LIVES[life]:
            getattr(groups, step)(**values)
            groups.answers_rest_on_what_is_durable()
            groups.the_live_state_is_what_was_written()
    finally:
        groups.teardown()
