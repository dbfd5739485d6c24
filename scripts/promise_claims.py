"""Read the claims of the tests of one commit from their syntax trees, without a checkout.

A claim is what can make a test fail, or how hard the test tries: its asserts, `pytest.raises`, the values of
`parametrize`, explicit examples, what Hypothesis draws and how often, the cases and rounds of its loops, the tables of
its module, and calls of helpers that assert. Each claim is a list of tokens, so that two of them can be compared with
renamed identifiers and messages.
"""

import ast
import io
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Token = tuple[str, str]
IDENTIFIER, TEXT, NODE, VALUE = "identifier", "text", "node", "value"
MARKS = ("skip", "skipif", "xfail", "soak", "importorskip")
COUNTS = ("max_examples", "stateful_step_count")
ROUNDS = "rounds"
MODULE = "<module>"


@dataclass(frozen=True)
class Claim:
    kind: str
    tokens: tuple[Token, ...]
    source: str
    line: int


@dataclass
class Unit:
    """One function of a test module, or what stands outside of its functions."""

    path: str
    name: str
    claims: list[Claim] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)

    @property
    def id(self) -> str:
        return f"{self.path}::{self.name}"

    @property
    def is_test(self) -> bool:
        is_test_file = Path(self.path).name.startswith("test_")
        return is_test_file and (self.name.rpartition(".")[2].startswith("test_") or self.name.startswith("Test"))


def read_sources(repository: Path, commit: str, folder: str) -> dict[str, str]:
    """Return the Python sources of a commit below a folder, by path."""
    command = ["git", "-C", str(repository), "archive", commit, folder]
    packed = subprocess.run(command, check=True, capture_output=True).stdout  # noqa: S603 - git, with our arguments
    sources = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                sources[member.name] = file.read().decode()
    return sources


def read_units(sources: dict[str, str]) -> dict[str, Unit]:
    """Return every function of the test modules with its claims, by `path::name`."""
    units: dict[str, Unit] = {}
    for path, source in sources.items():
        for unit in _ModuleReader(path, source).read():
            units[unit.id] = unit
    _add_helper_calls(units)
    return units


def _add_helper_calls(units: dict[str, Unit]) -> None:
    """Add a claim to a unit for each helper of the tests that it calls and that asserts something itself."""
    asserting = [u for u in units.values() if any(c.kind in ("assert", "raises") for c in u.claims)]
    asserting = [u for u in asserting if not u.name.startswith("test_")]
    ids, names = {u.id for u in asserting}, {u.name for u in asserting}
    for unit in units.values():
        for name in sorted(unit.calls):
            own = f"{unit.path}::{name}"
            if own in ids or (own not in units and name in names):
                unit.claims.append(Claim("calls", ((IDENTIFIER, name),), f"{name}(…)", 0))


class _ModuleReader:
    """Reads one test module."""

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._tree = ast.parse(source)
        self._modules = _imported_modules(self._tree)
        self._constants = dict(_assignments(self._tree))
        self._helpers = _helpers(self._tree)

    def read(self) -> Iterator[Unit]:
        outside = Unit(self._path, MODULE)
        for node in self._tree.body:
            yield from self._read_statement(node, outside)
        yield outside

    def _read_statement(self, node: ast.stmt, outside: Unit, prefix: str = "") -> Iterator[Unit]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            unit = Unit(self._path, prefix + node.name)
            self._read_claims(node, unit)
            yield unit
        elif isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                self._read_claims(decorator, outside)
            for statement in node.body:
                yield from self._read_statement(statement, outside, f"{prefix}{node.name}.")
        else:
            self._read_claims(node, outside)
            if isinstance(node, ast.Assign | ast.AnnAssign) and not prefix:
                yield from self._read_assignment(node, outside)

    def _read_assignment(self, node: ast.Assign | ast.AnnAssign, outside: Unit) -> Iterator[Unit]:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name) or node.value is None:
            return
        if target.id.startswith("Test"):
            yield Unit(self._path, target.id)
        elif _elements(node.value):
            for element in _elements(node.value):
                outside.claims.append(self._claim("table", element))

    def _read_claims(self, root: ast.AST, unit: Unit) -> None:
        for node in ast.walk(root):
            if isinstance(node, ast.Assert):
                unit.claims.append(self._claim("assert", node.test))
            elif isinstance(node, ast.Call):
                self._read_call(node, unit)
            elif isinstance(node, ast.For | ast.comprehension):
                self._read_loop(node.iter, unit)
            elif isinstance(node, ast.Attribute) and node.attr in MARKS and _dotted(node.value) == "pytest.mark":
                unit.marks.append(node.attr)

    def _read_call(self, node: ast.Call, unit: Unit) -> None:
        called = _dotted(node.func)
        name = called.rpartition(".")[2]
        if called in self._helpers:
            unit.calls.add(called)
        if called in ("pytest.skip", "pytest.xfail", "pytest.importorskip"):
            unit.marks.append(name)
        elif name in ("raises", "warns") and called.startswith("pytest."):
            unit.claims.append(self._claim("raises", ast.Tuple([*node.args, *(k.value for k in node.keywords)])))
        elif name == "parametrize" and len(node.args) > 1:
            values = self._constants.get(_dotted(node.args[1]), node.args[1])
            for value in _elements(values) or [values]:
                unit.claims.append(self._claim("parameter", value))
        elif name in ("example", "given") and called in (name, f"hypothesis.{name}"):
            unit.claims.append(self._claim(name, ast.Tuple([*node.args, *(k.value for k in node.keywords)])))
        elif name == "settings" and called in (name, f"hypothesis.{name}"):
            for keyword in node.keywords:
                if keyword.arg in COUNTS:
                    unit.claims.append(self._claim(keyword.arg, keyword.value))

    def _read_loop(self, values: ast.expr, unit: Unit) -> None:
        """Read what a test repeats itself over: the cases of a literal table, or how often."""
        if isinstance(values, ast.Call) and _dotted(values.func) == "range":
            unit.claims.append(self._claim(ROUNDS, values))
        for value in _elements(values):
            unit.claims.append(self._claim("case", value))

    def _claim(self, kind: str, node: ast.AST) -> Claim:
        return Claim(kind, tuple(self._tokens(node)), ast.unparse(ast.fix_missing_locations(node)), _line(node))

    def _tokens(self, node: ast.AST) -> Iterator[Token]:
        if isinstance(node, ast.Constant):
            yield (TEXT, node.value) if isinstance(node.value, str) else (VALUE, repr(node.value))
            return
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._modules:
            yield NODE, "Name"
            yield IDENTIFIER, node.attr
            return
        yield NODE, type(node).__name__
        for name, value in ast.iter_fields(node):
            if name in ("ctx", "type_comment", "kind", "type_params"):
                continue
            if isinstance(value, list):
                yield NODE, f"{len(value)}"
                for each in value:
                    yield from self._tokens(each) if isinstance(each, ast.AST) else [(IDENTIFIER, str(each))]
            elif isinstance(value, ast.AST):
                yield from self._tokens(value)
            elif isinstance(value, str):
                yield IDENTIFIER, value
            else:
                yield VALUE, repr(value)


def _imported_modules(tree: ast.Module) -> set[str]:
    """Return the names that look like imported modules: how a module is called is no part of a claim."""
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    local = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    local |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    return {(a.asname or a.name).partition(".")[0] for n in imports for a in n.names if a.name[:1].islower()} - local


def _helpers(tree: ast.Module) -> set[str]:
    """Return the names of the functions that the module defines or imports from other test modules."""
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("tests")]
    return own | {alias.asname or alias.name for node in imports for alias in node.names}


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _elements(node: ast.expr) -> list[ast.expr]:
    """Return the elements of a literal collection, a dictionary's as pairs."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [ast.Tuple([key, value]) if key is not None else value for key, value in pairs]
    return []


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _line(node: ast.AST) -> int:
    lines = [each.lineno for each in ast.walk(node) if isinstance(each, ast.expr) and hasattr(each, "lineno")]
    return min(lines, default=0)
