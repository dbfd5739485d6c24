"""Schemas in Spark's words, read without Spark's JVM: a source is planned in a process that has none."""

import json
import re
from typing import Any

from pyspark.sql import types as spark

from logmark.errors import UserError

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))")
_PLAIN: dict[str, type[spark.DataType]] = {
    "string": spark.StringType,
    "boolean": spark.BooleanType,
    "tinyint": spark.ByteType,
    "byte": spark.ByteType,
    "smallint": spark.ShortType,
    "short": spark.ShortType,
    "int": spark.IntegerType,
    "integer": spark.IntegerType,
    "bigint": spark.LongType,
    "long": spark.LongType,
    "float": spark.FloatType,
    "real": spark.FloatType,
    "double": spark.DoubleType,
    "date": spark.DateType,
    "timestamp": spark.TimestampType,
    "timestamp_ltz": spark.TimestampType,
    "binary": spark.BinaryType,
}
_KNOWN = (
    "STRING, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), DATE, TIMESTAMP, BINARY, "
    "ARRAY<...>, STRUCT<...> and MAP<STRING, ...>"
)
_EXAMPLE = 'Write it as Spark does, for example "id STRING, price DECIMAL(10,2), tags ARRAY<STRING>". Nothing was read.'


def parse_fields(text: str, *, name: str) -> spark.StructType:
    """Parse the option `name`, in DDL or as the JSON of a Spark schema; all fields are nullable."""
    try:
        if text.lstrip().startswith("{"):
            fields: spark.StructType = _checked(spark.StructType.fromJson(json.loads(text)))
            return fields
        return _Ddl(text).whole()
    except (ValueError, TypeError, KeyError, LookupError, AttributeError) as error:
        reason = error.args[0] if type(error) is ValueError else "it is not the JSON of a Spark schema"
        raise UserError(f"The option {name} is not a schema that can be read: {reason}. {_EXAMPLE}") from None


class _Ddl:
    """One text, word by word."""

    def __init__(self, text: str) -> None:
        self._words: list[str] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{text[at:].split()[0]!r} is not understood")
            self._words.append(found[0].strip())
            at = found.end()
        self._at = 0

    def whole(self) -> spark.StructType:
        is_whole = self._peek() == "struct" and self._words[1:2] == ["<"]
        fields = self._type() if is_whole else self._fields("")
        if self._peek():
            raise ValueError(f"{self._words[self._at]!r} comes after its end")
        assert isinstance(fields, spark.StructType), "a struct, or a list of fields"
        return fields

    def _peek(self) -> str:
        return self._words[self._at].lower() if self._at < len(self._words) else ""

    def _take(self, *wanted: str) -> str:
        if self._at >= len(self._words):
            raise ValueError("it ends too early")
        word = self._words[self._at]
        if wanted and word.lower() not in wanted:
            raise ValueError(f"{word!r} stands where {' or '.join(wanted)} must be")
        self._at += 1
        return word

    def _fields(self, close: str) -> spark.StructType:
        fields = spark.StructType([])
        while True:
            name = self._take()
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if not name.replace("_", "a").isalnum() and not self._words[self._at - 1].startswith("`"):
                raise ValueError(f"{name!r} stands where the name of a field must be")
            if name in fields.names:
                raise ValueError(f"the field {name} is there twice")
            if self._peek() == ":":
                self._take()
            fields.add(name, self._type())
            self._remarks()
            if self._peek() != ",":
                break
            self._take()
        if close:
            self._take(close)
        return fields

    def _remarks(self) -> None:
        """NOT NULL and comments, which change nothing: what comes over a topic may always lack a field."""
        if self._peek() == "not":
            self._take()
            self._take("null")
        if self._peek() == "comment":
            self._take()
            self._take()

    def _type(self) -> spark.DataType:
        word = self._take()
        kind = word.lower()
        if kind in _PLAIN:
            return _PLAIN[kind]()
        if kind in ("decimal", "dec", "numeric"):
            return self._decimal()
        if kind not in ("array", "struct", "map"):
            raise ValueError(f"it has no type {word}; there are {_KNOWN}")
        self._take("<")
        if kind == "struct":
            return self._fields(">")
        inner = self._type()
        if kind == "array":
            self._take(">")
            return spark.ArrayType(inner)
        if not isinstance(inner, spark.StringType):
            raise ValueError("the keys of a MAP are STRING, as the names in a JSON object are")
        self._take(",")
        values = self._type()
        self._take(">")
        return spark.MapType(inner, values)

    def _decimal(self) -> spark.DecimalType:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._take()
            precision = self._number()
            if self._take(",", ")") == ",":
                scale = self._number()
                self._take(")")
        return _decimal(precision, scale)

    def _number(self) -> int:
        word = self._take()
        if not word.isdecimal():
            raise ValueError(f"{word!r} stands where a number must be")
        return int(word)


def _decimal(precision: int, scale: int) -> spark.DecimalType:
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise ValueError(
            f"a DECIMAL has 1 to 38 digits, and no more of them after the point, not ({precision},{scale})"
        )
    return spark.DecimalType(precision, scale)


def _checked(kind: Any) -> Any:
    """Return the type with everything nullable; raises ValueError for a type that no column can have."""
    if isinstance(kind, spark.StructType):
        if not kind.fields:
            raise ValueError("it has no fields")
        return spark.StructType([spark.StructField(field.name, _checked(field.dataType)) for field in kind.fields])
    if isinstance(kind, spark.ArrayType):
        return spark.ArrayType(_checked(kind.elementType))
    if isinstance(kind, spark.MapType) and type(kind.keyType) is spark.StringType:
        return spark.MapType(spark.StringType(), _checked(kind.valueType))
    if isinstance(kind, spark.DecimalType):
        return _decimal(kind.precision, kind.scale)
    if type(kind) in _PLAIN.values():
        return kind
    raise ValueError(f"it has no type {kind.simpleString()}; there are {_KNOWN}")
