"""JSON texts become columns whole or not at all, and no bytes can make the walk read or write where it must not."""

import importlib.util
import json
import math
import random
import sys
from array import array
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logmark.spark.source import json_columns
from logmark.spark.source.json_columns import Kind, Node
from tests.harness.searches import examples

some = settings(max_examples=examples(60, soak=3000))

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def column(kind: Kind, name: str = "a", wanted: str = "", children: list[Node] | None = None, **more: int) -> Node:
    return Node(kind, name=name.encode(), wanted=wanted or kind.name, children=children or [], **more)


def everything() -> Node:
    """A struct of one field of each kind."""
    plain = [column(kind, kind.name.lower()) for kind in Kind if kind not in (Kind.DECIMAL, *_NESTED)]
    pair = column(Kind.STRUCT, "struct", children=[column(Kind.LONG, "x"), column(Kind.STRING, "y")])
    many = column(Kind.ARRAY, "array", children=[column(Kind.STRUCT, "", children=[column(Kind.INT, "z")])])
    named = column(Kind.MAP, "map", children=[column(Kind.STRING, ""), column(Kind.DOUBLE, "")])
    money = column(Kind.DECIMAL, "decimal", "DECIMAL(10,2)", precision=10, scale=2)
    return column(Kind.STRUCT, "", children=[*plain, money, pair, many, named])


_NESTED = (Kind.STRUCT, Kind.ARRAY, Kind.MAP)


def decode(root: Node, *texts: bytes | str | None) -> list[str | None]:
    """Reads the texts; why each was refused."""
    parts = [text.encode() if isinstance(text, str) else text for text in texts]
    ends = array("i", [0])
    validity = bytearray((len(parts) + 7) // 8)
    for index, part in enumerate(parts):
        ends.append(ends[-1] + len(part or b""))
        validity[index >> 3] |= (part is not None) << (index & 7)
    refused = dict(root.decode(b"".join(part or b"" for part in parts), ends, validity))
    assert root.count == len(parts)
    return [refused.get(index) for index in range(len(parts))]


def cells(node: Node) -> list[Any]:
    """What the column holds, as Python has it."""
    return [_cell(node, index) if _is_there(node, index) else None for index in range(node.count)]


def _is_there(node: Node, index: int) -> bool:
    return node.validity is None or bool(node.validity[index >> 3] >> (index & 7) & 1)


def _cell(node: Node, index: int) -> Any:
    kind = node.kind
    if kind == Kind.STRUCT:
        return {child.name.decode(): cells(child)[index] for child in node.children}
    if node.offsets is not None:
        at, end = node.offsets[index], node.offsets[index + 1]
        if kind == Kind.ARRAY:
            return cells(node.children[0])[at:end]
        if kind == Kind.MAP:
            return dict(zip(cells(node.children[0])[at:end], cells(node.children[1])[at:end], strict=True))
        return bytes(node.data[at:end]).decode() if kind == Kind.STRING else bytes(node.data[at:end])
    if kind == Kind.BOOLEAN:
        return bool(node.data[index >> 3] >> (index & 7) & 1)
    if kind == Kind.DECIMAL:
        return (node.data[2 * index] & (2**64 - 1)) | node.data[2 * index + 1] << 64
    return node.data[index]


def one(kind: Kind, value: bytes | str, **more: Any) -> Any:
    """The cell that a value becomes, or why it becomes none."""
    root = column(Kind.STRUCT, "", children=[column(kind, **more)])
    text = b'{"a": ' + (value.encode() if isinstance(value, str) else value) + b"}"
    (why,) = decode(root, text)
    (cell,) = cells(root.children[0])
    assert why is None or cell is None
    return why if why is not None else cell


def test_a_record_becomes_columns_whatever_the_order_of_its_fields_and_without_those_nobody_wants() -> None:
    root = everything()

    assert [None] * 4 == decode(
        root,
        '{"string":"x","byte":-128,"short":-32768,"int":2147483647,"long":-9223372036854775808,"float":1.5,'
        '"double":-0.1,"boolean":true,"timestamp":"1970-01-01T00:00:01Z","date":"1970-01-02","binary":"AP8=",'
        '"decimal":-12.345,"struct":{"x":1,"y":"z"},"array":[{"z":1},null,{}],"map":{"k":1,"l":null}}',
        ' { "other" : [ { } , [ 1e5 , "\\u0041" ] , true , null ] , "map" : { } , "array" : [ ] , "long" : 7 } ',
        None,
        "null",
    )

    first, second, third, fourth = cells(root)
    assert third is None
    assert fourth is None
    assert {
        "string": "x", "byte": -128, "short": -32768, "int": 2147483647, "long": -9223372036854775808, "float": 1.5,
        "double": -0.1, "boolean": True, "timestamp": 1_000_000, "date": 1, "binary": b"\0\xff", "decimal": -1235,
        "struct": {"x": 1, "y": "z"}, "array": [{"z": 1}, None, {"z": None}], "map": {"k": 1.0, "l": None},
    } == first  # fmt: skip
    assert {"long": 7, "array": [], "map": {}} == {name: cell for name, cell in second.items() if cell is not None}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON value, at byte 0"),
        ("   ", "no JSON value, at byte 3"),
        ("[]", "an array where STRUCT is wanted, at byte 0"),
        ("7", "a number where STRUCT is wanted, at byte 0"),
        ("nul", "no JSON value, at byte 0"),
        ("{", "no name where one must be, at byte 1"),
        ('{"long"', "no colon after a name, at byte 7"),
        ('{"long":', "long: the text ends too early, at byte 8"),
        ('{"long":1', "the text ends too early, at byte 9"),
        ('{"long":1,}', "no name where one must be, at byte 10"),
        ('{"long":1}}', "more after the end of the value, at byte 10"),
        ('{"long":1} {"long":2}', "more after the end of the value, at byte 11"),
        ('{"long":01}', "neither a comma nor the end of the list of members, at byte 9"),
        ("{'long':1}", "no name where one must be, at byte 1"),
        ('{"long":1.0}', "long: a number with a fraction or an exponent where LONG is wanted, at byte 8"),
        ('{"long":"1"}', "long: a string where LONG is wanted, at byte 8"),
        ('{"long":9223372036854775808}', "long: a number beyond the range of LONG, at byte 8"),
        ('{"long":-9223372036854775809}', "long: a number beyond the range of LONG, at byte 8"),
        ('{"byte":128}', "byte: a number beyond the range of BYTE, at byte 8"),
        ('{"boolean":1}', "boolean: a number where BOOLEAN is wanted, at byte 11"),
        ('{"boolean":tru}', "boolean: no JSON value, at byte 11"),
        ('{"double":1e400}', "double: a number beyond the range of DOUBLE, at byte 10"),
        ('{"float":3.5e38}', "float: a number beyond the range of FLOAT, at byte 9"),
        ('{"double":"1.5"}', "double: a string where DOUBLE is wanted, at byte 10"),
        ('{"double":.5}', "double: no JSON value where DOUBLE is wanted, at byte 10"),
        ('{"double":1.}', "double: a number without digits after its point, at byte 10"),
        ('{"double":1e}', "double: a number without digits in its exponent, at byte 10"),
        ('{"decimal":99999999.995}', "decimal: a number beyond the range of DECIMAL(10,2), at byte 11"),
        ('{"decimal":"abc"}', "decimal: a string where DECIMAL(10,2) is wanted, at byte 11"),
        ('{"date":"2026-02-29"}', "date: a string that is no DATE, at byte 8"),
        ('{"date":20000}', "date: a number where DATE is wanted, at byte 8"),
        ('{"timestamp":"yesterday"}', "timestamp: a string that is no TIMESTAMP, at byte 13"),
        ('{"binary":"AP8"}', "binary: a string that is not base64 where BINARY is wanted, at byte 10"),
        ('{"string":"a', "string: a string without an end, at byte 10"),
        ('{"string":"\\x"}', "string: an escape that is none, at byte 11"),
        ('{"string":"\\u12G4"}', "string: an escape that is none, at byte 11"),
        ('{"string":"a\nb"}', "string: a control character in a string, at byte 12"),
        (b'{"string":"\xff"}', "string: bytes that are not UTF-8, at byte 11"),
        (b'{"string":"\xed\xa0\x80"}', "string: bytes that are not UTF-8, at byte 11"),
        (b'{"other":"\xc0\x80"}', "bytes that are not UTF-8, at byte 10"),
        ('{"struct":{"y":1,"x":[]}}', "struct.x: an array where LONG is wanted, at byte 21"),
        ('{"array":[{"z":1},{"z":"b"}]}', "array[1].z: a string where INT is wanted, at byte 23"),
        ('{"array":[{"z":1} {}]}', "array: neither a comma nor the end of the list of members, at byte 18"),
        ('{"map":{"k":{}}}', "map: an object where DOUBLE is wanted, at byte 12"),
        ('{"map":{"k":1,"\\u006b":2}}', "map: a key twice, at byte 7"),
        ('{"timestamp":1763294400000}', "timestamp: a number of seconds beyond the years 1 to 9999 (milliseconds fit "
         "BIGINT), at byte 13"),
        ('{"other":' + "[" * 1001 + "]" * 1001 + "}", "more than 1000 values inside of each other, at byte 1008"),
    ],
)  # fmt: skip
def test_a_text_that_does_not_fit_is_refused_whole_with_the_reason(text: bytes | str, why: str) -> None:
    root = everything()
    before, after = '{"long":1,"array":[{"z":1}],"map":{"k":1}}', '{"array":[null],"string":"\\"","boolean":false}'

    assert [None, why, None] == decode(root, before, text, after)

    first, second, third = cells(root)
    assert second is None
    assert {"long": 1, "array": [{"z": 1}], "map": {"k": 1.0}} == {k: v for k, v in first.items() if v is not None}
    assert {"array": [None], "string": '"', "boolean": False} == {k: v for k, v in third.items() if v is not None}


def test_of_a_name_that_comes_twice_the_last_value_counts() -> None:
    root = everything()

    decode(root, '{"long":1,"string":"a","array":[{"z":1}],"long":2,"string":null,"array":[]}')

    assert [2] == cells(root.children[4])
    assert [None] == cells(root.children[0])
    assert {"array": []} == {name: cell for name, cell in cells(root)[0].items() if name == "array"}


def test_a_name_may_be_written_with_escapes_and_is_taken_exactly() -> None:
    root = everything()

    decode(root, '{"\\u006cong":1,"Int":2,"lon":3,"longer":4}')

    assert {"long": 1} == {name: cell for name, cell in cells(root)[0].items() if cell is not None}


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("1.50", "1.50"),
        ("-0", "-0"),
        ("true", "true"),
        ('{"b" :[1, "x"]}', '{"b" :[1, "x"]}'),
        ('"\\u00e9\\ud83d\\ude00\\"\\\\\\/\\b\\f\\n\\r\\t"', 'é😀"\\/\b\f\n\r\t'),
        ('"\\ud83d"', "\N{REPLACEMENT CHARACTER}"),
        ('"\\ude00\\ud83d"', "\N{REPLACEMENT CHARACTER}" * 2),
        ('"\\ud83d\\u0041"', "\N{REPLACEMENT CHARACTER}A"),
    ],
)
def test_a_string_is_any_value_as_text(value: str, cell: str) -> None:
    assert cell == one(Kind.STRING, value)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ('"2026-11-16T12:30:45.123456Z"', datetime(2026, 11, 16, 12, 30, 45, 123456, UTC)),
        ('"2026-11-16 12:30:45.1"', datetime(2026, 11, 16, 12, 30, 45, 100000, UTC)),
        ('"2026-11-16T12:30:45.123456789+02:00"', datetime(2026, 11, 16, 10, 30, 45, 123456, UTC)),
        ('"2026-11-16T12:30:45-0330"', datetime(2026, 11, 16, 16, 0, 45, 0, UTC)),
        ('"2026-11-16T12:30 UTC"', datetime(2026, 11, 16, 12, 30, tzinfo=UTC)),
        ('"2026-11-16T12"', datetime(2026, 11, 16, 12, tzinfo=UTC)),
        ('"2026-11-16T23Z"', datetime(2026, 11, 16, 23, tzinfo=UTC)),
        ('"2026-1-6T1:2:3"', datetime(2026, 1, 6, 1, 2, 3, tzinfo=UTC)),
        ('" 2026-11-16 "', datetime(2026, 11, 16, tzinfo=UTC)),
        ('"2026-11"', datetime(2026, 11, 1, tzinfo=UTC)),
        ('"2026"', datetime(2026, 1, 1, tzinfo=UTC)),
        ('"0001-01-01"', datetime(1, 1, 1, tzinfo=UTC)),
        ('"\\u0032026-11-16"', datetime(2026, 11, 16, tzinfo=UTC)),
        ("1763294400", datetime(2025, 11, 16, 12, tzinfo=UTC)),
        ("-1", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_a_timestamp_is_read_in_the_forms_that_spark_reads(value: str, cell: datetime) -> None:
    assert (cell - EPOCH) // timedelta(microseconds=1) == one(Kind.TIMESTAMP, value)


@pytest.mark.parametrize(
    "value",
    [
        "", "T", "2026-", "2026-13-01", "2026-00-01", "2026-01-00", "2026-01-32", "2025-02-29", "1900-02-29",
        "0000-01-01", "26-01-01", "20260-01-01", "2026-01-01x", "2026-01-01T", "2026-01-01T24:00",
        "2026-01-01T12:60",
        "2026-01-01T12:30:60", "2026-01-01T12:30:", "2026-01-01T12:30Q", "2026-01-01T12:30+19:00",
        "2026-01-01T12:30+1:", "2026-01-01T12:30+", "2026-01-01T12:30+01:00x", "2026-01-01T12:30 Europe/Berlin",
    ],
)  # fmt: skip
def test_what_is_no_moment_is_refused(value: str) -> None:
    assert "a: a string that is no TIMESTAMP, at byte 6" == one(Kind.TIMESTAMP, f'"{value}"')


@given(st.dates())
@some
def test_every_day_is_counted_from_1970(day: date) -> None:
    assert (day - date(1970, 1, 1)).days == one(Kind.DATE, f'"{day.isoformat()}"')
    assert (day - date(1970, 1, 1)).days == one(Kind.DATE, f'"{day.isoformat()}T23:59:59Z"')


@given(
    st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**25), 10**25) | st.decimals(-1, 1, places=25)
)
@some
def test_a_double_is_the_nearest_to_its_text(number: object) -> None:
    text = str(number)

    assert float(text) == one(Kind.DOUBLE, text)
    assert math.copysign(1, float(text)) == math.copysign(1, one(Kind.DOUBLE, text))


def test_numbers_that_are_not_finite_are_read_as_python_and_java_write_them() -> None:
    for text in ("Infinity", '"Infinity"', '"+Infinity"', '"INF"', '"+INF"'):
        assert math.inf == one(Kind.DOUBLE, text)
    for text in ("-Infinity", '"-Infinity"', '"-INF"'):
        assert -math.inf == one(Kind.FLOAT, text)
    for text in ("NaN", '"NaN"'):
        assert math.isnan(one(Kind.DOUBLE, text))


@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20)
    | st.decimals(-(10**6), 10**6, places=3),
    st.sampled_from([(10, 2), (18, 0), (18, 18), (38, 4), (38, 38), (1, 0), (5, 5)]),
    st.booleans(),
)
@some
def test_a_decimal_is_rounded_half_up_to_its_scale_and_refused_beyond_its_precision(
    number: Decimal, size: tuple[int, int], is_string: bool
) -> None:
    precision, scale = size
    with localcontext(prec=200):
        units = int((number * 10**scale).to_integral_value(ROUND_HALF_UP))
    text = f'"{number}"' if is_string else str(number)

    found = one(Kind.DECIMAL, text, wanted="DECIMAL", precision=precision, scale=scale)

    assert found == (units if abs(units) < 10**precision else "a: a number beyond the range of DECIMAL, at byte 6")


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize(
    ("number", "is_beyond"),
    [
        (f"1e{10**20 - 1}", True),
        (f"-12.5E+{10**20 - 1}", True),
        (f"123e{10**18 - 1}", True),
        (f"0e{10**20 - 1}", False),
        (f"-0.00e+{'9' * 5000}", False),
        (f"1e-{10**20 - 1}", False),
        (f"-9.99E-{10**20 - 1}", False),
        ("1e-30", False),
    ],
)
def test_an_exponent_of_any_length_makes_a_decimal_zero_or_one_that_is_refused(
    number: str, is_beyond: bool, quote: str
) -> None:
    expected = "a: a number beyond the range of DECIMAL, at byte 6" if is_beyond else 0

    found = one(Kind.DECIMAL, quote + number + quote, wanted="DECIMAL", precision=10, scale=2)

    assert expected == found


def as_expected(value: Any) -> Any:
    """What a column of texts holds of a value that Python reads from JSON; halves of pairs are replaced."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
clicks = st.fixed_dictionaries(
    {},
    optional={
        "string": st.none() | st.text(st.characters(exclude_categories=[])),
        "long": st.none() | st.integers(-(2**63), 2**63 - 1),
        "double": st.none() | st.floats(allow_nan=False),
        "boolean": st.none() | st.booleans(),
        "struct": st.none() | st.fixed_dictionaries({"x": st.integers(-5, 5), "y": st.text()}),
        "array": st.none() | st.lists(st.none() | st.fixed_dictionaries({"z": st.integers(-9, 9)}), max_size=20),
        "map": st.none() | st.dictionaries(st.text(), st.none() | st.integers(-9, 9).map(float), max_size=20),
        "something else": values,
    },
)


@given(st.lists(clicks, max_size=12), st.booleans(), st.sampled_from([None, 1]))
@some
def test_columns_hold_what_python_reads(records: list[dict[str, Any]], is_ascii: bool, indent: int | None) -> None:
    texts = [json.dumps(record, ensure_ascii=is_ascii, indent=indent).encode(errors="replace") for record in records]
    root = everything()

    assert [None] * len(texts) == decode(root, *texts)

    for text, found in zip(texts, cells(root), strict=True):
        read = json.loads(text)
        for name in ("string", "long", "double", "boolean", "struct", "array", "map"):
            assert as_expected(read.get(name)) == found[name]


@given(st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode(errors="replace")))
@some
def test_a_text_is_taken_if_python_takes_it_and_it_is_an_object(text: bytes) -> None:
    root = column(Kind.STRUCT, "", children=[column(Kind.STRING, "a")])
    try:
        read = json.loads(text.decode())
    except (ValueError, RecursionError):
        read = False
    is_object = read is None or isinstance(read, dict)

    assert is_object == (decode(root, text) == [None])


def broken(text: bytes, chance: random.Random) -> bytes:
    """A text of which some bytes are changed, taken away or doubled."""
    data = bytearray(text)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data)) if data else 0
        kind = chance.randrange(3)
        if kind == 0:
            data[at : at + 1] = bytes([chance.choice(b'{}[]",:\\u0-9.eEtfnN \x00\xff\xe2')])
        elif kind == 1:
            del data[at : at + chance.randint(1, 8)]
        else:
            data[at:at] = data[at : at + 5]
    return bytes(data)


SOUND = (
    b'{"string":"caf\\u00e9 \xe2\x82\xac","byte":-1,"int":12,"double":-1.5e-3,"decimal":"1.25","boolean":true,'
    b'"timestamp":"2026-11-16T12:30:45.5+01:00","date":"2026-11-16","binary":"AAEC","struct":{"x":1,"y":"z"},'
    b'"array":[{"z":1},{"z":2}],"map":{"k":1,"l":-2.5},"more":[[],{},"x",null]}'
)


def load_uncompiled() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "json_columns_uncompiled", json_columns.__file__.split(".")[0] + ".py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def rebuilt(node: Any, module: ModuleType) -> Any:
    """The same columns of another module."""
    more = {"precision": 10, "scale": 2} if node.kind == Kind.DECIMAL else {}
    children = [rebuilt(child, module) for child in node.children]
    return module.Node(node.kind, name=node.name, wanted=node.wanted, children=children, **more)


def test_broken_texts_leave_the_others_alone_and_the_same_without_a_compiler() -> None:
    chance = random.Random(5)
    root = everything()
    plain = rebuilt(root, load_uncompiled())
    refused = 0
    for _ in range(20):
        texts = [SOUND if number % 2 else broken(SOUND, chance) for number in range(20)]
        texts[0] = b'{"decimal":%de%d}' % (chance.randint(0, 1), chance.choice((-1, 1)) * 10**20)

        whys = decode(root, *texts)

        refused += sum(why is not None for why in whys)
        assert [None] * 10 == whys[1::2]
        assert decode(plain, *texts) == whys
        assert repr(cells(plain)) == repr(cells(root))
        assert repr([cells(root)[1]] * 10) == repr(cells(root)[1::2])
    assert refused > 100


def test_columns_grow_and_may_be_kept_while_the_next_texts_are_read() -> None:
    root = everything()
    decode(root, *[f'{{"string":"{"x" * number}","array":[{{}},{{}}]}}' for number in range(300)])
    kept = root.children[0].data

    decode(root, '{"string":"other"}')

    assert bytes(kept) == b"x" * sum(range(300))
    assert ["other"] == cells(root.children[0])


def test_offsets_beyond_the_bytes_are_no_texts() -> None:
    with pytest.raises(IndexError):
        everything().decode(b"{}", array("i", [0, 3]), None)
