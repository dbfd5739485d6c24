"""CreatePartitions gives topics more partitions."""

from logmark.wire.messages import Message, array, boolean, int16, int32, string

KEY = 37
VERSIONS = range(0, 4)
FLEXIBLE_FROM: int | None = 2


class RequestAssignment(Message):
    broker_ids: list[int] = array(int32())


class RequestTopic(Message):
    name: str = string()
    count: int = int32()
    assignments: list[RequestAssignment] | None = array(RequestAssignment, nullable_since=0)


class Request(Message):
    topics: list[RequestTopic] = array(RequestTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class ResponseTopic(Message):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)


class Response(Message):
    throttle_time_ms: int = int32()
    results: list[ResponseTopic] = array(ResponseTopic)
