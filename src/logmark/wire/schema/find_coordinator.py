"""FindCoordinator names the broker that keeps a group or a transactional id; from version 4 several at once."""

from logmark.wire.messages import Message, array, int8, int16, int32, string

KEY = 10
VERSIONS = range(0, 7)
FLEXIBLE_FROM: int | None = 3


class Request(Message):
    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(string(), since=4)


class ResponseCoordinator(Message):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=4)


class Response(Message):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable_since=1)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[ResponseCoordinator] = array(ResponseCoordinator, since=4)
