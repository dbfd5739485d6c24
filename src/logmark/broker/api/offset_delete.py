"""OffsetDelete removes committed offsets of a group, but for topics that its members still read (KIP-496)."""

from itertools import islice
from typing import TYPE_CHECKING

from logmark.broker.answers import LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.coordination.commands import DeleteOffsets
from logmark.errors import ErrorCode
from logmark.wire.schema import offset_delete as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 1)
GROUP_FIELD = "group_id"

# More are deleted in portions, each of which is one batch of the journal.
PARTITIONS_AT_ONCE = 500


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Return an error code for every partition, once."""
    return LongWork(_answer(message, request))


async def _answer(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    errors: dict[tuple[str, int], ErrorCode] = {}
    for topic in message.topics:
        for each in topic.partitions:
            key = topic.name, each.partition_index
            is_known = request.broker.logs.partition(*key) is not None
            errors[key] = ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await pace.step()
    known = (key for key, error in list(errors.items()) if error is ErrorCode.NONE)
    # The group is looked at first, also where no partition is known.
    portion = tuple(islice(known, PARTITIONS_AT_ONCE))
    while True:
        deleted = await request.broker.groups.delete_offsets(DeleteOffsets(group=message.group_id, partitions=portion))
        errors.update(zip(portion, deleted.errors, strict=True))
        await pace.step(2 * len(portion))
        portion = tuple(islice(known, PARTITIONS_AT_ONCE))
        if not portion:
            break
    topics: dict[str, list[schema.ResponsePartition]] = {}
    for (name, index), error in errors.items():
        topics.setdefault(name, []).append(schema.ResponsePartition(partition_index=index, error_code=error))
        await pace.step()
    return schema.Response(
        topics=[schema.ResponseTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
    )
