"""Where a read begins and where it ends: in offsets, times or distances, made into offsets of the logs at hand."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.times import format_time, parse_datetime
from logmark.spark.source.option_names import INT32_MAX, INT64_MAX, parse_duration_ms, parse_whole, quote_value
from logmark.spark.source.ranges import Bounds

NO_RECORD = -1  # what a look-up by time answers where no record is that young
_JSON_LATEST, _JSON_EARLIEST = -1, -2
_BACK = re.compile(r"-(\d+)(\s+records?)?", re.IGNORECASE)
_AGO = re.compile(r"-\s*(?P<short>[\dP]\S*)|(?P<length>\S+)\s+ago", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogEdge:
    """One of the two ends of each log."""

    word: Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; -1 is the end and -2 the beginning, as Spark writes them."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time, one for all partitions or one for each."""

    times: int | Mapping[TopicPartition, int]
    is_strict: bool = True  # a partition without so young a record is a mistake, and not read from its end


@dataclass(frozen=True, slots=True)
class TimeAgo:
    """The first record that is no older than this; the end where there is none."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class RecordsBack:
    """So many offsets before the end, or the beginning of a log that is shorter."""

    records: int


OffsetSpec = LogEdge | AtOffsets | AtTime | TimeAgo | RecordsBack
TimeLookup = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]
EARLIEST, LATEST = LogEdge("earliest"), LogEdge("latest")


def resolve_spec(
    edge: OffsetSpec, bounds: Mapping[TopicPartition, Bounds], *, look_up: TimeLookup, now_ms: int, name: str
) -> dict[TopicPartition, int | None]:
    """Return the offset in each partition, None where no record is that young; raises UserError for a missing one."""
    match edge:
        case LogEdge(word):
            return {partition: bound.start if word == "earliest" else bound.end for partition, bound in bounds.items()}
        case RecordsBack(records):
            return {partition: max(bound.start, bound.end - records) for partition, bound in bounds.items()}
        case TimeAgo(milliseconds):
            return _found(look_up, dict.fromkeys(bounds, max(0, now_ms - milliseconds)))
        case AtTime(times):
            wanted = dict.fromkeys(bounds, times) if isinstance(times, int) else _each(times, bounds, name)
            return _found(look_up, wanted)
        case AtOffsets(offsets):
            ends = {_JSON_LATEST: lambda bound: bound.end, _JSON_EARLIEST: lambda bound: bound.start}
            named = _each(offsets, bounds, name)
            return {partition: ends[to](bounds[partition]) if to in ends else to for partition, to in named.items()}


def named_partitions(edge: OffsetSpec | None) -> Collection[TopicPartition] | None:
    """Return the partitions that the spec names, None if it is for all of them."""
    match edge:
        case AtOffsets(named) | AtTime(Mapping() as named):
            return named
    return None


def check_spec_covers(edge: OffsetSpec | None, partitions: Iterable[TopicPartition], *, name: str) -> None:
    """Raise UserError if the spec names partitions, and not exactly these."""
    named = named_partitions(edge)
    if named is not None and set(named) != set(partitions):
        raise _not_covered(name, partitions)


def resolve_starts(
    edge: OffsetSpec, bounds: Mapping[TopicPartition, Bounds], *, look_up: TimeLookup, now_ms: int, name: str
) -> dict[TopicPartition, int]:
    """Return where to start; raises UserError if no record is as young as a strict time."""
    found = resolve_spec(edge, bounds, look_up=look_up, now_ms=now_ms, name=name)
    missing = sorted(partition for partition, offset in found.items() if offset is None)
    if missing and isinstance(edge, AtTime) and edge.is_strict:
        time = edge.times if isinstance(edge.times, int) else edge.times[missing[0]]
        raise UserError(
            f"{name} asks for {format_time(time)}, but {', '.join(str(partition) for partition in missing)} has no "
            "record of that time or later. Nothing was read. To begin at the end of such a partition, set "
            "startingOffsetsByTimestampStrategy to latest."
        )
    return {partition: bounds[partition].end if offset is None else offset for partition, offset in found.items()}


def parse_offset_spec(text: str, *, name: str) -> OffsetSpec:
    """Return what `startingOffsets` or `endingOffsets` says."""
    is_start = name.startswith("starting")
    words = {"latest": LATEST} | ({"earliest": EARLIEST} if is_start else {})
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith("{"):
        lowest = _JSON_EARLIEST if is_start else _JSON_LATEST
        offsets = _by_partition(text, name, lambda value: value if _is_number(value, lowest) else None)
        return AtOffsets(offsets)
    back, ago = _BACK.fullmatch(text), _AGO.fullmatch(text)
    records = parse_whole(back[1]) if back else None
    if back and records is None:
        raise UserError(
            f"The option {name} is {quote_value(text)}. No log has so many records: at most {INT64_MAX}. Nothing was "
            "read."
        )
    if back and records is not None and (back[2] or records > 2):
        return RecordsBack(records)
    if back:
        raise UserError(
            f"The option {name} is {text}, which could mean {'earliest' if back[1] == '2' else 'latest'} or so many "
            f"records before the end. Write the word, or: {text} records."
        )
    if ago:
        return TimeAgo(parse_duration_ms(ago["short"] or ago["length"], name))
    raise UserError(
        f"The option {name} is {quote_value(text)}, and must be {' or '.join(words)}, offsets by topic and partition "
        f'such as {{"clicks": {{"0": 100, "1": -1}}}} (-1 is latest{", -2 earliest" if is_start else ""}), a '
        "time before now such as -2h, or a number of records before the end such as -1000."
    )


def parse_time_spec(text: str, *, name: str, is_strict: bool) -> OffsetSpec:
    """Parse `startingTimestamp` or `endingTimestamp`: milliseconds since 1970, a date, or a time before now."""
    ago = _AGO.fullmatch(text)
    if ago:
        return TimeAgo(parse_duration_ms(ago["short"] or ago["length"], name))
    return AtTime(_time(text, name), is_strict)


def parse_times_spec(text: str, *, name: str, is_strict: bool) -> OffsetSpec:
    """Parse `startingOffsetsByTimestamp` or `endingOffsetsByTimestamp`: times by topic and partition, as JSON."""

    def time(value: Any) -> int | None:
        if isinstance(value, str):
            return _time(value, name)
        return value if _is_number(value, 0) else None

    return AtTime(_by_partition(text, name, time), is_strict)


def parse_json(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object of an option, keyed by topic."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The option {name} is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"The option {name} must be a JSON object, keyed by topic.")
    return fields


def _by_partition(text: str, name: str, read: Callable[[Any], int | None]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, partitions in parse_json(text, name).items():
        for number, value in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            partition, read_value = parse_whole(number, INT32_MAX), read(value)
            if partition is None or read_value is None:
                what = '{"clicks": {"0": 1700000000000}}' if "Timestamp" in name else '{"clicks": {"0": 100, "1": -1}}'
                raise UserError(
                    f"The option {name} must hold a number for each partition of each topic, such as {what}, of at "
                    "most 64 bits, and not "
                    f"{quote_value(json.dumps({topic: {number: value} if number else partitions}))}. Nothing was read."
                )
            found[TopicPartition(topic, partition)] = read_value
    return found


def _is_number(value: Any, lowest: int) -> bool:
    return type(value) is int and lowest <= value <= INT64_MAX


def _time(given: str, name: str) -> int:
    text = given.strip()
    if text.isdecimal():
        time = parse_whole(text)  # Spark's meaning: always milliseconds
        if time is None:
            raise UserError(
                f"The option {name} asks for {quote_value(text)} milliseconds since 1970. The last time that Kafka "
                f"knows is {INT64_MAX}. Nothing was read."
            )
        return time
    try:
        return parse_datetime(text)
    except UserError as error:
        raise UserError(f"The option {name}: {error}") from None


def _each(
    given: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds], name: str
) -> dict[TopicPartition, int]:
    if not set(bounds) <= set(given):
        raise _not_covered(name, bounds)
    return {partition: given[partition] for partition in bounds}


def _not_covered(name: str, partitions: Iterable[TopicPartition]) -> UserError:
    return UserError(
        f"The option {name} must say something for each partition that is read and for no other: "
        + ", ".join(str(partition) for partition in sorted(partitions))
        + ". Nothing was read."
    )


def _found(look_up: TimeLookup, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    return {partition: None if offset == NO_RECORD else offset for partition, offset in look_up(times).items()}
