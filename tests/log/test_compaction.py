"""Compaction keeps what its rules keep: the rewriting against a model, the choice of logs and segments by table."""

import itertools
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logmark.disk.file_system import RealFileSystem
from logmark.log import compaction_schedule, segment_cleaner
from logmark.log.compaction_schedule import CompactionLag, CompactionSegment, Source
from logmark.log.index import OffsetIndex, TimeIndex
from logmark.log.segment_cleaner import Cleaned, Done, Limits, Plan
from logmark.log.transactions import Aborted, AbortedTransactions
from tests.harness.searches import examples
from tests.log import compaction_model as model
from tests.oracle import records as oracle
from tests.oracle.records import HEAD, Batch, Record

NOW_MS = 1_700_000_000_000
RETENTION_MS = 1000
FILES = RealFileSystem(sync=False)
KEYS = [b"a", b"b", b"c", b"d", b"e", b"", b"a longer key"]

unhurried = settings(suppress_health_check=list(HealthCheck), max_examples=examples(120, soak=2000))


@dataclass
class SegmentedLog:
    """A log as segments of batches, and what its broker knows of it."""

    segments: list[list[Batch]]
    aborted: list[model.Aborted]
    producers: dict[int, tuple[int, int]]

    @property
    def bases(self) -> list[int]:
        firsts = [segment[0].base_offset for segment in self.segments]
        return [0, *firsts[1:]]

    @property
    def end(self) -> int:
        return model.last_offset(self.segments[-1][-1]) + 1


def parse(data: bytes) -> list[Batch]:
    """Every batch, records and all."""
    found, at = [], 0
    while at < len(data):
        head = HEAD.unpack_from(data, at)
        base, length, epoch, magic, crc, attributes, delta, base_time, max_time, *producer, count = head
        producer_id, producer_epoch, base_sequence = producer
        end = at + 12 + length
        assert (2, crc) == (magic, oracle.crc32c(data[at + 21 : end]))
        body = oracle._Reader(oracle.decompress(attributes & 7, data[at + HEAD.size : end]) if count else b"")
        records = []
        for _ in range(count):
            record = oracle._Reader(body.take(body.varint()))
            _, time, offset = record.take(1), record.varint(), record.varint()
            key, value = record.sized(), record.sized()
            headers = [(record.sized() or b"", record.sized()) for _ in range(record.varint())]
            records.append(Record(key=key, value=value, headers=headers, offset_delta=offset, timestamp_delta=time))
        found.append(
            Batch(
                records=records, base_offset=base, leader_epoch=epoch, codec=attributes & 7, attributes=attributes & ~7,
                base_timestamp=base_time, max_timestamp=max_time, producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence, last_offset_delta=delta,
            )
        )  # fmt: skip
        at = end
    return found


def marker(is_commit: bool, producer_id: int, producer_epoch: int, base_offset: int) -> Batch:
    key = struct.pack(">hh", 0, int(is_commit))
    return Batch(
        records=[Record(key=key, value=struct.pack(">hi", 0, 0), headers=[])], base_offset=base_offset,
        producer_id=producer_id, producer_epoch=producer_epoch, last_offset_delta=0,
        attributes=model.CONTROL | model.TRANSACTIONAL, max_timestamp=NOW_MS, base_timestamp=NOW_MS,
    )  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> SegmentedLog:
    """Plain, idempotent and transactional batches of every codec, some emptied or with a horizon, in segments."""
    found: list[Batch] = []
    aborted: list[model.Aborted] = []
    begun: dict[int, int] = {}
    last: dict[int, tuple[int, int]] = {}
    offset = 0

    def end_transaction(producer_id: int) -> None:
        nonlocal offset
        is_commit = draw(st.booleans())
        batch = marker(is_commit, producer_id, 0, offset)
        if draw(st.booleans()):
            batch = replace(batch, attributes=batch.attributes | model.HORIZON, base_timestamp=draw(horizons),
                            max_timestamp=NOW_MS)  # fmt: skip
        first = begun.pop(producer_id)
        if not is_commit:
            aborted.append((producer_id, first, offset))
        found.append(batch)
        offset += 1

    horizons = st.sampled_from([NOW_MS - 1, NOW_MS, NOW_MS + 1])
    for _ in range(draw(st.integers(1, 14))):
        producer_id = draw(st.sampled_from([-1, -1, 5, 6, 7, 8]))
        if producer_id in begun and draw(st.booleans()):
            end_transaction(producer_id)
            continue
        size = draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 4))
        span = size + draw(st.integers(0, 1))
        attributes = draw(st.sampled_from([0, 0, 0, model.LOG_APPEND_TIME, model.HORIZON]))
        if producer_id >= 7:
            attributes |= model.TRANSACTIONAL
            begun.setdefault(producer_id, offset)
        deltas = sorted(draw(st.sets(st.integers(0, max(span - 1, 0)), min_size=size, max_size=size)))
        base_timestamp = draw(horizons) if attributes & model.HORIZON else NOW_MS - draw(st.integers(0, 200))
        batch = Batch(
            records=[
                Record(
                    key=draw(st.sampled_from([*KEYS, *KEYS, None])),
                    value=draw(st.sampled_from([None, b"", b"value" * 9])),
                    headers=draw(st.sampled_from([[], [(b"h", b"1"), (b"i", None)]])), offset_delta=delta,
                    timestamp_delta=draw(st.integers(-70, 70)),
                )
                for delta in deltas
            ],
            base_offset=offset, codec=draw(st.integers(0, 4)) if size else 0, attributes=attributes,
            base_timestamp=base_timestamp,
            producer_id=producer_id, producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else 17, last_offset_delta=max(span - 1, 0),
        )  # fmt: skip
        times = [base_timestamp + record.timestamp_delta for record in batch.records]
        found.append(replace(batch, max_timestamp=max([-1, *times])))
        offset += max(span, 1) + draw(st.sampled_from([0, 0, 0, 3]))
        if producer_id >= 0:
            last[producer_id] = (model.last_offset(batch), 0)
    for producer_id in list(begun):
        end_transaction(producer_id)
    forgotten = draw(st.sets(st.sampled_from([5, 6, 7, 8])))
    # A producer whose epoch was raised by its marker has no data of that epoch.
    raised = draw(st.sets(st.sampled_from([7, 8])))
    known = {key: (-1, 0) if key in raised else value for key, value in last.items() if key not in forgotten}
    cuts = sorted(draw(st.sets(st.integers(1, len(found)), max_size=3)))
    bounds = itertools.pairwise([0, *(cut for cut in cuts if cut < len(found)), len(found)])
    return SegmentedLog([found[start:stop] for start, stop in bounds], aborted, known)


def write(folder: Path, log: SegmentedLog) -> list[int]:
    sizes = []
    for base, segment in zip(log.bases, log.segments, strict=True):
        data = b"".join(bytes(oracle.encode_batch(batch)) for batch in segment)
        (folder / f"{base:020d}.log").write_bytes(data)
        sizes.append(len(data))
    return sizes


def plan_of(folder: Path, log: SegmentedLog, sizes: list[int], limits: Limits, **values: int) -> Plan:
    return Plan(
        folder=str(folder), bases=log.bases, sizes=sizes, end_offset=log.end, now_ms=NOW_MS,
        delete_retention_ms=RETENTION_MS, producers=log.producers, limits=limits,
        aborted=[Aborted(producer, first, end, 0) for producer, first, end in log.aborted],
        **{"first_dirty_offset": 0, "index_interval_bytes": 100, **values},
    )  # fmt: skip


def outputs(found: list[Cleaned | Done]) -> tuple[list[Cleaned], Done]:
    *cleaned, done = found
    assert isinstance(done, Done)
    return [each for each in cleaned if isinstance(each, Cleaned)], done


@unhurried
@given(
    logs(), st.integers(0, 30), st.sampled_from([150, 600, 2**30]), st.sampled_from([10, 8192 + 24 * 3, 2**20]),
    st.sampled_from([64, 300, 2**20]),
)  # fmt: skip
def test_cleaning_keeps_what_the_model_keeps(
    tmp_path_factory: pytest.TempPathFactory,
    log: SegmentedLog,
    dirty: int,
    segment_bytes: int,
    map_bytes: int,
    read_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    dirty = min(dirty, log.end - 1)
    sizes = write(folder, log)
    limits = Limits(map_bytes_max=map_bytes, read_bytes=read_bytes)
    plan = plan_of(folder, log, sizes, limits, first_dirty_offset=dirty, segment_bytes=segment_bytes)

    cleaned, done = outputs(list(segment_cleaner.clean(Plan.decode(plan.encode()), FILES)))

    assert dirty < done.cleaned_to <= log.end
    assert done.cleaned_to == log.end or map_bytes < 2**20
    touched = [batch for base, segment in zip(log.bases, log.segments, strict=True) if base < done.cleaned_to
               for batch in segment]  # fmt: skip
    expected, needed = model.compacted(
        touched, log.aborted, log.producers, dirty, done.cleaned_to, log.end, NOW_MS, NOW_MS + RETENTION_MS
    )
    assert [base for base in log.bases if base < done.cleaned_to] == [
        base for each in cleaned for base in each.replaced
    ]
    found: list[Batch] = []
    left: list[model.Aborted] = []
    for each in cleaned:
        path = folder / f"{each.base_offset:020d}.log.cleaned"
        data = path.read_bytes()
        assert each.size_bytes == len(data)
        check_indexes(folder, each, data)
        found += parse(data)
        if each.has_aborted:
            index = (folder / f"{each.base_offset:020d}.txnindex.cleaned").read_bytes()
            left += [entry[:3] for entry in AbortedTransactions.decode(index, base_offset=each.base_offset).entries]
    assert expected == found
    assert needed == left


def test_a_transaction_that_was_aborted_before_the_dirty_part_says_nothing_of_its_producers_next_one(
    tmp_path: Path,
) -> None:
    def of_producer(offset: int, *keys: bytes) -> Batch:
        return Batch(
            records=[
                Record(key=key, value=b"v", headers=[], offset_delta=index, timestamp_delta=0)
                for index, key in enumerate(keys)
            ],
            base_offset=offset, attributes=model.TRANSACTIONAL, base_timestamp=NOW_MS, max_timestamp=NOW_MS,
            producer_id=7, producer_epoch=0, base_sequence=0, last_offset_delta=len(keys) - 1,
        )  # fmt: skip

    clean = [of_producer(0, b"a", b"b"), marker(False, 7, 0, 2)]
    dirty = [of_producer(3, b"e", b"e"), marker(True, 7, 0, 5), of_producer(6, b"e"), marker(False, 7, 0, 7)]
    log = SegmentedLog([clean, dirty], [(7, 0, 2), (7, 6, 7)], {})

    list(segment_cleaner.clean(plan_of(tmp_path, log, write(tmp_path, log), Limits(), first_dirty_offset=3), FILES))

    left = parse((tmp_path / f"{0:020d}.log.cleaned").read_bytes())
    data = [batch for batch in left if not batch.attributes & model.CONTROL]
    assert [(3, [1])] == [(batch.base_offset, [record.offset_delta for record in batch.records]) for batch in data]


def check_indexes(folder: Path, each: Cleaned, data: bytes) -> None:
    """Every entry tells the truth about the batch that it points to."""
    by_position = {}
    at = 0
    for batch in parse(data):
        by_position[at] = batch
        at += struct.unpack_from(">i", data, at + 8)[0] + 12
    offsets = OffsetIndex(each.base_offset, (folder / f"{each.base_offset:020d}.index.cleaned").read_bytes())
    for entry in range(len(offsets)):
        last_offset, position = offsets[entry]
        assert model.last_offset(by_position[position]) == last_offset
    times = TimeIndex(each.base_offset, (folder / f"{each.base_offset:020d}.timeindex.cleaned").read_bytes())
    for entry in range(len(times)):
        timestamp, last_offset = times[entry]
        assert any(
            (batch.max_timestamp, model.last_offset(batch)) == (timestamp, last_offset)
            for batch in by_position.values()
        )
    largest = max((batch.max_timestamp or 0 for batch in by_position.values()), default=-1)
    assert largest == each.max_timestamp == (times[len(times) - 1][0] if len(times) else -1)


LOG = [CompactionSegment(0, 100), CompactionSegment(10, 100), CompactionSegment(20, 100), CompactionSegment(30, 100)]
NO_LAG = CompactionLag(0, 2**63 - 1)


@pytest.mark.parametrize(
    ("dirty", "stable", "lag", "expected"),
    [
        (0, 40, NO_LAG, (30, 300, 1.0)),
        (20, 40, NO_LAG, (30, 100, 1 / 3)),
        (30, 40, NO_LAG, (30, 0, 0.0)),
        (0, 25, NO_LAG, (20, 200, 1.0)),
        (0, 20, NO_LAG, (20, 200, 1.0)),
        (0, 5, NO_LAG, (0, 0, 0.0)),
        (0, 40, CompactionLag(1000, 2**63 - 1), (20, 200, 1.0)),
        (15, 40, NO_LAG, (30, 200, 200 / 400)),
    ],
    ids=[
        "everything but the active segment",
        "from the checkpoint on",
        "nothing",
        "up to the segment that holds the last stable offset",
        "up to the last stable offset where a segment begins there",
        "nothing while the first segment has an open transaction",
        "up to the first segment that is too young",
        "the segment that holds the checkpoint counts as both",
    ],
)
def test_the_dirty_part_of_a_log_is(
    dirty: int, stable: int, lag: CompactionLag, expected: tuple[int, int, float]
) -> None:
    log = [segment._replace(largest_timestamp=NOW_MS - 5000 + segment.base_offset * 240) for segment in LOG]

    found = compaction_schedule.find_dirty_part(
        log, first_dirty_offset=dirty, last_stable_offset=stable, lag=lag, now_ms=NOW_MS
    )

    assert expected == (found.end_offset, found.dirty_bytes, found.dirty_ratio)


def test_a_log_is_due_when_it_is_dirtier_than_the_ratio_or_has_waited_too_long() -> None:
    log = [segment._replace(first_timestamp=NOW_MS - 5000) for segment in LOG]
    waits, overdue = (
        compaction_schedule.find_dirty_part(
            log, first_dirty_offset=20, last_stable_offset=40, lag=CompactionLag(0, most_ms), now_ms=NOW_MS
        )
        for most_ms in (5000, 4999)
    )

    assert (True, False) == (waits.must_run(0.33), waits.must_run(0.34))
    assert overdue.must_run(1.0)
    assert not overdue._replace(dirty_bytes=0).must_run(1.0)


@pytest.mark.parametrize(
    ("cleaned_to", "expected"), [(None, 5), (4, 5), (5, 5), (20, 20), (30, 30), (31, 5)]
)  # fmt: skip
def test_a_checkpoint_outside_of_the_log_says_nothing(cleaned_to: int | None, expected: int) -> None:
    assert expected == compaction_schedule.first_dirty_offset(cleaned_to, log_start_offset=5, log_end_offset=30)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([(0, 40, 8, 12), (10, 60, 8, 12), (20, 1, 8, 12)], [[0, 10], [20]]),
        ([(0, 101, 8, 12), (10, 60, 8, 12)], [[0], [10]]),
        ([(0, 1, 20, 12), (10, 1, 13, 12)], [[0], [10]]),
        ([(0, 1, 8, 20), (10, 1, 8, 13)], [[0], [10]]),
        ([(0, 1, 8, 12), (2**31 - 30, 1, 8, 12)], [[0, 2**31 - 30]]),
        ([(0, 1, 8, 12), (2**31, 1, 8, 12)], [[0], [2**31]]),
        ([(0, 1, 8, 12), (2**31, 0, 0, 0)], [[0, 2**31]]),
        ([], []),
    ],
    ids=["bytes", "a large one", "index", "time index", "offsets fit", "offsets do not fit", "an empty one", "none"],
)
def test_segments_become_one_while_they_fit(
    sources: list[tuple[int, int, int, int]], expected: list[list[int]]
) -> None:  # fmt: skip
    end = max((source[0] for source in sources), default=0) + 30
    found = compaction_schedule.group_segments(
        [Source(*source) for source in sources], segment_bytes=100, index_bytes_max=32, end_offset=end
    )

    assert expected == [[source.base_offset for source in group] for group in found]
