"""What compaction removes of transactions: the data of aborted ones, and markers that nothing needs any more."""

from collections.abc import Iterable
from typing import NamedTuple

from logmark.log.transactions import Aborted, Marker
from logmark.wire.batches import BatchHeader


class BatchRetention(NamedTuple):
    """What becomes of a batch of a transaction or of a marker."""

    is_aborted: bool = False
    is_idle_marker: bool = False


class TransactionRetention:
    """Follows a pass through the log, and decides on each batch of a transaction and on each marker.

    Kafka's rule: the data of an aborted transaction goes at once, a marker stays as long as a pass has met a batch of
    its transaction, and is removed by a later pass than the one that found it idle.
    """

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._ahead = sorted(set(aborted), key=lambda entry: entry.first_offset, reverse=True)
        self._aborting: dict[int, Aborted] = {}
        self._met: set[int] = set()
        self._committing: set[int] = set()
        self.needed: list[Aborted] = []

    def decide_retention(self, header: BatchHeader, marker: Marker | None) -> BatchRetention:
        """Decide on the next batch; `marker` is that of a control batch, None if it is empty or of another kind."""
        while self._ahead and self._ahead[-1].first_offset <= header.last_offset:
            entry = self._ahead.pop()
            # A pass that begins in the middle never meets the markers before it, so theirs are not open here.
            if entry.last_offset >= header.base_offset:
                self._aborting.setdefault(entry.producer_id, entry)
        producer_id = header.producer_id
        if not header.is_control:
            return self._decide_data_retention(producer_id) if header.is_transactional else BatchRetention()
        if marker is None:
            # Of an emptied one nothing is left to need; control records of other kinds are not ours to decide on.
            return BatchRetention(is_idle_marker=not header.record_count)
        if marker.is_commit:
            is_idle = producer_id not in self._committing
            self._committing.discard(producer_id)
            return BatchRetention(is_idle_marker=is_idle)
        aborted = self._aborting.pop(producer_id, None)
        is_needed = aborted is not None and producer_id in self._met
        self._met.discard(producer_id)
        if is_needed and aborted is not None:
            self.needed.append(aborted)
        return BatchRetention(is_idle_marker=not is_needed)

    def _decide_data_retention(self, producer_id: int) -> BatchRetention:
        if producer_id in self._aborting:
            self._met.add(producer_id)
            return BatchRetention(is_aborted=True)
        self._committing.add(producer_id)
        return BatchRetention()

    def take_needed(self) -> list[Aborted]:
        """Return the aborted transactions passed since the last call that readers still ask for."""
        needed, self.needed = self.needed, []
        return needed
