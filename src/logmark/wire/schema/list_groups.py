"""ListGroups names the groups that a broker coordinates."""

from logmark.wire.messages import Message, array, int16, int32, string

KEY = 16
VERSIONS = range(0, 6)
FLEXIBLE_FROM: int | None = 3


class Request(Message):
    states_filter: list[str] = array(string(), since=4)
    types_filter: list[str] = array(string(), since=5)


class ResponseGroup(Message):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


class Response(Message):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: list[ResponseGroup] = array(ResponseGroup)
