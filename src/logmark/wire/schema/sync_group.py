"""SyncGroup hands the assignment of a generation to the members of a classic group."""

from logmark.wire.messages import Message, array, data, int16, int32, string

KEY = 14
VERSIONS = range(0, 6)
FLEXIBLE_FROM: int | None = 4


class RequestAssignment(Message):
    member_id: str = string()
    assignment: bytes = data()


class Request(Message):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=3, nullable_since=3)
    protocol_type: str | None = string(default=None, since=5, nullable_since=5)
    protocol_name: str | None = string(default=None, since=5, nullable_since=5)
    assignments: list[RequestAssignment] = array(RequestAssignment)


class Response(Message):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = string(default=None, since=5, nullable_since=5)
    protocol_name: str | None = string(default=None, since=5, nullable_since=5)
    assignment: bytes = data()
