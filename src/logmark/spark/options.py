"""The options of `format("logmark")`, read from Spark's text into values, each mistake a sentence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from logmark.errors import UserError
from logmark.names import TopicPartition

Reset = Literal["earliest", "latest", "none"]
Edge = Literal["earliest", "latest", "committed"]
EARLIEST, LATEST = -2, -1  # Kafka's timestamps for the two ends, and Spark's offsets for them in JSON

_BATCH_ONLY = ("startingOffsets", "endingOffsets")
_STREAM_ONLY = ("auto.offset.reset", "maxOffsetsPerTrigger")
_ANYWHERE = (
    "bootstrap.servers", "subscribe", "assign", "group.id", "includeHeaders", "minPartitions", "maxRecordsPerPartition",
)  # fmt: skip
_NAMES = (*_ANYWHERE, *_BATCH_ONLY, *_STREAM_ONLY)
_OURS = {name.lower() for name in _NAMES}  # Spark hands options over in small letters
_ALSO_WITH_KAFKA = {"bootstrap.servers", "group.id", "auto.offset.reset"}
_PASSED_ON = ("security.", "sasl.", "ssl.", "enable.ssl.")
_SPARK_ADDS = {"path"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    assigned: frozenset[TopicPartition] = frozenset()
    group: str | None = None
    reset: Reset | None = None
    starting: Edge | Mapping[TopicPartition, int] = "earliest"
    ending: Edge | Mapping[TopicPartition, int] = "latest"
    records_per_trigger_max: int | None = None
    records_per_task_max: int | None = None
    tasks_min: int | None = None
    with_headers: bool = False
    client: Mapping[str, str] = field(default_factory=dict)

    def wants(self, place: TopicPartition) -> bool:
        """Is this partition one that the user named?"""
        return place in self.assigned if self.assigned else place.topic in self.topics


def parse(given: Mapping[str, str], *, is_stream: bool) -> Options:
    """The options as values; raises a sentence for one that is unknown, missing, malformed or out of place."""
    ours, client = _sorted_out(given)
    _check_place(ours, is_stream=is_stream)
    servers = ours.get("bootstrap.servers")
    if not servers:
        raise UserError(
            "The option bootstrap.servers is missing, so there is no broker to read from. Add for example "
            '.option("bootstrap.servers", "127.0.0.1:9092").'
        )
    topics, assigned = _places(ours)
    if is_stream and not ours.get("group.id"):
        raise UserError(
            "The option group.id is missing. A stream keeps its position in a consumer group, where every Kafka tool "
            'can see and reset it: add .option("group.id", "a-name-for-this-pipeline").'
        )
    if ours.get("startingoffsets") == "committed" and not ours.get("group.id"):
        raise UserError("startingOffsets=committed needs group.id: it says whose committed offsets are meant.")
    reset = _choice(ours, "auto.offset.reset", ("earliest", "latest", "none"))
    return Options(
        bootstrap_servers=servers,
        topics=topics,
        assigned=assigned,
        group=ours.get("group.id") or None,
        reset=reset,  # type: ignore[arg-type]
        starting=_edge(ours, "startingOffsets", "earliest", ("earliest", "committed")),
        ending=_edge(ours, "endingOffsets", "latest", ("latest",)),
        records_per_trigger_max=_count(ours, "maxOffsetsPerTrigger"),
        records_per_task_max=_count(ours, "maxRecordsPerPartition"),
        tasks_min=_count(ours, "minPartitions"),
        with_headers=_choice(ours, "includeHeaders", ("true", "false")) == "true",
        client=client,
    )


def check_names(given: Mapping[str, str]) -> None:
    """Raises a sentence for an option that neither a batch read nor a stream has."""
    _sorted_out(given)


def _sorted_out(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    ours: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in given.items():
        plain = name.lower()
        bare = plain.removeprefix("kafka.")
        if plain in _OURS or (plain != bare and bare in _ALSO_WITH_KAFKA):
            if ours.get(bare, value) != value:
                raise UserError(f"{bare} and kafka.{bare} say different things. Keep one of them.")
            ours[bare] = str(value).strip()
        elif plain != bare and bare.startswith(_PASSED_ON):
            client[bare] = value
        elif plain not in _SPARK_ADDS:
            raise UserError(f'format("logmark") has no option {name}.{_hint(plain, bare)} Nothing was read.')
    return ours, client


def _hint(plain: str, bare: str) -> str:
    if plain == "subscribepattern":
        return " Name the topics with subscribe."
    if bare == "isolation.level":
        return " It reads all records, as Kafka's read_uncommitted does."
    if plain == "failondataloss":
        return " What happens when records have expired unread is said by auto.offset.reset: earliest, latest or none."
    if plain.startswith(_PASSED_ON):
        return f" For a setting of the client write kafka.{plain}."
    if plain in ("startingtimestamp", "startingoffsetsbytimestamp", "endingtimestamp", "endingoffsetsbytimestamp"):
        return " Reset the group to a time instead: logmark offsets reset GROUP --topic TOPIC --to-datetime TIME."
    return " It knows: " + ", ".join(_NAMES) + ", and kafka.security.*, kafka.sasl.*, kafka.ssl.*."


def _check_place(ours: Mapping[str, str], *, is_stream: bool) -> None:
    for name in _BATCH_ONLY if is_stream else _STREAM_ONLY:
        if name.lower() in ours and is_stream:
            raise UserError(
                f"The option {name} is for batch reads. A stream starts at the committed offsets of its group, and "
                "auto.offset.reset says where it starts when there are none."
            )
        if name.lower() in ours:
            raise UserError(f"The option {name} is for streams. A batch read takes startingOffsets and endingOffsets.")


def _places(ours: Mapping[str, str]) -> tuple[tuple[str, ...], frozenset[TopicPartition]]:
    subscribe, assign = ours.get("subscribe"), ours.get("assign")
    if bool(subscribe) == bool(assign):
        raise UserError(
            'Say what to read with exactly one of the options subscribe (such as "clicks,orders") and assign (such as '
            '{"clicks": [0, 1]}).'
        )
    if subscribe:
        names = dict.fromkeys(name.strip() for name in subscribe.split(","))
        return tuple(name for name in names if name), frozenset()
    fields = _json(ours, "assign")
    places = []
    for topic, partitions in fields.items():
        if not isinstance(partitions, list) or not all(type(number) is int and number >= 0 for number in partitions):
            raise UserError('The option assign must list partitions by topic, such as {"clicks": [0, 1]}.')
        places += [TopicPartition(topic, number) for number in partitions]
    if not places:
        raise UserError("The option assign names no partition, so there is nothing to read.")
    return tuple(dict.fromkeys(place.topic for place in places)), frozenset(places)


def _edge(
    ours: Mapping[str, str], name: str, default: Edge, allowed: tuple[Edge, ...]
) -> Edge | dict[TopicPartition, int]:
    text = ours.get(name.lower())
    if text is None:
        return default
    for word in allowed:
        if text.lower() == word:
            return word
    wrong = UserError(
        f"The option {name} must be {' or '.join(allowed)}, or offsets by topic and partition such as "
        '{"clicks": {"0": 100, "1": -1}}, where -1 is latest' + (" and -2 earliest" if name[0] == "s" else "") + "."
    )
    if not text.startswith("{"):
        raise wrong
    offsets: dict[TopicPartition, int] = {}
    lowest = EARLIEST if name == "startingOffsets" else LATEST
    for topic, partitions in _json(ours, name).items():
        if not isinstance(partitions, dict):
            raise wrong
        for number, offset in partitions.items():
            if not number.isdecimal() or type(offset) is not int or offset < lowest:
                raise wrong
            offsets[TopicPartition(topic, int(number))] = offset
    return offsets


def _json(ours: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        fields = json.loads(ours[name.lower()])
    except ValueError as error:
        raise UserError(f"The option {name} is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"The option {name} must be a JSON object, keyed by topic.")
    return fields


def _choice(ours: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    value = ours.get(name.lower())
    if value is None or value.lower() in allowed:
        return None if value is None else value.lower()
    raise UserError(f"The option {name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}.")


def _count(ours: Mapping[str, str], name: str) -> int | None:
    value = ours.get(name.lower())
    if value is None:
        return None
    if not value.isdecimal() or int(value) == 0:
        raise UserError(f"The option {name} must be a whole number above 0, not {value!r}.")
    return int(value)
