"""A message is a class whose fields say in which versions they exist."""

from collections.abc import Iterator
from typing import Any, ClassVar, dataclass_transform

FIXED = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "float64": "d", "uuid": "16s"}
NO_UUID = bytes(16)


class Field:
    """What the wire holds for one attribute, and in which versions."""

    __slots__ = ("default", "element", "kind", "name", "nullable_since", "since", "struct", "tag", "until")

    def __init__(
        self,
        kind: str,
        default: Any,
        *,
        since: int = 0,
        until: int | None = None,
        nullable_since: int | None = None,
        tag: int | None = None,
        element: "Field | None" = None,
        struct: "type[Message] | None" = None,
    ) -> None:
        self.kind = kind
        self.name = ""
        self.default = default
        self.since = since
        self.until = until
        self.nullable_since = nullable_since
        self.tag = tag
        self.element = element
        self.struct = struct

    def is_in(self, version: int) -> bool:
        """Return whether this version of the message has the field."""
        return self.since <= version and (self.until is None or version <= self.until)

    def is_nullable_in(self, version: int) -> bool:
        """Return whether the field may be null in this version."""
        return self.nullable_since is not None and self.nullable_since <= version

    def fresh_default(self) -> Any:
        """Return the default, never shared between two messages."""
        if self.default is None:
            return None
        if self.kind == "array":
            return []
        if self.kind == "struct":
            assert self.struct is not None
            return self.struct()
        return self.default


# The specifiers answer Any, so that `name: str = string()` type-checks as an attribute with a default.


def boolean(*, default: bool = False, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    """Declare a boolean: one byte, true unless it is zero."""
    return Field("bool", default, since=since, until=until, tag=tag)


def int8(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    """Declare a signed integer of one byte."""
    return Field("int8", default, since=since, until=until, tag=tag)


def int16(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    """Declare a signed integer of two bytes."""
    return Field("int16", default, since=since, until=until, tag=tag)


def int32(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    """Declare a signed integer of four bytes."""
    return Field("int32", default, since=since, until=until, tag=tag)


def int64(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    """Declare a signed integer of eight bytes."""
    return Field("int64", default, since=since, until=until, tag=tag)


def float64(*, default: float = 0.0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    """Declare a floating-point number of eight bytes."""
    return Field("float64", default, since=since, until=until, tag=tag)


def uuid(*, default: bytes = NO_UUID, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    """Declare sixteen bytes that name something."""
    return Field("uuid", default, since=since, until=until, tag=tag)


def string(
    *,
    default: str | None = "",
    since: int = 0,
    until: int | None = None,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    """Declare text of at most 32767 bytes in UTF-8."""
    return Field("string", default, since=since, until=until, nullable_since=nullable_since, tag=tag)


def data(
    *,
    default: bytes | None = b"",
    since: int = 0,
    until: int | None = None,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    """Declare bytes that mean nothing to this layer."""
    return Field("bytes", default, since=since, until=until, nullable_since=nullable_since, tag=tag)


def array(
    of: Any,
    *,
    default: tuple[()] | None = (),
    since: int = 0,
    until: int | None = None,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    """Declare a list of structs (`array(Topic)`) or of plain values (`array(int32())`)."""
    element = of if isinstance(of, Field) else Field("struct", (), struct=of)
    return Field("array", default, since=since, until=until, nullable_since=nullable_since, tag=tag, element=element)


def struct(
    of: "type[Message]",
    *,
    default: tuple[()] | None = (),
    since: int = 0,
    until: int | None = None,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    """Declare a message inside a message."""
    return Field("struct", default, since=since, until=until, nullable_since=nullable_since, tag=tag, struct=of)


class MessageType(type):
    """Turns the field specifiers of a class body into slots."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> "MessageType":
        fields = [(attribute, value) for attribute, value in namespace.items() if isinstance(value, Field)]
        for attribute, field in fields:
            field.name = attribute
            del namespace[attribute]
        namespace["FIELDS"] = tuple(field for _, field in fields)
        namespace["__slots__"] = tuple(attribute for attribute, _ in fields)
        return super().__new__(mcs, name, bases, namespace)


@dataclass_transform(kw_only_default=True)
class Message(metaclass=MessageType):
    """One class for all versions of a message; a field that a version lacks has its default."""

    FIELDS: ClassVar[tuple[Field, ...]]
    FLEXIBLE_FROM: ClassVar[int | None] = None

    def __init__(self, **values: Any) -> None:
        # Compiled when the first message of a class is made: most programs use few of them.
        cls = type(self)
        cls.__init__ = _initializer(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._items())
        return f"{type(self).__module__.rpartition('.')[2]}.{type(self).__name__}({values})"

    def _items(self) -> Iterator[tuple[str, Any]]:
        return ((field.name, getattr(self, field.name)) for field in self.FIELDS)


def _initializer(cls: type[Message]) -> Any:
    """Return a keyword-only `__init__` with a fresh default for every field."""
    parameters, lines = [], []
    names: dict[str, Any] = {}
    for field in cls.FIELDS:
        name, default = field.name, f"default_{field.name}"
        if field.default is not None and field.kind in ("array", "struct"):
            names[default] = list if field.kind == "array" else field.struct
            parameters.append(f"{name}=unset")
            lines.append(f"    self.{name} = {default}() if {name} is unset else {name}")
        else:
            names[default] = field.default
            parameters.append(f"{name}={default}")
            lines.append(f"    self.{name} = {name}")
    names["unset"] = object()
    head = f"def __init__(self{', *, ' if parameters else ''}{', '.join(parameters)}):"
    source = "\n".join([head, *lines, "    return None"])
    # The text is made of field names in our own source, never of anything that was received.
    exec(compile(source, f"<{cls.__module__}.{cls.__name__}>", "exec"), names)  # noqa: S102
    return names["__init__"]
