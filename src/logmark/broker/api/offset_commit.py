"""OffsetCommit stores the next offsets that a group will read, and answers when they are on disk.

v2-4  a retention of its own     v6  leader epoch     v7  static members (KIP-345)     v8  flexible
v9    member epochs of the new protocol (KIP-848), which is not served here     v10  topic ids, not served here
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from logmark.coordination.commands import CommitOffsets, Place
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import offset_commit as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(2, 10)


async def handle(request: schema.Request, at: "Request") -> schema.Response:
    """An error code for every partition."""
    logs = at.broker.logs
    places = [
        Place(
            topic.name,
            each.partition_index,
            each.committed_offset,
            each.committed_leader_epoch,
            each.committed_metadata or "",
        )
        for topic in request.topics
        for each in topic.partitions
    ]
    errors = {
        (place.topic, place.partition): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for place in places
        if logs.partition(place.topic, place.partition) is None
    }
    known = tuple(place for place in places if (place.topic, place.partition) not in errors)
    # A request of unknown partitions only is answered as such, whatever the group.
    if known or not places:
        errors |= await _commit(request, known, at)
    return _response(request, lambda topic, partition: errors[topic, partition])


async def _commit(
    request: schema.Request, places: tuple[Place, ...], at: "Request"
) -> dict[tuple[str, int], ErrorCode]:
    try:
        committed = await at.broker.groups.commit_offsets(
            CommitOffsets(
                group=request.group_id,
                generation=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                retention_ms=None if request.retention_time_ms == -1 else request.retention_time_ms,
                places=places,
                unknown_group_error=(
                    ErrorCode.GROUP_ID_NOT_FOUND if at.version >= 9 else ErrorCode.ILLEGAL_GENERATION
                ),
            )
        )
        errors = committed.errors
    except Refused as refused:
        errors = (refused.code,) * len(places)
    return {(place.topic, place.partition): error for place, error in zip(places, errors, strict=True)}


def refuse(request: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """The same error for every partition: the answer has no other place for it."""
    return _response(request, lambda topic, partition: code)


def _response(request: schema.Request, error_of: Callable[[str, int], ErrorCode]) -> schema.Response:
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                name=topic.name,
                partitions=[
                    schema.ResponsePartition(
                        partition_index=each.partition_index, error_code=error_of(topic.name, each.partition_index)
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
