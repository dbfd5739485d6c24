"""SaslAuthenticate carries the bytes of a login."""

from logmark.wire.messages import Message, data, int16, int64, string

KEY = 36
VERSIONS = range(0, 3)
FLEXIBLE_FROM: int | None = 2


class Request(Message):
    auth_bytes: bytes = data()


class Response(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    auth_bytes: bytes = data()
    session_lifetime_ms: int = int64(since=1)
