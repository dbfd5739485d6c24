"""OffsetDelete removes committed offsets of a group, but for topics that its members still read (KIP-496)."""

from typing import TYPE_CHECKING

from logmark.coordination.commands import DeleteOffsets
from logmark.errors import ErrorCode
from logmark.wire.schema import offset_delete as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 1)


async def handle(request: schema.Request, at: "Request") -> schema.Response:
    """An error code for every partition."""
    wanted = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    errors = {
        key: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for key in wanted if at.broker.logs.partition(*key) is None
    }
    known = tuple(key for key in wanted if key not in errors)
    # The group is looked at first, also where no partition is known.
    deleted = await at.broker.groups.delete_offsets(DeleteOffsets(group=request.group_id, partitions=known))
    errors |= dict(zip(known, deleted.errors, strict=True))
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
