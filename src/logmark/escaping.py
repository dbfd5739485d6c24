"""Text that is safe to show to people: control characters of names and data become visible escapes.

Anybody who can connect can choose a group id, a client id, metadata or a record. Written to a terminal as they are,
escape sequences in them could change what a person sees, or type for them; a newline could forge a line of a table.
"""

import base64
import re

# C0 with the newline, DEL, C1, marks and overrides of the writing direction, line separators, and halves of surrogate
# pairs, which no terminal can be sent.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    r"""Return the text on one line, with each unsafe character as `\n`, `\x1b` or `\u202e`; a backslash stays."""
    return _UNSAFE.sub(_visible, text)


def escape_json(document: str) -> str:
    """Return a JSON document with the same content, without unsafe characters that JSON lets pass in its strings."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in _SHORT else f"\\u{ord(found[0]):04x}", document)


def json_text(data: bytes | None) -> str | dict[str, str] | None:
    """Return bytes for JSON: text as it is, and what is no UTF-8 as {"base64": ...}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def is_safe(text: str) -> bool:
    """Return whether the text can be printed as it is."""
    return _UNSAFE.search(text) is None


def _visible(found: re.Match[str]) -> str:
    character = found[0]
    if character in _SHORT:
        return _SHORT[character]
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
