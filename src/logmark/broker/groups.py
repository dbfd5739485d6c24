"""Every group of the broker: which internal partition keeps it, and what can be asked of it."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from logmark.broker.shards import Answered, PartitionJournal, Shard, Timer
from logmark.coordination.commands import (
    Beaten,
    CommitOffsets,
    DeleteOffsets,
    GroupDeleted,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Left,
    OffsetsDeleted,
    Sync,
    Synced,
)
from logmark.coordination.coordinator import Coordinator, GroupDescription, GroupListing
from logmark.coordination.offsets import CommittedOffset
from logmark.coordination.placement import partition_of
from logmark.coordination.rebalance import GroupSettings
from logmark.errors import ErrorCode, Refused
from logmark.names import OFFSETS_TOPIC

if TYPE_CHECKING:
    from logmark.broker.config import BrokerConfig
    from logmark.clock import Clock

LOAD_AT_START_BYTES = 256 * 1024  # loaded before the first client is served; the rest follows in the background


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


class Groups:
    """Every group of this broker."""

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        self._shards: list[Shard] = []
        self._expiry: Timer | None = None
        self._rest: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Loads the groups that are there: small journals at once, large ones in the background."""
        self._broker.logs.on_topic_deleted.append(self._forget_topic)
        self._expire_later()
        if self._broker.logs.topic(OFFSETS_TOPIC) is not None:
            self._open_shards()

    def close(self) -> None:
        """Nobody waits any more; groups are not served any more."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self._rest is not None:
            self._rest.cancel()
        for shard in self._shards:
            shard.close()

    # Commands

    def join(self, command: Join) -> Awaitable[Joined]:
        """The member is in a generation, once there is one."""
        return self._shard(command.group).ask(lambda at, ticket, now_ms: at.join(command, ticket, now_ms=now_ms))

    def sync(self, command: Sync) -> Awaitable[Synced]:
        """The member's assignment, once the leader has brought it."""
        return self._shard(command.group).ask(lambda at, ticket, now_ms: at.sync(command, ticket, now_ms=now_ms))

    def heartbeat(self, command: Heartbeat) -> Awaitable[Beaten]:
        """The member lives on."""
        return self._shard(command.group).ask(lambda at, ticket, now_ms: at.heartbeat(command, ticket, now_ms=now_ms))

    def leave(self, command: Leave) -> Awaitable[Left]:
        """The leavers are out."""
        return self._shard(command.group).ask(lambda at, ticket, now_ms: at.leave(command, ticket, now_ms=now_ms))

    def commit_offsets(self, command: CommitOffsets, answered: Answered) -> None:
        """Commit offsets, and make a call with `OffsetsCommitted` when they are on disk, or with `Refused`."""
        self._shard(command.group).submit(
            lambda at, ticket, now_ms: at.commit_offsets(command, ticket, now_ms=now_ms), answered
        )

    def delete_offsets(self, command: DeleteOffsets) -> Awaitable[OffsetsDeleted]:
        """The places are forgotten."""
        return self._shard(command.group).ask(
            lambda at, ticket, now_ms: at.delete_offsets(command, ticket, now_ms=now_ms)
        )

    def delete_group(self, group: str) -> Awaitable[GroupDeleted]:
        """The group is gone with its offsets."""
        return self._shard(group).ask(lambda at, ticket, now_ms: at.delete_group(group, ticket, now_ms=now_ms))

    # Reads

    def committed_offsets(self, group: str) -> Awaitable[dict[tuple[str, int], CommittedOffset]]:
        """Every place of the group by topic and partition."""
        return self._shard(group).read(lambda at: dict(at.committed_offsets(group)))

    def describe(self, group: str) -> Awaitable[GroupDescription | None]:
        """The group as it stands, None when there is none."""
        return self._shard(group).read(lambda at: at.describe(group))

    async def list_groups(self) -> list[GroupListing]:
        """Every group, once everything is loaded."""
        listed: list[GroupListing] = []
        for shard in self._shards:
            if not shard.is_loaded:
                await asyncio.shield(shard.load())
            listed += await shard.read(Coordinator.list_groups)
        return listed

    def check_available(self, group: str) -> None:
        """Refuses when this group cannot be worked with here, also not after a while."""
        if not self._shard(group).is_available:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # The internal partitions

    def _shard(self, group: str) -> Shard:
        if not self._shards:
            try:
                self._broker.logs.create_internal_offsets_topic()
            except Refused as refused:
                raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from refused
            self._open_shards()
        return self._shards[partition_of(group, len(self._shards))]

    def _open_shards(self) -> None:
        broker = self._broker
        settings = settings_of(broker.config)
        topic = broker.logs.topic(OFFSETS_TOPIC)
        for index in range(topic.partition_count):
            self._shards.append(
                Shard(
                    index,
                    PartitionJournal(broker.logs.partition(OFFSETS_TOPIC, index)),
                    settings=settings,
                    clock=broker.clock,
                    timers=broker.timers,
                    has_topic=lambda name: broker.logs.topic(name) is not None,
                )
            )
        budget = LOAD_AT_START_BYTES
        later = []
        for shard in self._shards:
            if shard.size_bytes <= budget:
                budget -= shard.size_bytes
                shard.load_now()
            else:
                later.append(shard)
        if later:
            self._rest = asyncio.get_running_loop().create_task(self._load_rest(later))

    async def _load_rest(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            await shard.load()

    def _forget_topic(self, topic: str) -> None:
        for shard in self._shards:
            shard.forget_topic(topic)

    def _expire_later(self) -> None:
        interval_ms = self._broker.config.int("offsets.retention.check.interval.ms")
        self._expiry = self._broker.timers.at(self._broker.clock.now_ms() + interval_ms, self._expire_offsets)

    def _expire_offsets(self) -> None:
        self._expire_later()
        for shard in self._shards:
            shard.expire_offsets()


def settings_of(config: "BrokerConfig") -> GroupSettings:
    """The limits and delays of groups as the broker is configured."""
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
