"""What a partition knows of its idempotent and transactional producers, and the bytes of a producer snapshot."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from logmark.errors import ErrorCode, Refused
from logmark.log.file_formats import PRODUCER_ENTRY, build_snapshot, producer_entries
from logmark.log.transactions import NO_COORDINATOR_EPOCH, Ended, Marker, Undecided
from logmark.wire.batches import TRANSACTIONAL_BIT

BATCHES_KEPT = 5
SEQUENCE_MAX = 2**31 - 1
NO_SEQUENCE = -1
NO_TRANSACTION = -1


class SequencedBatch(Protocol):
    """The part of a batch that producer state depends on."""

    @property
    def attributes(self) -> int: ...

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def base_sequence(self) -> int: ...

    @property
    def last_offset_delta(self) -> int: ...

    @property
    def max_timestamp(self) -> int: ...


class Written(NamedTuple):
    """One batch that a producer has written."""

    base_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Return the sequence of a batch's last record: after 2**31 - 1 comes 0."""
    if base_sequence < 0:
        return NO_SEQUENCE
    return (base_sequence + last_offset_delta) & SEQUENCE_MAX


class Producer:
    """One producer: its epoch, its last batches, where its open transaction begins and when it was last heard of."""

    __slots__ = (
        "batches", "coordinator_epoch", "last_timestamp", "producer_epoch", "seen_ms", "transaction_first_offset"
    )  # fmt: skip

    def __init__(self, producer_epoch: int, seen_ms: int) -> None:
        self.producer_epoch = producer_epoch
        self.batches: list[Written] = []
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.transaction_first_offset = NO_TRANSACTION
        # Of the last batch or marker: a snapshot holds it.
        self.last_timestamp = -1
        self.seen_ms = seen_ms

    @property
    def last(self) -> Written | None:
        return self.batches[-1] if self.batches else None


def _is_next(producer: Producer, base_sequence: int) -> bool:
    last = producer.last
    return last is not None and base_sequence == (last.last_sequence + 1) & SEQUENCE_MAX


class Producers:
    """The idempotent and transactional producers of one partition, and its undecided transactions."""

    __slots__ = ("_known", "recall", "undecided")

    def __init__(self) -> None:
        self._known: dict[int, Producer] = {}
        # Replays the log's tail for the batches before the last, which a snapshot does not hold.
        self.recall: Callable[[], Producers] | None = None
        self.undecided = Undecided()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._known

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._known.items())

    def get(self, producer_id: int) -> Producer | None:
        """Return what is known of a producer."""
        return self._known.get(producer_id)

    def check(self, batch: SequencedBatch, *, from_client: bool) -> Written | None:
        """Return the same batch as it was written before, or None if the batch is next in line; refuse any other."""
        producer = self._known.get(batch.producer_id)
        if producer is None:
            return None
        if batch.producer_epoch == producer.producer_epoch and from_client:
            last = last_sequence(batch.base_sequence, batch.last_offset_delta)
            if self.recall is not None and not _is_next(producer, batch.base_sequence):
                self._recall()
            for written in producer.batches:
                if written.base_sequence == batch.base_sequence and written.last_sequence == last:
                    return written
        if batch.producer_epoch < producer.producer_epoch:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Producer {batch.producer_id} sent epoch {batch.producer_epoch}, "
                f"and epoch {producer.producer_epoch} has written here.",
            )
        if from_client:
            self._check_sequence(batch, producer)
        if producer.transaction_first_offset >= 0 and not batch.attributes & TRANSACTIONAL_BIT:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {batch.producer_id} has an open transaction here, and the batch is not part of it.",
            )
        return None

    def _recall(self) -> None:
        if self.recall is not None:
            self.remember_more(self.recall())
            # Only now: if the tail could not be read, the next batch needs it too.
            self.recall = None

    def _check_sequence(self, batch: SequencedBatch, producer: Producer) -> None:
        if batch.producer_epoch != producer.producer_epoch or producer.last is None:
            expected = 0
        else:
            expected = (producer.last.last_sequence + 1) & SEQUENCE_MAX
        if batch.base_sequence != expected:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {batch.producer_id} sent sequence {batch.base_sequence}, and {expected} is next.",
            )

    def record(self, batch: SequencedBatch, *, last_offset: int, seen_ms: int) -> None:
        """Remember a batch that was written; the loader uses it too, so it checks nothing."""
        producer = self._known.get(batch.producer_id)
        if producer is None:
            producer = self._known[batch.producer_id] = Producer(batch.producer_epoch, seen_ms)
        elif producer.producer_epoch != batch.producer_epoch:
            producer.producer_epoch = batch.producer_epoch
            producer.batches.clear()
        producer.seen_ms = seen_ms
        delta = batch.last_offset_delta
        base = batch.base_sequence
        producer.last_timestamp = batch.max_timestamp
        producer.batches.append(Written(base, last_sequence(base, delta), last_offset, delta, batch.max_timestamp))
        if len(producer.batches) > BATCHES_KEPT:
            del producer.batches[0]
        if batch.attributes & TRANSACTIONAL_BIT and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = last_offset - delta
            self.undecided.begin(last_offset - delta, batch.producer_id)

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, is_bumped: bool) -> None:
        """Refuse the marker of an old producer epoch or of an old coordinator.

        With `is_bumped` the marker has the epoch after its transaction's (KIP-890), so one with the known epoch is
        late, unless no transaction is open: then it was written before and is sent again.
        """
        producer = self._known.get(producer_id)
        if producer is None:
            return
        known = producer.producer_epoch
        is_late = producer_epoch == known and is_bumped and producer.transaction_first_offset >= 0
        if producer_epoch < known or is_late:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"The marker of producer {producer_id} has epoch {producer_epoch}, and epoch {known} has written here.",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise Refused(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"The marker of producer {producer_id} has coordinator epoch {coordinator_epoch}, "
                f"and epoch {producer.coordinator_epoch} has written here.",
            )

    def record_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, *, offset: int, timestamp: int, seen_ms: int
    ) -> Ended | None:
        """Remember a marker that was written, and return the transaction that it ended, if there was one."""
        producer = self._known.get(producer_id)
        if producer is None:
            producer = self._known[producer_id] = Producer(producer_epoch, seen_ms)
        elif producer.producer_epoch != producer_epoch:
            producer.producer_epoch = producer_epoch
            producer.batches.clear()
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = timestamp
        producer.seen_ms = seen_ms
        first_offset, producer.transaction_first_offset = producer.transaction_first_offset, NO_TRANSACTION
        return None if first_offset < 0 else Ended(producer_id, first_offset, offset, not marker.is_commit)

    def remember_more(self, replayed: "Producers") -> None:
        """Take the batches before the last from a replay of the log's tail: a snapshot holds only the last one.

        Without this, a producer whose five batches in flight were all written would be refused when it sends them
        again after a restart.
        """
        for producer_id, producer in self:
            other = replayed.get(producer_id)
            if other is None or other.producer_epoch != producer.producer_epoch or not (other.last and producer.last):
                continue
            # Not by the timestamp: a snapshot may hold that of a marker behind the batch.
            if other.last[:4] == producer.last[:4]:
                producer.batches = other.batches

    def expire(self, *, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers without an open transaction that were silent for that long; return how many."""
        # By the broker's clock and not by the records' timestamps as in Kafka: a producer of back-dated records
        # would otherwise lose its protection against duplicates while it writes.
        expired = [
            key
            for key, producer in self
            if now_ms - producer.seen_ms >= expiration_ms and producer.transaction_first_offset < 0
        ]
        for producer_id in expired:
            del self._known[producer_id]
        return len(expired)

    def encode(self) -> bytes:
        """Return the bytes of a producer snapshot."""
        entries = bytearray()
        for producer_id, producer in self:
            last = producer.last or Written(NO_SEQUENCE, NO_SEQUENCE, -1, 0, -1)
            entries += PRODUCER_ENTRY.pack(
                producer_id, producer.producer_epoch, last.last_sequence, last.last_offset, last.offset_delta,
                producer.last_timestamp, producer.coordinator_epoch, producer.transaction_first_offset,
            )  # fmt: skip
        return build_snapshot(len(self._known), bytes(entries))

    @classmethod
    def decode(cls, data: bytes, *, now_ms: int) -> "Producers":
        """Return the producers of a snapshot, each with its last batch; raise Malformed if it is not whole."""
        producers = cls()
        began = []
        for entry in producer_entries(data):
            producer_id, producer_epoch, last, last_offset, delta, timestamp, coordinator_epoch, first_offset = entry
            producer = producers._known[producer_id] = Producer(producer_epoch, now_ms)
            producer.last_timestamp = timestamp
            producer.coordinator_epoch = coordinator_epoch
            if last_offset >= 0:
                base = NO_SEQUENCE if last == NO_SEQUENCE else (last - delta) & SEQUENCE_MAX
                producer.batches.append(Written(base, last, last_offset, delta, timestamp))
            if first_offset >= 0:
                producer.transaction_first_offset = first_offset
                began.append((first_offset, producer_id))
        for first_offset, producer_id in sorted(began):
            producers.undecided.begin(first_offset, producer_id)
        return producers
