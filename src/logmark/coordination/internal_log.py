"""The log of one internal partition as its coordinator sees it: batches that are written, made durable and read."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from logmark.errors import LogFailed

# A key and a value; a value of None deletes the key when the log is compacted.
Record = tuple[bytes | None, bytes | None]


class LogBatch(NamedTuple):
    """Records that are written together, with what else their batch says.

    A read may return several plain batches as one.
    """

    records: Sequence[Record]
    producer_id: int = -1
    producer_epoch: int = -1
    is_transactional: bool = False
    # A control batch holds no records for readers: its type is in the key of its one record.
    is_control: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it belongs to no transaction and is no control batch."""
        return not (self.is_transactional or self.is_control)


class InternalLog(Protocol):
    """One internal partition."""

    @property
    def failure(self) -> LogFailed | None:
        """Why the log takes no more batches: the disk failed it or the write-ahead log; None while it does."""
        ...

    @property
    def size_bytes(self) -> int:
        """How much a load has to read, about."""
        ...

    def append(self, batch: LogBatch, *, now_ms: int) -> int:
        """Write one batch; it is durable once the log is durable up to the offset that is returned.

        Raises LogFailed if the log cannot take it, and Refused if it takes no such batch.
        """
        ...

    def when_durable(self, next_offset: int, callback: Callable[[LogFailed | None], None]) -> bool:
        """Call back when every offset below is on disk, or the log has failed; return False if all of them are."""
        ...

    def read(self) -> Iterator[LogBatch]:
        """Yield everything durable from the log start on. Raises LogmarkError or OSError if it cannot be read."""
        ...

    def may_be_read_later(self, error: BaseException) -> bool:
        """Return whether a read that failed may succeed as soon as the process has memory or descriptors again."""
        ...
