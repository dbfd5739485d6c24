"""Random words, read by the libraries of Kafka's tool and by ours: RE2/J, Java's dates and durations, Jackson's CSV."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError

from logmark.offsets.kafka_consumer_groups import java_times, plan_files, re2j_syntax
from logmark.offsets.kafka_consumer_groups.failures import Ended
from tests.harness.gateway import JavaTools

_EXPRESSION = [
    *"ab0179,-^$.|*+?()[]{}\\<>:Pi _xné", "\\d", "\\p", "\\pL", "\\p{Greek}", "\\p{^Lu}", "\\P{Nope}", "\\x", "\\x{",
    "\\x41", "\\Q", "\\E", "(?", "(?:", "(?i)", "(?-s:", "(?P<n>", "(?<m>", "(?P<", "[:alpha:]", "[[:alpha:]]",
    "[[:foo:]]", "[:", "{2}", "{2,1}", "{1001}", "{,3}", "{3,}", "\\8", "\\07", "\\A", "\\C", "\\z", "\\b", "\\_",
    "\\-",
]  # fmt: skip
_DATES = [
    "2024-03-05T00:00:00.000", "2024-03-05T00:00:00.000Z", "2024-02-29T23:59:59.999+05:30", "2023-02-29T00:00:00.000",
    "2024-3-5T1:2:3.5", "2024-03-05T00:00:00", "1969-12-31T23:59:59.999Z", "2024-03-05T00:00:00.000+0530",
    "2024-03-05T00:00:00.000-08", "92024-03-05T00:00:00.000", "2024-03-05T24:00:00.000", "2024-03-05TT",
]  # fmt: skip
_DURATION = ["P", "T", "1", "2", "10", "-", "+", "D", "H", "M", "S", ".", "5", ",", "p", "t", "h", "W"]
_LINE = [
    "a", "orders", "0", "1", "5", "12345678901", "99999999999999999999", ",", ",", ",", ",", '"', '""', " ", "-1", "+3",
    "x", "null", "1.5", ";",
]  # fmt: skip
_RECORDS = "org.apache.kafka.tools.consumer.group.CsvUtils$CsvRecord"


def compare_readings(apache: JavaTools, chance: random.Random, *, times: int) -> None:
    """Fails with the first word that is read differently."""
    readers = (_expression(apache), _date(apache), _duration(apache), *_lines(apache))
    for _ in range(times):
        for words, theirs, ours in readers:
            word = words(chance)
            assert theirs(word) == ours(word), word


_Reader = tuple[Callable[[random.Random], str], Callable[[str], object], Callable[[str], object]]


def _expression(apache: JavaTools) -> _Reader:
    compile = apache.jvm.com.google.re2j.Pattern.compile

    def theirs(word: str) -> object:
        return _call_java(lambda: compile(word) and None, lambda error: error.getDescription())

    return lambda chance: _joined(chance, _EXPRESSION, 7), theirs, re2j_syntax.find_syntax_error


def _date(apache: JavaTools) -> _Reader:
    read = apache.jvm.org.apache.kafka.common.utils.Utils.getDateTime

    def word(chance: random.Random) -> str:
        text = list(chance.choice(_DATES))
        for _ in range(chance.choice([0, 1, 1, 2])):
            at = chance.randrange(4, len(text))
            text[at : at + chance.choice([0, 1, 1])] = chance.choice(["", *"0123456789+:.TZ /x\t"])
        return "".join(text)

    def theirs(word: str) -> object:
        return _call_java(lambda: read(word), lambda error: error.toString())

    return word, theirs, lambda word: _call_ours(java_times.parse_date, word)


def _duration(apache: JavaTools) -> _Reader:
    read = apache.jvm.java.time.Duration.parse

    def theirs(word: str) -> object:
        return _call_java(lambda: read(word).toMillis(), lambda error: error.getMessage())

    def word(chance: random.Random) -> str:
        return chance.choice(["", "P", "-P", "PT", "P1DT"]) + _joined(chance, _DURATION, 7)

    return word, theirs, lambda word: _call_ours(java_times.parse_duration, word)


def _lines(apache: JavaTools) -> list[_Reader]:
    java = apache.jvm.java.lang.Class
    csv = apache.jvm.org.apache.kafka.tools.consumer.group.CsvUtils

    def of(name: str, columns: tuple[str, ...]) -> _Reader:
        reader = csv.readerFor(java.forName(_RECORDS + name))

        def theirs(word: str) -> object:
            def fields() -> list[object]:
                found = reader.readValue(word)
                return [getattr(found, f"get{column.capitalize()}")() for column in columns]

            return _call_java(fields, lambda error: error.toString())

        def ours(word: str) -> object:
            row = _call_ours(lambda line: plan_files.parse_record(line, columns), word)
            if not isinstance(row, dict):
                return row
            return [row.get(column, 0 if column in ("partition", "offset") else None) for column in columns]

        def word(chance: random.Random) -> str:
            line = _joined(chance, _LINE, 9)
            # Where a number that is too large is quoted, the library counts columns in a way of its own.
            return line.replace('"', "") if "9" * 19 in line else line

        return word, theirs, ours

    return [of("NoGroup", plan_files.NO_GROUP), of("WithGroup", plan_files.WITH_GROUP)]


def _joined(chance: random.Random, parts: Sequence[str], most: int) -> str:
    return "".join(chance.choice(parts) for _ in range(chance.randint(0, most)))


def _call_java(question: Callable[[], object], failure: Callable[[Any], object]) -> object:
    try:
        return question()
    except Py4JJavaError as error:
        return failure(error.java_exception)


def _call_ours(question: Callable[[str], object], word: str) -> object:
    try:
        return question(word)
    except Ended as ended:
        return ended.message
