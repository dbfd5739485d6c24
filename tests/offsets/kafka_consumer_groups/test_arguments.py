"""A command line is read with the manners of Kafka's parser."""

import pytest

from logmark.offsets.kafka_consumer_groups.arguments import parse
from logmark.offsets.kafka_consumer_groups.failures import Ended, Unparsed


@pytest.mark.parametrize(
    ("words", "name", "values"),
    [
        ("--group a --group b", "group", ["a", "b"]),
        ("--group=a=b", "group", ["a=b"]),
        ("--group=", "group", [""]),
        ("-group a", "group", ["a"]),
        ("--group --list", "group", ["--list"]),
        ("--shift-by -5", "shift-by", ["-5"]),
        ("--list --state", "state", []),
        ("--list --state a,b", "state", ["a,b"]),
        ("--list --state - ", "state", ["-"]),
        ("--list --state --type", "state", []),
        ("--list=now", "list", []),
        ("stray --list words", "list", []),
    ],
)
def test_values_are_found_as_kafkas_parser_finds_them(words: str, name: str, values: list[str]) -> None:
    given = parse(words.split())

    assert given.has(name)
    assert values == given.values(name)


def test_what_follows_two_dashes_is_no_option() -> None:
    given = parse(["--list", "--", "--describe"])

    assert (True, False) == (given.has("list"), given.has("describe"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--bogus", "bogus is not a recognized option"),
        ("--lis", "lis is not a recognized option"),
        ("-bogus", "b is not a recognized option"),
        ("--group", "Option group requires an argument"),
        ("--members --list", "Option(s) [members] are unavailable given other options on the command line"),
    ],
)
def test_what_cannot_be_read_says_so(words: str, message: str) -> None:
    with pytest.raises(Unparsed, match="^" + message.replace("(", r"\(").replace(")", r"\)").replace("[", r"\[")):
        parse(words.split())


def test_a_value_is_complained_about_only_when_it_is_asked_for() -> None:
    given = parse(["--shift-by", "one", "--timeout", "1", "--timeout", "2"])

    with pytest.raises(Ended, match="Cannot parse argument 'one' of option shift-by"):
        given.number("shift-by")
    with pytest.raises(Ended, match="Found multiple arguments for option timeout, but you asked for only one"):
        given.value("timeout")
    assert 30_000 == parse(["--list"]).number("timeout")
