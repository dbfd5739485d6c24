"""What RE2 takes for an expression, and its words for what is none."""

import pytest

from logmark.offsets.kafka_consumer_groups.re2j_syntax import find_syntax_error


@pytest.mark.parametrize(
    "expression",
    ["", "foo.*", "a|b|", "(a|(b))+?", "[^a-z-]", "[]a]", "x{2,5}", "x{,5}", r"\d\pL\p{^Greek}", "(?i)a(?P<n>b)(?-s:c)",
     r"\Q(*\E*", "[[:alpha:]_]", r"\x{10FFFF}\x41\07", "a{1", "foo.bar-[0-9]+"],
)  # fmt: skip
def test_expressions(expression: str) -> None:
    assert find_syntax_error(expression) is None


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("(a", "missing closing )"),
        ("a)", "regexp/syntax: internal error"),
        ("[a", "missing closing ]"),
        ("*a", "missing argument to repetition operator"),
        ("a|*", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("a{2,1}", "invalid repeat count"),
        ("a{1001}", "invalid repeat count"),
        ("[z-a]", "invalid character class range"),
        ("[[:nope:]]", "invalid character class range"),
        (r"\p{Nope}", "invalid character class range"),
        ("(?<=a)b", "invalid named capture"),
        ("(?=a)b", "invalid or unsupported Perl syntax"),
        ("(?P<n>a)(?P<n>b)", "duplicate capture group name"),
        (r"\8", "invalid escape sequence"),
        (r"\x{110000}", "invalid escape sequence"),
        ("a\\", "trailing backslash at end of expression"),
    ],
)
def test_what_is_none(expression: str, why: str) -> None:
    assert why == find_syntax_error(expression)
