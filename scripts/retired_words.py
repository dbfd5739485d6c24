"""Refuse words that this project has retired, because Kafka, Spark and Python have their own for the same things.

Run by `make lint`. Names in code count as words: `last_place` and `lastPlace` read as "last place".
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKED = ("src", "tests", "bench", "docs", "examples")
CHECKED_FILES = ("README.md", "CONTRIBUTING.md")
SUFFIXES = (".py", ".pxd", ".md")
# They have to show the words.
EXEMPT = ("tests/frame/test_retired_words.py", "docs/glossary.md")
# A name in files of users stays as it is: the line that defines it says so.
STORED = "# a stored name"
# What is refused, and what to write instead.
RETIRED = {
    r"places?": "partition, offset, position, location or folder",
    r"(?:gone|go|goes|going) on with": "resume or continue",
    r"(?:made|make|makes|making) anew": "recreate",
    r"(?:is|are|as|be|become|becomes|raise|raises|get|gets|with|each) (?:an? |one )?sentences?": "error or message",
    r"letters": "dead letters",
    r"(?:let|lets|letting) go": "release or delete",
}
# Ordinary uses of the same words.
ORDINARY = (
    r"in place|(?:take|takes|taking|taken|took) place|in (?:its|their) place|out of place",
    r"(?:in|take|takes|taking|taken|took) the place of",
    r"places \d+",  # of decimals in Hypothesis
    r"dead letters|(?:ascii|small|capital|upper case|lower case) letters|letters digits|\d+ letters",
)

_RETIRED = re.compile("|".join(rf"(?P<w{number}>\b(?:{one})\b)" for number, one in enumerate(RETIRED)))
_ORDINARY = re.compile("|".join(rf"\b(?:{one})\b" for one in ORDINARY))


def find_retired(line: str) -> tuple[str, str] | None:
    """Return the first retired word of a line and what to write instead."""
    if STORED in line:
        return None
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", line)
    words = " ".join(re.findall(r"[a-z0-9]+", spaced.lower()))
    found = _RETIRED.search(_ORDINARY.sub(" - ", words))
    if found is None or found.lastgroup is None:
        return None
    return found.group(), list(RETIRED.values())[int(found.lastgroup[1:])]


def checked_files(root: Path) -> Iterator[Path]:
    """Yield the files in which the words are refused."""
    left_out = [root / one for one in EXEMPT]
    yield from (path for name in CHECKED_FILES if (path := root / name).exists())
    for folder in CHECKED:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and not any(path.is_relative_to(one) for one in left_out):
                yield path


def main() -> int:
    """Print each line that has a retired word; return 1 if there is one."""
    is_clean = True
    for path in checked_files(ROOT):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            found = find_retired(line)
            if found is not None:
                is_clean = False
                print(f"{path.relative_to(ROOT)}:{number}: {found[0]!r} is retired: write {found[1]}")
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
