"""OffsetCommit stores the next offsets that a group will read."""

from logmark.wire.messages import Message, array, int16, int32, int64, string, uuid

KEY = 8
VERSIONS = range(2, 11)
FLEXIBLE_FROM: int | None = 8


class RequestPartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1, since=6)
    committed_metadata: str | None = string(nullable_since=0)


class RequestTopic(Message):
    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[RequestPartition] = array(RequestPartition)


class Request(Message):
    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=7, nullable_since=7)
    retention_time_ms: int = int64(default=-1, until=4)
    topics: list[RequestTopic] = array(RequestTopic)


class ResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class ResponseTopic(Message):
    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[ResponsePartition] = array(ResponsePartition)


class Response(Message):
    throttle_time_ms: int = int32(since=3)
    topics: list[ResponseTopic] = array(ResponseTopic)
