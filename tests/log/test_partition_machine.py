"""A partition against a list: whatever happens to it, it is what a list of values would be.

The producer is idempotent and counts its sequences from 0, so a record's sequence is its offset.
"""

import random
import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from logmark.errors import ErrorCode, Refused
from logmark.log.appender import Appended
from logmark.wire import batches
from tests.harness.searches import examples
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, TOPIC_ID, LogDriver, batch, values
from tests.log.directory_driver import settings as topic_settings

# As small as the records, so that pages get lost between batches and inside them.
PAGE_BYTES = 128
CONFIG = topic_settings(segment_bytes=1500, index_interval_bytes=150, retention_ms=5000, file_delete_delay_ms=1000)
ROLLING = topic_settings(
    segment_bytes=1500, segment_ms=1, index_interval_bytes=150, retention_ms=5000, file_delete_delay_ms=1000
)
# Chosen first and fitted to what there is later, so that the same choices can be made again.
SHARE = strategies.integers(0, 2**20)
COUNTS = strategies.lists(strategies.integers(1, 5), max_size=6)


class PartitionMachine(RuleBasedStateMachine):
    """Appends, reads, deletes segments, stops, is killed and loses its power."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = self.new_driver()
        self.partition = self.driver.create(config=CONFIG)
        self.values: list[bytes] = []
        self.batches: list[tuple[int, int]] = []
        self.log_start = 0
        self.checkpointed_start = 0
        self.high_watermark = 0
        self.held = ExitStack()
        self.is_held = False

    def new_driver(self) -> LogDriver:
        self.folder = tempfile.TemporaryDirectory()
        return LogDriver(Path(self.folder.name), page_bytes=PAGE_BYTES)

    def teardown(self) -> None:
        self.release()
        self.driver.close()
        self.folder.cleanup()

    @rule(counts=COUNTS, codec=strategies.integers(0, 4))
    def append(self, counts: list[int], codec: int) -> None:
        for count in counts:
            base = len(self.values)
            choose = random.Random(base)
            new = [b"%d:" % (base + at) + choose.randbytes(choose.randrange(120)) for at in range(count)]
            made = batch(*new, timestamp_ms=self.driver.clock.now_ms(), codec=codec, producer=(PRODUCER_ID, 0, base))

            appended = self.partition.append(made, now_ms=self.driver.clock.now_ms())

            assert (base, base + count - 1) == (appended.base_offset, appended.last_offset)
            assert not appended.is_duplicate
            self.values += new
            self.batches.append((base, count))

    @rule(counts=COUNTS, codec=strategies.integers(0, 4))
    def append_and_settle(self, counts: list[int], codec: int) -> None:
        self.append(counts, codec)
        self.settle()

    @rule(count=strategies.integers(1, 3))
    def roll(self, count: int) -> None:
        """With a shorter age, which takes effect at once, the next batch begins a segment."""
        self.append([1], 0)
        before = len(self.partition.segments)
        self.driver.clock.advance(seconds=1)
        self.partition.configure(ROLLING)
        self.append([count], 0)
        self.partition.configure(CONFIG)
        assert before + 1 == len(self.partition.segments)

    @rule(share=SHARE)
    def send_again(self, share: int) -> None:
        if not self.batches:
            return
        first = self.partition.segments[0].base_offset if self.partition.segments else len(self.values)
        known = [sent for sent in self.batches[-5:] if sent[0] >= first] or self.batches[-1:]
        base, count = known[share % len(known)]

        appended = self.partition.append(batch(*[b"?"] * count, producer=(PRODUCER_ID, 0, base)), now_ms=NOW_MS)

        assert (base, base + count - 1, True) == (appended.base_offset, appended.last_offset, appended.is_duplicate)

    @rule()
    def settle(self) -> None:
        self.release()
        self.driver.settle(self.partition)
        assert len(self.values) == self.partition.high_watermark

    @rule()
    def begin_a_round_that_takes_long(self) -> None:
        """Held, so that it does not depend on the machine's load how far it gets."""
        if not self.is_held:
            self.held.enter_context(self.driver.files.hold_syncs())
            self.is_held = True
        self.driver.turn()

    def release(self) -> None:
        self.held.close()
        self.is_held = False

    @rule(share=SHARE, bytes_max=strategies.integers(0, 3000))
    def read(self, share: int, bytes_max: int) -> None:
        low, high = self.partition.log_start_offset, self.partition.high_watermark
        offset = low + share % (high - low + 1)

        records = batches.unpack(self.partition.read(offset, bytes_max=bytes_max))

        assert bool(records) == (offset < high)
        assert [self.values[record.offset] for record in records] == [record.value for record in records]
        if records:
            assert records[0].offset <= offset <= records[-1].offset < high

    @rule(share=SHARE)
    def look_up_a_time(self, share: int) -> None:
        target = NOW_MS - 1 + share % (self.driver.clock.now_ms() - NOW_MS + 3)
        found = self.partition.offset_for_timestamp(target)

        stamps = [
            (record.offset, record.timestamp_ms)
            for record in batches.unpack(self.all_bytes())
            if record.offset >= self.partition.log_start_offset
        ]
        assert next(((offset, stamp) for offset, stamp in stamps if stamp >= target), None) == found
        latest = max((stamp for _, stamp in stamps), default=None)
        assert next(((offset, stamp) for offset, stamp in stamps if stamp == latest), None) == (
            self.partition.max_timestamp()
        )

    def all_bytes(self) -> bytes:
        offset, parts = self.partition.log_start_offset, []
        while data := self.partition.read(offset, bytes_max=10_000):
            parts.append(bytes(data))
            offset = batches.sound_prefix(data, base=0)[1]
        return b"".join(parts)

    @rule(share=SHARE)
    def delete_records(self, share: int) -> None:
        before = share % (self.partition.high_watermark + 1)
        self.log_start = max(self.log_start, before)
        assert self.log_start == self.partition.delete_records(before)

    @rule(seconds=strategies.integers(0, 4))
    def let_time_pass(self, seconds: int) -> None:
        self.driver.clock.advance(seconds=seconds)

    @rule()
    def apply_retention(self) -> None:
        self.partition.apply_retention(self.driver.clock.now_ms())
        assert self.log_start <= self.partition.log_start_offset <= self.partition.high_watermark
        self.log_start = self.partition.log_start_offset
        stamps = {record.timestamp_ms for record in batches.unpack(self.all_bytes())}
        # A segment of one age is gone when it is too old; one that holds younger records stays.
        if len(stamps) == 1:
            assert self.driver.clock.now_ms() - stamps.pop() <= 5000 or len(self.values) > self.partition.high_watermark

    @rule()
    def checkpoint(self) -> None:
        self.driver.directory.write_checkpoints()
        self.checkpointed_start = self.log_start

    @rule()
    def restart(self) -> None:
        self.release()
        self.partition = self.driver.reopen(config=CONFIG)
        assert len(self.values) == self.partition.log_end_offset
        assert self.log_start == self.partition.log_start_offset
        self.high_watermark = self.checkpointed_start = self.log_start

    @rule()
    def flush(self) -> None:
        self.settle()
        self.driver.finish(self.partition)
        assert len(self.values) == self.partition.recovery_point

    @rule(pending=COUNTS)
    def kill(self, pending: list[int]) -> None:
        """What was not acknowledged and is not in the WAL is cut, although the page cache survives."""
        self.append(pending, 0)
        self.release()
        self.driver.stop(clean=False)
        self.reopen_after_a_crash()

    def reopen_after_a_crash(self) -> None:
        durable_end = self.partition.high_watermark
        directory = self.driver.open()
        self.partition = directory.open_partition("clicks", 0, TOPIC_ID, CONFIG)
        directory.finish_recovery()
        assert durable_end <= self.partition.log_end_offset <= len(self.values)
        del self.values[self.partition.log_end_offset :]
        self.batches = [sent for sent in self.batches if sent[0] < len(self.values)]
        self.take_log_start()

    @rule(acknowledged=COUNTS, pending=COUNTS, seed=strategies.integers(0, 2**32))
    def lose_power(self, acknowledged: list[int], pending: list[int], seed: int) -> None:
        """In the middle of work: some of it acknowledged, some not."""
        self.append_and_settle(acknowledged, 0)
        self.append(pending, 0)
        self.release()
        self.driver.stop(clean=False)
        self.driver.files.lose_power(random.Random(seed))
        self.reopen_after_a_crash()

    def take_log_start(self) -> None:
        """A log start that was not checkpointed may be forgotten by a crash, as in Kafka."""
        assert self.checkpointed_start <= self.partition.log_start_offset <= self.log_start
        self.log_start = self.partition.log_start_offset
        self.high_watermark = 0

    @invariant()
    def nothing_is_damaged_and_nothing_goes_back(self) -> None:
        assert [] == self.partition.damage
        assert self.partition.failure is None
        assert self.high_watermark <= self.partition.high_watermark <= len(self.values)
        self.high_watermark = self.partition.high_watermark

    @invariant()
    def all_that_is_shown_is_what_was_written(self) -> None:
        expected = {
            offset: self.values[offset]
            for offset in range(self.partition.log_start_offset, self.partition.high_watermark)
        }
        assert expected == values(self.partition)


def test_three_power_losses_in_a_row_leave_what_was_acknowledged_and_no_damage() -> None:
    machine = PartitionMachine()
    try:
        for acknowledged, pending, seed in (
            ([], [], 2147483258),
            ([1, 1, 2, 3, 5, 5], [1, 1], 0),
            ([], [2, 1, 1, 1, 5], 383869508),
        ):
            machine.lose_power(acknowledged, pending, seed)
            machine.nothing_is_damaged_and_nothing_goes_back()
            machine.all_that_is_shown_is_what_was_written()
    finally:
        machine.teardown()


PartitionMachine.TestCase.settings = settings(
    max_examples=examples(30, soak=500),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestPartition = PartitionMachine.TestCase


COMPACTED = topic_settings(
    segment_bytes=400, index_interval_bytes=100, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01
)
PRODUCER_IDS = strategies.integers(PRODUCER_ID, PRODUCER_ID + 1)


class CompactedMachine(RuleBasedStateMachine):
    """A compacted partition against all that was ever written: what is left has every key's newest."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.driver = LogDriver(Path(self.folder.name))
        self.partition = self.driver.create(config=COMPACTED)
        self.written: list[tuple[bytes, bytes, int]] = []
        # Of each producer's batches: the first sequence, the first offset and how many records there are.
        self.sent: dict[int, list[tuple[int, int, int]]] = {}

    def teardown(self) -> None:
        self.driver.close()
        self.folder.cleanup()

    @rule(keys=strategies.lists(strategies.integers(0, 4), min_size=1, max_size=12))
    def append(self, keys: list[int]) -> None:
        for key in keys:
            self.driver.clock.advance(seconds=1)
            stamp, at = self.driver.clock.now_ms(), len(self.written)
            record = (b"key %d" % key, b"value %d" % at)
            made = batches.own(batches.build([record], timestamp_ms=stamp))
            assert at == self.partition.append(made, now_ms=stamp).base_offset
            self.written.append((*record, stamp))
        self.driver.settle(self.partition)

    @rule(producer_id=PRODUCER_IDS, keys=strategies.lists(strategies.integers(0, 4), min_size=1, max_size=4))
    def produce(self, producer_id: int, keys: list[int]) -> None:
        """Write all keys as one batch of an idempotent producer."""
        self.driver.clock.advance(seconds=1)
        stamp, base = self.driver.clock.now_ms(), len(self.written)
        sent = self.sent.setdefault(producer_id, [])
        sequence = sum(count for _, _, count in sent)
        self.written += [(b"key %d" % key, b"value %d" % (base + at), stamp) for at, key in enumerate(keys)]
        assert base == self.send(producer_id, sequence, base, len(keys)).base_offset
        sent.append((sequence, base, len(keys)))
        self.driver.settle(self.partition)

    @rule(producer_id=PRODUCER_IDS, ago=strategies.integers(0, 6))
    def send_again(self, producer_id: int, ago: int) -> None:
        """Retry a batch: the last one is known, an earlier one may be, and neither is written again."""
        sent = self.sent.get(producer_id, [])
        if len(sent) <= ago:
            return
        sequence, base, count = sent[-1 - ago]
        try:
            appended = self.send(producer_id, sequence, base, count)
        except Refused as refused:
            assert (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, True) == (refused.code, ago > 0)
        else:
            assert (base, base + count - 1, True) == (appended.base_offset, appended.last_offset, appended.is_duplicate)

    def send(self, producer_id: int, sequence: int, base: int, count: int) -> Appended:
        records = [(key, value) for key, value, _ in self.written[base : base + count]]
        stamp = self.written[base][2]
        made = batches.build(
            records, timestamp_ms=stamp, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )
        return self.partition.append(batches.own(made), now_ms=self.driver.clock.now_ms())

    @rule()
    def compact(self) -> None:
        self.driver.compact(self.partition)

    @rule(clean=strategies.booleans())
    def restart(self, clean: bool) -> None:
        self.partition = self.driver.reopen(clean=clean, config=COMPACTED)
        # As the broker does before it serves anybody: a WAL of the last run must not outlive a compaction of this one.
        assert self.driver.directory is not None
        self.driver.directory.finish_recovery()

    @rule(share=SHARE)
    def look_up_a_time(self, share: int) -> None:
        kept = self.kept()
        wanted = NOW_MS + 1000 * (share % (len(self.written) + 2))
        expected = next(((offset, stamp) for offset, (_, _, stamp) in kept.items() if stamp >= wanted), None)
        assert expected == self.partition.offset_for_timestamp(wanted)

    def kept(self) -> dict[int, tuple[bytes | None, bytes | None, int]]:
        offset, found = 0, {}
        while data := self.partition.read(offset, bytes_max=2000):
            for record in batches.unpack(data):
                found[record.offset] = record.key, record.value, record.timestamp_ms
            offset = batches.sound_prefix(data, base=0)[1]
        return found

    @invariant()
    def every_key_has_its_newest_record_at_its_offset_and_nothing_is_invented(self) -> None:
        kept = self.kept()
        assert {offset: self.written[offset] for offset in kept} == kept
        newest = {key: offset for offset, (key, _, _) in enumerate(self.written)}
        assert set(newest.values()) <= kept.keys()
        assert len(self.written) == self.partition.high_watermark == self.partition.log_end_offset
        assert [] == self.partition.damage


def test_a_compaction_between_two_crashes_loses_nothing() -> None:
    machine = CompactedMachine()
    try:
        for keys in ([0, 0, 0], [0] * 12, [0, 1, 0, 0]):
            machine.append(keys)
        machine.restart(clean=False)
        machine.compact()
        machine.restart(clean=False)
        machine.every_key_has_its_newest_record_at_its_offset_and_nothing_is_invented()
    finally:
        machine.teardown()


CompactedMachine.TestCase.settings = settings(
    max_examples=examples(20, soak=500), stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow]
)
TestCompactedPartition = CompactedMachine.TestCase
