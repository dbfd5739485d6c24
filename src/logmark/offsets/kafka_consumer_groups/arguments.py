"""Reads a command line with the manners of Kafka's parser (joptsimple, without abbreviations).

`--name value` and `--name=value`; one dash is as good as two; an option may be repeated; a value is whatever follows,
also if it begins with a dash; a value that may be left out is one that does not; `--` ends the options; what is no
option is passed over.
"""

import re
from collections.abc import Mapping, Sequence

from logmark.offsets.kafka_consumer_groups.failures import Ended, Unparsed
from logmark.offsets.kafka_consumer_groups.options import OPTIONS, Takes

_LONG = range(-(1 << 63), 1 << 63)


class Arguments:
    """The options that were given; a value is looked at when somebody asks for it, and complained about then."""

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self._given = given

    def has(self, name: str) -> bool:
        return name in self._given

    def values(self, name: str) -> list[str]:
        """Every value of an option, in order."""
        return list(self._given.get(name, ()))

    def value(self, name: str) -> str | None:
        """Return the one value of an option, or its default."""
        found = self._given.get(name) or ()
        if len(found) > 1:
            raise Ended(f"Found multiple arguments for option {name}, but you asked for only one")
        return found[0] if found else OPTIONS[name].default

    def numbers(self, name: str) -> list[int]:
        """Every value of an option, as numbers."""
        return [_number(name, text) for text in self.values(name)]

    def number(self, name: str) -> int | None:
        """Return the one value of an option as a number."""
        self.numbers(name)
        text = self.value(name)
        return None if text is None else _number(name, text)


def _number(name: str, text: str) -> int:
    if re.fullmatch(r"[+-]?\d+", text) and int(text) in _LONG:
        return int(text)
    raise Ended(f"Cannot parse argument '{text}' of option {name}")


def parse(words: Sequence[str]) -> Arguments:
    """Parse a command line; raises Unparsed for an unknown option, or one that lacks another that it needs."""
    given: dict[str, list[str]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            break
        if not _looks_like_an_option(word):
            continue
        name, value = _named(word)
        values = given.setdefault(name, [])
        takes = OPTIONS[name].takes
        if takes is Takes.NOTHING:
            continue
        if value is None and at < len(words) and (takes is Takes.VALUE or not _looks_like_an_option(words[at])):
            value = words[at]
            at += 1
        if value is not None:
            values.append(value)
        elif takes is Takes.VALUE:
            raise Unparsed(f"Option {name} requires an argument")
    _refuse_unavailable(given)
    return Arguments(given)


def _looks_like_an_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _named(word: str) -> tuple[str, str | None]:
    is_long = word.startswith("--")
    name, equals, value = word[2 if is_long else 1 :].partition("=")
    if name not in OPTIONS:
        # After one dash the parser takes every character for an option, and none of them is one here.
        raise Unparsed(f"{name if is_long else word[1]} is not a recognized option")
    return name, value if equals else None


def _refuse_unavailable(given: Mapping[str, Sequence[str]]) -> None:
    if "help" in given or "version" in given:
        return
    alone = [one for one in given if OPTIONS[one].needs and not any(other in given for other in OPTIONS[one].needs)]
    if alone:
        raise Unparsed(
            f"Option(s) [{', '.join(sorted(alone))}] are unavailable given other options on the command line"
        )
