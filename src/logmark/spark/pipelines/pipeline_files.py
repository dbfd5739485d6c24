"""Pipeline files: plain Python, in which every `Pipeline` at the top level counts."""

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from logmark.errors import UserError
from logmark.offsets.suggestions import did_you_mean
from logmark.spark.pipelines.declaration_folder import INSTALLED
from logmark.spark.pipelines.pipeline import Pipeline, Table

_NO_SPARK = "SESSION_OR_CONTEXT_NOT_EXISTS"
_NOT_OWN = frozenset({"__main__", "logmark", "pyspark", "pyspark_logmark", "pyspark_logmark_delta"})


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pipeline and the file that declares it."""

    pipeline: Pipeline
    file: Path


class NeedsSpark(UserError):
    """A file uses Spark while it is loaded, as one with a decorated function does, and there is none yet."""


def load_with(spark: Callable[[], object], files: Sequence[str | Path], *, only: Sequence[str] = ()) -> list[Loaded]:
    """The same as `load`; Spark is started first if, and only if, a file cannot be loaded without it."""
    try:
        return load(files, only=only)
    except NeedsSpark:
        spark()
        return load(files, only=only)


def load(files: Sequence[str | Path], *, only: Sequence[str] = ()) -> list[Loaded]:
    """The pipelines of these files, or those of the given names; raises a sentence for what cannot be run together."""
    found: list[Loaded] = []
    for name in files:
        file = Path(name).absolute()
        declared = _declared(_module(file))
        if not declared:
            raise UserError(
                f"{file} declares no pipeline: it has no `Pipeline(...)` at its top level. Nothing was run.",
                exit_code=2,
            )
        # A file may import the pipelines of another one.
        found += [Loaded(one, file) for one in declared if all(one is not other.pipeline for other in found)]
    _check(found)
    names = [one.pipeline.name for one in found]
    for name in only:
        if name not in names:
            raise UserError(
                f"There is no pipeline {name} in {_listed(files)}.{did_you_mean(name, names)} Nothing was run. They "
                f"declare {', '.join(names)}.",
                exit_code=2,
            )
    return [one for one in found if not only or one.pipeline.name in only]


def load_again(file: str | Path, name: str) -> Pipeline:
    """The pipeline as its file declares it now, with whatever the file imports from beside it."""
    for module in own_modules([file]):
        sys.modules.pop(module.__name__, None)
    importlib.invalidate_caches()
    [loaded] = load([file], only=[name])
    ship_by_value(own_modules([file]))
    return loaded.pipeline


def ship_by_value(modules: Iterable[ModuleType]) -> None:
    """Functions of these modules travel to Spark's workers with their code, so that nobody has to install them."""
    from pyspark import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def own_modules(files: Sequence[str | Path]) -> list[ModuleType]:
    """What was loaded from beside these files: the files themselves, and what they import from their folders."""
    roots = [Path(folder) for folder in folders_of(files)]
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and name.partition(".")[0] not in _NOT_OWN and _is_below(module, roots)
    ]


def folders_of(files: Sequence[str | Path]) -> list[str]:
    """From where these files import what lies beside them."""
    return list(dict.fromkeys([*(str(_root(Path(file).absolute())[0]) for file in files), str(Path.cwd())]))


def _is_below(module: ModuleType, roots: Iterable[Path]) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or any(part in INSTALLED for part in Path(file).parts):
        return False
    is_of_python = Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])
    return not is_of_python and any(Path(file).is_relative_to(root) for root in roots)


def _module(file: Path) -> ModuleType:
    """The file as a module: of its package if it lies in one, as `python -m` would have it."""
    if not file.is_file():
        raise UserError(f"There is no file {file}. Nothing was run.", exit_code=2)
    _, name = _root(file)
    for path in folders_of([file]):
        if path not in sys.path:
            sys.path.append(path)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    if known is not None or (name in sys.stdlib_module_names):
        # The name is taken, by a library or by a file of the same name in another folder.
        name = f"{name}_{sha256(str(file).encode()).hexdigest()[:8]}"
    try:
        return _executed(file, name)
    except UserError as error:
        raise UserError(f"{file}: {error}", exit_code=2) from None
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}"
        raise UserError(f"{where}: {error.msg}: {(error.text or '').strip()} Nothing was run.", exit_code=2) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's program
        kind = NeedsSpark if _NO_SPARK in str(error) else UserError
        raise kind(_told(error, file), exit_code=2) from None


def _executed(file: Path, name: str) -> ModuleType:
    if "." in name:
        importlib.import_module(name.rpartition(".")[0])
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError("it is no Python file: its name must end in .py. Nothing was run.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _root(file: Path) -> tuple[Path, str]:
    """The folder from which the file is imported, and its name from there: above all its packages."""
    folder, parts = file.parent, [file.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _told(error: BaseException, file: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    here = [one for one in frames if Path(one.filename) == file] or frames[-1:]
    last = frames[-1]
    inside = f", in {last.filename}, line {last.lineno}" if last.filename != here[-1].filename else ""
    if isinstance(error, SystemExit):
        return (
            f"{file}, line {here[-1].lineno}: it ends the process while it is loaded. Nothing was run. Call main() "
            'only below `if __name__ == "__main__":`.'
        )
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{file}, line {here[-1].lineno}: {said}{inside} Nothing was run."


def _declared(module: ModuleType) -> list[Pipeline]:
    found: list[Pipeline] = []
    for value in vars(module).values():
        if isinstance(value, Pipeline) and all(value is not other for other in found):
            found.append(value)
    return found


def _check(found: Sequence[Loaded]) -> None:
    """Two pipelines of one name would share a checkpoint, of one group a position, of one table their rows."""
    for what, key in (
        ("name", lambda one: one.name),
        ("group", lambda one: one.group),
        ("table", lambda one: str(Path(one.sink.path).resolve()) if isinstance(one.sink, Table) else None),
    ):
        seen: dict[str, Loaded] = {}
        for one in found:
            mark = key(one.pipeline)
            if mark is not None and mark in seen:
                other = seen[mark]
                names = one.pipeline.name if what == "name" else f"{other.pipeline.name} and {one.pipeline.name}"
                files = f"{one.file}" if one.file == other.file else f"{other.file} and {one.file}"
                raise UserError(
                    f"Two pipelines have the {what} {mark} ({names} in {files}), and would disturb each other. Nothing "
                    f"was run. Give each a {what} of its own.",
                    exit_code=2,
                )
            if mark is not None:
                seen[mark] = one


def _listed(files: Sequence[str | Path]) -> str:
    return " or ".join(str(file) for file in files)
