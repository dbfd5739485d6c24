"""ListOffsets finds the offset for a timestamp; -1 is the latest, -2 the earliest, -3 the largest timestamp."""

from logmark.wire.messages import Message, array, int8, int16, int32, int64, string

KEY = 2
VERSIONS = range(1, 12)
FLEXIBLE_FROM: int | None = 6


class RequestPartition(Message):
    partition_index: int = int32()
    current_leader_epoch: int = int32(default=-1, since=4)
    timestamp: int = int64()


class RequestTopic(Message):
    name: str = string()
    partitions: list[RequestPartition] = array(RequestPartition)


class Request(Message):
    replica_id: int = int32()
    isolation_level: int = int8(since=2)
    topics: list[RequestTopic] = array(RequestTopic)
    timeout_ms: int = int32(since=10)


class ResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32(default=-1, since=4)


class ResponseTopic(Message):
    name: str = string()
    partitions: list[ResponsePartition] = array(ResponsePartition)


class Response(Message):
    throttle_time_ms: int = int32(since=2)
    topics: list[ResponseTopic] = array(ResponseTopic)
