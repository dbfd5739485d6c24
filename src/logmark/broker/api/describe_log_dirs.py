"""DescribeLogDirs tells how large partitions are and how the data directory is; and on request how the broker is.

v2  flexible     v3  an error of the whole answer     v4  the size of the volume (KIP-827)
The directory has an error if the broker takes no records until a restart; what it holds can be read all the same.
"""

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from logmark.broker.event_loop_turns import Pace
from logmark.broker.health import describe_health
from logmark.errors import ErrorCode
from logmark.wire import log_dirs as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.logs import Logs

KEY = schema.KEY
VERSIONS = range(1, 5)


async def handle(message: schema.Request, request: "Request") -> schema.Response:
    """Describe the one data directory with the requested partitions, or with all."""
    broker, pace = request.broker, Pace()
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
    for name, indexes in _wanted(message, broker.logs):
        topic = schema.ResponseTopic(name=name)
        for index in indexes:
            partition = broker.logs.partition(name, index)
            if partition is not None:
                size = partition.size_bytes
                topic.partitions.append(schema.ResponsePartition(partition_index=index, partition_size=size))
            await pace.step()
        if topic.partitions:
            result.topics.append(topic)
    health = None
    if message.wants_health:
        described = await describe_health(broker, is_in_reserve=request.connection.is_in_reserve)
        health = json.dumps(described, separators=(",", ":")).encode()
    return schema.Response(results=[result], health=health)


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return no directory, and the error where the version has a field for it."""
    return schema.Response(error_code=code)


def _wanted(message: schema.Request, logs: "Logs") -> Iterable[tuple[str, Iterable[int]]]:
    if message.topics is None:
        return [(topic.name, range(topic.partition_count)) for topic in logs.topics()]
    merged: dict[str, dict[int, None]] = {}
    for topic in message.topics:
        merged.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    return merged.items()
