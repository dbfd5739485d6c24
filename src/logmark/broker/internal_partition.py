"""A partition of an internal topic as the log of its coordinator."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from logmark.coordination.internal_log import LogBatch
from logmark.errors import LogFailed, Malformed
from logmark.log import disk_full
from logmark.wire import batches, columns
from logmark.wire.batches import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader

if TYPE_CHECKING:
    from logmark.log.partition import Partition

LOAD_BYTES = 128 * 1024  # read at once while loading: some milliseconds of the event loop
_DECOMPRESSED_BYTES_MAX = 2**31 - 1


class PartitionLog:
    """A partition of `__consumer_offsets`, or of another internal topic; an `InternalLog`."""

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition

    @property
    def failure(self) -> LogFailed | None:
        """Why this log takes no more batches: the disk failed it or the write-ahead log; None while it does."""
        return self._partition.write_failure

    @property
    def size_bytes(self) -> int:
        """How much a load has to read, about."""
        partition = self._partition
        return partition.size_bytes if partition.high_watermark > partition.log_start_offset else 0

    def append(self, batch: LogBatch, *, now_ms: int) -> int:
        """Write one batch; it is durable once the log is durable up to the offset that is returned."""
        attributes = (TRANSACTIONAL_BIT if batch.is_transactional else 0) | (CONTROL_BIT if batch.is_control else 0)
        built = batches.build(
            batch.records, timestamp_ms=now_ms, producer_id=batch.producer_id, producer_epoch=batch.producer_epoch,
            attributes=attributes,
        )  # fmt: skip
        return self._partition.append(batches.own(built), now_ms=now_ms, from_client=False).last_offset + 1

    def when_durable(self, next_offset: int, callback: Callable[[LogFailed | None], None]) -> bool:
        """Call back when every offset below is on disk, or the log has failed; return False if all of them are."""
        return self._partition.when_durable(next_offset, callback)

    def read(self) -> Iterator[LogBatch]:
        """Yield everything durable from the log start on; plain batches that lie together as one.

        A compacted log may end in a hole: its last records were removed, or a crash came after its last segment was
        lost, and nobody knows it any more.
        """
        offset, end = self._partition.log_start_offset, self._partition.high_watermark
        while offset < end:
            data = memoryview(self._partition.read(offset, bytes_max=LOAD_BYTES))
            if not len(data):
                return
            begin = offset
            for run, header in _split(data):
                portion = _decode(run, header, start=offset, stop=end)
                records = list(zip(portion.keys(), portion.values(), strict=True))
                if header is None:
                    yield LogBatch(records)
                else:
                    yield LogBatch(
                        records, header.producer_id, header.producer_epoch, header.is_transactional, header.is_control
                    )  # fmt: skip
                offset = portion.next_offset
            if offset <= begin:
                raise Malformed(f"{self._partition.topic} cannot be read at offset {offset} below its end {end}")

    def may_be_read_later(self, error: BaseException) -> bool:
        """Return whether a read that failed may succeed as soon as the process has memory or descriptors again."""
        return disk_full.is_passing(error)


def _split(data: memoryview) -> Iterator[tuple[memoryview, BatchHeader | None]]:
    """Yield runs of plain batches, and each transactional or control batch by itself with its header."""
    begin = at = 0
    while len(data) - at >= batches.HEADER_BYTES:
        header = batches.read_header(data, at)
        if header.is_control or header.is_transactional:
            if at > begin:
                yield data[begin:at], None
            begin = at + header.size
            yield data[at:begin], header
        at += header.size
    if begin < len(data):
        yield data[begin:], None


def _decode(data: memoryview, header: BatchHeader | None, *, start: int, stop: int) -> columns.Columns:
    """Return the records of batches, those of a control batch too, which readers never get."""
    if header is not None and header.is_control:
        if not batches.crc_is_right(data, 0, header.size):
            raise Malformed(f"the control batch at offset {header.base_offset} has a wrong checksum")
        data = memoryview(batches.without_control_bit(data))
    return columns.decode(data, start=start, stop=stop, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX)
