"""DeleteTopics deletes topics, by name or from version 6 by id."""

from logmark.wire.messages import Message, array, int16, int32, string, uuid

KEY = 20
VERSIONS = range(1, 7)
FLEXIBLE_FROM: int | None = 4


class RequestTopic(Message):
    name: str | None = string(default=None, nullable_since=6)
    topic_id: bytes = uuid()


class Request(Message):
    topics: list[RequestTopic] = array(RequestTopic, since=6)
    topic_names: list[str] = array(string(), until=5)
    timeout_ms: int = int32()


class ResponseTopic(Message):
    name: str | None = string(nullable_since=6)
    topic_id: bytes = uuid(since=6)
    error_code: int = int16()
    error_message: str | None = string(default=None, since=5, nullable_since=5)


class Response(Message):
    throttle_time_ms: int = int32()
    responses: list[ResponseTopic] = array(ResponseTopic)
