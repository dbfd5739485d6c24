"""Why a query failed, and whether another try may succeed: decided by the text of a failed query, or an exception.

Transient failures are tried again: a broker is away, a worker died, a disk is full. Permanent failures end the
pipeline: an error of ours about an option, a topic, a right or a table, and an exception in the pipeline's own code or
expressions. Which failures of Spark and Python are which is a table: `failure_classes.py`.
"""

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

import logmark
from logmark.client.errors import ClientError
from logmark.errors import UserError
from logmark.spark.errors import FailureKind, failure_kind, find_exception, is_transient
from logmark.spark.pipelines.failure_classes import (
    FailureClass,
    Origin,
    find_condition_class,
    find_exception_class,
    find_text_class,
)

_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+), in (\S+)', re.MULTILINE)
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+): (.*)$", re.MULTILINE)
_RAISED_BARE = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w+)$", re.MULTILINE)  # an exception without a message
# Where packages and the standard library lie: a folder of a user's may be called pandas, or pyspark.
_NOT_OF_USERS = re.compile(
    r"/(?:site|dist)-packages/(?:pyspark|py4j|cloudpickle|pyarrow|pandas|logmark)/"
    r"|/[^/]*spark[^/]*/python/pyspark/|/pyspark\.zip/|/py4j-[^/]*\.zip/"
    r"|/lib(?:64)?/python3\.\d+t?/(?!(?:site|dist)-packages/)|^<frozen"
)
_OURS = Path(logmark.__file__).parent
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ")
_SQL_STATE = re.compile(r" SQLSTATE: (\w{5})")
_CALLED = re.compile(r'^"[^"\n]+" was called from\n(.+):(\d+)$', re.MULTILINE)
_SQL = re.compile(r"^== SQL \(.*\) ==\n(.+)$", re.MULTILINE)
_REMEDY = (
    "Nothing of this batch was written or committed. Fix the code, or mark such rows in a column `error`, and start "
    "it again."
)
_KEPT = "Nothing of this batch was written or committed."
_STREAM_FAILED = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ", re.DOTALL)
_QUERY_TEXT = "\n=== Streaming Query ==="


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a query ended and what it asks for: a message and a remedy for people.

    `describe` puts the record between the two on which the pipeline's own code failed (`is_of_code`).
    """

    kind: FailureKind
    message: str
    remedy: str = ""
    is_of_code: bool = False
    # The class of an exception of this package, by which the command line knows a remedy.
    exception: type[BaseException] | None = None

    def describe(self, record: str = "") -> str:
        """Return message, record and remedy in one line."""
        return " ".join(part for part in (self.message, record, self.remedy) if part)


def classify_failure(failure: str, *, folder: str | None = None) -> Failure:
    """Return what the text of a failed query means; `folder` is that of the pipeline's file."""
    found = find_exception(failure)
    if found is not None:
        exception, message = found
        return Failure(kind=failure_kind(exception), message=message, exception=exception)
    text = failure.partition(_QUERY_TEXT)[0]
    last = text[text.rfind(_TRACEBACK) :]
    frames = [frame for frame in _FRAME.findall(last) if _is_of_users(frame[0], folder)]
    if frames:
        file, line, function = frames[-1]
        return _code_failure(_raised(last, file), file=file, line=line, function=function)
    return _classify_text(text)


def classify_exception(error: BaseException, *, folder: str | None = None) -> Failure:
    """Return what an exception means that came before there was a query, from the user's function or from Spark."""
    if isinstance(error, ClientError) and not is_transient(error):
        return Failure(kind=FailureKind.PERMANENT, message=str(error), exception=type(error))
    if isinstance(error, UserError):
        return Failure(kind=failure_kind(type(error)), message=str(error), exception=type(error))
    text = "".join(traceback.format_exception(error))
    if find_exception(text) is not None:
        return classify_failure(text, folder=folder)
    # Only here: pipelines are declared and described without Spark.
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException

    name = type(error).__name__
    frames = [one for one in traceback.extract_tb(error.__traceback__) if _is_of_users(one.filename, folder)]
    if isinstance(error, AnalysisException) or (frames and not isinstance(error, Py4JNetworkError)):
        message = _one_line(str(error).partition("\n\n")[0])
        if not frames:
            refused = f"Spark refused the query: {message} Nothing was read or written."
            return Failure(kind=FailureKind.PERMANENT, message=refused)
        at = frames[-1]
        return _code_failure(f"{name}: {message}", file=at.filename, line=str(at.lineno), function=at.name)
    return _classify_text(text, summary=_summarize(f"{name}: {error}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """An error condition of Spark, as a text has it."""

    name: str
    message: str
    sql_state: str


def _find_conditions(text: str) -> list[_Condition]:
    """Return the conditions that a text names, in order; one may contain the next."""
    starts = list(_CONDITION.finditer(text))
    found = []
    for number, start in enumerate(starts):
        stop = starts[number + 1].start() if number + 1 < len(starts) else len(text)
        state = _SQL_STATE.search(text, start.end(), stop)
        message = text[start.end() : state.start() if state else stop].partition("\n\n")[0]
        found.append(_Condition(name=start[1], message=message, sql_state=state[1] if state else ""))
    return found


def _classify_text(text: str, *, summary: str | None = None) -> Failure:
    """Return what the table says of a text; unknown if no row of it fits."""
    for condition in reversed(_find_conditions(text)):
        row = find_condition_class(condition.name, condition.sql_state)
        if row is not None and row.kind is not FailureKind.UNKNOWN:
            return _condition_failure(condition, row, text)
    summary = summary or _summarize(text)
    python = _last_raised(text)
    row = (
        (find_exception_class(python, Origin.PYTHON) if python else None)
        or find_text_class(text)
        or next((found for name, _ in reversed(_CAUSE.findall(text)) if (found := _find_java_class(name))), None)
    )
    if row is None or (row.kind is FailureKind.PERMANENT and _is_raised_by_us(text)):
        return Failure(kind=FailureKind.UNKNOWN, message=summary)
    if row.kind is FailureKind.TRANSIENT:
        return Failure(kind=row.kind, message=summary)
    return Failure(kind=row.kind, message=f"{summary} {row.meaning} {_KEPT}", exception=row.exception)


def _condition_failure(condition: _Condition, row: FailureClass, text: str) -> Failure:
    message = _one_line(condition.message)
    if row.kind is FailureKind.TRANSIENT:
        return Failure(kind=row.kind, message=f"{condition.name}: {message}")
    if row.is_of_data:
        refused = f"Spark refused what the pipeline asks for ({condition.name}): {message}{_expression(text)}"
        return Failure(kind=row.kind, message=refused, remedy=_REMEDY, is_of_code=True)
    return Failure(
        kind=row.kind,
        message=f"{row.meaning} Spark says ({condition.name}): {message} {_KEPT}",
        exception=row.exception,
    )


def _find_java_class(name: str) -> FailureClass | None:
    return find_exception_class(name.rpartition("$")[2], Origin.JAVA)


def _last_raised(text: str) -> str:
    """Return the name of the exception of the last traceback of Python, empty if there is none."""
    start = text.rfind(_TRACEBACK)
    if start < 0:
        return ""
    frames = list(_FRAME.finditer(text, start))
    behind = text[frames[-1].end() if frames else start :]
    found = _RAISED.search(behind)
    bare = _RAISED_BARE.search(behind) if found is None else None
    return found[1] if found else bare[1] if bare else ""


def _is_raised_by_us(text: str) -> bool:
    """Return whether the last frame of the last traceback is one of this package, which fits Spark."""
    frames = _FRAME.findall(text, max(text.rfind(_TRACEBACK), 0))
    return bool(frames) and _is_ours(frames[-1][0])


def _is_of_users(file: str, folder: str | None) -> bool:
    """Return whether a frame is in the user's code: all of the pipeline's folder is, except installed packages."""
    inside = file[len(folder) :] if folder is not None and file.startswith(f"{folder}/") else file
    return not _NOT_OF_USERS.search(inside) and not _is_ours(inside)


def _is_ours(file: str) -> bool:
    """Return whether a file is part of this package, wherever a machine of the cluster has unpacked it."""
    _, found, inside = f"/{file}".rpartition(f"/{_OURS.name}/")
    return bool(found) and inside.endswith(".py") and (_OURS / inside).is_file()


def _code_failure(raised: str, *, file: str, line: str, function: str) -> Failure:
    row = find_exception_class(raised.partition(":")[0], Origin.PYTHON)
    if row is not None and row.kind is FailureKind.TRANSIENT:
        return Failure(
            kind=FailureKind.TRANSIENT,
            message=f"The pipeline's own code failed, and another try may succeed: {raised} ({file}, line {line}, in "
            f"{function}).",
        )
    return Failure(
        kind=FailureKind.PERMANENT,
        message=f"The pipeline's own code failed: {raised} ({file}, line {line}, in {function}).",
        remedy=_REMEDY,
        is_of_code=True,
    )


def _expression(text: str) -> str:
    """Return where the failed expression is, if Spark says so: a line of a file, or a text of SQL."""
    if found := _CALLED.search(text):
        return f" ({found[1]}, line {found[2]})"
    found = _SQL.search(text)
    return f" (in {_one_line(found[1], 120)})" if found else ""


def _raised(text: str, file: str) -> str:
    """Return the line that names the exception, which comes after the last frame."""
    after = text[text.rfind(f'"{file}"') :]
    behind = after.partition("\n")[2]
    found = _RAISED.search(behind)
    if found is None:
        bare = _RAISED_BARE.search(behind)
        return bare[1] if bare else "it raised an exception"
    return f"{found[1]}: {_one_line(found[2])}"


def _summarize(text: str) -> str:
    """Return the line of a long text that says most: the innermost cause, the last exception, else the first line."""
    text = _STREAM_FAILED.sub("", text.strip())
    causes = _CAUSE.findall(text)
    if causes:
        name, message = causes[-1]
        return _one_line(f"{name}: {message}")
    lines = [line for line in text.splitlines() if line.strip()]
    if _TRACEBACK in text:
        raised = [line for line in text[text.rfind(_TRACEBACK) :].splitlines() if _RAISED.match(line)]
        lines = raised[-1:] or lines
    return _one_line(lines[0]) if lines else "Spark said nothing."


def _one_line(text: str, size_max: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= size_max else f"{line[: size_max - 1]}…"
