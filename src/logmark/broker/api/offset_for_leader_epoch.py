"""OffsetForLeaderEpoch tells where a leader epoch ended; a consumer asks to see whether its log was cut.

v3  replica id     v4  flexible
There is one epoch here, 0, and it never ends.
"""

from typing import TYPE_CHECKING

from logmark.broker.answers import LongWork, answer_in_turns
from logmark.broker.api.list_offsets import check_leader_epoch
from logmark.broker.event_loop_turns import Steps
from logmark.errors import ErrorCode, Refused
from logmark.wire.messages import Message
from logmark.wire.schema import offset_for_leader_epoch as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(2, 5)


def handle(message: schema.Request, request: "Request") -> Message | LongWork:
    """Return the end offset of each requested epoch, also of several in one partition, as in Kafka."""
    return answer_in_turns(_answers(message, request), sum(len(topic.partitions) for topic in message.topics))


def _answers(message: schema.Request, request: "Request") -> Steps[Message]:
    topics = []
    for topic in message.topics:
        answers: list[schema.ResponsePartition] = []
        topics.append(schema.ResponseTopic(topic=topic.topic, partitions=answers))
        yield 1
        for partition in topic.partitions:
            answers.append(_answer(topic.topic, partition, request))
            yield 1
    return schema.Response(topics=topics)


def _answer(topic: str, wanted: schema.RequestPartition, request: "Request") -> schema.ResponsePartition:
    try:
        partition = request.broker.logs.partition(topic, wanted.partition)
        if partition is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        check_leader_epoch(wanted.current_leader_epoch)
        leader_epoch, end_offset = partition.end_offset_for_epoch(wanted.leader_epoch)
    except Refused as refused:
        return _failed(wanted.partition, refused.code)
    return schema.ResponsePartition(partition=wanted.partition, leader_epoch=leader_epoch, end_offset=end_offset)


def _failed(index: int, code: ErrorCode) -> schema.ResponsePartition:
    return schema.ResponsePartition(partition=index, error_code=code, leader_epoch=-1, end_offset=-1)


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return every partition with the error."""
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                topic=topic.topic,
                partitions=[
                    _failed(partition.partition, code) for partition in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
