"""Whether a query that failed is started again, and when: pure decisions.

What passes by itself is tried again: a broker that is away, a worker that died, a full disk. What stays the same
however often it is tried ends the pipeline: a sentence of ours about an option, a topic, a right or a table, and an
exception in the pipeline's own code or expressions.
"""

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import logmark
from logmark.client.errors import ClientError
from logmark.spark.errors import named_in
from logmark.spark.source.range_reader import is_passing

FIRST_PAUSE_S = 1.0
PAUSE_S_MAX = 60.0
JITTER = 0.2
# A query is well again that has finished a batch since its last failure, if that is so long ago.
CALM_AFTER_S = 120.0

# Our exceptions that another try may mend; every other one stays as it is.
_PASSING = frozenset(
    {"BrokerUnreachable", "NoCoordinator", "RefusedByBroker", "CommitRefused", "Contended", "Interrupted"}
)
_SUPERSEDED = "Superseded"
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+), in (\S+)', re.MULTILINE)
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+): (.*)$", re.MULTILINE)
_RAISED_BARE = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w+)$", re.MULTILINE)  # an exception without a word
# Where packages and the standard library lie: a folder of a user's may be called pandas, or pyspark.
_NOT_OF_USERS = re.compile(
    r"/(?:site|dist)-packages/(?:pyspark|py4j|cloudpickle|pyarrow|pandas|logmark)/"
    r"|/[^/]*spark[^/]*/python/pyspark/|/pyspark\.zip/|/py4j-[^/]*\.zip/"
    r"|/lib(?:64)?/python3\.\d+t?/(?!(?:site|dist)-packages/)|^<frozen"
)
_OURS = Path(logmark.__file__).parent
# Exceptions in a pipeline's own code that another try may mend: memory and networks, as Python and its usual clients
# name them. The same record would raise any other one again.
_PASSING_IN_CODE = frozenset(
    {
        "MemoryError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError",
        "BrokenPipeError", "TimeoutError", "timeout", "gaierror", "herror", "URLError", "Timeout", "ConnectTimeout",
        "ReadTimeout", "ConnectError", "ReadError", "RemoteDisconnected", "IncompleteRead", "OutOfMemoryError",
    }
)  # fmt: skip
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
# A condition of Spark with its state in SQL: 21 to 23 are about data, 42 and 0A about what was asked for.
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (.+?) SQLSTATE: (\w{5})", re.DOTALL)
_CALLED = re.compile(r'^"[^"\n]+" was called from\n(.+):(\d+)$', re.MULTILINE)
_SQL = re.compile(r"^== SQL \(.*\) ==\n(.+)$", re.MULTILINE)
_OF_EXPRESSIONS = ("21", "22", "23", "42", "0A", "38000")
_REMEDY = (
    "Nothing of this batch was written or committed. Mend the code, or mark such rows in a column `error`, and start "
    "it again."
)
_QUERY_TEXT = "\n=== Streaming Query ==="


class Kind(StrEnum):
    """What a failure asks for."""

    PASSING = "passing"
    FINAL = "final"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a query ended: what is to be done about it, and a sentence for people, in two parts.

    Between the two there is room for the record on which the pipeline's own code has failed (`is_of_code`).
    """

    kind: Kind
    sentence: str
    remedy: str = ""
    is_of_code: bool = False

    def told(self, record: str = "") -> str:
        """The whole sentence, with what is known about the record."""
        return " ".join(part for part in (self.sentence, record, self.remedy) if part)


def judge(failure: str, *, folder: str | None = None) -> Failure:
    """What the text of a failed query means; `folder` is where the pipeline's file lies."""
    named = named_in(failure)
    if named is not None:
        name, sentence = named
        kind = Kind.SUPERSEDED if name == _SUPERSEDED else Kind.PASSING if name in _PASSING else Kind.FINAL
        return Failure(kind=kind, sentence=sentence)
    text = failure.partition(_QUERY_TEXT)[0]
    last = text[text.rfind(_TRACEBACK) :]
    frames = [frame for frame in _FRAME.findall(last) if _is_of_users(frame[0], folder)]
    if frames:
        file, line, function = frames[-1]
        return _of_code(_raised(last, file), file=file, line=line, function=function)
    conditions = [found for found in _CONDITION.findall(text) if found[2].startswith(_OF_EXPRESSIONS)]
    if conditions:
        name, said, _ = conditions[-1]
        return Failure(
            kind=Kind.FINAL,
            sentence=f"Spark refused what the pipeline asks for ({name}): {_one_line(said)}{_expression(text)}",
            remedy=_REMEDY,
            is_of_code=True,
        )
    return Failure(kind=Kind.PASSING, sentence=_gist(text))


def judge_raised(error: BaseException, *, folder: str | None = None) -> Failure:
    """What an exception means that came before there was a query, from the pipeline's own function or from Spark."""
    if isinstance(error, ClientError) and not is_passing(error):
        return Failure(kind=Kind.FINAL, sentence=str(error))
    name = type(error).__name__
    text = "".join(traceback.format_exception(error))
    named = named_in(text)
    if named is not None:
        return judge(text, folder=folder)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if _is_of_users(one.filename, folder)]
    if name == "AnalysisException" or (frames and name != "Py4JNetworkError"):
        said = _one_line(str(error).partition("\n\n")[0])
        if not frames:
            return Failure(kind=Kind.FINAL, sentence=f"Spark refused the query: {said} Nothing was read or written.")
        at = frames[-1]
        return _of_code(f"{name}: {said}", file=at.filename, line=str(at.lineno), function=at.name)
    return Failure(kind=Kind.PASSING, sentence=_gist(f"{name}: {error}"))


def _is_of_users(file: str, folder: str | None) -> bool:
    """Whether a frame is of the user's code, as all is below the folder of the pipeline's file but packages there."""
    inside = file[len(folder) :] if folder is not None and file.startswith(f"{folder}/") else file
    return not _NOT_OF_USERS.search(inside) and not _is_ours(inside)


def _is_ours(file: str) -> bool:
    """Whether a file is one of this package, wherever a machine of the cluster has unpacked it."""
    _, found, inside = f"/{file}".rpartition(f"/{_OURS.name}/")
    return bool(found) and inside.endswith(".py") and (_OURS / inside).is_file()


def _of_code(raised: str, *, file: str, line: str, function: str) -> Failure:
    if raised.partition(":")[0] in _PASSING_IN_CODE:
        return Failure(
            kind=Kind.PASSING,
            sentence=f"The pipeline's own code failed, which may pass: {raised} ({file}, line {line}, in {function}).",
        )
    return Failure(
        kind=Kind.FINAL,
        sentence=f"The pipeline's own code failed: {raised} ({file}, line {line}, in {function}).",
        remedy=_REMEDY,
        is_of_code=True,
    )


def _expression(text: str) -> str:
    """Where the expression stands that could not be computed, if Spark says so: a line of a file, or a text of SQL."""
    if found := _CALLED.search(text):
        return f" ({found[1]}, line {found[2]})"
    found = _SQL.search(text)
    return f" (in {_one_line(found[1], 120)})" if found else ""


def _raised(text: str, file: str) -> str:
    """The line that names the exception, which comes after the last frame."""
    after = text[text.rfind(f'"{file}"') :]
    behind = after.partition("\n")[2]
    found = _RAISED.search(behind)
    if found is None:
        bare = _RAISED_BARE.search(behind)
        return bare[1] if bare else "it raised an exception"
    return f"{found[1]}: {_one_line(found[2])}"


def _gist(text: str) -> str:
    """The line of a long text that says most: the innermost cause, the last exception in it, else its first line."""
    causes = _CAUSE.findall(text)
    if causes:
        name, said = causes[-1]
        return _one_line(f"{name}: {said}")
    lines = [line for line in text.splitlines() if line.strip()]
    if _TRACEBACK in text:
        raised = [line for line in text[text.rfind(_TRACEBACK) :].splitlines() if _RAISED.match(line)]
        lines = raised[-1:] or lines
    return _one_line(lines[0]) if lines else "Spark said nothing."


def _one_line(text: str, size_max: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= size_max else f"{line[: size_max - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How often a query was started again, and how long it waits the next time.

    `has_worked` says that a batch was finished since the last failure. Time alone says nothing: a try that only waits
    for a broker may take longer than any calm time.
    """

    count: int = 0
    in_a_row: int = 0
    failed_at_ms: int | None = None
    has_worked: bool = False

    def after_failure(self, now_ms: int) -> "Restarts":
        """One failure more; one that comes after a calm time is the first in a row."""
        return Restarts(
            count=self.count + 1, in_a_row=1 if self._is_calm(now_ms) else self.in_a_row + 1, failed_at_ms=now_ms
        )

    def after_batch(self) -> "Restarts":
        """The same after a batch that was finished."""
        return replace(self, has_worked=True)

    def working(self, now_ms: int) -> "Restarts":
        """The same after a look at a query that works."""
        return replace(self, in_a_row=0) if self.in_a_row and self._is_calm(now_ms) else self

    def _is_calm(self, now_ms: int) -> bool:
        return self.has_worked and self.failed_at_ms is not None and now_ms - self.failed_at_ms >= CALM_AFTER_S * 1000

    def pause_s(self, random: Callable[[], float]) -> float:
        """How long to wait: a second at first, twice as long each time, a minute at most, a little more or less."""
        pause_s: float = min(FIRST_PAUSE_S * 2 ** min(max(self.in_a_row - 1, 0), 30), PAUSE_S_MAX)
        return pause_s * (1 + JITTER * (2 * random() - 1))
