"""What the parts of a partition's log share: its identity, its offsets, and the state machine of its status.

Every field of `LogState` has one writer:

    settings                        `Partition.configure`
    segments                        a container that stays the same; `Appender` adds to it, `SegmentDeleter` removes
                                    from it and `LogToClean` replaces in it
    log_end_offset, producers       `Appender`
    has_aborted                     `Appender`
    high_watermark                  `HighWatermark`
    log_start_offset, epochs        `SegmentDeleter`
    status, failure                 the methods `fail`, `mark_suspect`, `resume` and `close` below
    change_listeners                waiting fetches, through `Partition.change_listeners`

Beside these, `Partition.create` and `Partition.load` set the offsets, producers and segments of a log as a whole. Only
the event loop writes the state; the thread that loads a log for a recovery reads its folder and its epochs.
"""

import enum
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from logmark.errors import LogFailed
from logmark.log import disk_full
from logmark.log.leader_epochs import Epochs
from logmark.log.producers import Producers
from logmark.log.segments import Segments
from logmark.log.settings import TopicSettings
from logmark.log.wal.entries import partition_key

logger = logging.getLogger(__name__)


class LogStatus(enum.Enum):
    """What a partition's log can do now."""

    # It takes and serves records.
    OPEN = "open"
    # The disk failed a write or was full: the log serves what is durable and takes no records.
    STOPPED = "stopped"
    # The disk failed a flush: the segments may also lack acknowledged records, which only the WAL has for certain.
    SUSPECT = "suspect"
    # The partition was closed or deleted.
    CLOSED = "closed"


TRANSITIONS: Mapping[LogStatus, frozenset[LogStatus]] = {
    LogStatus.OPEN: frozenset({LogStatus.STOPPED, LogStatus.CLOSED}),
    LogStatus.STOPPED: frozenset({LogStatus.SUSPECT, LogStatus.OPEN, LogStatus.CLOSED}),
    LogStatus.SUSPECT: frozenset({LogStatus.OPEN, LogStatus.CLOSED}),
    LogStatus.CLOSED: frozenset(),
}


class StopListener(Protocol):
    """Hears of the moment in which a log stops taking records."""

    def __call__(self, failure: LogFailed, error: BaseException | None) -> None:
        """Fail everything that waits for the log; `error` is the disk's, or None when the log was closed."""


class LogState:
    """The state of one partition's log."""

    __slots__ = (
        "_on_stop", "change_listeners", "epochs", "failure", "folder", "has_aborted", "high_watermark", "index", "key",
        "log_end_offset", "log_start_offset", "name", "producers", "segments", "settings", "shown_bytes", "status",
        "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        folder: str,
        topic: str,
        index: int,
        topic_id: bytes,
        settings: TopicSettings,
        *,
        on_stop: StopListener,
    ) -> None:
        self.folder = folder
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.name = f"{topic}-{index}"
        self.key = partition_key(topic_id, index)
        self.settings = settings
        self.segments = Segments()
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        # Bytes that became visible since the log was opened: waiting fetches count them.
        self.shown_bytes = 0
        self.epochs = Epochs(0)
        self.producers = Producers()
        # Whether any segment may have a transaction index.
        self.has_aborted = False
        self.status = LogStatus.OPEN
        # Why the log takes no records; None exactly while it is open.
        self.failure: LogFailed | None = None
        self.change_listeners: set[Callable[[], None]] = set()
        self._on_stop = on_stop

    def load(self, log_start_offset: int, log_end_offset: int) -> None:
        """Set all offsets to those of a log whose records are all durable."""
        self.log_start_offset = log_start_offset
        self.log_end_offset = self.high_watermark = log_end_offset
        self.epochs = Epochs(log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the high watermark if none is open below it."""
        first = self.producers.undecided.first_offset
        if first is None or first >= self.high_watermark:
            return self.high_watermark
        return max(first, self.log_start_offset)

    def notify_change_listeners(self) -> None:
        """Call everybody who waits for a change: more visible records, another log start, a failure or the end."""
        for listener in tuple(self.change_listeners):
            listener()

    # Status

    @property
    def is_closed(self) -> bool:
        return self.status is LogStatus.CLOSED

    def fail(self, error: Exception) -> LogFailed:
        """Stop the log because the disk failed it, and return the failure; a log that is not open stays as it is.

        After a failed sync the kernel may have dropped the pages, and report the next sync as successful.
        """
        failure = disk_full.describe_failed_log(self.name, error)
        if self.status is LogStatus.OPEN:
            if not disk_full.is_reported(error):
                logger.error("%s", failure)
            self._change_status(LogStatus.STOPPED)
            self.failure = failure
            self._on_stop(failure, error)
        return failure

    def mark_suspect(self) -> None:
        """Mark the segments of a stopped log as possibly incomplete: a flush of acknowledged records failed."""
        if self.status is LogStatus.STOPPED:
            self._change_status(LogStatus.SUSPECT)

    def resume(self) -> None:
        """Take records again, after a recovery."""
        self._change_status(LogStatus.OPEN)
        self.failure = None

    def close(self) -> None:
        """Take no more records, for good."""
        if self.is_closed:
            return
        self._change_status(LogStatus.CLOSED)
        if self.failure is None:
            self.failure = LogFailed(f"The log of {self.name} is closed.")
            self._on_stop(self.failure, None)
        # It knows the partition, which knows this state.
        del self._on_stop

    def _change_status(self, status: LogStatus) -> None:
        if status not in TRANSITIONS[self.status]:
            raise AssertionError(f"the log of {self.name} is {self.status.value} and cannot become {status.value}")
        self.status = status
