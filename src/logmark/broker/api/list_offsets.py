"""ListOffsets finds offsets: the start, the end, the newest record, the first at or after a time.

v2  isolation level     v4  leader epochs     v6  flexible     v7  largest timestamp (-3)     v8  earliest local (-4)
v9  latest tiered (-5)  v10 timeout           v11 earliest pending upload (-6)
Nothing is tiered here: -4 is the log start, -5 and -6 find nothing.
"""

from typing import TYPE_CHECKING

from logmark.errors import ErrorCode, Refused
from logmark.log.partition import Partition
from logmark.wire.schema import list_offsets as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(1, 12)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

NOT_FOUND = (-1, -1)
READ_COMMITTED = 1


def handle(request: schema.Request, at: "Request") -> schema.Response:
    """Looks up each partition by itself; an error is that partition's alone."""
    asked = [(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    repeated = {where for where in asked if asked.count(where) > 1} if len(asked) != len(set(asked)) else set()
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                name=topic.name,
                partitions=[
                    _answer(
                        topic.name,
                        partition,
                        at,
                        is_repeated=(topic.name, partition.partition_index) in repeated,
                        is_committed=request.isolation_level == READ_COMMITTED,
                    )
                    for partition in {each.partition_index: each for each in topic.partitions}.values()
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(
    topic: str, wanted: schema.RequestPartition, at: "Request", *, is_repeated: bool, is_committed: bool
) -> schema.ResponsePartition:
    try:
        if is_repeated:
            raise Refused(ErrorCode.INVALID_REQUEST)
        partition = at.broker.logs.partition(topic, wanted.partition_index)
        if partition is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        check_leader_epoch(wanted.current_leader_epoch)
        offset, timestamp = _look_up(partition, wanted.timestamp, at.version, is_committed=is_committed)
    except Refused as refused:
        return _failed(wanted.partition_index, refused.code)
    return schema.ResponsePartition(
        partition_index=wanted.partition_index,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=0 if offset >= 0 else -1,
    )


def check_leader_epoch(current: int) -> None:
    """Refuses a client that knows another leader epoch than ours, which is 0; -1 means that it knows none."""
    if current > 0:
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
    if current < -1:
        raise Refused(ErrorCode.FENCED_LEADER_EPOCH)


def _failed(index: int, code: ErrorCode) -> schema.ResponsePartition:
    return schema.ResponsePartition(
        partition_index=index, error_code=code, timestamp=-1, offset=-1, leader_epoch=-1
    )


def _look_up(partition: Partition, timestamp: int, version: int, *, is_committed: bool) -> tuple[int, int]:
    end = partition.last_stable_offset if is_committed else partition.high_watermark
    if timestamp >= 0:
        return _below(end, partition.offset_for_timestamp(timestamp))
    if version < _SINCE.get(timestamp, version + 1):
        raise Refused(ErrorCode.UNSUPPORTED_VERSION)
    if timestamp == LATEST:
        return end, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return partition.log_start_offset, -1
    if timestamp == MAX_TIMESTAMP:
        return _below(end, partition.max_timestamp())
    return NOT_FOUND


def _below(end: int, found: tuple[int, int] | None) -> tuple[int, int]:
    """A record at or above the end that the reader may see is not found, as in Kafka."""
    return NOT_FOUND if found is None or found[0] >= end else found


def refuse(request: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Every partition that was asked for, with the error."""
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                name=topic.name,
                partitions=[
                    _failed(partition.partition_index, code) for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
