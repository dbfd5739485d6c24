"""What a broker has promised up to some moment, and whether the logs that a crash left behind keep it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from logmark.disk.file_system import FileSystem
from logmark.errors import ErrorCode, Refused
from logmark.log import checkpoints
from logmark.log import leader_epochs as leader_epochs
from logmark.log.index import TimeIndex
from logmark.log.partition import Partition
from logmark.log.segment import INDEX, TIME_INDEX, Segment
from logmark.names import TopicPartition
from logmark.wire import batches
from tests.crash.broker_logs import BrokerLogsDriver

NOW_MS = 1_700_000_000_000
PRODUCER_ID = 2**40
# Producers from here on have transactions.
TRANSACTIONAL_ID = PRODUCER_ID + 100


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch of an idempotent producer."""

    base_offset: int
    base_sequence: int
    count: int


@dataclass
class Transaction:
    """A transaction in one partition: where it begins, and the marker that ends it, if there is one."""

    producer_id: int
    first_offset: int
    marker: int | None = None
    is_commit: bool = False


@dataclass
class Log:
    """One partition: what was written to it, and how much of that was promised."""

    values: dict[int, bytes] = field(default_factory=dict)
    stamps: dict[int, int] = field(default_factory=dict)
    sent: dict[int, list[SentBatch]] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    # Below it everything was acknowledged, and shown to readers.
    acknowledged: int = 0
    # DeleteRecords was answered with this log start; a later one may have been on its way.
    start: int = 0
    start_possible: int = 0

    def copy(self) -> "Log":
        """The same, to be changed apart; a run copies its promises at every moment."""
        return replace(
            self,
            values=dict(self.values),
            stamps=dict(self.stamps),
            sent={producer_id: list(sent) for producer_id, sent in self.sent.items()},
            transactions=[replace(each) for each in self.transactions],
        )

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from other logs: all that it holds."""
        return (
            tuple(self.values.items()),
            tuple(self.stamps.items()),
            tuple((producer_id, tuple(sent)) for producer_id, sent in self.sent.items()),
            tuple((each.producer_id, each.first_offset, each.marker, each.is_commit) for each in self.transactions),
            (self.acknowledged, self.start, self.start_possible),
        )

    def forget_from(self, end: int) -> None:
        """What the crash took was never promised."""
        self.values = {offset: value for offset, value in self.values.items() if offset < end}
        self.stamps = {offset: stamp for offset, stamp in self.stamps.items() if offset < end}
        for sent in self.sent.values():
            sent[:] = [each for each in sent if each.base_offset < end]
        self.transactions = [each for each in self.transactions if each.first_offset < end]
        for each in self.transactions:
            if each.marker is not None and each.marker >= end:
                each.marker = None

    @property
    def markers(self) -> list[int]:
        """The offsets that hold no record."""
        return [each.marker for each in self.transactions if each.marker is not None]

    def undecided(self, producer_id: int) -> Transaction | None:
        """The open transaction of a producer."""
        return next((each for each in self.transactions
                     if each.producer_id == producer_id and each.marker is None), None)  # fmt: skip


@dataclass
class Topic:
    """One topic: it must be there, or it is just coming or going and may be."""

    id: bytes | None
    partitions: list[Log]
    is_certain: bool = False


class Promises:
    """Everything that anybody was told."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        # A stop in good order was reported, so the next start has nothing to check.
        self.is_closed = False

    def log(self, partition: Partition) -> Log:
        """What is known of a partition."""
        return self.topics[partition.topic].partitions[partition.index]

    def at(self, driver: BrokerLogsDriver | None) -> "Promises":
        """The promises as they are at this moment of a broker's life."""
        if driver is not None:
            for partition in driver.partitions():
                topic = self.topics.get(partition.topic)
                if topic is not None and partition.index < len(topic.partitions):
                    log = topic.partitions[partition.index]
                    log.acknowledged = max(log.acknowledged, partition.high_watermark)
                    log.start_possible = max(log.start_possible, partition.log_start_offset)
        copy = Promises()
        copy.is_closed = self.is_closed
        for name, topic in self.topics.items():
            copy.topics[name] = replace(topic, partitions=[log.copy() for log in topic.partitions])
        return copy

    @property
    def key(self) -> tuple[object, ...]:
        """What tells them from other promises: all that they say."""
        topics = self.topics.items()
        told = [(name, each.id, each.is_certain, tuple(log.key for log in each.partitions)) for name, each in topics]
        return (self.is_closed, *told)

    def begin_topic(self, name: str, partitions: int) -> None:
        """A topic is being made: after a crash it is there, and empty, or it is not."""
        self.topics[name] = Topic(None, [Log() for _ in range(partitions)])

    def certain(self, name: str, topic_id: bytes) -> None:
        """Somebody was told that the topic is there."""
        self.topics[name].id, self.topics[name].is_certain = topic_id, True

    # After a crash

    def check_files(self, files: FileSystem, path: str) -> None:
        """What the crash left is a directory that Apache Kafka could open, and its logs start where it was told."""
        told = f"{path}/{checkpoints.LOG_STARTS}"
        starts = checkpoints.read_offsets(files.read(told)) if files.exists(told) else {}
        for name, topic in self.topics.items():
            for index, log in enumerate(topic.partitions):
                folder = f"{path}/{name}-{index}"
                if not (topic.is_certain and log.acknowledged):
                    continue
                bases = [int(file[:20]) for file in files.listdir(folder) if file.endswith(".log")]
                start = max(starts.get(TopicPartition(name, index), 0), min(bases))
                assert start >= log.start, f"{folder} would start at {start} in Apache Kafka, told was {log.start}"
                epochs = checkpoints.read_epochs(files.read(f"{folder}/{leader_epochs.FILE_NAME}"))
                assert [0] == [leader_epoch for leader_epoch, _ in epochs], f"{folder} has lost its leader epoch"

    def check(self, driver: BrokerLogsDriver) -> None:
        """Everything promised is there, nothing else is, and all of it can be read."""
        assert driver.directory.was_clean or not self.is_closed, "the stop in good order is forgotten"
        self.is_closed = False
        there = {topic.name: topic for topic in driver.logs.topics()}
        for name, promised in self.topics.items():
            assert name in there or not promised.is_certain, f"topic {name} is lost"
        for name, topic in there.items():
            known = self.topics.get(name)
            assert known is not None, f"topic {name} was deleted and is there again"
            assert known.id in (None, topic.id), f"topic {name} is another one"
            assert len(known.partitions) == topic.partition_count
            for partition, log in zip(topic.partitions, known.partitions, strict=True):
                self._check_log(partition, log, was_clean=driver.directory.was_clean)
        for name in [name for name in self.topics if name not in there]:
            del self.topics[name]
        for name, topic in there.items():
            self.topics[name].id = topic.id
            self.topics[name].is_certain = True

    def _check_log(self, partition: Partition, log: Log, *, was_clean: bool) -> None:
        where = f"{partition.topic}-{partition.index}"
        start, end = partition.log_start_offset, partition.log_end_offset
        written = max([log.acknowledged, *(offset + 1 for offset in (*log.values, *log.markers))])
        assert partition.failure is None
        assert log.start <= start <= log.start_possible, f"{where} starts at {start}, told was {log.start}"
        assert log.acknowledged <= end <= written, f"{where} ends at {end}, told was {log.acknowledged}"
        assert end == partition.high_watermark
        assert not partition.damage, f"{where}: {partition.damage}"
        found, refused = read_all(partition)
        assert not refused, f"{where} refuses {refused}"
        assert {offset: log.values.get(offset) for offset in found} == found, f"{where} holds what was never written"
        known = {*found, *log.markers}
        # What was acknowledged, and behind it a part of the rest that has no gap.
        lost = [offset for offset in range(start, end) if offset not in known]
        assert not lost, f"{where} lost {lost}"
        log.acknowledged, log.start_possible = end, start
        log.forget_from(end)
        self._check_times(partition, log, found)
        self._check_transactions(partition, log)
        check_indexes(partition.segments if was_clean else partition.segments[:-1], partition)

    def _check_times(self, partition: Partition, log: Log, found: dict[int, bytes]) -> None:
        # A marker has a time too, and is found by it, as in Kafka.
        markers = [offset for offset in log.markers if offset >= partition.log_start_offset]
        stamps = [(offset, log.stamps[offset]) for offset in sorted([*found, *markers])]
        for _, wanted in stamps[len(stamps) // 2 :][:1]:
            expected = next(pair for pair in stamps if pair[1] >= wanted)
            assert expected == partition.offset_for_timestamp(wanted)

    def _check_transactions(self, partition: Partition, log: Log) -> None:
        """Readers of committed records go as far as they may, and are told what was aborted."""
        start, end = partition.log_start_offset, partition.log_end_offset
        open_since = min([end, *(each.first_offset for each in log.transactions if each.marker is None)])
        assert max(start, open_since) == partition.last_stable_offset
        aborted = {
            (each.producer_id, each.first_offset)
            for each in log.transactions
            if each.marker is not None and not each.is_commit and each.marker >= start
        }
        assert aborted == set(partition.aborted_transactions(start, end))

    def check_producers(self, driver: BrokerLogsDriver) -> None:
        """What a producer sends again is found where it was written, and what it sends next is taken."""
        for partition in driver.partitions():
            log = self.log(partition)
            kept = partition.segments[0].base_offset if partition.segments else partition.log_end_offset
            for producer_id, sent in log.sent.items():
                for each in [each for each in sent[-5:] if each.base_offset >= kept]:
                    again = batch([b"?"] * each.count, NOW_MS, producer_id, each.base_sequence)
                    appended = partition.append(again, now_ms=NOW_MS)
                    assert (each.base_offset, True) == (appended.base_offset, appended.is_duplicate), (
                        f"{partition.topic}-{partition.index} forgot what producer {producer_id} sent"
                    )

    def append(
        self, driver: BrokerLogsDriver, partition: Partition, values: list[bytes], producer_id: int = -1,
    ) -> None:
        """Appends one batch, which nobody is told of yet."""
        log, now_ms = self.log(partition), driver.clock.now_ms()
        base = partition.log_end_offset
        sent = log.sent.setdefault(producer_id, []) if producer_id >= 0 else []
        sequence = sent[-1].base_sequence + sent[-1].count if sent else 0 if producer_id >= 0 else -1
        # Before the bytes are: a crash in the middle may keep them.
        for at, value in enumerate(values):
            log.values[base + at], log.stamps[base + at] = value, now_ms
        if producer_id >= 0:
            sent.append(SentBatch(base, sequence, len(values)))
        if producer_id >= TRANSACTIONAL_ID and log.undecided(producer_id) is None:
            log.transactions.append(Transaction(producer_id, base))
        appended = partition.append(batch(values, now_ms, producer_id, sequence), now_ms=now_ms)
        assert (base, False) == (appended.base_offset, appended.is_duplicate)

    def end_transaction(
        self, driver: BrokerLogsDriver, partition: Partition, transaction: Transaction, *, commit: bool,
    ) -> None:
        """Ends an open transaction, which nobody is told of yet."""
        transaction.marker, transaction.is_commit = partition.log_end_offset, commit
        self.log(partition).stamps[transaction.marker] = driver.clock.now_ms()
        appended = partition.append_marker(transaction.producer_id, 0, commit=commit, now_ms=driver.clock.now_ms())
        assert transaction.marker == appended.base_offset

    def go_on(self, driver: BrokerLogsDriver) -> None:
        """Appends to every partition, as its producers would, and is told that all is durable."""
        for partition in driver.partitions():
            for producer_id in (-1, *self.log(partition).sent):
                self.append(driver, partition, [b"after the crash %d" % partition.log_end_offset], producer_id)
        driver.settle()
        for partition in driver.partitions():
            assert partition.high_watermark == partition.log_end_offset
            self.log(partition).acknowledged = partition.high_watermark


def batch(values: list[bytes], now_ms: int, producer_id: int, sequence: int) -> batches.ProducedBatch:
    """A batch with keys, so that a compacted topic takes it."""
    epoch = 0 if producer_id >= 0 else -1
    made = batches.build(
        [(b"key", value) for value in values],
        timestamp_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=batches.TRANSACTIONAL_BIT if producer_id >= TRANSACTIONAL_ID else 0,
    )
    return batches.own(made)


def read_all(partition: Partition) -> tuple[dict[int, bytes], set[int]]:
    """Every record that can be read, and the offsets at which a read is refused."""
    found: dict[int, bytes] = {}
    refused: set[int] = set()
    offset, end = partition.log_start_offset, partition.high_watermark
    while offset < end:
        try:
            data = partition.read(offset, bytes_max=4096)
        except Refused as error:
            assert error.code == ErrorCode.CORRUPT_MESSAGE, error
            refused.add(offset)
            offset += 1
            continue
        found.update((record.offset, record.value) for record in batches.unpack(data) if record.offset >= offset)
        offset = batches.sound_prefix(data, base=0)[1]
    return found, refused


def check_indexes(segments: Sequence[Segment], partition: Partition) -> None:
    """The index files of closed segments are whole: nobody, Apache Kafka included, has to build them again."""
    for segment in segments:
        if segment.damage:
            continue
        rebuilt = Segment(
            partition.folder, segment.base_offset, partition._files, size=segment.size, created_ms=0,
            index_interval=partition.settings.index_interval_bytes, is_dense=segment.is_dense,
        )  # fmt: skip
        rebuilt.rebuild()
        rebuilt.time_index.append_if_later(rebuilt.max_timestamp, rebuilt.max_timestamp_offset)
        path = segment.path.removesuffix(".log")
        assert bytes(rebuilt.offset_index.data) == partition._files.read(path + INDEX), f"{path}{INDEX} is not whole"
        times = TimeIndex(segment.base_offset, partition._files.read(path + TIME_INDEX))
        wanted, kept = ([index[at] for at in range(len(index))] for index in (rebuilt.time_index, times))
        # A stop before the segment was full has entered the largest timestamp of that moment too.
        largest: dict[int, int] = {}
        for _, header in segment.lookup.batches(0, segment.size):
            largest[header.last_offset] = header.max_timestamp
        assert set(wanted) <= set(kept) and wanted[-1:] == kept[-1:], f"{path}{TIME_INDEX} is not whole"
        assert all(largest[offset] == timestamp for timestamp, offset in kept), f"{path}{TIME_INDEX} is wrong"
