"""Messages to bytes and back, by functions that are compiled when a message is first used."""

from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import Any, Generic, TypeVar

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
from logmark.wire.message_compiler import (
    Decoder,
    Encoder,
    PortionDecoder,
    PortionEncoder,
    compile_decoder,
    compile_encoder,
    compile_portion_decoder,
    compile_portion_encoder,
)

__all__ = [
    "NO_UUID",
    "LazyArray",
    "Message",
    "array",
    "boolean",
    "data",
    "decode",
    "decode_request",
    "decode_request_in_portions",
    "decode_response",
    "encode",
    "encode_in_portions",
    "encode_request",
    "encode_response",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_flexible",
    "lazy_array",
    "string",
    "struct",
    "uuid",
]

REQUEST_OBJECTS_MAX = 100_000
RESPONSE_OBJECTS_MAX = 10_000_000

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_decoders: dict[tuple[type[Message], int] | tuple[type[Message], int, bool], Decoder] = {}
_encoders: dict[tuple[type[Message], int] | tuple[type[Message], int, bool], Encoder] = {}
_portion_decoders: dict[tuple[type[Message], int], PortionDecoder] = {}
_portion_encoders: dict[tuple[type[Message], int, bool], PortionEncoder] = {}


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


def decode_request_in_portions(
    schema: ModuleType, version: int, body: memoryview | bytes, *, budget: int = REQUEST_OBJECTS_MAX
) -> Generator[None, None, Any]:
    """Do as `decode_request` does, and yield after some objects, so that others have their turn."""
    decoder = _portion_decoders.get((schema.Request, version))
    if decoder is None:
        decoder = compile_portion_decoder(schema.Request, version, flexible=is_flexible(schema, version))
        _portion_decoders[schema.Request, version] = decoder
    return decoder(bytes(body), budget, False)


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


def encode_in_portions(message: Message, version: int, *, flexible: bool) -> Iterator[list[bytes]]:
    """Yield the parts of the bytes of a message, some at a time; long bytes are those of the message itself."""
    cls = type(message)
    encoder = _portion_encoders.get((cls, version, flexible))
    if encoder is None:
        encoder = _portion_encoders[cls, version, flexible] = compile_portion_encoder(cls, version, flexible=flexible)
    return encoder(message)


class LazyArray(Generic[T]):
    """An array whose elements are made one by one while it is encoded; all of them would take more than their bytes."""

    __slots__ = ("_count", "_elements")

    def __init__(self, count: int, elements: Callable[[], Iterator[T]]) -> None:
        self._count = count
        self._elements = elements

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return self._elements()


def lazy_array(count: int, elements: Callable[[], Iterator[T]]) -> Any:
    """Return an array of so many elements for a field of a message to be encoded; Any, as the field is a list."""
    return LazyArray(count, elements)


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
