"""Where a replay starts and ends: as people write it, and in offsets of the logs at hand."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.reset.offset_files import parse_offsets
from logmark.offsets.reset.targets import ToEarliest, ToLatest, ToOffsets, ToTime
from logmark.offsets.times import FORMATS, parse_duration, parse_time
from logmark.spark.source.offset_maps import flatten_by_partition
from logmark.spark.source.ranges import Bounds

ReplayTarget = ToEarliest | ToLatest | ToTime | ToOffsets


def parse_target(text: str, *, group: str, now_ms: int) -> ReplayTarget:
    """Parse earliest, latest, a time, a duration before now, offsets as JSON, or the name of a file of offsets.

    Raises UserError if the text is none of them.
    """
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return ToEarliest() if word.lower() == "earliest" else ToLatest()
    if word.startswith("{"):
        return _parse_json(word)
    with contextlib.suppress(UserError):
        return ToTime(max(now_ms - parse_duration(word), 0))
    with contextlib.suppress(UserError):
        return ToTime(parse_time(word, now_ms=now_ms))
    if Path(word).is_file():
        return parse_offsets(Path(word).read_text(), group, word)
    raise UserError(
        f"{text!r} is no start or end of a replay. Nothing was changed. Write earliest, latest, 3d or 2h (before now), "
        f'{FORMATS}, offsets such as {{"clicks": {{"0": 100}}}}, or the name of a file of offsets.',
        exit_code=2,
    )


def _parse_json(text: str) -> ToOffsets:
    wrong = UserError(
        f"{text} must give an offset for each partition of each topic, such as "
        '{"clicks": {"0": 100, "1": 250}}. Nothing was changed.',
        exit_code=2,
    )
    try:
        offsets = flatten_by_partition(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise wrong from None
    if not offsets or any(type(offset) is not int or offset < 0 for offset in offsets.values()):
        raise wrong
    return ToOffsets({partition: Committed(offset=offset) for partition, offset in offsets.items()}, text)


def resolve_target(
    client: Client, target: ReplayTarget, bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, int]:
    """Return the offset of the target in each partition.

    Raises UserError if the target names offsets and misses a partition, or names one outside of its log.
    """
    match target:
        case ToEarliest():
            return {partition: one.start for partition, one in bounds.items()}
        case ToLatest():
            return {partition: one.end for partition, one in bounds.items()}
        case ToTime(timestamp_ms):
            found = client.list_offsets(dict.fromkeys(bounds, timestamp_ms)) if bounds else {}
            return {one: at.offset if at.offset >= 0 else bounds[one].end for one, at in found.items()}
        case ToOffsets(commits):
            missing = sorted(set(bounds) - set(commits))
            if missing:
                raise UserError(
                    f"The pipeline reads {', '.join(map(str, missing[:3]))}, and {target.source} has no offset for it. "
                    "Nothing was changed."
                )
            for partition, one in bounds.items():
                if not one.start <= commits[partition].offset <= one.end:
                    raise UserError(
                        f"Offset {commits[partition].offset} is out of range in {partition}, which holds offsets "
                        f"{one.start} to {one.end}. Nothing was changed."
                    )
            return {partition: commits[partition].offset for partition in bounds}
