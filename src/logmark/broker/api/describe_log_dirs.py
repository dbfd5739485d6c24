"""DescribeLogDirs tells how large partitions are and how the data directory is; and on request how the broker is.

v2  flexible     v3  an error of the whole answer     v4  the size of the volume (KIP-827)
The directory has an error if the broker takes no records until a restart; what it holds can be read all the same.
"""

import json
import os
from collections.abc import Awaitable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from logmark.broker.answers import LARGE, LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.broker.health import describe_health
from logmark.errors import ErrorCode
from logmark.wire import log_dirs as schema
from logmark.wire.messages import lazy_array

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.logs import Logs
    from logmark.broker.server import Broker

KEY = schema.KEY
VERSIONS = range(1, 5)


# What a topic takes in an answer without its partitions, and a partition; and what they are made of.
TOPIC_BYTES, PARTITION_BYTES = 400, 100

# The partitions of topics, each once.
Wanted = Mapping[str, Collection[int]]


def handle(message: schema.Request, request: "Request") -> Awaitable[schema.Response] | LongWork:
    """Describe the one data directory with the requested partitions, or with all; only many of them wait in line."""
    wanted = _wanted(message, request.broker.logs)
    if sum(1 + len(indexes) for indexes in wanted.values()) <= LARGE:
        return _answer(wanted, message, request)
    return LongWork(_answer(wanted, message, request), memory_bytes=partial(_answer_bytes, wanted))


def answer_bytes_max(broker: "Broker", request_bytes: int) -> int:
    """Return how much memory an answer can take: all topics, and what is made of the names in the request."""
    topics = broker.logs.topics()
    return _answer_bytes({topic.name: range(topic.partition_count) for topic in topics}) + 10 * request_bytes


def _answer_bytes(wanted: Wanted) -> int:
    return TOPIC_BYTES * len(wanted) + PARTITION_BYTES * sum(map(len, wanted.values()))


async def _answer(wanted: Wanted, message: schema.Request, request: "Request") -> schema.Response:
    broker = request.broker
    result = schema.ResponseResult(log_dir=broker.data_dir)
    try:
        volume = os.statvfs(broker.data_dir)
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        result.total_bytes = volume.f_blocks * volume.f_frsize
        result.usable_bytes = volume.f_bavail * volume.f_frsize
        if broker.write_failure is not None:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    found: dict[str, list[int]] = {}
    pace = Pace()
    for name, indexes in wanted.items():
        for index in indexes:
            if broker.logs.partition(name, index) is not None:
                found.setdefault(name, []).append(index)
            await pace.step()
    result.topics = lazy_array(len(found), partial(_topics, found, broker.logs))
    health = None
    if message.wants_health:
        described = await describe_health(broker, is_in_reserve=request.connection.is_in_reserve)
        health = json.dumps(described, separators=(",", ":")).encode()
    return schema.Response(results=[result], health=health)


def _topics(found: Mapping[str, list[int]], logs: "Logs") -> Iterator[schema.ResponseTopic]:
    """Yield the topics when they are encoded; a partition that is gone by then has no bytes."""

    def describe(name: str, index: int) -> schema.ResponsePartition:
        partition = logs.partition(name, index)
        size = 0 if partition is None else partition.size_bytes
        return schema.ResponsePartition(partition_index=index, partition_size=size)

    for name, indexes in found.items():
        partitions = lazy_array(len(indexes), partial(map, partial(describe, name), indexes))
        yield schema.ResponseTopic(name=name, partitions=partitions)


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return no directory, and the error where the version has a field for it."""
    return schema.Response(error_code=code)


def _wanted(message: schema.Request, logs: "Logs") -> Wanted:
    if message.topics is None:
        return {topic.name: range(topic.partition_count) for topic in logs.topics()}
    merged: dict[str, dict[int, None]] = {}
    for topic in message.topics:
        merged.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    return merged
