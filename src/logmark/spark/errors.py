"""Exceptions of sources, sinks and pipelines, and how they are found in the text that Spark makes of them.

Spark wraps an exception of a Python process into the traces of two languages: what is left of its class is the dotted
name. `find_exception` turns that name back into the class, so that everything else decides by classes.
"""

import importlib
import re
from enum import StrEnum

from logmark.client.errors import BrokerUnreachable, ClientError, CommitRefused, NoCoordinator, RefusedByBroker
from logmark.errors import ErrorCode, UserError

_NAMED = re.compile(r"^(logmark\.[\w.]*errors)\.(\w+): (.+)$", re.MULTILINE)


class FailureKind(StrEnum):
    """What a failure asks for: another try, an end, or room for the query that took over.

    UNKNOWN asks for another try too, but not for ever.
    """

    TRANSIENT = "transient"
    UNKNOWN = "unknown"
    PERMANENT = "permanent"
    SUPERSEDED = "superseded"


class Superseded(UserError):
    """Another query owns the group or the table now; this one has stopped and committed nothing since."""


class GroupInUse(UserError):
    """A running query owns the group that a new one would take over; nothing was read or committed."""

    def __init__(self, message: str, *, process: str = "", exit_code: int = 1) -> None:
        super().__init__(message, exit_code=exit_code)
        self.process = process


class NotSupervised(UserError):
    """No `logmark pipelines run` would take a command for this pipeline; nothing was changed."""


class LiveVersionReplaced(Superseded):
    """A replay is publishing the version that replaces the live one, which must not run any more."""


class LiveVersionBusy(UserError):
    """The process that runs the live version did not end its batch in time; the new version is kept."""


class RecordsLost(UserError):
    """Records were deleted before a query read them, and its options do not allow to skip them."""


class TableGone(UserError):
    """A query that has finished batches finds none of them in its table, and must not begin in the middle."""


class TableReplaced(UserError):
    """A table ends elsewhere than the query without state that writes it; the message names where to resume."""


class PermanentlyRefused(UserError):
    """A broker refuses a request for good: another try would get the same answer."""


class Contended(UserError):
    """Other writers were faster again and again; nothing was written, and another try may succeed."""


class BuildInterrupted(UserError):
    """A transient failure interrupted the build of a version; another try resumes it."""


class BuildFailed(UserError):
    """The build of a version failed and nobody knows why; another try may resume it."""


class VersionOutdated(UserError):
    """The version that is being built was begun with other code, and its state does not fit the code of now."""


class StateIncompatible(UserError):
    """The query was changed, and the state in its checkpoint does not fit it any more."""


class StateUnreadable(UserError):
    """A part of the checkpoint is missing or damaged, so the state cannot be read."""


class SettingRefused(UserError):
    """A setting of a pipeline cannot be set while Spark runs, or not at all."""


class CheckpointLost(UserError):
    """The checkpoint of a version is missing, and the version cannot run without it."""


class MissingRecordIds(UserError):
    """Rows for a topic have no id, so a replay cannot recognise which of them were sent before."""


class MissingOlderRecords(UserError):
    """A new version of a table would lack rows, because the logs no longer hold the records they were made of."""


class ReplayNeedsRebuild(UserError):
    """The table keeps the first row of each record, so reading again in place would change nothing."""


class ReplayHasNoEnd(UserError):
    """A replay that builds a new version cannot end before the log end."""


class UnfinishedReplay(UserError):
    """Another replay of the pipeline was started and is not finished."""


class PublicationStarted(UserError):
    """The replay has started to publish its version: it can only be resumed."""


# By the exact class: an unknown topic or an offset out of range is a refusal too, and stays one.
_TRANSIENT = frozenset(
    {BrokerUnreachable, NoCoordinator, RefusedByBroker, CommitRefused, Contended, BuildInterrupted}
)  # fmt: skip


def failure_kind(exception: type[BaseException]) -> FailureKind:
    """Return what an exception of this package asks for."""
    if issubclass(exception, Superseded):
        return FailureKind.SUPERSEDED
    if exception is BuildFailed:
        return FailureKind.UNKNOWN
    return FailureKind.TRANSIENT if exception in _TRANSIENT else FailureKind.PERMANENT


def is_transient(error: ClientError) -> bool:
    """Return whether the same call may succeed later: a broker is away, or a partition has no leader yet."""
    if isinstance(error, BrokerUnreachable):
        return True
    return isinstance(error, RefusedByBroker) and error.code.is_retriable and error.code != ErrorCode.CORRUPT_MESSAGE


def to_spark_error(error: ClientError) -> UserError:
    """Return the error as a class that says whether it is transient: an error code does not get through Spark."""
    return error if is_transient(error) else PermanentlyRefused(str(error), exit_code=error.exit_code)


def find_exception(failure: str) -> tuple[type[BaseException], str] | None:
    """Return the class and the message of the last exception of this package in the text of a failed query."""
    found = _NAMED.findall(failure)
    if not found:
        return None
    module, name, message = found[-1]
    try:
        exception = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        # An executor may have another version of this package; a class that nobody knows is no transient one.
        exception = UserError
    return exception, message


def find_message(failure: str) -> str | None:
    """Return the message of our own exception in the text of a failed query."""
    found = find_exception(failure)
    return found[1] if found is not None else None
