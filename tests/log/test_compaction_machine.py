"""A compacted partition through any life: appends, cleanings, look-ups, stops and crashes, against a small model."""

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from logmark.clock import ManualClock
from logmark.wire import batches
from tests.crash.broker_logs import BrokerLogsDriver
from tests.crash.crash_file_system import CrashFileSystem, Fate
from tests.harness.searches import examples
from tests.log.test_compaction_crashes import NOW_MS, compact

KEYS = [b"a", b"b", b"c", b"d"]
TOPIC = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "delete.retention.ms": "1000"}
Row = tuple[int, int, bytes | None, bytes | None]  # offset, timestamp, key, value


class CompactedPartition(RuleBasedStateMachine):
    """The model is every record that was written: a reader sees the newest of each key, and none that was not."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashFileSystem()
        self.clock = ManualClock(NOW_MS)
        self.written: list[Row] = []
        self.driver = BrokerLogsDriver(self.disk, self.clock)
        self.driver.create_topic("profiles", 1, TOPIC)
        self.stand()

    def stand(self) -> None:
        partition = self.driver.logs.partition("profiles", 0)
        assert partition is not None
        self.partition = partition

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), size=st.sampled_from([None, 0, 60, 200]))
    def append(self, keys: list[bytes], size: int | None) -> None:
        now_ms = self.clock.now_ms()
        records = [(key, None if size is None else b"%d" % len(self.written) + b"." * size) for key in keys]
        made = batches.own(batches.build(records, timestamp_ms=now_ms))
        base = self.partition.append(made, now_ms=now_ms).base_offset
        self.written += [(base + at, now_ms, *record) for at, record in enumerate(records)]

    @rule()
    def settle(self) -> None:
        self.driver.settle()

    @rule()
    def roll(self) -> None:
        self.append([b"filler"], 900)
        self.driver.settle()

    @rule()
    def compact(self) -> None:
        self.driver.settle()
        compact(self.driver, self.partition, self.disk)

    @rule(seconds=st.integers(1, 2))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)
        self.driver.logs.look_after()
        self.driver.settle()

    @rule(timestamp=st.integers(NOW_MS - 1, NOW_MS + 20_000))
    def look_up_a_time(self, timestamp: int) -> None:
        later = [row[:2] for row in self.rows() if row[1] >= timestamp]
        assert (later[0] if later else None) == self.partition.offset_for_timestamp(timestamp)

    @rule(share=st.floats(0, 1))
    def read_from_anywhere(self, share: float) -> None:
        offset = int(share * self.partition.high_watermark)
        assert [row for row in self.rows() if row[0] >= offset] == self.rows(offset)

    @rule(how=st.sampled_from(["stop", "kill", "power"]), seed=st.integers(0, 2**32))
    def end(self, how: str, seed: int) -> None:
        shown = self.partition.high_watermark
        if how == "stop":
            assert self.driver.close()
        loss = self.disk.any_power_loss(random.Random(seed))
        if how == "power":
            fates = {number: fate if fate is Fate.KEPT else Fate.LOST for number, fate in loss.fates.items()}
            self.disk = self.disk.after(type(loss)(loss.name, fates))
        else:
            self.disk = self.disk.killed()
        self.driver = BrokerLogsDriver(self.disk, self.clock)
        self.stand()
        assert shown <= self.partition.log_end_offset
        self.written = [row for row in self.written if row[0] < self.partition.log_end_offset]

    def rows(self, offset: int = 0) -> list[Row]:
        found: list[Row] = []
        start = offset
        while data := self.partition.read(offset, bytes_max=700):
            at = 0
            while at < len(data):
                header = batches.read_header(data, at)
                at, offset = at + header.size, header.next_offset
            found += [row[:4] for row in batches.unpack(bytes(data)) if row.offset >= start]
        return found

    @invariant()
    def a_reader_sees_the_newest_of_every_key(self) -> None:
        shown = [row for row in self.written if row[0] < self.partition.high_watermark]
        found = self.rows()
        assert found == sorted(set(found)) and set(found) <= set(shown)
        newest = {row[2]: row for row in shown}
        assert {row for row in newest.values() if row[3] is not None} <= set(found)
        assert [] == self.partition.damage


CompactedPartition.TestCase.settings = settings(
    max_examples=examples(40, soak=1000), stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
TestCompactedPartition = CompactedPartition.TestCase
