"""LeaveGroup ends memberships of a classic group."""

from logmark.wire.messages import Message, array, int16, int32, string

KEY = 13
VERSIONS = range(0, 6)
FLEXIBLE_FROM: int | None = 4


class RequestMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(default=None, nullable_since=3)
    reason: str | None = string(default=None, since=5, nullable_since=5)


class Request(Message):
    group_id: str = string()
    member_id: str = string(until=2)
    members: list[RequestMember] = array(RequestMember, since=3)


class ResponseMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=3)
    error_code: int = int16()


class Response(Message):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[ResponseMember] = array(ResponseMember, since=3)
