"""The options of `format("logmark")` as a reader, parsed from Spark's text into values; a mistake raises UserError.

The names of Spark's own connector are all known: most do what they do there, some are accepted because what they tune
is not needed here, a few are refused with the reason. `NAMES` has them all, and docs/spark-source.md says which is
which.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from logmark.client.connection import RESPONSE_BYTES_MAX
from logmark.client.properties import Security
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.source.column_selection import COLUMNS, HEADERS, parse_columns
from logmark.spark.source.limits import DELAY_MAX_MS, Limits
from logmark.spark.source.offset_specs import (
    EARLIEST,
    LATEST,
    LogEdge,
    OffsetSpec,
    TimeAgo,
    parse_json,
    parse_offset_spec,
    parse_time_spec,
    parse_times_spec,
)
from logmark.spark.source.option_names import (
    INT32_MAX,
    REFUSED,
    check_topic,
    is_true,
    parse_choice,
    parse_count,
    parse_duration_ms,
    parse_seconds,
    parse_text,
    quote_value,
    split_options,
)
from logmark.spark.source.tombstones import Tombstones, parse_tombstones
from logmark.spark.source.topic_patterns import parse_topic_pattern

NEW_PARTITIONS_AFTER_MS = 10_000
STREAM_PATIENCE_S, BATCH_PATIENCE_S = 15 * 60.0, 2 * 60.0
FETCH_BYTES_MAX = 4 << 20
_FETCHES_MOST = 64  # each has a connection and a buffer of its own, in every task
_FETCH_BYTES_MOST = RESPONSE_BYTES_MAX - (1 << 20)  # what else is in an answer must fit, too
_UUID_BYTES = 37  # with the dash before it
_OWNER = re.compile(r"[A-Za-z0-9._-]{1,128}")  # a word in the metadata of a commit
_START_NAMES = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_END_NAMES = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STREAM_ONLY = (
    "group.id.before", "stateful", "takeover", "group.owner", "maxOffsetsPerTrigger", "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user asked for.

    `starting` is where partitions begin that the group has no committed offset for, None where that is a mistake;
    `lost` is where reading continues when the next records are lost, None if that ends the query.
    """

    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: frozenset[TopicPartition] = frozenset()
    group: str | None = None
    group_before: str | None = None  # the group that the checkpoint was made in, where that was another
    group_prefix: str = "spark-logmark-source"
    takeover: bool = False  # whether the query may take the group from another one when it starts
    owner: str = ""  # shared by queries of which one at a time runs
    is_stateful: bool | None = None  # whether the query keeps state; None where nobody said so
    from_group: bool = False
    starting: OffsetSpec | None = EARLIEST
    starting_name: str = ""  # the option that says so; empty if none does
    ending: OffsetSpec | None = None
    ending_name: str = "endingOffsets"
    lost: OffsetSpec | None = None
    skips_deleted_topics: bool = False
    limits: Limits = field(default_factory=Limits)
    records_per_task_max: int | None = None
    tasks_min: int | None = None
    columns: tuple[str, ...] = COLUMNS
    value_schema: str | None = None  # of values that are JSON; None for bytes
    dead_letters: str | None = None  # the topic of records that do not fit the schema; None where they are rows too
    dead_letters_pipeline: str = ""
    tombstones: Tombstones = Tombstones.ROWS
    read_committed: bool = False
    patience_s: float = STREAM_PATIENCE_S
    new_partitions_after_ms: int = NEW_PARTITIONS_AFTER_MS
    fetch_bytes_max: int = FETCH_BYTES_MAX
    fetches_in_flight: int = 1
    client_id: str = "logmark-spark"
    client: Mapping[str, str] = field(default_factory=dict)

    @property
    def with_headers(self) -> bool:
        """Whether headers are to be decoded: for their column, or for dead letters."""
        return HEADERS in self.columns or self.dead_letters is not None

    def wants(self, partition: TopicPartition) -> bool:
        """Return whether the user named this partition."""
        if self.pattern is not None:
            return self.pattern.fullmatch(partition.topic) is not None
        return partition in self.assigned if self.assigned else partition.topic in self.topics


def parse_source_options(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Return the options as values; raises UserError for one that is unknown, missing, malformed or not allowed."""
    ours, client = split_options(given)
    _check_checkpoint_location(ours, is_stream=is_stream)
    servers = ours.get("bootstrap.servers")
    if not servers:
        raise UserError(
            "The option bootstrap.servers is missing, so there is no broker to read from. Add for example "
            '.option("bootstrap.servers", "127.0.0.1:9092").'
        )
    Security.of(client)
    topics, pattern, assigned = _parse_subscription(ours)
    reset = _reset(ours)
    from_group, starting, starting_name = _starting(ours, reset, is_stream=is_stream)
    ending, ending_name = _edge(ours, _END_NAMES)
    return SourceOptions(
        bootstrap_servers=servers,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        group=parse_text(ours, "group.id"),
        group_before=_group_before(ours),
        group_prefix=parse_text(ours, "groupIdPrefix", room=_UUID_BYTES) or "spark-logmark-source",
        takeover=is_true(ours, "takeover"),
        owner=_owner(ours),
        is_stateful=_is_stateful(ours),
        from_group=from_group,
        starting=starting,
        starting_name=starting_name,
        ending=ending if ending is not None or is_stream else LATEST,
        ending_name=ending_name,
        lost=_lost(ours, reset),
        skips_deleted_topics=parse_choice(ours, "failOnDataLoss", ("true", "false")) == "false",
        limits=_limits(ours),
        records_per_task_max=parse_count(ours, "maxRecordsPerPartition"),
        tasks_min=parse_count(ours, "minPartitions", INT32_MAX),
        columns=parse_columns(ours),
        value_schema=value_schema(ours),
        dead_letters=dead_letter_topic(ours),
        dead_letters_pipeline=ours.get("deadletters.pipeline") or ours.get("group.id") or "",
        tombstones=parse_tombstones(ours),
        read_committed=parse_choice(ours, "isolation.level", ("read_uncommitted", "read_committed"))
        == "read_committed",
        patience_s=parse_seconds(ours, "waitForBroker", STREAM_PATIENCE_S if is_stream else BATCH_PATIENCE_S),
        new_partitions_after_ms=_refresh_ms(ours),
        fetch_bytes_max=_fetch_bytes(ours),
        fetches_in_flight=parse_count(ours, "fetchesInFlight", _FETCHES_MOST) or 1,
        client_id=parse_text(ours, "client.id") or "logmark-spark",
        client=client,
    )


def value_schema(ours: Mapping[str, str]) -> str | None:
    """Return the schema that values are decoded by, None if they stay bytes."""
    schema = ours.get("value.schema")
    if parse_choice(ours, "value.format", ("binary", "json")) != "json":
        if schema is not None:
            raise UserError(
                "The option value.schema needs value.format=json beside it. Without it value is a binary column. "
                "Nothing was read."
            )
        return None
    if not schema:
        raise UserError(
            "value.format is json, but the option value.schema is missing, which says the columns and their types. Add "
            'for example .option("value.schema", "id STRING, price DECIMAL(10,2)"). Nothing was read.'
        )
    return schema


def _is_stateful(ours: Mapping[str, str]) -> bool | None:
    given = parse_choice(ours, "stateful", ("true", "false"))
    return None if given is None else given == "true"


def _group_before(ours: Mapping[str, str]) -> str | None:
    before = parse_text(ours, "group.id.before")
    if before and not ours.get("group.id"):
        raise UserError(
            "The option group.id.before needs group.id beside it: the group that takes over from it. Nothing was read."
        )
    return before


def _owner(ours: Mapping[str, str]) -> str:
    owner = ours.get("group.owner", "")
    if owner and not _OWNER.fullmatch(owner):
        raise UserError(
            f"The option group.owner must be 1 to 128 letters, digits, '-', '_' and '.', not {quote_value(owner)}. "
            "Nothing was read."
        )
    return owner


def dead_letter_topic(ours: Mapping[str, str]) -> str | None:
    """Return the topic that takes the records that do not fit the schema, None if they are rows with an error."""
    topic = ours.get("deadletters.topic") or None
    if topic is not None and ours.get("value.format", "").lower() != "json":
        raise UserError(
            "The option deadLetters.topic needs value.format=json and value.schema beside it: without a schema no "
            "record is refused. Nothing was read."
        )
    if topic is not None:
        check_topic(topic, "deadLetters.topic")
    return topic


def _check_checkpoint_location(ours: Mapping[str, str], *, is_stream: bool) -> None:
    for name in _STREAM_ONLY:
        if name.lower() in ours and not is_stream:
            raise UserError(
                f"The option {name} is for streams: a batch read takes all from startingOffsets to endingOffsets at "
                "once. Nothing was read."
            )
    if not is_stream and "auto.offset.reset" in ours and ours.get("startingoffsets", "").lower() != "committed":
        raise UserError(
            "The option auto.offset.reset is for streams and for startingOffsets=committed. A batch read begins where "
            "startingOffsets says. Nothing was read."
        )
    for name, reason in REFUSED.items():
        if name in ours:
            raise UserError(f"{reason} Nothing was read.")


def _parse_subscription(
    ours: Mapping[str, str],
) -> tuple[tuple[str, ...], re.Pattern[str] | None, frozenset[TopicPartition]]:
    subscribe, pattern, assign = (ours.get(name) for name in ("subscribe", "subscribepattern", "assign"))
    if sum(bool(one) for one in (subscribe, pattern, assign)) != 1:
        raise UserError(
            'Say what to read with exactly one of the options subscribe (such as "clicks,orders"), subscribePattern '
            '(such as "clicks-.*") and assign (such as {"clicks": [0, 1]}).'
        )
    if pattern:
        return (), parse_topic_pattern(pattern), frozenset()
    if subscribe:
        names = dict.fromkeys(name.strip() for name in subscribe.split(",") if name.strip())
        for name in names:
            check_topic(name, "subscribe")
        if not names:
            raise UserError(
                f'The option subscribe is {quote_value(subscribe)} and names no topic. Give one, such as "clicks". '
                "Nothing was read."
            )
        return tuple(names), None, frozenset()
    assigned = []
    for topic, partitions in parse_json(ours["assign"], "assign").items():
        check_topic(topic, "assign")
        if not isinstance(partitions, list) or not all(type(number) is int and number >= 0 for number in partitions):
            raise UserError('The option assign must list partitions by topic, such as {"clicks": [0, 1]}.')
        assigned += [TopicPartition(topic, number) for number in partitions]
    if not assigned:
        raise UserError("The option assign names no partition, so there is nothing to read.")
    return tuple(dict.fromkeys(one.topic for one in assigned)), None, frozenset(assigned)


def _reset(ours: Mapping[str, str]) -> OffsetSpec | Literal["none"] | None:
    """Return what auto.offset.reset says, None if it says nothing."""
    text = ours.get("auto.offset.reset", "").lower()
    kind, colon, length = text.partition(":")
    if kind == "by_duration" and colon:
        return TimeAgo(parse_duration_ms(length, "auto.offset.reset"))
    parse_choice(ours, "auto.offset.reset", ("earliest", "latest", "none", "by_duration:PT2H"))
    if text == "none":
        return "none"
    return LogEdge(text) if text in ("earliest", "latest") else None  # type: ignore[arg-type]


def _starting(
    ours: Mapping[str, str], reset: OffsetSpec | Literal["none"] | None, *, is_stream: bool
) -> tuple[bool, OffsetSpec | None, str]:
    """Return whether the group's committed offsets come first, where others begin, and which option says so."""
    is_committed = ours.get("startingoffsets", "").lower() == "committed"
    if is_committed and not ours.get("group.id"):
        raise UserError("startingOffsets=committed needs group.id: it says whose committed offsets are meant.")
    others = {name: text for name, text in ours.items() if not (is_committed and name == "startingoffsets")}
    edge, name = _edge(others, _START_NAMES)
    if edge is None and reset is not None:
        return True, None if reset == "none" else reset, "auto.offset.reset"
    if edge is None:
        return is_stream or is_committed, LATEST if is_stream else EARLIEST, ""
    if edge == LATEST and not is_stream:
        raise UserError(
            "startingOffsets is latest, and a batch read would always be empty. Nothing was read. Give earliest, "
            "committed, offsets, or a start before now such as -2h."
        )
    return is_stream or is_committed, edge, name


def _edge(ours: Mapping[str, str], names: tuple[str, str, str]) -> tuple[OffsetSpec | None, str]:
    """Return what the three options for one end say; the first that is given wins, as in Spark's connector."""
    strategy = parse_choice(ours, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    is_strict = strategy != "latest" and names is _START_NAMES
    time, times, offsets = names
    if text := ours.get(time.lower()):
        return parse_time_spec(text, name=time, is_strict=is_strict), time
    if text := ours.get(times.lower()):
        return parse_times_spec(text, name=times, is_strict=is_strict), times
    if text := ours.get(offsets.lower()):
        return parse_offset_spec(text, name=offsets), offsets
    return None, offsets


def _lost(ours: Mapping[str, str], reset: OffsetSpec | Literal["none"] | None) -> OffsetSpec | None:
    fails = parse_choice(ours, "failOnDataLoss", ("true", "false"))
    if fails == "true" or (fails is None and reset in (None, "none")):
        return None
    return EARLIEST if reset is None or reset == "none" else reset


def _limits(ours: Mapping[str, str]) -> Limits:
    limits = Limits(
        records_max=parse_count(ours, "maxOffsetsPerTrigger"),
        bytes_max=parse_count(ours, "maxBytesPerTrigger"),
        records_min=parse_count(ours, "minOffsetsPerTrigger"),
        delay_max_ms=round(parse_seconds(ours, "maxTriggerDelay", DELAY_MAX_MS / 1000) * 1000),
    )
    if limits.records_min and limits.records_max and limits.records_min > limits.records_max:
        raise UserError(
            f"minOffsetsPerTrigger is {limits.records_min} and maxOffsetsPerTrigger {limits.records_max}: no batch can "
            "hold both. Nothing was read."
        )
    return limits


def _refresh_ms(ours: Mapping[str, str]) -> int:
    for name in ("partition.metadata.cache.ttl.ms", "metadata.max.age.ms"):
        text = ours.get(name)
        if text is not None and text != "-1":
            return parse_count(ours, name) or NEW_PARTITIONS_AFTER_MS
    return NEW_PARTITIONS_AFTER_MS


def _fetch_bytes(ours: Mapping[str, str]) -> int:
    given = [parse_count(ours, name, _FETCH_BYTES_MOST) for name in ("max.partition.fetch.bytes", "fetch.max.bytes")]
    return min((size for size in given if size), default=FETCH_BYTES_MAX)
