"""OffsetCommit stores the next offsets that a group will read, and answers when they are on disk.

v2-4  a retention of its own     v6  leader epoch     v7  static members (KIP-345)     v8  flexible
v9    member epochs of the new protocol (KIP-848), which is not served here     v10  topic ids, not served here
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from logmark.broker.answers import LateReply
from logmark.coordination.commands import CommitOffsets, OffsetsCommitted, Place
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import offset_commit as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(2, 10)


def handle(request: schema.Request, at: "Request") -> schema.Response | LateReply:
    """Commit the offsets of partitions that exist; the response has an error code for every partition."""
    logs = at.broker.logs
    errors: dict[tuple[str, int], ErrorCode] = {}
    known: list[Place] = []
    for topic in request.topics:
        for each in topic.partitions:
            if logs.partition(topic.name, each.partition_index) is None:
                errors[topic.name, each.partition_index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                known.append(
                    Place(
                        topic.name,
                        each.partition_index,
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.committed_metadata or "",
                    )
                )
    if errors and not known:
        # A request of unknown partitions only is answered as such, whatever the group.
        return _response(request, errors)
    reply = LateReply()

    def answered(outcome: OffsetsCommitted | Refused) -> None:
        codes = itertools.repeat(outcome.code) if isinstance(outcome, Refused) else outcome.errors
        for place, code in zip(known, codes, strict=False):
            errors[place.topic, place.partition] = code
        reply.complete(_response(request, errors))

    command = CommitOffsets(
        group=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        retention_ms=None if request.retention_time_ms == -1 else request.retention_time_ms,
        places=tuple(known),
        unknown_group_error=ErrorCode.GROUP_ID_NOT_FOUND if at.version >= 9 else ErrorCode.ILLEGAL_GENERATION,
    )
    try:
        at.broker.groups.commit_offsets(command, answered)
    except Refused as refused:
        answered(refused)
    return reply


def refuse(request: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return the same error for every partition: the response has no other place for it."""
    return _response(request, defaultdict(lambda: code))


def _response(request: schema.Request, errors: Mapping[tuple[str, int], ErrorCode]) -> schema.Response:
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                name=topic.name,
                partitions=[
                    schema.ResponsePartition(
                        partition_index=each.partition_index, error_code=errors[topic.name, each.partition_index]
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
