"""Show that no promise of the tests at HEAD is weaker than at BASE.

    scripts/promise_check.py BASE HEAD [--suggest]
    scripts/promise_check.py BASE HEAD --mutations 40 [--seed 7]

The first form compares the claims of every test (`promise_claims.py`). Each test of BASE must exist at HEAD, under its
name or under the one in `promise_renames.tsv`, and must claim at least what it claimed; it has no new skip, xfail or
soak mark. What is left is printed, for a person to judge; a difference that was judged has a line with its reason in
`promise_accepted.tsv`. A line there that no longer applies is an error. `--suggest` prints renames that would explain
differences. The second form breaks the code on purpose, in so many ways, at both commits (`promise_mutations.py`).
Exit code 0: nothing is left.
"""

import argparse
import difflib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import promise_mutations
from promise_claims import COUNTS, IDENTIFIER, MODULE, TEXT, Claim, Token, Unit, read_sources, read_units

SCRIPTS = Path(__file__).resolve().parent
RENAMES = SCRIPTS / "promise_renames.tsv"
ACCEPTED = SCRIPTS / "promise_accepted.tsv"


@dataclass
class Renames:
    """The table of renames: files, tests, identifiers and texts. An identifier may have become one of several."""

    files: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    tests: dict[str, str] = field(default_factory=dict)
    identifiers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    texts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def read(cls, path: Path) -> "Renames":
        renames = cls()
        for kind, old, new in read_table(path, 3):
            renames.add(kind, old, new)
        return renames

    def add(self, kind: str, old: str, new: str) -> None:
        if kind == "file":
            self.files[old].append(new)
        elif kind == "test":
            self.tests[old] = new
        elif kind == "text":
            self.texts[_unescape(old)].add(_unescape(new))
        else:
            self.identifiers[_last(old)].add(_last(new))

    def old_names(self) -> dict[str, list[str]]:
        """Return the older names of files and tests, by the newer one."""
        found: dict[str, list[str]] = defaultdict(list)
        for old, news in self.files.items():
            for new in news:
                found[new].append(old)
        for old, new in self.tests.items():
            found[new].append(old)
        return found

    def allow(self, old: Token, new: Token) -> bool:
        """Return whether a token of BASE may stand as the other one at HEAD."""
        if old == new:
            return True
        if old[0] != new[0]:
            return False
        if old[0] == IDENTIFIER:
            return new[1] in self.identifiers.get(old[1], ())
        if old[0] == TEXT:
            return new[1] in self.texts.get(old[1], ()) or self._allow_words(old[1], new[1])
        return False

    def _allow_words(self, old: str, new: str) -> bool:
        """Compare texts that are identifiers, paths or option strings by their words."""
        if " " in old.strip() or " " in new.strip():
            return False
        olds, news = re.findall(r"\w+|\W+", old), re.findall(r"\w+|\W+", new)
        pairs = zip(olds, news, strict=False)
        return len(olds) == len(news) and all(a == b or b in self.identifiers.get(a, ()) for a, b in pairs)


@dataclass(frozen=True)
class Difference:
    test: str
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.test}\t{self.what}\t{self.source}"


def read_table(path: Path, columns: int) -> Iterator[list[str]]:
    """Yield the rows of a table with tabs between its columns; `#` begins a comment."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line and not line.startswith("#"):
            row = line.split("\t")
            if len(row) != columns:
                raise SystemExit(f"{path.name}:{number} has {len(row)} columns instead of {columns}.")
            yield row


class Comparison:
    """Compares the units of two commits and keeps what is left."""

    def __init__(self, base: dict[str, Unit], head: dict[str, Unit], renames: Renames) -> None:
        self._base, self._head, self._renames = base, head, renames
        self._by_name: dict[str, list[Unit]] = defaultdict(list)
        for unit in head.values():
            self._by_name[unit.name].append(unit)
        self.pairs: list[tuple[Unit, Unit]] = []
        self.missing: list[tuple[Unit, Claim]] = []
        self.unused: dict[str, list[Claim]] = {}

    def compare(self) -> list[Difference]:
        """Return what a test of BASE claims and its counterpart at HEAD does not."""
        differences = []
        strays = []
        for unit in self._base.values():
            found = self._find(unit)
            if found is None:
                if unit.is_test:
                    differences.append(Difference(unit.id, "test", "the test does not exist"))
                strays += [(unit, claim) for claim in unit.claims if not unit.is_test]
                continue
            self.pairs.append((unit, found))
            new = Counter(found.marks) - Counter(unit.marks)
            differences += [Difference(unit.id, "new mark", mark) for mark in sorted(new.elements())]
            left, rest = self._subtract(unit.claims, found.claims)
            self.unused[found.id] = rest
            strays += [(unit, claim) for claim in left]
        self.missing = [(unit, claim) for unit, claim in strays if not self._find_moved(unit, claim)]
        differences += [_difference(unit, claim) for unit, claim in self.missing]
        return sorted(differences, key=str)

    def _find(self, unit: Unit) -> Unit | None:
        """Return the unit at HEAD: in the same file or the renamed one, else the only one with that name."""
        names = self._new_names(unit)
        paths = [unit.path, *self._renames.files.get(unit.path, ())]
        for path in reversed(paths):
            for name in names:
                if f"{path}::{name}" in self._head:
                    return self._head[f"{path}::{name}"]
        if unit.name == MODULE:
            return None
        for name in names:
            found = [each for each in self._by_name.get(name, ()) if each.is_test == unit.is_test]
            if found:
                return found[0] if len(found) == 1 else None
        return None

    def _new_names(self, unit: Unit) -> list[str]:
        """Return the names that the unit may have: those of the table before its own."""
        group, _, function = unit.name.rpartition(".")
        renamed = [self._renames.tests[each] for each in (unit.id, function) if each in self._renames.tests]
        lasts = [each.rpartition("::")[2] for each in renamed]
        tables = [f"{group}.{last}" if group and "." not in last else last for last in lasts]
        names = [""]
        for part in unit.name.split("."):
            news = [part, *sorted(self._renames.identifiers.get(part, ()))]
            names = [f"{name}.{new}" if name else new for name in names for new in news]
        return [*tables, *names]

    def _subtract(self, base: Iterable[Claim], head: list[Claim]) -> tuple[list[Claim], list[Claim]]:
        """Return the claims of BASE without a counterpart, and those of HEAD that nothing was compared with."""
        rest = list(head)
        left: list[Claim] = []
        for same in (True, False):
            candidates = list(base) if same else left
            left = []
            for claim in candidates:
                found = next((each for each in rest if self._matches(claim, each, same)), None)
                if found is None:
                    left.append(claim)
                else:
                    rest.remove(found)
        return left, rest

    def _matches(self, old: Claim, new: Claim, same: bool) -> bool:
        if same or old.kind != new.kind:
            return old.kind == new.kind and old.tokens == new.tokens
        if old.kind in COUNTS:
            olds, news = _numbers(old), _numbers(new)
            return len(olds) == len(news) and all(a <= b for a, b in zip(olds, news, strict=True))
        if len(old.tokens) != len(new.tokens):
            return False
        return all(self._renames.allow(a, b) for a, b in zip(old.tokens, new.tokens, strict=True))

    def _find_moved(self, unit: Unit, claim: Claim) -> bool:
        """Find a helper's claim, or a table's row, elsewhere at HEAD; a test's own claims do not move."""
        if unit.is_test and claim.kind != "parameter":
            return False
        for other, rest in self.unused.items():
            if unit.is_test and self._head[other].name != MODULE:
                continue
            found = next((each for each in rest if self._matches_moved(claim, each)), None)
            if found is not None:
                rest.remove(found)
                return True
        return False

    def _matches_moved(self, old: Claim, new: Claim) -> bool:
        kinds = {old.kind, new.kind}
        return (old.kind == new.kind or kinds == {"parameter", "table"}) and self._matches(
            old, Claim(old.kind, new.tokens, new.source, new.line), same=False
        )

    def add_new_units(self) -> None:
        """Let claims move to functions that BASE did not have."""
        known = {found.id for _, found in ((u, self._find(u)) for u in self._base.values()) if found is not None}
        self.unused.update({unit.id: list(unit.claims) for unit in self._head.values() if unit.id not in known})

    def find_nearest(self) -> dict[Difference, str]:
        """Return for each missing claim the claim of the same test at HEAD that is most like it."""
        heads = {unit.id: head.id for unit, head in self.pairs}
        found = {}
        for unit, claim in self.missing:
            rest = [each for each in self.unused.get(heads.get(unit.id, ""), []) if each.kind == claim.kind]
            near = difflib.get_close_matches(claim.source, [each.source for each in rest], n=1, cutoff=0.2)
            if near:
                found[_difference(unit, claim)] = _one_line(near[0])
        return found

    def suggest(self) -> Counter[tuple[str, str, str]]:
        """Return the renames that would explain a difference, with how often."""
        found: Counter[tuple[str, str, str]] = Counter()
        heads = {unit.id: head.id for unit, head in self.pairs}
        for unit, claim in self.missing:
            rest = self.unused.get(heads.get(unit.id, ""), [])
            alike = [each for each in rest if each.kind == claim.kind and _shape(each) == _shape(claim)]
            if not alike:
                continue
            best = min(alike, key=lambda each: len(self._renamed_tokens(claim, each)))
            found.update(self._renamed_tokens(claim, best))
        return found

    def _renamed_tokens(self, old: Claim, new: Claim) -> list[tuple[str, str, str]]:
        pairs = zip(old.tokens, new.tokens, strict=True)
        return [(a[0], a[1], b[1]) for a, b in pairs if not self._renames.allow(a, b)]


def judge(differences: list[Difference], accepted: Iterable[list[str]]) -> tuple[list[Difference], list[str]]:
    """Return the differences that nobody has judged, and the accepted lines that no longer apply."""
    left = Counter(differences)
    stale = []
    for test, what, source, reason in accepted:
        difference = Difference(test, what, source)
        if left[difference] > 0 and reason.strip():
            left[difference] -= 1
        else:
            stale.append(str(difference))
    return sorted(left.elements(), key=str), stale


def check(repository: Path, base: str, head: str, renames: Path, accepted: Path, suggest: bool) -> int:
    """Compare two commits and print what is left; return the exit code."""
    olds = read_units(read_sources(repository, base, "tests"))
    news = read_units(read_sources(repository, head, "tests"))
    comparison = Comparison(olds, news, Renames.read(renames))
    comparison.add_new_units()
    differences = comparison.compare()
    if suggest:
        for (kind, old, new), count in comparison.suggest().most_common():
            print(f"{kind}\t{_escape(old)}\t{_escape(new)}\t{count}")
        return 0
    left, stale = judge(differences, read_table(accepted, 4))
    nearest = comparison.find_nearest()
    for difference in left:
        print(f"left\t{difference}")
        if difference in nearest:
            print(f"    now\t{nearest[difference]}")
    for line in stale:
        print(f"accepted, but no longer a difference\t{line}")
    tests = [unit for unit in olds.values() if unit.is_test]
    claims = sum(len(unit.claims) for unit in olds.values())
    print(
        f"{len(tests)} tests and {claims} claims of {base} compared with {head}: {len(left)} differences left, "
        f"{len(differences) - len(left)} judged, {len(stale)} accepted lines without a difference."
    )
    return 1 if left or stale else 0


def _difference(unit: Unit, claim: Claim) -> Difference:
    return Difference(unit.id, claim.kind, _one_line(claim.source))


def _shape(claim: Claim) -> list[str]:
    return [kind if kind in (IDENTIFIER, TEXT) else value for kind, value in claim.tokens]


def _numbers(claim: Claim) -> list[int]:
    return [int(number.replace("_", "")) for number in re.findall(r"\b\d[\d_]*", claim.source)]


def _last(name: str) -> str:
    return re.split(r"[.:/ ]", name.removesuffix(".py"))[-1]


def _one_line(source: str) -> str:
    return " ".join(source.split())


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("head")
    parser.add_argument("--suggest", action="store_true", help="print renames that would explain differences")
    parser.add_argument("--repository", type=Path, default=SCRIPTS.parent)
    parser.add_argument("--renames", type=Path, default=RENAMES)
    parser.add_argument("--accepted", type=Path, default=ACCEPTED)
    parser.add_argument("--mutations", type=int, metavar="N", help="break the code in N ways that are drawn")
    parser.add_argument("--seed", type=int, default=7, help="draw other mutations")
    parser.add_argument("--table", type=Path, default=promise_mutations.MUTATIONS, help="the table of mutations")
    options = parser.parse_args(arguments)
    if options.mutations is not None:
        mutations = promise_mutations.draw(
            promise_mutations.read_mutations(options.table), options.mutations, options.seed
        )
        old_names = Renames.read(options.renames).old_names()
        return promise_mutations.check(options.repository, [options.base, options.head], mutations, old_names)
    return check(options.repository, options.base, options.head, options.renames, options.accepted, options.suggest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
