"""Where a reader begins, as it is written on the command line."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.client.answers import OffsetAndTimestamp
from logmark.client.client import Client
from logmark.client.errors import OffsetOutOfRange
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.partitions import LogBounds
from logmark.offsets.times import parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """One of: an end of the log, an offset, so many records before the end, a point in time."""

    is_earliest: bool = False
    is_latest: bool = False
    offset: int | None = None
    before_end: int | None = None
    timestamp_ms: int | None = None


def parse_offset_spec(text: str, *, now_ms: int) -> OffsetSpec:
    """Parse earliest, latest, N, -N, @TIME or @-2h."""
    if text in ("earliest", "start", "beginning"):
        return OffsetSpec(is_earliest=True)
    if text in ("latest", "end"):
        return OffsetSpec(is_latest=True)
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return OffsetSpec(offset=int(text))
    if re.fullmatch(r"-\d{1,18}", text, re.ASCII):
        return OffsetSpec(before_end=int(text[1:]))
    if text.startswith("@"):
        return OffsetSpec(timestamp_ms=parse_time(text[1:], now_ms=now_ms))
    raise UserError(
        f"{text!r} is no offset to start at: write earliest, latest, an offset (42), so many records before the end "
        "(-10), a time (@2024-03-05T00:00:00) or a time ago (@-2h)."
    )


def resolve_offset_spec(
    client: Client, partitions: Sequence[TopicPartition], position: OffsetSpec
) -> tuple[dict[TopicPartition, int], LogBounds]:
    """Return the start offset of each partition, and the bounds of the logs.

    Raises UserError if one is out of range.
    """
    bounds = LogBounds.fetch(client, partitions).check()
    times: Mapping[TopicPartition, OffsetAndTimestamp] = {}
    if position.timestamp_ms is not None:
        times = client.list_offsets(dict.fromkeys(partitions, position.timestamp_ms))
    found = {}
    for one in partitions:
        start, end = bounds.starts[one], bounds.ends[one]
        if position.is_earliest:
            found[one] = start
        elif position.offset is not None:
            if not start <= position.offset <= end:
                raise OffsetOutOfRange(one, position.offset, log_start=start, log_end=end)
            found[one] = position.offset
        elif position.before_end is not None:
            found[one] = max(start, end - position.before_end)
        elif position.timestamp_ms is not None:
            found[one] = times[one].offset if times[one].offset >= 0 else end
        else:
            found[one] = end
    return found, bounds
