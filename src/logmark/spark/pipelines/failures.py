"""Why a query failed, and whether another try may succeed: decided by the text of a failed query, or an exception.

Transient failures are tried again: a broker is away, a worker died, a disk is full. Permanent failures end the
pipeline: an error of ours about an option, a topic, a right or a table, and an exception in the pipeline's own code or
expressions.
"""

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

import logmark
from logmark.client.errors import ClientError
from logmark.errors import UserError
from logmark.spark.errors import FailureKind, failure_kind, find_exception, is_transient

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
# Transient exceptions in a pipeline's own code: memory and networks, as Python and the usual clients name them. By
# name, because of an executor's exception only the text is left. The same record would raise any other one again.
_TRANSIENT_IN_CODE = frozenset(
    {
        "MemoryError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError",
        "BrokenPipeError", "TimeoutError", "timeout", "gaierror", "herror", "URLError", "Timeout", "ConnectTimeout",
        "ReadTimeout", "ConnectError", "ReadError", "RemoteDisconnected", "IncompleteRead", "OutOfMemoryError",
    }
)  # fmt: skip
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
# A condition of Spark with its state in SQL: 21 to 23 are about data, 42 and 0A about what was asked for.
# One may hold another, as STREAM_FAILED holds why: the inner one is meant.
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ((?:(?!\[[A-Z][A-Z0-9_.]+\] ).)+?) SQLSTATE: (\w{5})", re.DOTALL)
_CALLED = re.compile(r'^"[^"\n]+" was called from\n(.+):(\d+)$', re.MULTILINE)
_SQL = re.compile(r"^== SQL \(.*\) ==\n(.+)$", re.MULTILINE)
_OF_EXPRESSIONS = ("21", "22", "23", "42", "0A", "38000")
_REMEDY = (
    "Nothing of this batch was written or committed. Fix the code, or mark such rows in a column `error`, and start "
    "it again."
)
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
    conditions = [found for found in _CONDITION.findall(text) if found[2].startswith(_OF_EXPRESSIONS)]
    if conditions:
        name, message, _ = conditions[-1]
        return Failure(
            kind=FailureKind.PERMANENT,
            message=f"Spark refused what the pipeline asks for ({name}): {_one_line(message)}{_expression(text)}",
            remedy=_REMEDY,
            is_of_code=True,
        )
    return Failure(kind=FailureKind.TRANSIENT, message=_summarize(text))


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
    return Failure(kind=FailureKind.TRANSIENT, message=_summarize(f"{name}: {error}"))


def _is_of_users(file: str, folder: str | None) -> bool:
    """Return whether a frame is in the user's code: all of the pipeline's folder is, except installed packages."""
    inside = file[len(folder) :] if folder is not None and file.startswith(f"{folder}/") else file
    return not _NOT_OF_USERS.search(inside) and not _is_ours(inside)


def _is_ours(file: str) -> bool:
    """Return whether a file is part of this package, wherever a machine of the cluster has unpacked it."""
    _, found, inside = f"/{file}".rpartition(f"/{_OURS.name}/")
    return bool(found) and inside.endswith(".py") and (_OURS / inside).is_file()


def _code_failure(raised: str, *, file: str, line: str, function: str) -> Failure:
    if raised.partition(":")[0] in _TRANSIENT_IN_CODE:
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
