"""Java properties: the text of meta.properties, of a broker's settings and of a client's."""

import re
from collections.abc import Mapping
from pathlib import Path

from logmark.errors import UserError


def read(path: str | Path) -> dict[str, str]:
    """Return the names and values of a file; raise UserError if it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"The properties file {path} cannot be read: {error.strerror}.", exit_code=2) from None
    except UnicodeDecodeError:
        raise UserError(f"The properties file {path} is not text in UTF-8.", exit_code=2) from None
    return parse(text)


def write(values: Mapping[str, str]) -> bytes:
    """Return the text of plain names and values, as Kafka writes it."""
    return "".join(["#\n", *(f"{name}={value}\n" for name, value in sorted(values.items()))]).encode()


def parse(text: str) -> dict[str, str]:
    """Return the names and values of Java properties text, with its comments, continuations and escapes."""
    found: dict[str, str] = {}
    pending = ""
    for raw in text.splitlines():
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending += line[:-1]
            continue
        name, value = _split(pending + line)
        found[name] = value
        pending = ""
    if pending:
        name, value = _split(pending)
        found[name] = value
    return found


def _split(line: str) -> tuple[str, str]:
    match = re.match(r"((?:\\.|[^\s=:\\])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
    assert match is not None
    return _unescaped(match[1]), _unescaped(match[2]).rstrip()


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _ESCAPES.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", plain, text)
