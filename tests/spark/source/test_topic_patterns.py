"""Patterns of topic names in Java's spelling."""

import re

import pytest

from logmark.errors import UserError
from logmark.spark.source.topic_patterns import parse_topic_pattern

FITS = [
    ("clicks.*", ["clicks", "clicks-eu"], ["old-clicks"]),
    ("clicks|orders", ["clicks", "orders"], ["clicks-eu", "clicksorders"]),
    (r"\Qa.b\E.*", ["a.b", "a.b-c"], ["axb"]),
    (r"\Qa.b", ["a.b"], ["axb"]),
    (r"(?<kind>raw|clean)-\d+", ["raw-1", "clean-22"], ["raw-"]),
    (r"\p{Alpha}+", ["clicks"], ["clicks-1"]),
    (r"\p{Lower}\P{Digit}*", ["cLICKS"], ["c1", "C"]),
    (r"[\p{Alnum}_]+", ["a_1"], ["a-1"]),
    (r"\d+", ["12"], ["٣"]),
    ("[]a]+", ["a"], ["b"]),
    ("[^a-c]+", ["xyz"], ["axy"]),
    (r"(?!__).*", ["clicks"], ["__x"]),
    (r"(?<=c)x|cx", ["cx"], ["x"]),
    ("(?i)CLICKS", ["clicks"], ["orders"]),
    ("c++licks", ["clicks"], ["licks"]),
    (r"clicks\z", ["clicks"], ["clicks1"]),
]


@pytest.mark.parametrize(("pattern", "fitting", "others"), FITS)
def test_a_pattern_fits_whole_names_as_it_does_in_java(pattern: str, fitting: list[str], others: list[str]) -> None:
    made = parse_topic_pattern(pattern)

    assert fitting == [name for name in [*fitting, *others] if made.fullmatch(name)]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[a-z&&[^c]]", "&& has no counterpart"),
        ("[a[bc]]", "a class inside of a class"),
        (r"\p{IsGreek}", r"\p{IsGreek} has no counterpart"),
        (r"[\P{Alpha}]", r"\P{Alpha} has no counterpart"),
        (r"a\R", r"\R has no counterpart"),
        ("(a", "missing ), unterminated subpattern"),
        ("a**", "multiple repeat"),
    ],
)
def test_what_python_would_read_otherwise_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"cannot be used: {reason}")):
        parse_topic_pattern(pattern)
