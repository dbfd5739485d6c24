"""OffsetFetch tells the committed offsets of a group.

v2  all topics by null     v5  leader epoch     v6  flexible     v7  only stable offsets (always so here)
v8  several groups at once (KIP-709)     v9  member epochs of KIP-848, which a classic group does not look at
"""

from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING

from logmark.broker.answers import LARGE, LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.coordination.committed_offsets import CommittedOffset
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import offset_fetch as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(1, 10)

GROUPS_FROM = 8
GROUP_ERROR_FROM = 2
GROUP_STEPS = 5

OffsetsByPartition = Mapping[tuple[str, int], CommittedOffset]
# The partitions of topics, each once; None is all that the group has.
Wanted = dict[str, dict[int, None]] | None


def handle(message: schema.Request, request: "Request") -> Awaitable[schema.Response] | LongWork:
    """Return the committed offsets of each group; -1 where it has none.

    All offsets of a group are answered once, and a partition that is repeated for a group once.
    """
    answer = _answer_groups(message, request) if request.version >= GROUPS_FROM else _answer_group(message, request)
    return answer if _is_small(message) else LongWork(answer)


def _is_small(message: schema.Request) -> bool:
    """Return whether a few partitions are asked for; all those of a group may be many."""
    count = 0
    for topics in (message.topics, *(group.topics for group in message.groups[: LARGE + 1])):
        if topics is None:
            return False
        count += 1 + sum(len(topic.partition_indexes) for topic in topics)
    return count <= LARGE


async def _answer_group(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    wanted = await _wanted(message.topics, pace)
    committed = await request.broker.groups.committed_offsets(message.group_id)
    topics: dict[str, list[schema.ResponsePartition]] = {}
    for name, partition, offset in _found(wanted, committed):
        topics.setdefault(name, []).append(
            schema.ResponsePartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
            )
        )
        await pace.step()
    return schema.Response(
        topics=[schema.ResponseTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
    )


async def _answer_groups(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    everything: set[str] = set()
    groups = []
    for group in message.groups:
        await pace.step()
        if group.topics is None:
            if group.group_id in everything:
                continue
            everything.add(group.group_id)
        groups.append(await _group(group.group_id, await _wanted(group.topics, pace), request, pace))
    return schema.Response(groups=groups)


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return the error of the whole request where its version has a field for it, else of every partition."""
    if version >= GROUPS_FROM:
        return schema.Response(groups=[_refused(group.group_id, code) for group in message.groups])
    if version >= GROUP_ERROR_FROM:
        return schema.Response(error_code=code)
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                name=topic.name,
                partitions=[
                    schema.ResponsePartition(
                        partition_index=partition, committed_offset=-1, metadata="", error_code=code
                    )
                    for partition in topic.partition_indexes
                ],
            )
            for topic in message.topics or []
        ]
    )


async def _group(group_id: str, wanted: Wanted, request: "Request", pace: Pace) -> schema.ResponseGroup:
    await pace.step(GROUP_STEPS)
    try:
        committed = await request.broker.groups.committed_offsets(group_id)
    except Refused as refused:
        return _refused(group_id, refused.code)
    topics: dict[str, list[schema.ResponseGroupPartition]] = {}
    for name, partition, offset in _found(wanted, committed):
        topics.setdefault(name, []).append(
            schema.ResponseGroupPartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
            )
        )
        await pace.step()
    return schema.ResponseGroup(
        group_id=group_id,
        topics=[schema.ResponseGroupTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


def _refused(group_id: str, code: ErrorCode) -> schema.ResponseGroup:
    return schema.ResponseGroup(group_id=group_id, error_code=code)


NO_OFFSET = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1, expires_at_ms=None)


async def _wanted(topics: list[schema.RequestTopic] | list[schema.RequestGroupTopic] | None, pace: Pace) -> Wanted:
    if topics is None:
        return None
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        await pace.step()
    return wanted


def _found(wanted: Wanted, committed: OffsetsByPartition) -> Iterable[tuple[str, int, CommittedOffset]]:
    """Return the offsets of the partitions that were asked for, or all of them in order."""
    if wanted is None:
        return ((*where, committed[where]) for where in sorted(committed))
    return (
        (topic, partition, committed.get((topic, partition), NO_OFFSET))
        for topic, partitions in wanted.items()
        for partition in partitions
    )
