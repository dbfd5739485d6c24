"""Messages with random fields, the same for the same seed."""

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from random import Random
from types import ModuleType
from typing import Any

from logmark.wire import schema
from logmark.wire.fields import Field, Message

SCHEMAS: Sequence[ModuleType] = [
    import_module(f"{schema.__name__}.{module.name}") for module in iter_modules(schema.__path__)
]
EVERY_VERSION = [
    (module, side, version) for module in SCHEMAS for side in ("Request", "Response") for version in module.VERSIONS
]

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXTS = ("", "a", "clicks", "Bestellungen-für-später", "日本語", "x" * 126, "y" * 127, "z" * 300)
_ERROR_CODES = (-1, 0, 1, 3, 16, 22, 25, 35, 69, 87)


def name_of(case: tuple[ModuleType, str, int]) -> str:
    """How a test of this message is called."""
    module, side, version = case
    return f"{module.__name__.rpartition('.')[2]}-{side}-v{version}"


def random_message(random: Random, cls: type[Message], version: int) -> Any:
    """A message in which the fields of this version are random and the others have their defaults."""
    return cls(**{field.name: _value(random, field, version) for field in cls.FIELDS if field.is_in(version)})


def _value(random: Random, field: Field, version: int) -> Any:
    if field.is_nullable_in(version) and random.random() < 0.2:
        return None
    if field.tag is not None and random.random() < 0.3:
        return field.fresh_default()
    if field.kind == "array":
        assert field.element is not None
        # The longest needs more than one byte for its compact length.
        count = random.choice((0, 1, 2, 3)) if field.element.struct or random.random() < 0.8 else 130
        return [_value(random, field.element, version) for _ in range(count)]
    if field.struct is not None:
        return random_message(random, field.struct, version)
    return _plain_value(random, field)


def _plain_value(random: Random, field: Field) -> Any:
    # kio knows errors as an enumeration and times as datetimes, so that these keep to values which those can hold.
    if field.name.endswith("error_code"):
        return random.choice(_ERROR_CODES)
    if field.kind == "int64" and ("timestamp" in field.name or field.name.endswith("_ms")):
        return random.choice((-1, 0, 1, 1_700_000_000_123))
    if field.kind in _BITS:
        top = 1 << (_BITS[field.kind] - 1)
        return random.choice((0, 1, -1, top - 1, -top, random.randrange(-top, top)))
    if field.kind == "bool":
        return random.random() < 0.5
    if field.kind == "uuid":
        return random.choice((bytes(16), random.randbytes(16)))
    if field.kind == "bytes":
        return random.randbytes(random.choice((0, 1, 126, 127, 20_000)))
    return random.choice(_TEXTS)
