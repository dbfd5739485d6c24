"""SaslHandshake chooses the mechanism of a login."""

from logmark.wire.messages import Message, array, int16, string

KEY = 17
VERSIONS = range(0, 2)
FLEXIBLE_FROM: int | None = None


class Request(Message):
    mechanism: str = string()


class Response(Message):
    error_code: int = int16()
    mechanisms: list[str] = array(string())
