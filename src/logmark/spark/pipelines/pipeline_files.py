"""Pipeline files: plain Python files, which declare every `Pipeline` at their top level."""

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
from logmark.spark.pipelines.declaration import PipelineDeclaration, Table
from logmark.spark.pipelines.declaration_folder import INSTALLED

_NO_SPARK = "SESSION_OR_CONTEXT_NOT_EXISTS"
_NOT_OWN = frozenset({"__main__", "logmark", "pyspark", "pyspark_logmark", "pyspark_logmark_delta"})


@dataclass(frozen=True, slots=True)
class LoadedPipeline:
    """A pipeline and the file that declares it."""

    pipeline: PipelineDeclaration
    file: Path


class NeedsSpark(UserError):
    """A file uses Spark while it is loaded, as a decorated function does, and no session is running."""


def load_with_spark(
    spark: Callable[[], object], files: Sequence[str | Path], *, only: Sequence[str] = ()
) -> list[LoadedPipeline]:
    """Load pipelines as `load_pipelines` does; Spark is started first only if a file cannot be loaded without it."""
    try:
        return load_pipelines(files, only=only)
    except NeedsSpark:
        spark()
        return load_pipelines(files, only=only)


def load_pipelines(files: Sequence[str | Path], *, only: Sequence[str] = ()) -> list[LoadedPipeline]:
    """Return the pipelines of these files, or those of the given names.

    Raises UserError if a file cannot be loaded, or if pipelines cannot run together.
    """
    found: list[LoadedPipeline] = []
    for name in files:
        file = Path(name).absolute()
        declared = _declared(_module(file))
        if not declared:
            raise UserError(
                f"{file} declares no pipeline: it has no `Pipeline(...)` at its top level. Nothing was run.",
                exit_code=2,
            )
        # A file may import the pipelines of another one.
        found += [LoadedPipeline(one, file) for one in declared if all(one is not other.pipeline for other in found)]
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


def reload_pipeline(file: str | Path, name: str) -> PipelineDeclaration:
    """Return the pipeline as its file declares it now; the modules beside the file are loaded again too.

    Raises UserError if the file cannot be loaded; the modules that are loaded stay then.
    """
    before = {module.__name__: module for module in own_modules([file])}
    for module in before:
        sys.modules.pop(module, None)
    importlib.invalidate_caches()
    try:
        [loaded] = load_pipelines([file], only=[name])
    except BaseException:
        sys.modules.update(before)
        raise
    ship_by_value(own_modules([file]))
    return loaded.pipeline


def ship_by_value(modules: Iterable[ModuleType]) -> None:
    """Send functions of these modules to Spark's workers with their code, so that nobody has to install them there."""
    # Only here: pipelines are loaded and described without Spark.
    from pyspark import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def ship_pipelines(pipelines: Iterable[PipelineDeclaration]) -> None:
    """Send functions of the files that declare these pipelines, and of the modules beside them, with their code."""
    modules = (sys.modules.get(one.transform.__module__) for one in pipelines)
    files = [module.__file__ for module in modules if module is not None and getattr(module, "__file__", None)]
    ship_by_value(own_modules([file for file in files if file is not None]))


def own_modules(files: Sequence[str | Path]) -> list[ModuleType]:
    """Return the modules of these files, and those that they imported from their own folders."""
    roots = [Path(folder) for folder in import_folders(files)]
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and name.partition(".")[0] not in _NOT_OWN and _is_below(module, roots)
    ]


def import_folders(files: Sequence[str | Path]) -> list[str]:
    """Return the folders from which these files import their own modules."""
    return list(dict.fromkeys([*(str(_root(Path(file).absolute())[0]) for file in files), str(Path.cwd())]))


def _is_below(module: ModuleType, roots: Iterable[Path]) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or any(part in INSTALLED for part in Path(file).parts):
        return False
    is_of_python = Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])
    return not is_of_python and any(Path(file).is_relative_to(root) for root in roots)


def _module(file: Path) -> ModuleType:
    """Return the file as a module: of its package if it lies in one, as `python -m` would have it."""
    if not file.is_file():
        raise UserError(f"There is no file {file}. Nothing was run.", exit_code=2)
    _, name = _root(file)
    for path in import_folders([file]):
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
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the file is the user's program
        kind = NeedsSpark if _NO_SPARK in str(error) else UserError
        raise kind(_describe_error(error, file), exit_code=2) from None


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
    """Return the folder above all packages of the file, and the name of its module from there."""
    folder, parts = file.parent, [file.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _describe_error(error: BaseException, file: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    here = [one for one in frames if Path(one.filename) == file] or frames[-1:]
    last = frames[-1]
    inside = f", in {last.filename}, line {last.lineno}" if last.filename != here[-1].filename else ""
    if isinstance(error, SystemExit):
        return (
            f"{file}, line {here[-1].lineno}: it exits while it is loaded. Nothing was run. Call main() "
            'only below `if __name__ == "__main__":`.'
        )
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{file}, line {here[-1].lineno}: {said}{inside} Nothing was run."


def _declared(module: ModuleType) -> list[PipelineDeclaration]:
    found: list[PipelineDeclaration] = []
    for value in vars(module).values():
        if isinstance(value, PipelineDeclaration) and all(value is not other for other in found):
            found.append(value)
    return found


def _check(found: Sequence[LoadedPipeline]) -> None:
    """Raise UserError if two pipelines have the same name, group or table: they would share their state."""
    for what, key in (
        ("name", lambda one: one.name),
        ("group", lambda one: one.group),
        ("table", lambda one: str(Path(one.sink.path).resolve()) if isinstance(one.sink, Table) else None),
    ):
        seen: dict[str, LoadedPipeline] = {}
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
