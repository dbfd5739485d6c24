"""Turns the fields of a message into one straight-line function per version and direction.

The functions have no call per field: neighbouring fields of fixed size, with the length of the string, bytes or array
that follows them, are one struct call.
"""

import struct
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn

from logmark.errors import Malformed
from logmark.wire.fields import FIXED, Field, Message
from logmark.wire.primitives import (
    BROKEN,
    misfit,
    overrun,
    overspent,
    read_string_length,
    read_tag_count,
    read_varint,
    skip_tags,
    trailing,
    write_string_length,
    write_varint,
)

NULL_STRUCT = b"\xff"
_SIZES = {kind: struct.calcsize(">" + code) for kind, code in FIXED.items()}

Decoder = Callable[[bytes, int, bool], Any]
Encoder = Callable[[Any], bytes]
# The same in portions: yields between them, and returns the message; or yields parts of the bytes.
PortionDecoder = Callable[[bytes, int, bool], Generator[None, None, Any]]
PortionEncoder = Callable[[Any], Iterator[list[bytes]]]

# How many elements of arrays a portion decodes, and how many parts of bytes it encodes: about three for an element.
DECODED_AT_ONCE, ENCODED_AT_ONCE = 200, 150


def _mistagged(tag: int) -> NoReturn:
    raise Malformed(f"tagged field {tag} does not end where it says")


def minimum_bytes(field: Field, version: int, *, flexible: bool) -> int:
    """Return the fewest bytes that a value of this field takes."""
    if field.kind in _SIZES:
        return _SIZES[field.kind]
    if field.kind == "struct":
        assert field.struct is not None
        if field.is_nullable_in(version):
            return 1
        plain = (part for part in field.struct.FIELDS if part.tag is None and part.is_in(version))
        return sum(minimum_bytes(part, version, flexible=flexible) for part in plain) + flexible
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


class _Source:
    """Lines of a function, the names it uses, and the run of fixed-size fields that is not written yet."""

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.names: dict[str, Any] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.run: list[tuple[str, str]] = []
        self._unique = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def name(self, stem: str, value: Any = None) -> str:
        """Return a name that nothing else in the function has, bound to a value if there is one."""
        self._unique += 1
        unique = f"{stem}{self._unique}"
        if value is not None:
            self.names[unique] = value
        return unique

    def default(self, field: Field) -> str:
        """Return the expression for the field's default."""
        if field.default is None:
            return "None"
        if field.kind == "array":
            return "[]"
        if field.kind == "struct":
            return f"{self.name('Struct', field.struct)}()"
        return repr(field.default)

    def length_code(self, field: Field) -> str:
        """Return the struct code of the length that comes before the field's bytes or elements."""
        if self.flexible:
            return "B"
        return "h" if field.kind == "string" else "i"

    def function(self, head: str, body: list[str], what: str) -> Any:
        source = "\n".join([head, *body])
        # The text is made of field names in our own source, never of anything that was received.
        exec(compile(source, f"<{what}>", "exec"), self.names)  # noqa: S102
        return self.names["function"]


class _DecoderSource(_Source):
    """The decode function: reads `data` at `at`, of `end` bytes."""

    def __init__(self, version: int, *, flexible: bool, in_portions: bool) -> None:
        super().__init__(version, flexible=flexible)
        self._in_portions = in_portions

    def flush(self) -> None:
        """Read the run with one call."""
        if not self.run:
            return
        targets = ", ".join(target for target, _ in self.run)
        codes = "".join(code for _, code in self.run)
        self.run.clear()
        if codes == "B":
            self.line(f"{targets} = data[at]")
            self.line("at += 1")
            return
        layout = struct.Struct(">" + codes)
        comma = "," if len(codes) == 1 or codes == "16s" else ""
        self.line(f"{targets}{comma} = {self.name('read', layout.unpack_from)}(data, at)")
        self.line(f"at += {layout.size}")

    def message(self, cls: type[Message], target: str) -> None:
        """Read a whole struct into a new `target`."""
        self.flush()
        self.line(f"{target} = new({self.name('Struct', cls)})")
        tagged = []
        for field in cls.FIELDS:
            if field.is_in(self.version) and field.tag is None:
                self.value(field, f"{target}.{field.name}")
                continue
            self.line(f"{target}.{field.name} = {self.default(field)}")
            if field.is_in(self.version):
                tagged.append(field)
        if self.flexible:
            self.tags(tagged, target)
        self.flush()

    def value(self, field: Field, target: str) -> None:
        if field.kind in FIXED:
            self.run.append((target, FIXED[field.kind]))
        elif field.kind == "struct":
            self.nested(field, target)
        elif field.kind == "array":
            self.array(field, target)
        else:
            self.sized(field, target)

    def nested(self, field: Field, target: str) -> None:
        """Read a message inside a message; a nullable one says first whether it is there."""
        assert field.struct is not None
        nullable = field.is_nullable_in(self.version)
        if nullable:
            self.run.append(("n", "b"))
            self.flush()
            self.line("if n < 0:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
        item = self.name("item")
        self.message(field.struct, item)
        self.line(f"{target} = {item}")
        self.indent -= nullable

    def length(self, field: Field) -> None:
        """Read a length into `n`; in flexible versions it is one more than it says."""
        self.run.append(("n", self.length_code(field)))
        self.flush()
        if self.flexible:
            long = "read_string_length" if field.kind == "string" else "read_varint"
            self.line("if n > 127:")
            self.line(f"    n, at = {long}(data, at - 1)")

    def cases(self, lengths: list[tuple[int, str]]) -> None:
        """Open one branch for what has no bytes, and one for what has."""
        for number, (size, statement) in enumerate(lengths):
            self.line(f"{'elif' if number else 'if'} n == {size + self.flexible}:")
            self.line(f"    {statement}")
        if lengths:
            self.line("else:")
            self.indent += 1

    def sized(self, field: Field, target: str) -> None:
        """Read a string or bytes."""
        self.length(field)
        null = [(-1, f"{target} = None")] if field.is_nullable_in(self.version) else []
        # An empty string is common enough (metadata of commits, ids of new members) to be worth its own branch.
        self.cases([*null, (0, f"{target} = {'' if field.kind == 'string' else b''!r}")])
        # A null where none may be makes `stop` less than `at`.
        self.line("stop = at + n - 1" if self.flexible else "stop = at + n")
        self.line("if not at <= stop <= end:")
        self.line("    overrun(stop - at, end - at)")
        self.line(f"{target} = data[at:stop]" + (".decode()" if field.kind == "string" else ""))
        self.line("at = stop")
        self.indent -= 1

    def array(self, field: Field, target: str) -> None:
        element = field.element
        assert element is not None
        self.length(field)
        nullable = field.is_nullable_in(self.version)
        if nullable:
            self.cases([(-1, f"{target} = None")])
        if self.flexible:
            self.line("n -= 1")
        size = minimum_bytes(element, self.version, flexible=self.flexible)
        assert size > 0, "an element that takes no bytes could be claimed any number of times"
        self.line(f"if n < 0 or n * {size} > end - at:")
        self.line("    misfit(n, end - at)")
        self.line("budget -= n")
        self.line("if budget < 0:")
        self.line("    overspent()")
        if element.kind == "uuid":
            self.line(f"{target} = [data[one : one + 16] for one in range(at, at + n * 16, 16)]")
            self.line("at += n * 16")
        elif element.kind in FIXED:
            self.line(f"{target} = list(unpack_from(f'>{{n}}{FIXED[element.kind]}', data, at))")
            self.line(f"at += n * {size}")
        else:
            items, item = self.name("items"), self.name("item")
            self.line(f"{target} = {items} = []")
            self.line("for _ in range(n):")
            self.indent += 1
            if element.struct is not None:
                self.message(element.struct, item)
            else:
                self.value(element, item)
            self.line(f"{items}.append({item})")
            if self._in_portions:
                self.line("count += 1")
                self.line(f"if count >= {DECODED_AT_ONCE}:")
                self.line("    yield")
                self.line("    count = 0")
            self.indent -= 1
        self.indent -= nullable

    def tags(self, tagged: list[Field], target: str) -> None:
        self.run.append(("n", "B"))
        self.flush()
        self.line("if n:")
        self.indent += 1
        if not tagged:
            self.line("at, budget = skip_tags(data, at - 1, budget)")
        else:
            tag, tag_stop = self.name("tag"), self.name("tag_stop")
            self.line("n, at, budget = read_tag_count(data, at - 1, budget)")
            self.line("for _ in range(n):")
            self.indent += 1
            self.line(f"{tag}, at = read_varint(data, at)")
            self.line("n, at = read_varint(data, at)")
            self.line(f"{tag_stop} = at + n")
            self.line(f"if {tag_stop} > end:")
            self.line("    overrun(n, end - at)")
            for number, field in enumerate(tagged):
                self.line(f"{'elif' if number else 'if'} {tag} == {field.tag}:")
                self.indent += 1
                self.value(field, f"{target}.{field.name}")
                self.flush()
                self.line(f"if at != {tag_stop}:")
                self.line(f"    mistagged({tag})")
                self.indent -= 1
            self.line("else:")
            self.line(f"    at = {tag_stop}")
            self.indent -= 1
        self.indent -= 1


class _EncoderSource(_Source):
    """The encode function: appends pieces to `out`."""

    def __init__(self, version: int, *, flexible: bool, in_portions: bool) -> None:
        super().__init__(version, flexible=flexible)
        self.write = "write"
        self._in_portions = in_portions

    def flush(self) -> None:
        """Write the run with one call."""
        if not self.run:
            return
        self.line(f"{self.write}({self.pack()})")
        self.run.clear()

    def pack(self) -> str:
        """Return the expression for the bytes of the run."""
        codes = "".join(code for _, code in self.run)
        if not codes.strip("x"):
            return repr(bytes(len(codes)))
        layout = struct.Struct(">" + codes)
        return f"{self.name('pack', layout.pack)}({', '.join(value for value, _ in self.run if value)})"

    def message(self, cls: type[Message], source: str) -> None:
        fields = [field for field in cls.FIELDS if field.is_in(self.version)]
        for field in fields:
            if field.tag is None:
                self.value(field, f"{source}.{field.name}")
        tagged = [field for field in fields if field.tag is not None]
        if self.flexible and tagged:
            self.tags(tagged, source)
        elif self.flexible:
            self.run.append(("", "x"))

    def value(self, field: Field, source: str) -> None:
        if field.kind in FIXED:
            self.run.append((source, FIXED[field.kind]))
        elif field.kind == "struct":
            self.nested(field, source)
        elif field.kind == "array":
            self.array(field, source)
        else:
            self.sized(field, source)

    def nested(self, field: Field, source: str) -> None:
        """Write a message inside a message, after a byte that says whether it is there if it is nullable."""
        assert field.struct is not None
        nullable = field.is_nullable_in(self.version)
        item = self.name("item")
        self.line(f"{item} = {source}")
        if nullable:
            self.flush()
            self.line(f"if {item} is None:")
            self.line(f"    {self.write}({NULL_STRUCT!r})")
            self.line("else:")
            self.indent += 1
            self.run.append(("1", "b"))
        self.message(field.struct, item)
        if nullable:
            self.flush()
            self.indent -= 1

    def length(self, field: Field, value: str) -> None:
        """Write the run and the length of `value`, which is null only if the version allows it."""
        one = " + 1" if self.flexible else ""
        if field.is_nullable_in(self.version):
            self.line(f"n = {'0' if self.flexible else '-1'} if {value} is None else len({value}){one}")
        else:
            self.line(f"n = len({value}){one}")
        if self.flexible:
            self.line("if n > 127:")
            self.indent += 1
            if self.run:
                self.line(f"{self.write}({self.pack()})")
            long = "write_string_length" if field.kind == "string" else "write_varint"
            self.line(f"{self.write}({long}(n))")
            self.indent -= 1
            self.line("else:")
            self.indent += 1
        self.run.append(("n", self.length_code(field)))
        self.flush()
        self.indent -= self.flexible

    def sized(self, field: Field, source: str) -> None:
        """Write a string or bytes."""
        nullable = field.is_nullable_in(self.version)
        self.line(f"value = {source}")
        if field.kind == "string":
            if nullable:
                self.line("if value is not None:")
            self.line(f"{'    ' if nullable else ''}value = value.encode()")
        self.length(field, "value")
        if nullable:
            self.line("if value is not None:")
        self.line(f"{'    ' if nullable else ''}{self.write}(value)")

    def array(self, field: Field, source: str) -> None:
        element = field.element
        assert element is not None
        items, item = self.name("items"), self.name("item")
        self.line(f"{items} = {source}")
        self.length(field, items)
        self.line(f"if {items}:")
        self.indent += 1
        if element.kind in FIXED and element.kind != "uuid":
            self.line(f"{self.write}(pack(f'>{{len({items})}}{FIXED[element.kind]}', *{items}))")
        else:
            self.line(f"for {item} in {items}:")
            self.indent += 1
            if element.struct is not None:
                self.message(element.struct, item)
            else:
                self.value(element, item)
            self.flush()
            # Inside a tagged field the bytes so far are not all in `out`.
            if self._in_portions and self.write == "write":
                self.line(f"if len(out) >= {ENCODED_AT_ONCE}:")
                self.line("    yield out")
                self.line("    out = []")
                self.line("    write = out.append")
            self.indent -= 1
        self.indent -= 1

    def tags(self, tagged: list[Field], source: str) -> None:
        """Write the tagged fields that differ from their defaults, as Kafka does."""
        self.flush()
        tags, outer = self.name("tags"), self.write
        self.line(f"{tags} = []")
        for field in tagged:
            pieces = self.name("pieces")
            value = f"{source}.{field.name}"
            self.line(
                f"if {value}:"
                if field.kind == "array" and field.default is not None
                else f"if {value} != {self.default(field)}:"
            )
            self.indent += 1
            self.line(f"{pieces} = []")
            self.write = f"{pieces}.append"
            self.value(field, value)
            self.flush()
            self.line(f"{pieces} = b''.join({pieces})")
            self.line(f"{tags}.append(write_varint({field.tag}) + write_varint(len({pieces})) + {pieces})")
            self.indent -= 1
        self.write = outer
        self.line(f"{self.write}(write_varint(len({tags})))")
        self.line(f"{self.write}(b''.join({tags}))")


def _title(cls: type[Message], version: int) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__} version {version}"


def compile_decoder(cls: type[Message], version: int, *, flexible: bool) -> Decoder:
    """Compile a function from bytes, an object budget and whether the message is all of the bytes, to a message.

    It raises nothing but Malformed.
    """
    decoder: Decoder = _compile_decoder(cls, version, flexible=flexible, in_portions=False)
    return decoder


def compile_portion_decoder(cls: type[Message], version: int, *, flexible: bool) -> PortionDecoder:
    """Compile the same function as a generator, which yields after some elements of arrays and returns the message."""
    decoder: PortionDecoder = _compile_decoder(cls, version, flexible=flexible, in_portions=True)
    return decoder


def _compile_decoder(cls: type[Message], version: int, *, flexible: bool, in_portions: bool) -> Any:
    source = _DecoderSource(version, flexible=flexible, in_portions=in_portions)
    source.names |= {
        "Malformed": Malformed,
        "broken": BROKEN,
        "misfit": misfit,
        "mistagged": _mistagged,
        "new": object.__new__,
        "overrun": overrun,
        "overspent": overspent,
        "read_string_length": read_string_length,
        "read_tag_count": read_tag_count,
        "read_varint": read_varint,
        "skip_tags": skip_tags,
        "trailing": trailing,
        "unpack_from": struct.unpack_from,
    }
    source.indent = 2
    source.message(cls, "message")
    title = _title(cls, version)
    body = [
        # A function that has no array is a generator all the same.
        *(["    count = 0", "    yield"] if in_portions else []),
        "    at = 0",
        "    end = len(data)",
        "    try:",
        *source.lines,
        "    except broken as error:",
        f"        raise Malformed(f'{title}: {{error}}') from error",
        "    if whole and at != end:",
        "        trailing(end - at)",
        "    return message",
    ]
    return source.function("def function(data, budget, whole):", body, f"decode {title}")


def compile_encoder(cls: type[Message], version: int, *, flexible: bool) -> Encoder:
    """Compile a function from a message to bytes; it raises ValueError for what the version cannot say."""
    encoder: Encoder = _compile_encoder(cls, version, flexible=flexible, in_portions=False)
    return encoder


def compile_portion_encoder(cls: type[Message], version: int, *, flexible: bool) -> PortionEncoder:
    """Compile the same function as a generator of lists of bytes, which together are the message.

    Long bytes are those of the message itself, and not copied.
    """
    encoder: PortionEncoder = _compile_encoder(cls, version, flexible=flexible, in_portions=True)
    return encoder


def _compile_encoder(cls: type[Message], version: int, *, flexible: bool, in_portions: bool) -> Any:
    source = _EncoderSource(version, flexible=flexible, in_portions=in_portions)
    source.names |= {
        "broken": (struct.error, AttributeError, TypeError),
        "pack": struct.pack,
        "write_string_length": write_string_length,
        "write_varint": write_varint,
    }
    source.indent = 2
    source.message(cls, "message")
    source.flush()
    title = _title(cls, version)
    body = [
        "    out = []",
        "    write = out.append",
        "    try:",
        *(source.lines or ["        pass"]),
        "    except broken as error:",
        f"        raise ValueError(f'{title} cannot hold this: {{error}}') from error",
        "    yield out" if in_portions else "    return b''.join(out)",
    ]
    return source.function("def function(message):", body, f"encode {title}")
