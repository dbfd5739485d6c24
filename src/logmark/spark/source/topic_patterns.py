"""Patterns of topic names as Java writes them, run by Python's regular expressions.

Names of topics are letters, digits, dots, underscores and hyphens, so most of what the two languages differ in cannot
matter. What can is translated (`\\Q...\\E`, `(?<name>...)`, `\\p{Alpha}` and its like; `\\d` and `\\w` mean ASCII) or
refused by name (classes inside of classes, `&&`, Unicode properties), never run with another meaning.
"""

import re

from logmark.errors import UserError

_CLASSES = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "L": "a-zA-Z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "N": "0-9",
    "Nd": "0-9",
    "IsAlphabetic": "a-zA-Z",
    "IsDigit": "0-9",
    "XDigit": "0-9a-fA-F",
    "ASCII": "\\x00-\\x7f",
}
_ESCAPES = {"z": "\\Z", "Z": "\\Z", "h": "[ \\t]", "H": "[^ \\t]", "e": "\\x1b"}
_UNKNOWN = ("R", "X", "G", "k", "N", "c")


def parse_topic_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern for whole names; raises UserError for one that Python would read otherwise."""
    try:
        return re.compile(_translated(text), re.ASCII)
    except re.error as error:
        raise _refusal(text, f"{error.msg} at position {error.pos}") from None


def _translated(text: str) -> str:
    out: list[str] = []
    at, is_class = 0, False
    while at < len(text):
        one, two = text[at], text[at : at + 2]
        if one == "\\":
            piece, at = _escape(text, at, is_class=is_class)
            out.append(piece)
            continue
        if is_class and (one == "[" or two == "&&"):
            raise _refusal(text, f"{'a class inside of a class' if one == '[' else '&&'} has no counterpart here")
        if not is_class and one == "[":
            is_class = True
            # In Java as in Python a bracket right behind the opening one, or behind its ^, is taken by its word.
            step = 2 if two == "[^" else 1
            out.append(text[at : at + step])
            at += step
            if text[at : at + 1] == "]":
                out.append("\\]")
                at += 1
            continue
        if is_class and one == "]":
            is_class = False
        if not is_class and text.startswith("(?<", at) and text[at + 3 : at + 4] not in ("=", "!"):
            out.append("(?P<")
            at += 3
            continue
        out.append(one)
        at += 1
    return "".join(out)


def _escape(text: str, at: int, *, is_class: bool) -> tuple[str, int]:
    letter = text[at + 1 : at + 2]
    if letter == "Q":
        end = text.find("\\E", at)
        end = len(text) if end < 0 else end
        return re.escape(text[at + 2 : end]), end + 2
    if letter in ("p", "P"):
        found = re.compile(r"\{(\w+)\}|(\w)").match(text, at + 2)
        chars = _CLASSES.get((found[1] or found[2]) if found else "")
        if found is None or chars is None or (letter == "P" and is_class):
            raise _refusal(text, f"{text[at : found.end() if found else at + 2]} has no counterpart here")
        return (chars if is_class else f"[{'^' if letter == 'P' else ''}{chars}]"), found.end()
    if letter in _UNKNOWN:
        raise _refusal(text, f"\\{letter} has no counterpart here")
    return (_ESCAPES[letter] if letter in _ESCAPES and not is_class else f"\\{letter}"), at + 2


def _refusal(text: str, why: str) -> UserError:
    return UserError(
        f"The option subscribePattern is {text!r}, and cannot be used: {why}. Nothing was read. Topic names consist of "
        "letters, digits, dots, underscores and hyphens: a plainer pattern, or subscribe with a list, will do."
    )
