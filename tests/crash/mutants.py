"""The code with one of its syncs taken out: what the crash tests must notice."""

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import logmark.log
from logmark.disk.file_system import Bytes, FileSystem

FOLDER = Path(logmark.log.__path__[0])
ATOMIC = "write_atomically"
SYNCS = ("sync", "sync_log", "sync_file", "sync_directory", "sync_indexes", "sync_aborted", ATOMIC)
# What a person runs while the broker stands still, and compaction, whose swap has crash tests of its own.
TOOLS, COMPACTION = ("repair",), ("segment_cleaner", "segment_swap", "log_to_clean")

# Syncs that no crash of these scripts can miss, each for a reason.
ELSEWHERE = {
    "Loader._make_durable: segment.file.sync": "it is for directories of durability=os, which these scripts never make",
    "_PartitionReplay.run: self._files.sync_directory": "opening a partition syncs its folder too; not all are opened",
    "WalFile._fill": "the model's sync covers a whole file; a write past the page cache syncs only what it wrote",
    "WalFile.write": "only entries that are saved aside are written so: tests/log/test_failed_flush.py",
}


@dataclass(frozen=True, slots=True)
class SyncSite:
    """One expression in the code that asks for a sync."""

    module: str
    function: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}.py, {self.function}: {self.text}"


def sync_sites() -> list[SyncSite]:
    """Every sync that the log asks for, by itself or as part of an atomic write."""
    found = []
    for path in sorted(path for path in FOLDER.rglob("*.py") if path.stem not in TOOLS):
        module = ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        for function, node in _attributes(ast.parse(path.read_text()), ""):
            if module in COMPACTION or function in COMPACTION:
                continue
            site = (module, function, node.lineno, node.col_offset, ast.unparse(node))
            if function in ELSEWHERE or f"{function}: {site[-1]}" in ELSEWHERE:
                continue
            if node.attr in SYNCS and isinstance(node.ctx, ast.Load):
                found.append(SyncSite(*site))
    return found


def _attributes(tree: ast.AST, inside: str) -> Iterator[tuple[str, ast.Attribute]]:
    """Every attribute in a tree that is used, with the function in which it stands."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Compare):
            continue
        name = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{node.name}".lstrip(".")
        if isinstance(node, ast.Attribute):
            yield inside, node
        yield from _attributes(node, name)


@contextmanager
def without(site: SyncSite) -> Iterator[None]:
    """Runs the code as if that sync were not there."""
    module = importlib.import_module(f"logmark.log.{site.module}")
    tree = _Removal(site).visit(ast.parse(inspect.getsource(module)))
    mutated = compile(ast.fix_missing_locations(tree), module.__file__, "exec")
    function = _function(module, site.function)
    original = function.__code__
    vars(module).update(_removed_sync=_no_sync, _unsynced_write=_unsynced_write)
    function.__code__ = _code_of(mutated, original.co_qualname)
    try:
        yield
    finally:
        function.__code__ = original


class _Removal(ast.NodeTransformer):
    def __init__(self, site: SyncSite) -> None:
        self._site = site

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        site = self._site
        if (node.lineno, node.col_offset, ast.unparse(node)) != (site.line, site.column, site.text):
            return node
        if node.attr != ATOMIC:
            return ast.Name("_removed_sync", ast.Load())
        return ast.Call(ast.Name("_unsynced_write", ast.Load()), [node.value], [])


def _no_sync(*_: object) -> None:
    pass


def _unsynced_write(files: FileSystem) -> Callable[[str, Bytes], None]:
    def write(path: str, data: Bytes) -> None:
        files.write(path + ".tmp", data, sync=False)
        files.replace(path + ".tmp", path)

    return write


def _function(module: ModuleType, name: str) -> FunctionType:
    """The outermost function or method in which a name lies; what is inside it comes with it."""
    found: object = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
        found = getattr(found, "__func__", None) or getattr(found, "fget", None) or found
        if isinstance(found, FunctionType):
            return found
    raise LookupError(name)


def _code_of(code: CodeType, qualified_name: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == qualified_name:
                return constant
            if qualified_name.startswith(constant.co_qualname + "."):
                return _code_of(constant, qualified_name)
    raise LookupError(qualified_name)
