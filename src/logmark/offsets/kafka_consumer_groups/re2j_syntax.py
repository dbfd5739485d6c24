"""Whether an expression is one of RE2, and if not, why: the syntax alone, as RE2/J reads it."""

import re

_GENERAL = "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs"
_SCRIPTS = (
    "Arabic Armenian Avestan Balinese Bamum Batak Bengali Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal "
    "Carian Cham Cherokee Common Coptic Cuneiform Cypriot Cyrillic Deseret Devanagari Egyptian_Hieroglyphs Ethiopic "
    "Georgian Glagolitic Gothic Greek Gujarati Gurmukhi Han Hangul Hanunoo Hebrew Hiragana Imperial_Aramaic Inherited "
    "Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khmer Lao Latin "
    "Lepcha Limbu Linear_B Lisu Lycian Lydian Malayalam Mandaic Meetei_Mayek Mongolian Myanmar New_Tai_Lue Nko Ogham "
    "Ol_Chiki Old_Italic Old_Persian Old_South_Arabian Old_Turkic Oriya Osmanya Phags_Pa Phoenician Rejang Runic "
    "Samaritan Saurashtra Shavian Sinhala Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet "
    "Tamil Telugu Thaana Thai Tibetan Tifinagh Ugaritic Unknown Vai Yi"
)
_UNICODE = frozenset(f"Any {_GENERAL} {_SCRIPTS}".split())
_NAMES = "alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit"
_POSIX = frozenset(_NAMES.split())
_REPEATS_MAX = 1000
_RUNE_MAX = 0x10FFFF
_OPERAND, _PAREN, _BAR = "operand", "(", "|"
_CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_WORD = re.compile(r"[A-Za-z0-9_]+")


class _Invalid(Exception):
    """Why an expression is none."""


def find_syntax_error(expression: str) -> str | None:
    """Return what is wrong with an expression in RE2's words, None if nothing is."""
    try:
        _Syntax(expression).check()
    except _Invalid as why:
        return str(why)
    return None


class _Syntax:
    """A walk over one expression, with a stack of what was begun and what a repetition could repeat."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._stack: list[str] = []
        self._names: set[str] = set()

    def check(self) -> None:
        was_repeated = False
        while self._more():
            repeats = False
            match self._text[self._at]:
                case "(" if self._looking_at("(?"):
                    self._perl_group()
                case "(":
                    self._at += 1
                    self._stack.append(_PAREN)
                case "|":
                    self._at += 1
                    self._alternative()
                    self._stack.append(_BAR)
                case ")":
                    self._at += 1
                    self._close()
                case "[":
                    self._char_class()
                    self._stack.append(_OPERAND)
                case "*" | "+" | "?":
                    self._at += 1
                    self._repeat(was_repeated)
                    repeats = True
                case "{":
                    # RE2/J takes a brace for a repetition even where it is text, when the next one is looked at.
                    repeats = True
                    if self._counts():
                        self._repeat(was_repeated)
                    else:
                        self._at += 1
                        self._stack.append(_OPERAND)
                case "\\":
                    self._backslash()
                case _:
                    self._at += 1
                    self._stack.append(_OPERAND)
            was_repeated = repeats
        self._alternative()
        if len(self._stack) != 1:
            raise _Invalid("missing closing )")

    def _more(self) -> bool:
        return self._at < len(self._text)

    def _looking_at(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _alternative(self) -> None:
        """Reduce the operands since the last bar or parenthesis to one, and those before a bar too."""
        while self._stack and self._stack[-1] == _OPERAND:
            self._stack.pop()
        if self._stack and self._stack[-1] == _BAR:
            self._stack[-2:] = []
        self._stack.append(_OPERAND)

    def _close(self) -> None:
        self._alternative()
        if len(self._stack) < 2:
            raise _Invalid("regexp/syntax: internal error")
        self._stack[-2:] = [_OPERAND]

    def _repeat(self, was_repeated: bool) -> None:
        if self._looking_at("?"):
            self._at += 1
        if was_repeated:
            raise _Invalid("invalid nested repetition operator")
        if not self._stack or self._stack[-1] != _OPERAND:
            raise _Invalid("missing argument to repetition operator")

    def _counts(self) -> bool:
        """Skip {n}, {n,} or {n,m}; anything else in braces is text."""
        found = re.compile(r"\{(0|[1-9][0-9]*)(?:(,)(0|[1-9][0-9]*)?)?\}").match(self._text, self._at)
        if found is None:
            return False
        low, high = int(found[1]), int(found[3]) if found[3] else None
        self._at = found.end()
        if low > _REPEATS_MAX or (high is not None and (high > _REPEATS_MAX or low > high)):
            raise _Invalid("invalid repeat count")
        return True

    def _perl_group(self) -> None:
        for opening in ("(?P<", "(?<"):
            if self._looking_at(opening):
                return self._named_group(len(opening))
        self._at += 2
        is_negative, has_flag = False, False
        while self._more():
            match self._next():
                case "i" | "m" | "s" | "U":
                    has_flag = True
                case "-" if not is_negative:
                    is_negative, has_flag = True, False
                case ":" | ")" as end if has_flag or not is_negative:
                    if end == ":":
                        self._stack.append(_PAREN)
                    return None
                case _:
                    break
        raise _Invalid("invalid or unsupported Perl syntax")

    def _named_group(self, begin: int) -> None:
        end = self._text.find(">", self._at + begin)
        name = self._text[self._at + begin : end]
        if end < 0 or not _WORD.fullmatch(name):
            raise _Invalid("invalid named capture")
        if name in self._names:
            raise _Invalid("duplicate capture group name")
        self._names.add(name)
        self._stack.append(_PAREN)
        self._at = end + 1

    def _backslash(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following == "C":
            raise _Invalid("invalid escape sequence")
        if following == "Q":
            end = self._text.find("\\E", self._at + 2)
            quoted = self._text[self._at + 2 : end if end >= 0 else None]
            self._at = end + 2 if end >= 0 else len(self._text)
            self._stack.extend([_OPERAND] if quoted else [])
            return
        if following and following in "AbBz":
            self._at += 2
        elif not self._class_escape():
            self._escape()
        self._stack.append(_OPERAND)

    def _class_escape(self) -> bool:
        r"""Skip \d, \pN, \p{Greek} and other escapes of classes."""
        if not self._looking_at("\\"):
            return False
        following = self._text[self._at + 1 : self._at + 2]
        if following and following in "dDsSwW":
            self._at += 2
            return True
        if following not in ("p", "P"):
            return False
        name = self._text[self._at + 2 : self._at + 3]
        end = self._at + 3
        if name == "{":
            end = self._text.find("}", self._at) + 1
            name = self._text[self._at + 3 : end - 1] if end else ""
        if not end or name.removeprefix("^") not in _UNICODE:
            raise _Invalid("invalid character class range")
        self._at = end
        return True

    def _escape(self) -> int:
        """Skip one escaped character and return it."""
        self._at += 1
        if not self._more():
            raise _Invalid("trailing backslash at end of expression")
        char = self._next()
        octal = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}").match(self._text, self._at - 1)
        if octal:
            self._at = octal.end()
            return int(octal[0], 8)
        hexadecimal = re.compile(r"x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))").match(self._text, self._at - 1)
        if hexadecimal and int(hexadecimal[1] or hexadecimal[2], 16) <= _RUNE_MAX:
            self._at = hexadecimal.end()
            return int(hexadecimal[1] or hexadecimal[2], 16)
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isascii() and char.isalnum():
            raise _Invalid("invalid escape sequence")
        return ord(char)

    def _char_class(self) -> None:
        self._at += 1
        if self._looking_at("^"):
            self._at += 1
        is_first = True
        while not self._looking_at("]") or is_first:
            is_first = False
            if self._looking_at("[:") and self._posix_class():
                continue
            if self._class_escape():
                continue
            low = high = self._class_char()
            if self._looking_at("-") and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._class_char()
            if high < low:
                raise _Invalid("invalid character class range")
        self._at += 1

    def _posix_class(self) -> bool:
        end = self._text.find(":]", self._at)
        if end < 0:
            return False
        if self._text[self._at + 2 : end].removeprefix("^") not in _POSIX:
            raise _Invalid("invalid character class range")
        self._at = end + 2
        return True

    def _class_char(self) -> int:
        if not self._more():
            raise _Invalid("missing closing ]")
        return self._escape() if self._looking_at("\\") else ord(self._next())
