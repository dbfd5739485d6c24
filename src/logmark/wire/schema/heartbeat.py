"""Heartbeat keeps a member of a classic group alive."""

from logmark.wire.messages import Message, int16, int32, string

KEY = 12
VERSIONS = range(0, 5)
FLEXIBLE_FROM: int | None = 4


class Request(Message):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(default=None, since=3, nullable_since=3)


class Response(Message):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
