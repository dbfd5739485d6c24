"""Frames: four bytes of length, a header, a body."""

import struct
from collections.abc import Callable
from typing import NamedTuple

from logmark.errors import Malformed
from logmark.wire.primitives import BROKEN, Plain, overrun, skip_tags

# No client sends tagged fields in a header; a sender of many is not a client.
HEADER_TAGS_MAX = 100

_REQUEST = struct.Struct(">hhih")
_FRAME = struct.Struct(">ihhi")
_CORRELATION = struct.Struct(">i")
_CORRELATION_AND_NO_TAGS = struct.Struct(">ix")


class RequestHeader(NamedTuple):
    """The header of a request, and where the body begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def read_request_header(frame: memoryview, flexible_from: Callable[[int], int | None]) -> RequestHeader:
    """Read the header of a request in a frame without its length; `flexible_from` answers for an API key."""
    try:
        key, version, correlation_id, size = _REQUEST.unpack_from(frame)
        at = _REQUEST.size
        client_id = None
        if size != -1:
            stop = at + size
            if not at <= stop <= len(frame):
                overrun(size, len(frame) - at)
            client_id = str(frame[at:stop], "utf-8")
            at = stop
        flexible = flexible_from(key)
        if flexible is not None and version >= flexible:
            if frame[at] == 0:
                at += 1
            else:
                at, _ = skip_tags(frame, at, HEADER_TAGS_MAX)
    except BROKEN as error:
        raise Malformed(f"a request header is broken: {error}") from error
    return RequestHeader(key, version, correlation_id, client_id, at)


def response_header(correlation_id: int, *, flexible: bool) -> bytes:
    """Return the header of a response without the frame's length; ApiVersions is never flexible here."""
    return (_CORRELATION_AND_NO_TAGS if flexible else _CORRELATION).pack(correlation_id)


def read_response_header(frame: memoryview, *, flexible: bool) -> tuple[int, int]:
    """Return the correlation id of a response in a frame without its length, and where the body begins."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        at = _CORRELATION.size
        if flexible:
            at, _ = skip_tags(frame, at, HEADER_TAGS_MAX)
    except BROKEN as error:
        raise Malformed(f"a response header is broken: {error}") from error
    return correlation_id, at


def request_frame(
    key: int, version: int, correlation_id: int, client_id: str | None, *, flexible: bool, body: bytes
) -> bytes:
    """Return a whole request with its length."""
    client = Plain.string(client_id)
    size = _FRAME.size - 4 + len(client) + flexible + len(body)
    return b"".join((_FRAME.pack(size, key, version, correlation_id), client, b"\0" * flexible, body))
