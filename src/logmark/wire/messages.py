"""Messages to bytes and back, by functions that are compiled when a message is first used."""

from types import ModuleType
from typing import Any, TypeVar

from logmark.errors import Malformed
from logmark.wire.fields import (
    NO_UUID,
    Message,
    array,
    boolean,
    data,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uuid,
)
from logmark.wire.message_compiler import Decoder, Encoder, compile_decoder, compile_encoder

__all__ = [
    "NO_UUID",
    "Message",
    "array",
    "boolean",
    "data",
    "decode",
    "decode_request",
    "decode_response",
    "encode",
    "encode_request",
    "encode_response",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_flexible",
    "string",
    "struct",
    "uuid",
]

REQUEST_OBJECTS_MAX = 100_000
RESPONSE_OBJECTS_MAX = 10_000_000

M = TypeVar("M", bound=Message)

_decoders: dict[tuple[type[Message], int] | tuple[type[Message], int, bool], Decoder] = {}
_encoders: dict[tuple[type[Message], int] | tuple[type[Message], int, bool], Encoder] = {}


def is_flexible(schema: ModuleType, version: int) -> bool:
    """Return whether this version of the API has compact lengths and tagged fields."""
    first: int | None = schema.FLEXIBLE_FROM
    return first is not None and version >= first


def decode_request(
    schema: ModuleType, version: int, body: memoryview | bytes, *, budget: int = REQUEST_OBJECTS_MAX
) -> Any:
    """Return the schema's Request at the start of `body`; ignore bytes after it, as Kafka does."""
    # librdkafka 2.16 asks for the metadata of all topics with three bytes too many.
    return _decoder(schema, schema.Request, version)(bytes(body), budget, False)


def decode_response(
    schema: ModuleType, version: int, body: memoryview | bytes, *, budget: int = RESPONSE_OBJECTS_MAX
) -> Any:
    """Return the schema's Response in `body`, which holds nothing else."""
    return _decoder(schema, schema.Response, version)(bytes(body), budget, True)


def encode_request(schema: ModuleType, version: int, message: Message) -> bytes:
    """Return the body of a request, without its header."""
    return _encode(schema, schema.Request, version, message)


def encode_response(schema: ModuleType, version: int, message: Message) -> bytes:
    """Return the body of a response, without its header."""
    return _encode(schema, schema.Response, version, message)


def decode(
    cls: type[M],
    version: int,
    data: memoryview | bytes,
    *,
    flexible: bool | None = None,
    budget: int = REQUEST_OBJECTS_MAX,
) -> M:
    """Return the message of this class in `data`, which holds nothing else."""
    if flexible is None:
        flexible = cls.FLEXIBLE_FROM is not None and version >= cls.FLEXIBLE_FROM
    decoder = _decoders.get((cls, version, flexible))
    if decoder is None:
        decoder = _decoders[cls, version, flexible] = compile_decoder(cls, version, flexible=flexible)
    message: M = decoder(bytes(data), budget, True)
    return message


def encode(cls: type[M], version: int, message: M, *, flexible: bool | None = None) -> bytes:
    """Return the bytes of a message of this class."""
    if flexible is None:
        flexible = cls.FLEXIBLE_FROM is not None and version >= cls.FLEXIBLE_FROM
    encoder = _encoders.get((cls, version, flexible))
    if encoder is None:
        encoder = _encoders[cls, version, flexible] = compile_encoder(cls, version, flexible=flexible)
    return encoder(message)


def _decoder(schema: ModuleType, cls: type[Message], version: int) -> Decoder:
    decoder = _decoders.get((cls, version))
    if decoder is None:
        if version not in schema.VERSIONS:
            raise Malformed(f"{schema.__name__.rpartition('.')[2]} has no version {version}")
        decoder = _decoders[cls, version] = compile_decoder(cls, version, flexible=is_flexible(schema, version))
    return decoder


def _encode(schema: ModuleType, cls: type[Message], version: int, message: Message) -> bytes:
    if type(message) is not cls:
        raise ValueError(f"{type(message).__name__} is not the {cls.__name__} of {schema.__name__}")
    encoder = _encoders.get((cls, version))
    if encoder is None:
        if version not in schema.VERSIONS:
            raise ValueError(f"{schema.__name__.rpartition('.')[2]} has no version {version}")
        encoder = _encoders[cls, version] = compile_encoder(cls, version, flexible=is_flexible(schema, version))
    return encoder(message)
