"""DeleteRecords moves the log start offset up."""

from logmark.wire.messages import Message, array, int16, int32, int64, string

KEY = 21
VERSIONS = range(0, 3)
FLEXIBLE_FROM: int | None = 2


class RequestPartition(Message):
    partition_index: int = int32()
    offset: int = int64()


class RequestTopic(Message):
    name: str = string()
    partitions: list[RequestPartition] = array(RequestPartition)


class Request(Message):
    topics: list[RequestTopic] = array(RequestTopic)
    timeout_ms: int = int32()


class ResponsePartition(Message):
    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


class ResponseTopic(Message):
    name: str = string()
    partitions: list[ResponsePartition] = array(ResponsePartition)


class Response(Message):
    throttle_time_ms: int = int32()
    topics: list[ResponseTopic] = array(ResponseTopic)
