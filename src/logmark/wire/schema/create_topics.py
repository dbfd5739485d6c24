"""CreateTopics creates topics."""

from logmark.wire.messages import Message, array, boolean, int8, int16, int32, string, uuid

KEY = 19
VERSIONS = range(2, 8)
FLEXIBLE_FROM: int | None = 5


class RequestAssignment(Message):
    partition_index: int = int32()
    broker_ids: list[int] = array(int32())


class RequestConfig(Message):
    name: str = string()
    value: str | None = string(nullable_since=0)


class RequestTopic(Message):
    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[RequestAssignment] = array(RequestAssignment)
    configs: list[RequestConfig] = array(RequestConfig)


class Request(Message):
    topics: list[RequestTopic] = array(RequestTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean()


class ResponseConfig(Message):
    name: str = string()
    value: str | None = string(nullable_since=5)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


class ResponseTopic(Message):
    name: str = string()
    topic_id: bytes = uuid(since=7)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    topic_config_error_code: int = int16(since=5, tag=0)
    num_partitions: int = int32(default=-1, since=5)
    replication_factor: int = int16(default=-1, since=5)
    configs: list[ResponseConfig] | None = array(ResponseConfig, since=5, nullable_since=5)


class Response(Message):
    throttle_time_ms: int = int32()
    topics: list[ResponseTopic] = array(ResponseTopic)
