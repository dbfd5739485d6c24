"""Values as typed columns: `value.format=json`."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as compute
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from logmark.names import TopicPartition
from logmark.spark.ddl import parse_fields
from logmark.spark.source.arrow import Times, to_arrow
from logmark.spark.source.json_columns import Kind, Node
from logmark.spark.source.tombstones import NO_VALUE, Tombstones
from logmark.wire.columns import Columns

_KINDS: dict[type[spark.DataType], Kind] = {
    spark.StringType: Kind.STRING,
    spark.BooleanType: Kind.BOOLEAN,
    spark.ByteType: Kind.BYTE,
    spark.ShortType: Kind.SHORT,
    spark.IntegerType: Kind.INT,
    spark.LongType: Kind.LONG,
    spark.FloatType: Kind.FLOAT,
    spark.DoubleType: Kind.DOUBLE,
    spark.DecimalType: Kind.DECIMAL,
    spark.DateType: Kind.DATE,
    spark.TimestampType: Kind.TIMESTAMP,
    spark.BinaryType: Kind.BINARY,
    spark.StructType: Kind.STRUCT,
    spark.ArrayType: Kind.ARRAY,
    spark.MapType: Kind.MAP,
}
_WITH_OFFSETS = (Kind.STRING, Kind.BINARY, Kind.ARRAY, Kind.MAP)


class JsonValues:
    """Turns the values of a task's records into columns; what does not fit is set apart with the reason."""

    def __init__(
        self, schema: str, names: Sequence[str] | None = None, *, tombstones: Tombstones = Tombstones.ROWS
    ) -> None:
        """Take the schema of the values, and the columns that rows have, with value among them; all if not given."""
        self._names = names
        self._tombstones = tombstones
        self._times = Times()
        fields = parse_fields(schema, name="value.schema")
        self._root = _node(fields, b"")
        whole: pa.Schema = to_arrow_schema(spark.StructType([spark.StructField("value", fields)]), timezone="UTC")
        self._field = whole.field("value")

    def to_arrow(self, columns: Columns, partition: TopicPartition) -> pa.RecordBatch:
        """Return all the records as one batch."""

        rows, values, refused = self._decoded(columns, partition)
        error, raw = _apart(values, refused)
        wrong = [pa.field("error", pa.string()), pa.field("raw", pa.binary())]
        batch = pa.RecordBatch.from_arrays([*rows.columns, error, raw], schema=pa.schema([*rows.schema, *wrong]))
        return batch.filter(values.is_valid()) if self._skips(values) else batch

    def split(self, columns: Columns, partition: TopicPartition) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
        """Return the records that fit as one batch, and the index of each one that does not, with the reason."""

        rows, values, refused = self._decoded(columns, partition)
        if self._tombstones is Tombstones.DEAD_LETTERS and values.null_count:
            indices = compute.indices_nonzero(values.is_null()).to_pylist()
            refused = sorted([*refused, *((index, NO_VALUE) for index in indices)])
        if not refused:
            return (rows.filter(values.is_valid()) if self._skips(values) else rows), refused
        kept = compute.invert(_mask(len(rows), refused))
        return rows.filter(compute.and_(kept, values.is_valid()) if self._skips(values) else kept), refused

    def _skips(self, values: pa.Array) -> bool:
        return self._tombstones is Tombstones.SKIP and values.null_count > 0

    def _decoded(
        self, columns: Columns, partition: TopicPartition
    ) -> "tuple[pa.RecordBatch, pa.Array, list[tuple[int, str]]]":
        """Return the rows with typed values, the values as they came, and which of them were refused."""

        plain = to_arrow(columns, partition, self._times, self._names)
        refused = self._root.decode(columns.value_bytes, columns.value_offsets, columns.value_validity)
        typed = _array(self._root, self._field.type)
        arrays = [typed if name == "value" else plain.column(name) for name in plain.schema.names]
        fields = [self._field if field.name == "value" else field for field in plain.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), plain.column("value"), refused


def _apart(values: pa.Array, refused: list[tuple[int, str]]) -> tuple[pa.Array, pa.Array]:
    """Why, and the value as it came, where it was refused; null elsewhere."""

    count = len(values)
    error, raw = pa.nulls(count, pa.string()), pa.nulls(count, pa.binary())
    if not refused:
        return error, raw
    mask = _mask(count, refused)
    reasons = pa.array([reason for _, reason in refused], pa.string())
    return compute.replace_with_mask(error, mask, reasons), compute.replace_with_mask(raw, mask, values.filter(mask))


def _mask(count: int, refused: list[tuple[int, str]]) -> pa.Array:
    """Return True where a value was refused."""

    bits = bytearray((count + 7) >> 3)
    for index, _ in refused:
        bits[index >> 3] |= 1 << (index & 7)
    return pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bits)])


def _node(kind: spark.DataType, name: bytes) -> Node:
    children: list[Node] = []
    wanted = kind.simpleString().upper()
    precision = scale = 0
    if isinstance(kind, spark.StructType):
        children = [_node(field.dataType, field.name.encode()) for field in kind.fields]
        wanted = "STRUCT"
    elif isinstance(kind, spark.ArrayType):
        children = [_node(kind.elementType, b"")]
        wanted = "ARRAY"
    elif isinstance(kind, spark.MapType):
        children = [_node(kind.keyType, b""), _node(kind.valueType, b"")]
        wanted = "MAP"
    elif isinstance(kind, spark.DecimalType):
        precision, scale = kind.precision, kind.scale
    return Node(_KINDS[type(kind)], name=name, wanted=wanted, children=children, precision=precision, scale=scale)


def _array(node: Node, kind: pa.DataType) -> pa.Array:
    """Return the column as Arrow's, which shares its memory."""

    buffers = [None if node.validity is None else pa.py_buffer(node.validity)]
    if node.kind in _WITH_OFFSETS:
        buffers.append(pa.py_buffer(node.offsets))
    if node.data is not None:
        buffers.append(pa.py_buffer(node.data))
    children = []
    if node.kind == Kind.STRUCT:
        children = [_array(child, kind.field(index).type) for index, child in enumerate(node.children)]
    elif node.kind == Kind.ARRAY:
        children = [_array(node.children[0], kind.value_type)]
    elif node.kind == Kind.MAP:
        entries = [_array(node.children[0], kind.key_type), _array(node.children[1], kind.item_type)]
        pair = pa.struct([kind.key_field, kind.item_field])
        children = [pa.Array.from_buffers(pair, node.children[0].count, [None], children=entries)]
    return pa.Array.from_buffers(kind, node.count, buffers, null_count=node.nulls, children=children or None)
