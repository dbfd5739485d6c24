"""OffsetFetch tells the committed offsets of a group.

v2  all topics by null     v5  leader epoch     v6  flexible     v7  only stable offsets (always so here)
v8  several groups at once (KIP-709)     v9  member epochs of KIP-848, which a classic group does not look at
"""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from logmark.broker.answers import LARGE, Buffers, LongBody, LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.broker.memory_budget import SMALL_BYTES
from logmark.coordination.committed_offsets import METADATA_BYTES_PER_CHAR, CommittedOffset
from logmark.errors import ErrorCode, Refused
from logmark.wire.messages import lazy_array
from logmark.wire.schema import offset_fetch as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.server import Broker

KEY = schema.KEY
VERSIONS = range(1, 10)

GROUPS_FROM = 8
GROUP_ERROR_FROM = 2
GROUP_STEPS = 5

P = TypeVar("P", schema.ResponsePartition, schema.ResponseGroupPartition)
OffsetsByPartition = Mapping[tuple[str, int], CommittedOffset]
# The partitions of topics, each once; None is all that the group has.
Wanted = dict[str, dict[int, None]] | None
Topics = list[schema.RequestTopic] | list[schema.RequestGroupTopic] | None
# What a partition takes in an answer, and what it is made of, without metadata.
PARTITION_BYTES = 250


def handle(message: schema.Request, request: "Request") -> Awaitable[schema.Response] | LongWork:
    """Return the committed offsets of each group; -1 where it has none.

    All offsets of a group are answered once, and a partition that is repeated for a group once.
    """
    is_small = _is_small(message) and _answer_bytes(message, request) <= SMALL_BYTES
    if request.version < GROUPS_FROM:
        answer = _answer_group(message, request)
        return answer if is_small else LongWork(answer, memory_bytes=partial(_answer_bytes, message, request))
    if is_small:
        return _answer_groups(message, request)
    return LongWork(_encode_groups(message, request), memory_bytes=partial(_answer_bytes, message, request))


def answer_bytes_max(broker: "Broker", request_bytes: int) -> int:
    """Return how much memory an answer can take: all groups, by names and as a whole, and -1 for other partitions."""
    return 2 * broker.budget.groups + request_bytes // 4 * PARTITION_BYTES


def _is_small(message: schema.Request) -> bool:
    """Return whether a few partitions are asked for; all those of a group may be many."""
    count = 0
    for topics in (message.topics, *(group.topics for group in message.groups[: LARGE + 1])):
        if topics is None:
            return False
        count += 1 + sum(len(topic.partition_indexes) for topic in topics)
    return count <= LARGE


def _answer_bytes(message: schema.Request, request: "Request") -> int:
    """Return how much memory the answer may take, and what it is made of."""
    broker = request.broker
    named = (
        [(group.group_id, group.topics) for group in message.groups]
        if request.version >= GROUPS_FROM
        else [(message.group_id, message.topics)]
    )
    metadata_max = METADATA_BYTES_PER_CHAR * broker.config.int("offset.metadata.max.bytes")
    size = 0
    # What is named again is answered once.
    known: set[tuple[str, bool]] = set()
    for group_id, topics in named:
        of_group = 0 if (group_id, topics is None) in known else broker.groups.offsets_bytes(group_id)
        known.add((group_id, topics is None))
        if topics is None:
            size += of_group + PARTITION_BYTES
        else:
            count = sum(1 + len(topic.partition_indexes) for topic in topics)
            size += PARTITION_BYTES * (1 + count) + min(of_group, metadata_max * count)
    return size


async def _answer_group(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    wanted = await _wanted([message.topics], pace)
    committed = await request.broker.groups.committed_offsets(message.group_id)
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                name=name,
                partitions=lazy_array(len(offsets), partial(_partitions, schema.ResponsePartition, offsets)),
            )
            for name, offsets in (await _found(wanted, committed, pace)).items()
        ]
    )


async def _answer_groups(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    return schema.Response(
        groups=[
            await _group(group_id, await _wanted(topics, pace), request, pace)
            for (group_id, _), topics in (await _by_group(message, pace)).items()
        ]
    )


async def _encode_groups(message: schema.Request, request: "Request") -> Buffers:
    """Encode one group after another: what all of them are made of would take more memory than their bytes."""
    pace = Pace()
    body = LongBody(schema, request)
    for (group_id, _), topics in (await _by_group(message, pace)).items():
        await body.add(await _group(group_id, await _wanted(topics, pace), request, pace))
    return body.finish(schema.Response(groups=[]))


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


async def _by_group(message: schema.Request, pace: Pace) -> dict[tuple[str, bool], list[Topics]]:
    """Return what is asked for of each group: once by its partitions and once as a whole, however often it is named."""
    found: dict[tuple[str, bool], list[Topics]] = {}
    for group in message.groups:
        found.setdefault((group.group_id, group.topics is None), []).append(group.topics)
        await pace.step()
    return found


async def _group(group_id: str, wanted: Wanted, request: "Request", pace: Pace) -> schema.ResponseGroup:
    await pace.step(GROUP_STEPS)
    try:
        committed = await request.broker.groups.committed_offsets(group_id)
    except Refused as refused:
        return _refused(group_id, refused.code)
    return schema.ResponseGroup(
        group_id=group_id,
        topics=[
            schema.ResponseGroupTopic(
                name=name,
                partitions=lazy_array(len(offsets), partial(_partitions, schema.ResponseGroupPartition, offsets)),
            )
            for name, offsets in (await _found(wanted, committed, pace)).items()
        ],
    )


def _partitions(cls: type[P], offsets: Mapping[int, CommittedOffset]) -> Iterator[P]:
    return (
        cls(
            partition_index=partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
        )
        for partition, offset in offsets.items()
    )


def _refused(group_id: str, code: ErrorCode) -> schema.ResponseGroup:
    return schema.ResponseGroup(group_id=group_id, error_code=code)


NO_OFFSET = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1, expires_at_ms=None)


async def _wanted(several: Sequence[Topics], pace: Pace) -> Wanted:
    wanted: dict[str, dict[int, None]] = {}
    for topics in several:
        if topics is None:
            return None
        for topic in topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
            await pace.step()
    return wanted


async def _found(wanted: Wanted, committed: OffsetsByPartition, pace: Pace) -> dict[str, dict[int, CommittedOffset]]:
    """Return the offsets of the partitions that were asked for, or all of them in order."""
    found: dict[str, dict[int, CommittedOffset]] = {}
    if wanted is None:
        for (topic, partition), offset in committed.items():
            found.setdefault(topic, {})[partition] = offset
            await pace.step()
        return {topic: dict(sorted(found[topic].items())) for topic in sorted(found)}
    for topic, partitions in wanted.items():
        for partition in partitions:
            found.setdefault(topic, {})[partition] = committed.get((topic, partition), NO_OFFSET)
            await pace.step()
    return found
