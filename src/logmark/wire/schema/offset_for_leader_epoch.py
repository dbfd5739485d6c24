"""OffsetForLeaderEpoch returns where a leader epoch ends in the log."""

from logmark.wire.messages import Message, array, int16, int32, int64, string

KEY = 23
VERSIONS = range(2, 5)
FLEXIBLE_FROM: int | None = 4


class RequestPartition(Message):
    partition: int = int32()
    current_leader_epoch: int = int32(default=-1)
    leader_epoch: int = int32()


class RequestTopic(Message):
    topic: str = string()
    partitions: list[RequestPartition] = array(RequestPartition)


class Request(Message):
    replica_id: int = int32(default=-2, since=3)
    topics: list[RequestTopic] = array(RequestTopic)


class ResponsePartition(Message):
    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class ResponseTopic(Message):
    topic: str = string()
    partitions: list[ResponsePartition] = array(ResponsePartition)


class Response(Message):
    throttle_time_ms: int = int32()
    topics: list[ResponseTopic] = array(ResponseTopic)
