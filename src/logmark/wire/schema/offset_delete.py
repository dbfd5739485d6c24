"""OffsetDelete removes committed offsets of a group."""

from logmark.wire.messages import Message, array, int16, int32, string

KEY = 47
VERSIONS = range(0, 1)
FLEXIBLE_FROM: int | None = None


class RequestPartition(Message):
    partition_index: int = int32()


class RequestTopic(Message):
    name: str = string()
    partitions: list[RequestPartition] = array(RequestPartition)


class Request(Message):
    group_id: str = string()
    topics: list[RequestTopic] = array(RequestTopic)


class ResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class ResponseTopic(Message):
    name: str = string()
    partitions: list[ResponsePartition] = array(ResponsePartition)


class Response(Message):
    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[ResponseTopic] = array(ResponseTopic)
