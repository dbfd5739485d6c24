"""How large records are, measured where a batch would begin: what a limit in bytes is shared by."""

from collections.abc import Mapping
from contextlib import suppress

from logmark.client.client import Client
from logmark.client.errors import OffsetOutOfRange
from logmark.client.fetcher import next_offset
from logmark.names import TopicPartition
from logmark.spark.source.position import Offsets

_SAMPLE_BYTES = 64 << 10
_SAMPLES_MAX = 32  # partitions looked at for one batch; the others count as what they were last, or as the average


class RecordSizes:
    """Bytes per offset as the broker keeps them, compressed, partition by partition."""

    def __init__(self, cluster: Client) -> None:
        self._cluster = cluster
        self._known: dict[TopicPartition, float] = {}

    def measure(self, first: Offsets, waiting: Offsets) -> Mapping[TopicPartition, float]:
        """Return the size of a record at each of these positions, from a small fetch there."""
        for partition in sorted(waiting, key=lambda partition: waiting[partition], reverse=True)[:_SAMPLES_MAX]:
            self._sample(partition, first[partition])
        known = [self._known[partition] for partition in waiting if partition in self._known]
        average = sum(known) / len(known) if known else 0.0
        return {partition: self._known.get(partition, average) for partition in waiting}

    def _sample(self, partition: TopicPartition, offset: int) -> None:
        try:
            self._measure(partition, offset)
        except OffsetOutOfRange as gone:  # since the bounds were asked; who reads there says so, or the next batch
            with suppress(OffsetOutOfRange):
                self._measure(partition, gone.log_start)

    def _measure(self, partition: TopicPartition, offset: int) -> None:
        answer = self._cluster.fetch(partition, offset, bytes_max=_SAMPLE_BYTES, max_wait_ms=0, min_bytes=0)
        offsets = next_offset(answer.records, offset) - first_offset(answer.records, offset)
        if offsets > 0:
            self._known[partition] = whole_bytes(answer.records) / offsets


def first_offset(records: memoryview, otherwise: int) -> int:
    """Return the offset of the first batch, which may begin below the position that was asked for."""
    return int.from_bytes(records[:8], "big", signed=True) if len(records) >= 8 else otherwise


def whole_bytes(records: memoryview) -> int:
    """Return the bytes of the batches that came whole."""
    at = 0
    while len(records) - at >= 12:
        end = at + 12 + int.from_bytes(records[at + 8 : at + 12], "big", signed=True)
        if not at < end <= len(records):
            break
        at = end
    return at
