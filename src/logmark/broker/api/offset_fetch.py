"""OffsetFetch tells the committed offsets of a group.

v2  all topics by null     v5  leader epoch     v6  flexible     v7  only stable offsets (always so here)
v8  several groups at once (KIP-709)     v9  member epochs of KIP-848, which a classic group does not look at
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from logmark.coordination.offsets import CommittedOffset
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import offset_fetch as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(1, 10)

GROUPS_FROM = 8
GROUP_ERROR_FROM = 2

Places = Mapping[tuple[str, int], CommittedOffset]
Wanted = list[tuple[str, list[int]]]


async def handle(request: schema.Request, at: "Request") -> schema.Response:
    """Each group's places; -1 where it has none."""
    if at.version >= GROUPS_FROM:
        return schema.Response(groups=[await _group(group, at) for group in request.groups])
    places = await at.broker.groups.committed_offsets(request.group_id)
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                name=topic,
                partitions=[
                    schema.ResponsePartition(
                        partition_index=partition,
                        committed_offset=place.offset,
                        committed_leader_epoch=place.leader_epoch,
                        metadata=place.metadata,
                    )
                    for partition, place in found
                ],
            )
            for topic, found in _found(_wanted(request.topics), places)
        ]
    )


def refuse(request: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """The error of the whole request where its version has a place for it, else of every partition."""
    if version >= GROUPS_FROM:
        return schema.Response(groups=[_refused(group.group_id, code) for group in request.groups])
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
            for topic in request.topics or []
        ]
    )


async def _group(group: schema.RequestGroup, at: "Request") -> schema.ResponseGroup:
    try:
        places = await at.broker.groups.committed_offsets(group.group_id)
    except Refused as refused:
        return _refused(group.group_id, refused.code)
    return schema.ResponseGroup(
        group_id=group.group_id,
        topics=[
            schema.ResponseGroupTopic(
                name=topic,
                partitions=[
                    schema.ResponseGroupPartition(
                        partition_index=partition,
                        committed_offset=place.offset,
                        committed_leader_epoch=place.leader_epoch,
                        metadata=place.metadata,
                    )
                    for partition, place in found
                ],
            )
            for topic, found in _found(_wanted(group.topics), places)
        ],
    )


def _refused(group_id: str, code: ErrorCode) -> schema.ResponseGroup:
    return schema.ResponseGroup(group_id=group_id, error_code=code)


NO_PLACE = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1, expires_at_ms=None)


def _wanted(topics: list[schema.RequestTopic] | list[schema.RequestGroupTopic] | None) -> Wanted | None:
    return None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics]


def _found(wanted: Wanted | None, places: Places) -> list[tuple[str, list[tuple[int, CommittedOffset]]]]:
    """The places of the partitions that were asked for, or all of them in order."""
    if wanted is None:
        by_topic: dict[str, list[tuple[int, CommittedOffset]]] = {}
        for (topic, partition), place in sorted(places.items(), key=lambda item: item[0]):
            by_topic.setdefault(topic, []).append((partition, place))
        return list(by_topic.items())
    return [
        (topic, [(partition, places.get((topic, partition), NO_PLACE)) for partition in partitions])
        for topic, partitions in wanted
    ]
