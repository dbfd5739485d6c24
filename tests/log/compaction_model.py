"""Compaction by its rules in the plainest Python, for comparison: batches as values, one pass after the other."""

from dataclasses import replace

from tests.oracle.records import Batch, Record

Aborted = tuple[int, int, int]  # producer id, first offset, offset of the marker
ABORT, HORIZON, CONTROL, TRANSACTIONAL, LOG_APPEND_TIME = b"\0\0\0\0", 0x40, 0x20, 0x10, 0x08


def last_offset(batch: Batch) -> int:
    return batch.base_offset + (batch.last_offset_delta or 0)


def compacted(
    log: list[Batch], aborted: list[Aborted], producers: dict[int, tuple[int, int]], dirty: int, mapped_to: int,
    end: int, now: int, horizon: int,
) -> tuple[list[Batch], list[Aborted]]:  # fmt: skip
    """What stays of a log, and the aborted transactions that readers must still be told of."""

    def of_aborted(batch: Batch) -> list[Aborted]:
        found = [t for t in aborted if t[0] == batch.producer_id and t[1] <= last_offset(batch) <= t[2]]
        return found if batch.attributes & TRANSACTIONAL else []

    newest: dict[bytes | None, int] = {}
    for batch in log:
        if not batch.attributes & CONTROL and not of_aborted(batch):
            offsets = [(record.key, batch.base_offset + record.offset_delta) for record in batch.records]
            newest |= {key: offset for key, offset in offsets if dirty <= offset < mapped_to and key is not None}
    left: list[Batch] = []
    needed: list[Aborted] = []
    met: set[int] = set()
    for batch in log:
        is_marker, is_aborted = bool(batch.attributes & CONTROL), bool(of_aborted(batch))
        expired = bool(batch.attributes & HORIZON) and batch.base_timestamp <= now
        is_idle = is_marker and (not batch.records or batch.producer_id not in met)
        if is_marker and batch.records and not is_idle and batch.records[0].key == ABORT:
            needed += of_aborted(batch)
        (met.discard if is_marker else met.add)(batch.producer_id if batch.attributes & TRANSACTIONAL else -2)
        kept = [
            record for record in batch.records
            if (not (is_idle and expired) if is_marker else not is_aborted and (
                batch.base_offset + record.offset_delta >= mapped_to or (record.key is not None
                and newest.get(record.key, -1) <= batch.base_offset + record.offset_delta
                and (record.value is not None or not expired))))
        ]  # fmt: skip
        known = producers.get(batch.producer_id, (-1, -1)) if batch.producer_id >= 0 else (-1, -1)
        is_last = known[0] == last_offset(batch) if known[0] >= 0 else is_marker and known[1] == batch.producer_epoch
        if not kept and not (is_last or last_offset(batch) + 1 == end):
            continue
        left.append(rewritten(batch, kept, is_idle or any(record.value is None for record in kept), horizon))
    return left, needed


def rewritten(batch: Batch, kept: list[Record], has_deletes: bool, horizon: int) -> Batch:
    if not kept:
        kind = batch.attributes & (CONTROL | TRANSACTIONAL | LOG_APPEND_TIME)
        return replace(batch, records=[], attributes=kind, codec=0, base_timestamp=-1)
    if len(kept) == len(batch.records) and (batch.attributes & HORIZON or not has_deletes):
        return batch
    times = [batch.base_timestamp + record.timestamp_delta for record in kept]
    if batch.attributes & LOG_APPEND_TIME:
        times = [batch.max_timestamp or 0] * len(kept)
    sets = has_deletes and not batch.attributes & HORIZON
    base = horizon if sets else batch.base_timestamp if batch.attributes & HORIZON else times[0]
    return replace(
        batch,
        records=[replace(record, timestamp_delta=time - base) for record, time in zip(kept, times, strict=True)],
        base_timestamp=base, max_timestamp=max(-1, *times),
        attributes=batch.attributes | (HORIZON if has_deletes else 0),
    )  # fmt: skip
