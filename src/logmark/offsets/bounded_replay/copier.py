"""Copies the ranges of a replay, each record once, also when it is interrupted at any point.

Within a run the broker drops what is sent twice: batches have a producer's id and sequence numbers. Between runs the
target tells: every copy carries the run's id and the partition and offset it was copied from. What goes from one
partition to another is written in order and one batch after the other, so the last copy found there says that all
before it are there too. The producer's id and its sequence continue as well: a batch of the interrupted run that
arrives late is then either seen, or refused because its sequence is taken.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, ClientError, RefusedByBroker
from logmark.client.fetcher import next_offset
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.bounded_replay.copy_buffer import COPY_BYTES, OWN_HEADERS, Copy, CopyBuffer, Route
from logmark.offsets.bounded_replay.copy_headers import copy_source
from logmark.offsets.bounded_replay.plan import add_target_topic
from logmark.offsets.bounded_replay.range_reader import read_committed_batches
from logmark.offsets.bounded_replay.rate import Pacer, Rate
from logmark.offsets.bounded_replay.runs import ReplayRun, RunStore, TargetProgress
from logmark.offsets.errors import CopiesLost, CopyRefused, ReplayInterrupted
from logmark.offsets.records import DECOMPRESSED_BYTES_MAX, iterate_batches
from logmark.wire import batches, codecs, columns

CODECS = {"none": codecs.NONE, "gzip": codecs.GZIP, "snappy": codecs.SNAPPY, "lz4": codecs.LZ4, "zstd": codecs.ZSTD}
_BATCH_BYTES = 512 << 10
_GATHERED_BYTES = 8 << 20
_LOOK_BYTES = 4 << 20
_SAVE_EVERY_S = 0.5
_TRIES_MAX = 6
_PAUSE_FIRST_S = 0.1
_SEQUENCE_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 1

# A batch that is refused for one of these is too large, or holds a record that would be refused alone too.
_ABOUT_RECORDS = {
    ErrorCode.MESSAGE_TOO_LARGE: "it is larger than the topic takes; raise its max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "it is larger than a segment of the topic; raise its segment.bytes",
    ErrorCode.INVALID_TIMESTAMP: "its timestamp is not one that the topic takes; widen message.timestamp.before.max.ms "
    "and message.timestamp.after.max.ms of the topic, or copy with the present time",
    ErrorCode.INVALID_RECORD: "the topic does not take it; does it have no key, and is the topic compacted?",
}
# After these, and when nobody answered, the target is looked at: the batch may have been written.
_UNCLEAR = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class ReplayCopier:
    """One run at work; `run` is what is known to be done."""

    def __init__(
        self,
        source: Client,
        target: Client,
        run: ReplayRun,
        store: RunStore,
        *,
        is_resumed: bool = False,
        rate: Rate | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        step: Callable[[int], None] = lambda offsets: None,
    ) -> None:
        """`step` is told how many offsets of the source are done with."""
        self.run = run
        # The run as it was when nothing was half done: only this is saved, for what it does not know is looked for
        # behind the ends that it names.
        self._whole = run
        self._source = source
        self._target = target
        self._store = store
        self._rate = rate or Rate()
        self._pace = Pacer(self._rate, clock=clock, sleep=sleep)
        self._now_ms = now_ms
        self._clock = clock
        self._sleep = sleep
        self._step = step
        self._is_resumed = is_resumed
        self._saved_at = clock()
        self._codec = codecs.NONE
        # Copies that are there, of those whose range is not done with yet.
        self._ahead = 0
        # From a partition to a partition: the last offset whose copy was seen there.
        self._there: dict[tuple[int, TopicPartition], int] = {}
        # Where the first batch of a resumed run could be taken for a late one of the run before, or the other way.
        self._unsure: set[TopicPartition] = set(run.targets) if is_resumed else set()

    def copy(self) -> ReplayRun:
        """Copy what is left of the run and save that it is finished; raises ReplayInterrupted if it has to stop."""
        # Nothing is written before the file says where to look for it.
        self._save()
        try:
            if self._is_resumed:
                for target in self.run.targets:
                    self._look(target)
            for number in sorted(self.run.sources):
                if self._left() != 0:
                    self._copy_partition(number)
        except KeyboardInterrupt:
            self._save()
            raise
        except UserError as error:
            self._save()
            raise ReplayInterrupted(self.run.id, error, self.describe_progress()) from None
        self.run = replace(self.run, is_finished=True, updated_ms=self._now_ms())
        self._store.finish(self.run)
        return self.run

    def describe_progress(self) -> str:
        """Return how many records were copied so far, in words and without a period."""
        count = self.run.copied + self._ahead
        return f"{count} record{' was' if count == 1 else 's were'} copied and {'stays' if count == 1 else 'stay'}"

    def _left(self) -> int | None:
        limit = self.run.request.limit
        return None if limit is None else max(0, limit - self.run.copied)

    # From the source

    def _copy_partition(self, number: int) -> None:
        known = self.run.sources[number]
        compression = self.run.request.compression
        gatherer = CopyBuffer(self.run, number, self._route_of)
        if self._is_resumed and self.run.request.restores:
            self._pass_over(number, gatherer)
        for found, after in read_committed_batches(
            self._source,
            TopicPartition(self.run.request.topic, number),
            known.next,
            known.stop,
            expired=lambda offsets: self._pass_over_expired(number, offsets),
        ):
            for header, records in found:
                codec = header.codec if compression == "keep" else CODECS[compression]
                if codec != self._codec:
                    self._flush(number, gatherer, header.base_offset)
                    self._codec = codec
                stopped_at = gatherer.take(records, left=self._left())
                if stopped_at is not None:
                    self._flush(number, gatherer, stopped_at)
                    return
                if self._is_much(gatherer):
                    self._flush(number, gatherer, min(header.next_offset, after))
            self._flush(number, gatherer, after)

    def _pass_over(self, number: int, gatherer: CopyBuffer) -> None:
        """Read what was copied before the run was interrupted: of dead letters about one record the first counts."""
        known = self.run.sources[number]
        source = TopicPartition(self.run.request.topic, number)
        for found, _ in read_committed_batches(
            self._source, source, known.start, known.next, expired=lambda offsets: None
        ):
            for _, records in found:
                gatherer.pass_over(records)

    def _is_much(self, gatherer: CopyBuffer) -> bool:
        """Whether to write now: a slow rate takes no more than it writes in a second, so that progress is seen."""
        records, size = self._rate.records_per_s, self._rate.bytes_per_s
        return (
            gatherer.size_bytes >= (_GATHERED_BYTES if size is None else min(_GATHERED_BYTES, size))
            or (records is not None and gatherer.count >= records)
        )  # fmt: skip

    def _route_of(self, topic: str) -> Route:
        """Return the route to a topic.

        A topic that is new to this run is saved with the run before anything is written to it.
        """
        if topic not in self.run.topics:
            self.run = add_target_topic(self._target, self.run, topic)
            self._whole = replace(
                self._whole, topics=self.run.topics, targets={**self.run.targets, **self._whole.targets}
            )
            self._save()
        return Route(
            source_partitions=self.run.source_partitions,
            target_partitions=self.run.topics[topic].partitions,
            fixed=self.run.request.to_partition,
        )

    def _pass_over_expired(self, number: int, offsets: int) -> None:
        known = self.run.sources[number]
        self._move(number, known.next + offsets, expired=offsets)

    def _flush(self, number: int, gatherer: CopyBuffer, after: int) -> None:
        """Write the buffered copies; afterwards every source offset below `after` counts as done."""
        gathered = gatherer.drain()
        for target, copies in gathered.copies.items():
            there = self._there.get((number, target), -1)
            for part in self._parts(copies if there < copies[0][0] else [copy for copy in copies if copy[0] > there]):
                self._append(number, target, part)
                self._ahead += len(part)
                self._step(len(part))
        self._move(
            number,
            max(after, self.run.sources[number].next),
            copied=gathered.count,
            not_selected=gathered.not_selected,
            hopped=gathered.hopped,
            unaddressed=gathered.unaddressed,
            repeated=gathered.repeated,
            valueless=gathered.valueless,
        )
        if self._clock() - self._saved_at >= _SAVE_EVERY_S:
            self._save()

    def _move(self, number: int, after: int, **more: int) -> None:
        known = self.run.sources[number]
        self._step(after - known.next - self._ahead)
        self._ahead = 0
        counts = {name: getattr(known, name) + count for name, count in more.items()}
        self.run = self._whole = self.run.with_source(number, replace(known, next=after, **counts))

    def _save(self) -> None:
        self._store.save(replace(self._whole, updated_ms=self._now_ms()))
        self._saved_at = self._clock()

    # To the target

    def _parts(self, copies: Sequence[Copy]) -> Iterator[Sequence[Copy]]:
        """Yield the copies in batches that brokers accept and that keep the rate."""
        records_max = self._rate.records_at_once or len(copies)
        bytes_max = min(_BATCH_BYTES, self._rate.bytes_at_once or _BATCH_BYTES)
        first = size = 0
        for index, (_, _, key, value, headers) in enumerate(copies):
            more = COPY_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
            if len(headers) > OWN_HEADERS:
                more += sum(len(name) + len(content or b"") for name, content in headers[:-OWN_HEADERS])
            if index > first and (size + more > bytes_max or index - first >= records_max):
                yield copies[first:index]
                first, size = index, 0
            size += more
        if first < len(copies):
            yield copies[first:]

    def _append(self, number: int, target: TopicPartition, copies: Sequence[Copy]) -> None:
        """Write copies as one batch, or as several if the broker wants smaller ones; each copy is written once."""
        for tried in range(_TRIES_MAX):
            batch = self._batch(target, copies)
            self._pace.wait(len(copies), len(batch))
            try:
                base_offset = self._target.produce(target, batch)
            except RefusedByBroker as refusal:
                if refusal.code in _ABOUT_RECORDS:
                    self._divide(number, target, copies, refusal)
                    return
                if refusal.code not in _UNCLEAR:
                    raise UserError(
                        f"{refusal} The record at offset {copies[0][0]} of {self.run.request.topic}-{number} and those "
                        "behind it were not written."
                    ) from None
                failure: ClientError = refusal
            except BrokerUnreachable as unreachable:
                failure = unreachable
            else:
                if target not in self._unsure:
                    self._acknowledged(target, base_offset, len(copies))
                    return
            if tried:
                self._sleep(_PAUSE_FIRST_S * 2**tried)
            self._look(target)
            self._unsure.discard(target)
            there = self._there.get((number, target), -1)
            copies = [copy for copy in copies if copy[0] > there]
            if not copies:
                return
        raise self._lost_track(target, failure)

    def _batch(self, target: TopicPartition, copies: Sequence[Copy]) -> bytearray:
        return batches.build(
            [(copy[2], copy[3]) for copy in copies],
            timestamp_ms=self._now_ms() if self.run.request.timestamp == "now" else [copy[1] for copy in copies],
            headers=[copy[4] for copy in copies],
            codec=self._codec,
            producer_id=self.run.producer_id,
            producer_epoch=self.run.producer_epoch,
            base_sequence=self.run.targets[target].sequence,
        )

    def _divide(
        self, number: int, target: TopicPartition, copies: Sequence[Copy], refusal: RefusedByBroker
    ) -> None:  # fmt: skip
        """Write a refused batch in halves, so that all before the bad record is written and the error names it."""
        if len(copies) > 1:
            middle = len(copies) // 2
            self._append(number, target, copies[:middle])
            self._append(number, target, copies[middle:])
            return
        offset, _, key, value, _ = copies[0]
        raise CopyRefused(
            f"The record at offset {offset} of {self.run.request.topic}-{number} "
            f"({len(key or b'') + len(value or b'')} bytes) was refused by {target}: {_ABOUT_RECORDS[refusal.code]}"
        )

    def _acknowledged(self, target: TopicPartition, base_offset: int, count: int) -> None:
        known = self.run.targets[target]
        # The answer to a batch that was sent twice may not say where it is.
        end = max(known.end, base_offset + count if base_offset >= 0 else 0)
        self.run = self.run.with_target(target, TargetProgress(end=end, sequence=_next(known.sequence, count)))

    def _look(self, target: TopicPartition) -> None:
        """Find what this run has written to a partition since its last saved progress."""
        known = self.run.targets[target]
        start, end = self._target.earliest([target])[target], self._target.latest([target])[target]
        at = max(known.end, start)
        sequence = known.sequence
        run_id = self.run.id.encode()
        with self._target.fetcher(target, bytes_max=_LOOK_BYTES) as fetcher:
            for answer in fetcher.read(at, end):
                for header, batch in iterate_batches(answer.records, _OFFSET_MAX):
                    # Batches of others are not decoded.
                    if header.producer_id != self.run.producer_id or header.is_control:
                        continue
                    sequence = _next(header.last_sequence, 1)
                    for source in _copied(batch, run_id):
                        key = source[0], target
                        self._there[key] = max(self._there.get(key, -1), source[1])
                at = next_offset(answer.records, at)
        self.run = self.run.with_target(target, TargetProgress(end=max(known.end, at), sequence=sequence))

    def _lost_track(self, target: TopicPartition, failure: ClientError) -> UserError:
        if isinstance(failure, RefusedByBroker) and failure.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return CopiesLost(
                f"{target} refuses the next batch as out of order: copies that this run had written there are gone, "
                "deleted or lost by its brokers, so it is not known which are missing",
                "forget the run and start a new one",
            )
        return failure


def _next(sequence: int, count: int) -> int:
    return (sequence + count) & _SEQUENCE_MAX


def _copied(batch: memoryview, run_id: bytes) -> Iterator[tuple[int, int]]:
    found = columns.decode(
        batch, start=0, stop=_OFFSET_MAX, with_headers=True, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
    )
    for headers in found.headers():
        source = copy_source(headers, run_id)
        if source is not None:
            yield source
