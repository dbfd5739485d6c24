"""Where a replay begins and ends, as people say it, and in offsets of the logs at hand."""

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
from logmark.spark.source.ranges import Bounds

Aim = ToEarliest | ToLatest | ToTime | ToOffsets


def parse_aim(text: str, *, group: str, now_ms: int, name: str = "--from") -> Aim:
    """Earliest, latest, a time, a length of time before now, offsets as JSON, or a file that has them."""
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return ToEarliest() if word.lower() == "earliest" else ToLatest()
    if word.startswith("{"):
        return _of_json(word, name)
    with contextlib.suppress(UserError):
        return ToTime(max(now_ms - parse_duration(word), 0))
    with contextlib.suppress(UserError):
        return ToTime(parse_time(word, now_ms=now_ms))
    if Path(word).is_file():
        return parse_offsets(Path(word).read_text(), group, word)
    raise UserError(
        f"{name} {text!r} is not understood: write earliest, latest, 3d or 2h (before now), {FORMATS}, offsets such as "
        '{"clicks": {"0": 100}}, or the name of a file with offsets. Nothing was changed.',
        exit_code=2,
    )


def _of_json(text: str, name: str) -> ToOffsets:
    wrong = UserError(
        f'{name} must give an offset for each partition of each topic, such as {{"clicks": {{"0": 100, "1": 250}}}}. '
        "Nothing was changed.",
        exit_code=2,
    )
    try:
        places = {
            TopicPartition(topic, int(partition)): Committed(offset=offset)
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise wrong from None
    if not places or any(type(one.offset) is not int or one.offset < 0 for one in places.values()):
        raise wrong
    return ToOffsets(places, f"{name} {text}")


def offsets_of(client: Client, aim: Aim, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
    """The aim in each partition; raises a sentence where it names offsets and not all, or ones that are not there."""
    match aim:
        case ToEarliest():
            return {place: one.start for place, one in bounds.items()}
        case ToLatest():
            return {place: one.end for place, one in bounds.items()}
        case ToTime(timestamp_ms):
            found = client.list_offsets(dict.fromkeys(bounds, timestamp_ms)) if bounds else {}
            return {place: one.offset if one.offset >= 0 else bounds[place].end for place, one in found.items()}
        case ToOffsets(places):
            missing = sorted(set(bounds) - set(places))
            if missing:
                raise UserError(
                    f"{', '.join(map(str, missing[:3]))} is read by the pipeline, and {aim.source} has no offset for "
                    "it. Nothing was changed."
                )
            for place, one in bounds.items():
                if not one.start <= places[place].offset <= one.end:
                    raise UserError(
                        f"Offset {places[place].offset} is out of range in {place}, which holds offsets {one.start} to "
                        f"{one.end}. Nothing was changed."
                    )
            return {place: places[place].offset for place in bounds}
