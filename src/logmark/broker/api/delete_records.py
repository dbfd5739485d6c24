"""DeleteRecords moves a partition's log start forward; -1 means up to the high watermark.

v2  flexible
It is answered when the new start is on disk: Kafka writes it within a minute, and a crash before that takes it back.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from logmark.broker.answers import LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.errors import ErrorCode, Refused
from logmark.log.partition import Partition
from logmark.names import TopicPartition
from logmark.wire.schema import delete_records as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 3)


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
    found: dict[TopicPartition, Partition] = {}
    targets: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, ErrorCode] = {}
    for name, partitions in wanted.items():
        for each in partitions.values():
            key = TopicPartition(name, each.partition_index)
            try:
                partition = found[key] = _find(key, request)
                targets[key] = partition.deletion_target(each.offset)
            except Refused as error:
                refused[key] = error.code
            await pace.step()
    # On disk first: if the disk refuses the new starts, every log keeps the one that it has.
    with request.broker.logs.announce_log_starts(targets):
        try:
            await request.broker.checkpoint()
        except OSError:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR) from None
        for key, target in targets.items():
            try:
                # That partition: a new topic may have its name by now.
                targets[key] = found[key].delete_records(target)
            except Refused as error:
                refused[key] = error.code
            await pace.step()
    topics = []
    for name, partitions in wanted.items():
        answers = []
        for index in partitions:
            answers.append(_answer_for(TopicPartition(name, index), targets, refused))
            await pace.step()
        topics.append(schema.ResponseTopic(name=name, partitions=answers))
    return schema.Response(topics=topics)


def _find(key: TopicPartition, request: "Request") -> Partition:
    topic = request.broker.logs.topic(key.topic)
    partition = request.broker.logs.partition(key.topic, key.partition)
    if topic is None or partition is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.is_internal:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return partition


def _answer_for(
    key: TopicPartition, starts: Mapping[TopicPartition, int], refused: Mapping[TopicPartition, ErrorCode]
) -> schema.ResponsePartition:
    code = refused.get(key, ErrorCode.NONE)
    start = -1 if code else starts[key]
    return schema.ResponsePartition(partition_index=key.partition, low_watermark=start, error_code=code)


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
