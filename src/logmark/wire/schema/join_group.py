"""JoinGroup makes a client a member of a classic group."""

from logmark.wire.messages import Message, array, boolean, data, int16, int32, string

KEY = 11
VERSIONS = range(0, 10)
FLEXIBLE_FROM: int | None = 6


class RequestProtocol(Message):
    name: str = string()
    metadata: bytes = data()


class Request(Message):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(default=-1, since=1)
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=5, nullable_since=5)
    protocol_type: str = string()
    protocols: list[RequestProtocol] = array(RequestProtocol)
    reason: str | None = string(default=None, since=8, nullable_since=8)


class ResponseMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=5, nullable_since=5)
    metadata: bytes = data()


class Response(Message):
    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(default=None, since=7, nullable_since=7)
    protocol_name: str | None = string(nullable_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[ResponseMember] = array(ResponseMember)
