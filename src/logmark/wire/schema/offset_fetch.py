"""OffsetFetch returns the committed offsets of a group; from version 8 of several groups at once."""

from logmark.wire.messages import Message, array, boolean, int16, int32, int64, string, uuid

KEY = 9
VERSIONS = range(1, 11)
FLEXIBLE_FROM: int | None = 6


class RequestTopic(Message):
    name: str = string()
    partition_indexes: list[int] = array(int32())


class RequestGroupTopic(Message):
    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partition_indexes: list[int] = array(int32())


class RequestGroup(Message):
    group_id: str = string()
    member_id: str | None = string(default=None, since=9, nullable_since=9)
    member_epoch: int = int32(default=-1, since=9)
    topics: list[RequestGroupTopic] | None = array(RequestGroupTopic, nullable_since=8)


class Request(Message):
    group_id: str = string(until=7)
    topics: list[RequestTopic] | None = array(RequestTopic, until=7, nullable_since=2)
    groups: list[RequestGroup] = array(RequestGroup, since=8)
    require_stable: bool = boolean(since=7)


class ResponsePartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1, since=5)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


class ResponseTopic(Message):
    name: str = string()
    partitions: list[ResponsePartition] = array(ResponsePartition)


class ResponseGroupPartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable_since=8)
    error_code: int = int16()


class ResponseGroupTopic(Message):
    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[ResponseGroupPartition] = array(ResponseGroupPartition)


class ResponseGroup(Message):
    group_id: str = string()
    topics: list[ResponseGroupTopic] = array(ResponseGroupTopic)
    error_code: int = int16()


class Response(Message):
    throttle_time_ms: int = int32(since=3)
    topics: list[ResponseTopic] = array(ResponseTopic, until=7)
    error_code: int = int16(since=2, until=7)
    groups: list[ResponseGroup] = array(ResponseGroup, since=8)
