"""Every group of the broker: which internal partition keeps it, and what can be asked of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from logmark.broker.event_loop_turns import Pace, run_in_turns
from logmark.broker.group_runtime import GroupRuntime
from logmark.broker.internal_partition import PartitionLog
from logmark.coordination.commands import (
    CommitOffsets,
    DeleteOffsets,
    GroupDeleted,
    Heartbeat,
    HeartbeatAccepted,
    Join,
    Joined,
    Leave,
    Left,
    OffsetsDeleted,
    Sync,
    Synced,
)
from logmark.coordination.committed_offsets import CommittedOffset
from logmark.coordination.facts import GroupOutcome
from logmark.coordination.group import GroupDescription, GroupListing
from logmark.coordination.group_coordinator import GroupCoordinator
from logmark.coordination.group_partition import partition_of_group
from logmark.coordination.outcome import Ticket
from logmark.coordination.runtime import Answered, CoordinatorState, Timer
from logmark.coordination.settings import GroupSettings
from logmark.errors import ErrorCode, Refused
from logmark.names import OFFSETS_TOPIC

if TYPE_CHECKING:
    from logmark.broker.config import BrokerConfig
    from logmark.broker.memory_budget import MemoryBudget
    from logmark.clock import Clock

Decide = Callable[[GroupCoordinator, Ticket, int], GroupOutcome]

LOAD_AT_START_BYTES = 256 * 1024  # loaded before the first client is served; the rest follows in the background

log = logging.getLogger(__name__)


class Host(Protocol):
    """What groups need of a broker."""

    @property
    def config(self) -> "BrokerConfig": ...
    @property
    def clock(self) -> "Clock": ...
    @property
    def timers(self) -> Any: ...
    @property
    def logs(self) -> Any: ...
    @property
    def budget(self) -> "MemoryBudget": ...


class Groups:
    """Every group of this broker."""

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        self._runtimes: list[GroupRuntime] = []
        self._expiry: Timer | None = None
        self._rest: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._is_memory_reported = False
        # Commits that came before there was a topic for them.
        self._first_commits: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def start(self) -> None:
        """Load the groups that are there: small logs at once, large ones in the background."""
        self._broker.logs.on_topics_deleted.append(self._forget_topics)
        self._expire_later()
        if self._broker.logs.topic(OFFSETS_TOPIC) is not None:
            self._open_runtimes()

    def close(self) -> None:
        """Refuse what waits; groups are not served any more."""
        self._is_closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for task in (self._rest, self._expiring):
            if task is not None:
                task.cancel()
        for runtime in self._runtimes:
            runtime.close()

    # Commands

    def join(self, command: Join) -> Awaitable[Joined]:
        """Return the generation of a member, once there is one."""
        return self._ask(command.group, lambda at, ticket, now_ms: at.join(command, ticket, now_ms=now_ms))

    def sync(self, command: Sync) -> Awaitable[Synced]:
        """Return the member's assignment, once the leader has brought it."""
        return self._ask(command.group, lambda at, ticket, now_ms: at.sync(command, ticket, now_ms=now_ms))

    def heartbeat(self, command: Heartbeat) -> Awaitable[HeartbeatAccepted]:
        """Prolong the session of a member."""
        return self._ask(command.group, lambda at, ticket, now_ms: at.heartbeat(command, ticket, now_ms=now_ms))

    def leave(self, command: Leave) -> Awaitable[Left]:
        """Remove members."""
        return self._ask(command.group, lambda at, ticket, now_ms: at.leave(command, ticket, now_ms=now_ms))

    def commit_offsets(self, command: CommitOffsets, answered: Answered) -> None:
        """Commit offsets, and make a call with `OffsetsCommitted` when they are on disk, or with `Refused`."""
        if self._runtimes:
            self._submit(command, answered)
        else:
            task = asyncio.get_running_loop().create_task(self._submit_first(command, answered))
            self._first_commits.add(task)
            task.add_done_callback(self._first_commits.discard)

    def _submit(self, command: CommitOffsets, answered: Answered) -> None:
        runtime = self._runtimes[partition_of_group(command.group, len(self._runtimes))]
        runtime.submit(lambda at, ticket, now_ms: at.commit_offsets(command, ticket, now_ms=now_ms), answered)

    async def _submit_first(self, command: CommitOffsets, answered: Answered) -> None:
        """Commit offsets when the topic for them is there; a client that knows Kafka has asked for it before."""
        try:
            await self._runtime(command.group)
            self._submit(command, answered)
        except Refused as refused:
            answered(refused)

    def delete_offsets(self, command: DeleteOffsets) -> Awaitable[OffsetsDeleted]:
        """Delete committed offsets."""
        return self._ask(
            command.group, lambda at, ticket, now_ms: at.delete_offsets(command, ticket, now_ms=now_ms)
        )

    def delete_group(self, group: str) -> Awaitable[GroupDeleted]:
        """Delete a group with its offsets."""
        return self._ask(group, lambda at, ticket, now_ms: at.delete_group(group, ticket, now_ms=now_ms))

    def _ask(self, group: str, decide: Decide) -> Awaitable[Any]:
        """Decide a command now, before any that comes later, and return its answer."""
        if not self._runtimes:
            return self._ask_first(group, decide)
        try:
            return self._runtimes[partition_of_group(group, len(self._runtimes))].ask(decide)
        except Refused as refused:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(refused)
            return answer

    async def _ask_first(self, group: str, decide: Decide) -> Any:
        """Decide a command when the topic for it is there, as `_submit_first` does."""
        return await (await self._runtime(group)).ask(decide)

    # Reads

    async def committed_offsets(self, group: str) -> dict[tuple[str, int], CommittedOffset]:
        """Return every committed offset of a group by topic and partition."""
        runtime = await self._runtime(group)
        return await runtime.read(lambda at: dict(at.committed_offsets(group)))

    async def describe(self, group: str) -> GroupDescription | None:
        """Return a group as tools see it; None if there is none."""
        runtime = await self._runtime(group)
        return await runtime.read(lambda at: at.describe(group))

    def offsets_bytes(self, group: str) -> int:
        """Return how much memory the committed offsets of a group take, about; 0 if they are not loaded."""
        coordinator = self._coordinator(group)
        return 0 if coordinator is None else coordinator.offsets_bytes(group)

    def members_bytes(self, group: str) -> int:
        """Return how much memory a group takes without its offsets, about; 0 if it is not loaded."""
        coordinator = self._coordinator(group)
        return 0 if coordinator is None else coordinator.members_bytes(group)

    def _coordinator(self, group: str) -> GroupCoordinator | None:
        return self._runtimes[partition_of_group(group, len(self._runtimes))].coordinator if self._runtimes else None

    async def list_groups(self, pace: Pace) -> list[GroupListing]:
        """Return every group, once everything is loaded."""
        listed: list[GroupListing] = []
        for runtime in self._runtimes:
            if not runtime.is_loaded:
                await asyncio.shield(runtime.load())
            found = await runtime.read(GroupCoordinator.list_groups)
            listed += found
            await pace.step(1 + len(found))
        return listed

    def coordinator_states(self) -> list[tuple[CoordinatorState, str]]:
        """Return what each coordinator can do, by internal partition, and why not more; none before the first group."""
        return [runtime.state for runtime in self._runtimes]

    async def check_available(self, group: str) -> None:
        """Raise Refused if nothing can be done with a group here, also not after a while."""
        if not (await self._runtime(group)).is_available:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # The internal partitions

    async def _runtime(self, group: str) -> GroupRuntime:
        if not self._runtimes:
            await self._create_topic()
            # Several may have waited for the topic.
            if not self._runtimes:
                self._open_runtimes()
        return self._runtimes[partition_of_group(group, len(self._runtimes))]

    async def _create_topic(self) -> None:
        """Create the topic of the offsets, unless it is there; raises Refused if it cannot be created."""
        logs = self._broker.logs
        outcome = None
        if logs.topic(OFFSETS_TOPIC) is None:
            (outcome,) = await logs.create_topics([logs.new_offsets_topic])
        if self._is_closed:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if logs.topic(OFFSETS_TOPIC) is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, getattr(outcome, "message", None))

    def _open_runtimes(self) -> None:
        broker = self._broker
        settings = settings_of(broker.config)
        topic = broker.logs.topic(OFFSETS_TOPIC)
        for index in range(topic.partition_count):
            self._runtimes.append(
                GroupRuntime(
                    index,
                    PartitionLog(broker.logs.partition(OFFSETS_TOPIC, index)),
                    settings=settings,
                    clock=broker.clock,
                    timers=broker.timers,
                    has_topic=lambda name: broker.logs.topic(name) is not None,
                    has_room=self._has_room,
                    hold_memory=broker.budget.hold_groups,
                )
            )
        budget = LOAD_AT_START_BYTES
        later = []
        for runtime in self._runtimes:
            if runtime.size_bytes <= budget:
                budget -= runtime.size_bytes
                runtime.load_now()
            else:
                later.append(runtime)
        if later:
            self._rest = asyncio.get_running_loop().create_task(self._load_rest(later))

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether groups may take more memory; the log says once when they may not."""
        has_room = self._broker.budget.has_room_for_groups(size_bytes)
        if has_room:
            # Not at each group that comes and goes.
            budget = self._broker.budget
            if self._is_memory_reported and budget.has_room_for_groups(budget.groups_max // 10):
                self._is_memory_reported = False
        elif not self._is_memory_reported:
            self._is_memory_reported = True
            log.warning(
                "groups and their committed offsets take %d bytes, half of client.memory.max.bytes: new members and "
                "new offsets are refused, and clients try again. Delete groups that nobody needs, or raise it.",
                self._broker.budget.groups,
            )
        return has_room

    async def _load_rest(self, runtimes: Sequence[GroupRuntime]) -> None:
        for runtime in runtimes:
            await runtime.load()

    async def _forget_topics(self, topics: Sequence[str]) -> None:
        """Delete what groups committed for deleted topics."""
        pace, gone = Pace(), frozenset(topics)
        for runtime in self._runtimes:
            await run_in_turns(runtime.forget_topics(gone), pace)

    def _expire_later(self) -> None:
        interval_ms = self._broker.config.int("offsets.retention.check.interval.ms")
        self._expiry = self._broker.timers.at(self._broker.clock.now_ms() + interval_ms, self._expire_offsets)

    def _expire_offsets(self) -> None:
        self._expire_later()
        if self._expiring is None or self._expiring.done():
            self._expiring = asyncio.get_running_loop().create_task(self._expire_in_turns())

    async def _expire_in_turns(self) -> None:
        pace = Pace()
        for runtime in self._runtimes:
            await run_in_turns(runtime.expire_offsets(), pace)


def settings_of(config: "BrokerConfig") -> GroupSettings:
    """Return the limits and delays of groups as the broker is configured."""
    return GroupSettings(
        initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
        session_timeout_ms_min=config.int("group.min.session.timeout.ms"),
        session_timeout_ms_max=config.int("group.max.session.timeout.ms"),
        size_max=config.int("group.max.size"),
        member_bytes_max=config.int("group.member.max.bytes"),
        group_bytes_max=config.int("group.max.bytes"),
        metadata_chars_max=config.int("offset.metadata.max.bytes"),
        offsets_retention_ms=config.int("offsets.retention.minutes") * 60_000,
    )
