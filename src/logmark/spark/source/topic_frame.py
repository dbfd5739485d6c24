"""Topics as a batch DataFrame, by one call: `read_topic`."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from logmark.clock import SystemClock
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.times import parse_datetime
from logmark.spark.sessions import register_format
from logmark.spark.source.offset_maps import nest_by_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offset = str | int | datetime | timedelta | Mapping[str, Mapping[int, int]] | Mapping[int, int]
Partitions = Iterable[int] | Mapping[str, Iterable[int]]

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"
FIRST_CONTACT_S = 10.0
_BOUNDS = frozenset({
    "subscribe", "subscribepattern", "assign", "startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp",
    "endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp", "columns",
})  # fmt: skip


def read_topic(
    spark: "SparkSession",
    topics: str | Sequence[str],
    *,
    start: Offset = "earliest",
    end: Offset = "latest",
    partitions: Partitions | None = None,
    columns: str | Sequence[str] | None = None,
    schema: str | None = None,
    bootstrap_servers: str | None = None,
    options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """Return the records of topics from `start` to `end` as a batch DataFrame.

    The bounds are looked up now, so the DataFrame has the same rows whenever it is used, and a mistake is an error of
    this call. It belongs to no group and leaves no trace in any.

        read_topic(spark, "clicks", start="-3d")
        read_topic(spark, "clicks", start="2026-11-15", end="2026-11-16", columns="key,timestamp")
        read_topic(spark, "clicks", start="-1000 records", partitions=[0])
        read_topic(spark, "clicks", start={0: 100, 1: 250}, schema="user STRING, price DECIMAL(10,2)")

    topics      one topic, or several
    start, end  the first record, and the first that is not read:
                "earliest" (start only), "latest" (end only)
                "-3d", "2h ago", timedelta(days=3)      a time before now
                "2026-11-15", "2026-11-15T06:00+01:00", datetime(...)   a time; UTC unless it has a zone
                "-1000 records", -1000                  so many records before the end, in each partition
                250                                     an offset, the same in each of `partitions`
                {0: 100, 1: 250}                        offsets by partition of one topic; only these are read
                {"clicks": {0: 100}}                    offsets by topic and partition; only these are read
                A partition that has no record as young as a time is read from its end, which gives no row.
    partitions  the partitions to read, of one topic or by topic; all unless given
    columns     the columns to read, of key, value, topic, partition, offset, timestamp, timestampType and headers; all
                but headers unless given. What is left out is neither made nor moved to Spark
    schema      the values are JSON of this schema (Spark's DDL): `value` is a struct; `error` and `raw` say which
                values do not fit it
    bootstrap_servers   the cluster; LOGMARK_BOOTSTRAP_SERVERS, else 127.0.0.1:9092 unless given
    options     further options of `format("logmark")`, such as those of security

    With Spark Connect the brokers may be out of reach of this process: there the bounds are checked here and looked up
    by the server, each time that the DataFrame is used.

    Raises UserError if an argument is wrong, if there is no such topic or partition, or if a bound is outside the log.
    """
    given = _source_options(
        topics,
        start=start,
        end=end,
        partitions=partitions,
        columns=columns,
        schema=schema,
        servers=bootstrap_servers or os.environ.get("LOGMARK_BOOTSTRAP_SERVERS") or DEFAULT_BOOTSTRAP_SERVERS,
        options=options or {},
    )
    # Only here: importing this module needs no PySpark.
    from logmark.spark.source.options import parse_source_options
    from logmark.spark.source.schemas import schema_of

    schema_of(parse_source_options(given, is_stream=False))
    if getattr(spark, "_jvm", None) is not None:  # a session of Spark Connect has none
        given = _look_up_bounds(given)
    register_format(spark)
    return spark.read.format("logmark").options(**given).load()


def _source_options(
    topics: str | Sequence[str],
    *,
    start: Offset,
    end: Offset,
    partitions: Partitions | None,
    columns: str | Sequence[str] | None,
    schema: str | None,
    servers: str,
    options: Mapping[str, str],
) -> dict[str, str]:
    """Return the call as options of `format("logmark")`; raises UserError for a wrong argument."""
    both = [name for name in options if name.lower() in _BOUNDS]
    if both:
        raise UserError(
            f"read_topic says by its own arguments what the option {' and '.join(both)} says. Nothing was read. Leave "
            "the option out."
        )
    names = [topics] if isinstance(topics, str) else list(topics)
    wanted = _choose_partitions(names, start, end, partitions)
    given = {"bootstrap.servers": servers} | dict(options)
    if wanted is None:
        given["subscribe"] = ",".join(names)
    else:
        given["assign"] = _assign(wanted)
    given |= _bound_options("start", start, names, wanted) | _bound_options("end", end, names, wanted)
    if columns is not None:
        given["columns"] = columns if isinstance(columns, str) else ",".join(columns)
    if schema is not None:
        given |= {"value.format": "json", "value.schema": schema}
    return given


def _choose_partitions(
    topics: list[str], start: Offset, end: Offset, partitions: Partitions | None
) -> list[TopicPartition] | None:
    """Return the partitions to read, sorted, None for all; those of offsets are meant where none are given."""
    named = {
        name: set(_flatten(name, bound, topics))
        for name, bound in (("start", start), ("end", end))
        if isinstance(bound, Mapping)
    }
    if partitions is not None:
        named["partitions"] = _listed_partitions(topics, partitions)
    if not named:
        return None
    first, *others = named.values()
    if any(other != first for other in others):
        raise UserError(
            f"{' and '.join(named)} of read_topic name different partitions. Nothing was read. Name the same ones."
        )
    return sorted(first)


def _listed_partitions(topics: list[str], partitions: Partitions) -> set[TopicPartition]:
    by_topic = partitions if isinstance(partitions, Mapping) else {_only(topics, "partitions"): partitions}
    found: set[TopicPartition] = set()
    for topic, numbers in by_topic.items():
        if topic not in topics:
            raise UserError(f"partitions of read_topic names the topic {topic}, which is not read. Nothing was read.")
        found |= {TopicPartition(topic, _number("partitions", number)) for number in numbers}
    if not found:
        raise UserError("partitions of read_topic names no partition. Nothing was read. Leave it out to read all.")
    return found


def _bound_options(
    name: str, bound: Offset, topics: list[str], wanted: list[TopicPartition] | None
) -> dict[str, str]:
    """Return one end of the read as an option."""
    option = "starting" if name == "start" else "ending"
    if isinstance(bound, Mapping):
        return {f"{option}Offsets": json.dumps(nest_by_topic(_flatten(name, bound, topics)))}
    if isinstance(bound, datetime):
        moment = bound if bound.tzinfo is not None else bound.replace(tzinfo=UTC)
        return _time_option(option, parse_datetime(moment.isoformat()))
    if isinstance(bound, timedelta):
        ago_ms = round(bound.total_seconds() * 1000)
        if ago_ms < 0:
            raise UserError(f"{name} of read_topic is a time before now, and {bound} lies ahead. Nothing was read.")
        return _time_option(option, f"-{ago_ms}ms")
    if isinstance(bound, bool) or not isinstance(bound, int | str):
        raise UserError(
            f"{name} of read_topic is {bound!r}, of type {type(bound).__name__}. Nothing was read. Give a text such as "
            "-3d or 2026-11-15, a datetime, a timedelta, a number, or offsets by partition."
        )
    if isinstance(bound, int):
        if bound < 0:
            return {f"{option}Offsets": f"{bound} records"}
        if wanted is None:
            raise UserError(
                f"{name} of read_topic is the offset {bound}, and offsets differ from partition to partition. Nothing "
                "was read. Say with partitions which ones are meant, or give offsets by partition."
            )
        return {f"{option}Offsets": json.dumps(nest_by_topic(dict.fromkeys(wanted, bound)))}
    return _text_option(option, bound.strip())


def _text_option(option: str, text: str) -> dict[str, str]:
    try:
        return _time_option(option, parse_datetime(text))
    except UserError:
        if text.endswith("ago") or text.startswith("-") or text.lower() in ("earliest", "latest"):
            return {f"{option}Offsets": text}
    raise UserError(
        f"{'start' if option == 'starting' else 'end'} of read_topic is {text!r}. Nothing was read. Write "
        f"{'earliest' if option == 'starting' else 'latest'}, a time such as 2026-11-15T06:00, a time before now such "
        "as -3d, or a number of records before the end such as -1000."
    )


def _time_option(option: str, time: int | str) -> dict[str, str]:
    named = {f"{option}Timestamp": str(time)}
    # An idle partition is no reason to read nothing of the others.
    return named | ({"startingOffsetsByTimestampStrategy": "latest"} if option == "starting" else {})


def _flatten(
    name: str, bound: Mapping[str, Mapping[int, int]] | Mapping[int, int], topics: list[str]
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for key, value in bound.items():
        by_partition = value if isinstance(value, Mapping) else {key: value}
        topic = str(key) if isinstance(value, Mapping) else _only(topics, name)
        if topic not in topics:
            raise UserError(f"{name} of read_topic names the topic {topic}, which is not read. Nothing was read.")
        for number, offset in by_partition.items():
            found[TopicPartition(topic, _number(name, number))] = _number(name, offset)
    if not found:
        raise UserError(f"{name} of read_topic names no offset. Nothing was read.")
    return found


def _only(topics: list[str], name: str) -> str:
    if len(topics) != 1:
        raise UserError(
            f"{name} of read_topic is for one topic, and {len(topics)} are read. Nothing was read. Give it by topic, "
            'such as {"clicks": …}.'
        )
    return topics[0]


def _number(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise UserError(
        f"{name} of read_topic has {value!r} where a partition or an offset is wanted, a whole number from 0 on. "
        "Nothing was read."
    )


def _look_up_bounds(given: Mapping[str, str]) -> dict[str, str]:
    """Return the same options with the offsets that their bounds are now."""
    # Only here: importing this module needs no PySpark.
    from logmark.spark.source.batch_ranges import plan_batch_ranges
    from logmark.spark.source.options import parse_source_options
    from logmark.spark.source.range_reader import connect_source

    options = parse_source_options(given, is_stream=False)
    with connect_source(options, timeout_s=FIRST_CONTACT_S) as client:
        ranges = plan_batch_ranges(client, options, now_ms=SystemClock().now_ms())
    kept = {name: value for name, value in given.items() if name.lower() not in _BOUNDS - {"columns"}}
    firsts, stops = ({one: bounds[at] for one, bounds in ranges.items()} for at in (0, 1))
    return kept | {
        "assign": _assign(ranges),
        "startingOffsets": json.dumps(nest_by_topic(firsts)),
        "endingOffsets": json.dumps(nest_by_topic(stops)),
    }


def _assign(partitions: Iterable[TopicPartition]) -> str:
    """Return the partitions as the option `assign` has them."""
    numbers: dict[str, list[int]] = {}
    for one in sorted(partitions):
        numbers.setdefault(one.topic, []).append(one.partition)
    return json.dumps(numbers)
