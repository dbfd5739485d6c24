"""Reset plans as CSV: written and read, and complained about, as Kafka's CSV library does."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from logmark.names import TopicPartition
from logmark.offsets.kafka_consumer_groups.failures import Failed, Usage

Offsets = Mapping[TopicPartition, int]
WITH_GROUP = ("group", "topic", "partition", "offset")
NO_GROUP = WITH_GROUP[1:]
_UNCHECKED_MAX = 24  # A longer text is quoted without a look at it.
_FIRST_SAFE = "-"  # Texts with a lower character are quoted, among them space, comma and quote.
_RANGES = {"int": range(-(1 << 31), 1 << 31), "long": range(-(1 << 63), 1 << 63)}
_KINDS = {"partition": "int", "offset": "long"}
_JACKSON = "com.fasterxml.jackson."


def write_plans(plans: Mapping[str, Offsets], *, with_group: bool) -> str:
    """One line for each partition, without a header."""
    return "".join(
        ",".join([*([_quoted(group)] if with_group else []), _quoted(one.topic), str(one.partition), str(offset)])
        + "\n"
        for group, offsets in sorted(plans.items())
        for one, offset in sorted(offsets.items())
    )


def _quoted(text: str) -> str:
    if len(text) > _UNCHECKED_MAX or any(char < _FIRST_SAFE for char in text):
        return '"' + text.replace('"', '""') + '"'
    return text


def read_plans(text: str, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Parse the plan of each group; the first line decides whether lines start with the group's name."""
    lines = text.split("\n")
    while len(lines) > 1 and not lines[-1]:
        lines.pop()
    if lines == [""] and text:
        lines = []
    plans: dict[str, dict[TopicPartition, int]] = {}
    is_without_group = len(groups) == 1 and _reads_without_group(lines)
    for line in lines:
        row = parse_record(line, NO_GROUP if is_without_group else WITH_GROUP)
        offset = int(row.get("offset", 0))
        if offset < 0:
            raise Usage("Invalid negative offset")
        group = groups[0] if is_without_group else str(row.get("group", ""))
        plans.setdefault(group, {})[TopicPartition(str(row.get("topic", "null")), int(row.get("partition", 0)))] = (
            offset
        )
    return plans


def _reads_without_group(lines: Sequence[str]) -> bool:
    try:
        return bool(lines) and bool(parse_record(lines[0], NO_GROUP))
    except Failed:
        return False


class _Cell(NamedTuple):
    text: str
    column: int  # where it begins, counted from 1
    next_column: int  # where the next one begins, as the library counts


def parse_record(line: str, columns: Sequence[str]) -> dict[str, str | int]:
    """Return the columns of one line; columns that are left out are missing."""
    if not line:
        raise Failed(
            f"{_JACKSON}databind.exc.MismatchedInputException: No content to map due to end-of-input\n"
            " at [Source: (StringReader); line: UNKNOWN, column: UNKNOWN]"
        )
    row: dict[str, str | int] = {}
    cells = _cells(line)
    for name, cell in zip(columns, cells, strict=False):
        row[name] = _number(cell, name, columns) if name in _KINDS else cell.text
    extra = next(cells, None)
    if extra is not None and extra.text.strip():
        _refuse_extra(extra.text.strip(), extra.column, columns)
    # A comma at the end is forgiven; what stands behind it is not.
    if extra is not None and (behind := next(cells, None)) is not None:
        _refuse_extra("", behind.column, columns)
    return row


def _cells(line: str) -> Iterator[_Cell]:
    at, end = 0, len(line)
    while True:
        if at < end and line[at] == '"':
            text, after = _quoted_cell(line, at)
        else:
            found = re.compile(r"[^,\r]*").match(line, at)
            assert found is not None
            text, after = found[0], found.end()
        if after >= end or line[after] == "\r":
            # The library counts as far as it has read, and at the end of a line it has read it twice.
            yield _Cell(text, min(at + 1, end), 2 * end + 1 if after >= end else after + 1)
            return
        yield _Cell(text, at + 1, after + 2)
        at = after + 1


def _quoted_cell(line: str, at: int) -> tuple[str, int]:
    found = re.compile(r'"((?:[^"]|"")*+)"').match(line, at)
    if found is None:
        rows = line.split("\r")
        raise Failed(
            f"{_JACKSON}core.JsonParseException: Missing closing quote for value\n"
            f" at [Source: (StringReader); line: {len(rows)}, column: {len(rows[-1]) + 1}]"
        )
    after = found.end()
    while after < len(line) and line[after] <= " " and line[after] != "\r":
        after += 1
    if after < len(line) and line[after] not in ",\r":
        char = line[after]
        raise Failed(
            f"{_JACKSON}core.JsonParseException: Unexpected character ('{char}' (code {ord(char)})): "
            "Expected column separator character (',' (code 44)) or end-of-line\n"
            f" at [Source: (StringReader); line: 1, column: {after + 2}]"
        )
    return found[1].replace('""', '"'), after


def _number(cell: _Cell, name: str, columns: Sequence[str]) -> int:
    kind = _KINDS[name]
    if re.fullmatch(r"[+-]?\d+", cell.text, re.ASCII):
        if int(cell.text) in _RANGES[kind]:
            return int(cell.text)
        limits = _RANGES[kind]
        shown = "" if int(cell.text) in _RANGES["long"] else f" ({limits[0]} - {limits[-1]})"
        _refuse(
            f"{_JACKSON}databind.JsonMappingException: Numeric value ({cell.text}) out of range of {kind}{shown}",
            cell.next_column, name, columns,
        )  # fmt: skip
    text = cell.text.strip()
    if text in ("", "null"):
        return 0
    problem = f"not a valid `{kind}` value"
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        if int(text) in _RANGES[kind]:
            return int(text)
        if int(text) in _RANGES["long"]:
            limits = _RANGES[kind]
            problem = f"Overflow: numeric value ({text}) out of range of {kind} ({limits[0]} -{limits[-1]})"
    _refuse(
        f"{_JACKSON}databind.exc.InvalidFormatException: Cannot deserialize value of type `{kind}` from String "
        f'"{text}": {problem}',
        cell.column, name, columns,
    )  # fmt: skip


def _refuse_extra(text: str, column: int, columns: Sequence[str]) -> NoReturn:
    raise Failed(
        f"{_JACKSON}dataformat.csv.CsvReadException: Too many entries: expected at most {len(columns)} "
        f'(value #{len(columns)} ({len(text)} chars) "{text}")\n'
        f" at [Source: (StringReader); line: 1, column: {column}]"
    )


def _refuse(what: str, column: int, name: str, columns: Sequence[str]) -> NoReturn:
    record = "CsvRecordWithGroup" if columns == WITH_GROUP else "CsvRecordNoGroup"
    raise Failed(
        f"{what}\n at [Source: (StringReader); line: 1, column: {column}] (through reference chain: "
        f'org.apache.kafka.tools.consumer.group.CsvUtils${record}["{name}"])'
    )
