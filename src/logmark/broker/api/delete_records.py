"""DeleteRecords moves a partition's log start forward; -1 means up to the high watermark.

v2  flexible
It is answered when the new start is on disk: Kafka writes it within a minute, and a crash before that takes it back.
"""

from typing import TYPE_CHECKING

from logmark.broker.answers import LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.errors import ErrorCode, LogFailed, Refused
from logmark.wire.schema import delete_records as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 3)

TO_HIGH_WATERMARK = -1
# A log may have segments to delete.
DELETE_STEPS = 5


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Move each partition's log start offset by itself and return the new one."""
    return LongWork(_answer(message, request))


async def _answer(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    # Of what is named twice the last counts.
    wanted: dict[str, dict[int, schema.RequestPartition]] = {}
    for topic in message.topics:
        partitions = wanted.setdefault(topic.name, {})
        for each in topic.partitions:
            partitions[each.partition_index] = each
            await pace.step()
    topics = []
    for name, partitions in wanted.items():
        answers = []
        for each in partitions.values():
            answers.append(_delete(name, each, request))
            await pace.step(DELETE_STEPS)
        topics.append(schema.ResponseTopic(name=name, partitions=answers))
    try:
        await request.broker.checkpoint()
    except OSError:
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR) from None
    return schema.Response(topics=topics)


def _delete(
    name: str, wanted: schema.RequestPartition, request: "Request"
) -> schema.ResponsePartition:
    try:
        topic = request.broker.logs.topic(name)
        partition = request.broker.logs.partition(name, wanted.partition_index)
        if topic is None or partition is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.is_internal:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
        before = partition.high_watermark if wanted.offset == TO_HIGH_WATERMARK else wanted.offset
        low_watermark = partition.delete_records(before)
    except Refused as refused:
        return schema.ResponsePartition(
            partition_index=wanted.partition_index, low_watermark=-1, error_code=refused.code
        )
    except LogFailed:
        return schema.ResponsePartition(
            partition_index=wanted.partition_index, low_watermark=-1, error_code=ErrorCode.KAFKA_STORAGE_ERROR
        )
    return schema.ResponsePartition(partition_index=wanted.partition_index, low_watermark=low_watermark)


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return every partition with the error."""
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                name=topic.name,
                partitions=[
                    schema.ResponsePartition(
                        partition_index=partition.partition_index, low_watermark=-1, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
