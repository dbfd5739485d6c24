"""How much one batch of a stream reads, and when it is worth to read: pure arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass

from logmark.names import TopicPartition
from logmark.spark.source.position import Offsets

DELAY_MAX_MS = 15 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the user allows for one batch; offsets are counted, so a log with gaps gives fewer records."""

    records_max: int | None = None
    bytes_max: int | None = None
    records_min: int | None = None
    delay_max_ms: int = DELAY_MAX_MS

    def are_met(self, waiting: int, *, since_batch_ms: int | None) -> bool:
        """Return whether so many waiting records are worth a batch; the first one of a run always is."""
        if self.records_min is None or waiting >= self.records_min or since_batch_ms is None:
            return True
        return since_batch_ms >= self.delay_max_ms


def share_records(
    first: Offsets,
    ends: Offsets,
    *,
    records_max: int | None,
    bytes_max: int | None = None,
    record_bytes: Mapping[TopicPartition, float] | None = None,
) -> dict[TopicPartition, int]:
    """Return where the batch stops: in each partition in proportion to its lag, and after one record at least.

    `record_bytes` says how large a record is, partition by partition, when bytes are to be limited.
    """
    waiting = {partition: max(0, end - first[partition]) for partition, end in ends.items()}
    part, whole = 1, 1
    if records_max is not None and sum(waiting.values()) > records_max:
        part, whole = records_max, sum(waiting.values())
    if bytes_max is not None:
        total = round(sum(count * (record_bytes or {}).get(partition, 0.0) for partition, count in waiting.items()))
        if total * part > bytes_max * whole:
            part, whole = bytes_max, total
    if part == whole:
        return {partition: first[partition] + count for partition, count in waiting.items()}
    return {
        partition: first[partition] + min(count, max(1, count * part // whole)) for partition, count in waiting.items()
    }
