"""What the demo claims, each claim with whether it held, and what it looks at."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.clicks.topic import ALERTS, DEAD_LETTERS, read
from examples.clicks.truth import ClickOffset
from logmark.offsets.dead_letters.dead_letter import parse_dead_letter
from logmark.spark import read_table
from logmark.spark.sink.topics import ID_HEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim: what was expected, and whether it was found."""

    claim: str
    held: bool
    found: str


class Checks:
    """All claims so far, in order."""

    def __init__(self) -> None:
        self.made: list[Check] = []

    def add(self, claim: str, held: bool, found: str) -> Check:
        """Notes a claim and returns it."""
        check = Check(claim=claim, held=held, found=found)
        self.made.append(check)
        return check

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.made if not check.held]


def count_rows_by_offset(table: Path) -> Counter[ClickOffset]:
    """How often the table has a row for each offset of the log."""
    rows = read_table(table, ["partition", "offset"])
    return Counter(map(ClickOffset, rows["partition"].to_pylist(), rows["offset"].to_pylist()))


def by_user(table: Path) -> dict[str, dict[str, Any]]:
    """The rows of a table of users."""
    return {row.pop("user"): row for row in read_table(table).to_pylist()}


def alerts(bootstrap_servers: str) -> Counter[str]:
    """How often each alert is in its topic, by its id."""
    return Counter((dict(one.headers)[ID_HEADER.encode()] or b"").decode() for one in read(bootstrap_servers, ALERTS))


def dead_letters(bootstrap_servers: str) -> dict[str, dict[ClickOffset, str]]:
    """By pipeline, the offsets of the records that it refused, and why."""
    found: dict[str, dict[ClickOffset, str]] = {}
    for one in read(bootstrap_servers, DEAD_LETTERS):
        dead_letter = parse_dead_letter(one.value, one.headers)
        if dead_letter is not None:
            at = ClickOffset(dead_letter.partition.partition, dead_letter.offset)
            found.setdefault(dead_letter.pipeline, {})[at] = dead_letter.error
    return found


def fingerprint(directory: Path) -> str:
    """A hash of the names and the bytes of all files below a directory."""
    digest = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(directory)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
