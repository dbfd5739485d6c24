"""The schema of a read, known from its options alone: Spark asks for it at load(), before anything is read."""

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from logmark.spark.ddl import parse_fields
from logmark.spark.source.column_selection import COLUMNS, HEADERS
from logmark.spark.source.options import SourceOptions, parse_source_options

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_FIELDS = {
    "key": StructField("key", BinaryType()),
    "value": StructField("value", BinaryType()),
    "topic": StructField("topic", StringType()),
    "partition": StructField("partition", IntegerType()),
    "offset": StructField("offset", LongType()),
    "timestamp": StructField("timestamp", TimestampType()),
    "timestampType": StructField("timestampType", IntegerType()),
    HEADERS: StructField(HEADERS, ArrayType(_HEADER)),
}
SCHEMA = StructType([_FIELDS[name] for name in COLUMNS])
SCHEMA_WITH_HEADERS = StructType([*SCHEMA.fields, _FIELDS[HEADERS]])


def check_options(given: Mapping[str, str]) -> StructType:
    """Return the schema of a read with these options; raises UserError for a value that no read accepts.

    Whether the read is a stream or a batch is not known at load(). A stream accepts all that a batch does, and what a
    batch refuses besides is found when Spark plans it.
    """
    return schema_of(parse_source_options(given, is_stream=True))


def schema_of(options: SourceOptions) -> StructType:
    """Return the schema of a read; raises UserError for a `value.schema` that is none."""
    plain = StructType([_FIELDS[name] for name in options.columns])
    if options.value_schema is None:
        return plain
    fields = parse_fields(options.value_schema, name="value.schema")
    return typed_schema(plain, fields, with_refused=options.dead_letters is None)


def typed_schema(plain: StructType, fields: StructType, *, with_refused: bool = True) -> StructType:
    """Return the columns of a source with its value as these fields, and two columns for values that do not fit.

    Without refused values, which are sent as dead letters, there are no such columns.
    """
    columns = [StructField("value", fields) if one.name == "value" else one for one in plain.fields]
    if not with_refused:
        return StructType(columns)
    wrong = [StructField("error", StringType()), StructField("raw", BinaryType())]
    return StructType([*columns, *wrong])
