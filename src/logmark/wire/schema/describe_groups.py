"""DescribeGroups returns the state and the members of classic groups."""

from logmark.wire.messages import Message, array, boolean, data, int16, int32, string

KEY = 15
VERSIONS = range(0, 7)
FLEXIBLE_FROM: int | None = 5


class Request(Message):
    groups: list[str] = array(string())
    include_authorized_operations: bool = boolean(since=3)


class ResponseMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=4, nullable_since=4)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = data()
    member_assignment: bytes = data()


class ResponseGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(default=None, since=6, nullable_since=6)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[ResponseMember] = array(ResponseMember)
    authorized_operations: int = int32(default=-2147483648, since=3)


class Response(Message):
    throttle_time_ms: int = int32(since=1)
    groups: list[ResponseGroup] = array(ResponseGroup)
