"""Looking records up by their timestamps."""

from collections.abc import Iterator, Sequence

from logmark.errors import ErrorCode, Malformed, Refused
from logmark.log.segment import BadBatch, Segment
from logmark.wire import columns
from logmark.wire.batches import BatchHeader

DECOMPRESSED_BYTES_MAX = 2**30


def first_at_or_after(segments: Sequence[Segment], timestamp: int, *, log_start_offset: int) -> tuple[int, int] | None:
    """The offset and timestamp of the first readable record that is not older than a timestamp."""
    for segment in segments:
        segment.load_timestamps()
        if segment.visible_timestamp < timestamp:
            continue
        position = segment.nearest_time(timestamp, segment.visible_bytes)
        found = _first_in(segment, position, timestamp, log_start_offset)
        if found is not None:
            return found
    return None


def largest(segments: Sequence[Segment], *, log_start_offset: int) -> tuple[int, int] | None:
    """The offset and timestamp of the first record that has the largest timestamp of all."""
    for segment in segments:
        segment.load_timestamps()
    timestamp = max((segment.visible_timestamp for segment in segments), default=-1)
    return None if timestamp < 0 else first_at_or_after(segments, timestamp, log_start_offset=log_start_offset)


def _first_in(segment: Segment, position: int, timestamp: int, log_start_offset: int) -> tuple[int, int] | None:
    for at, header in _candidates(segment, position):
        if header.max_timestamp < timestamp or header.last_offset < log_start_offset or header.is_control:
            continue
        data = segment.read(at, header.size)
        try:
            found = columns.decode(
                data, start=log_start_offset, stop=2**63 - 1, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
            )
        except Malformed as error:
            raise Refused(
                ErrorCode.CORRUPT_MESSAGE, f"The batch at byte {at} of {segment.path} is damaged: {error}."
            ) from None
        for index in range(found.count):
            if found.timestamps_ms[index] >= timestamp:
                return found.offsets[index], found.timestamps_ms[index]
    return None


def _candidates(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
    while True:
        try:
            yield from segment.batches(position, segment.visible_bytes)
            return
        except BadBatch as bad:
            position = segment.note_damage(
                bad.position, segment.visible_bytes, at_least=bad.expected, problem=bad.problem
            )
