"""ListOffsets finds offsets: the start, the end, the newest record, the first at or after a time.

v2  isolation level     v4  leader epochs     v6  flexible     v7  largest timestamp (-3)     v8  earliest local (-4)
v9  latest tiered (-5)  v10 timeout           v11 earliest pending upload (-6)
Nothing is tiered here: -4 is the log start, -5 and -6 find nothing.
A look-up by time may have to decompress a batch: others are served meanwhile.
"""

from collections import Counter
from typing import TYPE_CHECKING

from logmark.broker.answers import LARGE, LongWork
from logmark.broker.event_loop_turns import Pace, Steps, run_at_once, run_in_turns
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

READ_COMMITTED = 1
LOOK_UP_STEPS = 10

# Look-ups by time that are still to be made: where the answer goes, the partition, the time or None for the largest.
Times = list[tuple[schema.ResponsePartition, Partition, int | None]]


def handle(message: schema.Request, request: "Request") -> schema.Response | LongWork:
    """Look up each partition by itself; an error is that partition's alone."""
    if sum(len(topic.partitions) for topic in message.topics) > LARGE:
        return LongWork(_answer_later(message, request))
    response, times = run_at_once(_look_up(message, request))
    return LongWork(_with_times(response, times, message, request, Pace()), is_in_line=False) if times else response


async def _answer_later(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    response, times = await run_in_turns(_look_up(message, request), pace)
    return await _with_times(response, times, message, request, pace)


def _look_up(message: schema.Request, request: "Request") -> Steps[tuple[schema.Response, Times]]:
    # A partition that is asked for several times is answered once, with an error.
    asked: Counter[tuple[str, int]] = Counter()
    wanted: dict[str, dict[int, schema.RequestPartition]] = {}
    for topic in message.topics:
        partitions = wanted.setdefault(topic.name, {})
        for each in topic.partitions:
            asked[topic.name, each.partition_index] += 1
            partitions[each.partition_index] = each
            yield 1
    is_committed = message.isolation_level == READ_COMMITTED
    times: Times = []
    topics = []
    for name, partitions in wanted.items():
        answers = []
        for index, each in partitions.items():
            partition, answer = _answer(
                name, each, request, is_repeated=asked[name, index] > 1, is_committed=is_committed
            )
            if partition is not None:
                times.append((answer, partition, None if each.timestamp == MAX_TIMESTAMP else each.timestamp))
            answers.append(answer)
            yield 1
        topics.append(schema.ResponseTopic(name=name, partitions=answers))
    return schema.Response(topics=topics), times


def _answer(
    topic: str, wanted: schema.RequestPartition, request: "Request", *, is_repeated: bool, is_committed: bool
) -> tuple[Partition | None, schema.ResponsePartition]:
    """Return the answer; with a partition if it waits for a look-up by time there, which may take long."""
    try:
        if is_repeated:
            raise Refused(ErrorCode.INVALID_REQUEST)
        partition = request.broker.logs.partition(topic, wanted.partition_index)
        if partition is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        check_leader_epoch(wanted.current_leader_epoch)
        if wanted.timestamp < 0 and request.version < _SINCE.get(wanted.timestamp, request.version + 1):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
    except Refused as refused:
        return None, _failed(wanted.partition_index, refused.code)
    if wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP:
        return partition, _found(wanted.partition_index, -1, -1)
    offset = _find_offset(partition, wanted.timestamp, is_committed=is_committed)
    return None, _found(wanted.partition_index, offset, -1)


def _find_offset(partition: Partition, which: int, *, is_committed: bool) -> int:
    if which == LATEST:
        return partition.last_stable_offset if is_committed else partition.high_watermark
    return partition.log_start_offset if which in (EARLIEST, EARLIEST_LOCAL) else -1


async def _with_times(
    response: schema.Response, times: Times, message: schema.Request, request: "Request", pace: Pace
) -> schema.Response:
    is_committed = message.isolation_level == READ_COMMITTED
    for answer, partition, timestamp in times:
        # A look-up reads an index and a batch from the disk, but for an empty log.
        await pace.step(LOOK_UP_STEPS if partition.size_bytes else 1)
        try:
            # Each holds a batch in memory.
            async with request.broker.dispatcher.look_ups:
                found = await partition.look_up(timestamp)
        except Refused as refused:
            answer.error_code = refused.code
            continue
        # A record that the reader may not see yet is not found, as in Kafka.
        if found is not None and found[0] < (
            partition.last_stable_offset if is_committed else partition.high_watermark
        ):
            answer.offset, answer.timestamp = found
            answer.leader_epoch = 0
    return response


def _found(index: int, offset: int, timestamp: int) -> schema.ResponsePartition:
    return schema.ResponsePartition(
        partition_index=index, timestamp=timestamp, offset=offset, leader_epoch=0 if offset >= 0 else -1
    )


def check_leader_epoch(current: int) -> None:
    """Raise Refused if the client knows another leader epoch than ours, which is 0; -1 means that it knows none."""
    if current > 0:
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
    if current < -1:
        raise Refused(ErrorCode.FENCED_LEADER_EPOCH)


def _failed(index: int, code: ErrorCode) -> schema.ResponsePartition:
    return schema.ResponsePartition(
        partition_index=index, error_code=code, timestamp=-1, offset=-1, leader_epoch=-1
    )


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return every requested partition with the error."""
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                name=topic.name,
                partitions=[
                    _failed(partition.partition_index, code) for partition in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
