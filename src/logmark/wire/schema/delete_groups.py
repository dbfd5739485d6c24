"""DeleteGroups removes empty groups with their committed offsets."""

from logmark.wire.messages import Message, array, int16, int32, string

KEY = 42
VERSIONS = range(0, 3)
FLEXIBLE_FROM: int | None = 2


class Request(Message):
    groups_names: list[str] = array(string())


class ResponseGroup(Message):
    group_id: str = string()
    error_code: int = int16()


class Response(Message):
    throttle_time_ms: int = int32()
    results: list[ResponseGroup] = array(ResponseGroup)
