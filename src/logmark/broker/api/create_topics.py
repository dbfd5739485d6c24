"""CreateTopics makes topics, each by itself: one that is refused does not stop the others.

v4  partition count and replication factor -1 mean the broker's default     v5  flexible, answers the topic's settings
v7  answers the topic's id
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from logmark.broker.answers import Buffers, LongBody, LongWork
from logmark.broker.api.describe_configs import TOPIC_CONFIG_SOURCES
from logmark.broker.event_loop_turns import Pace, decide_each
from logmark.broker.logs import NewTopic, Topic
from logmark.errors import ErrorCode, Refused
from logmark.log.settings import TopicSettings, check_size
from logmark.wire.messages import NO_UUID, REQUEST_OBJECTS_MAX
from logmark.wire.schema import create_topics as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.server import Broker

KEY = schema.KEY
VERSIONS = range(2, 8)

DEFAULT = -1
CONFIGS_FROM = 5
# What a topic takes in an answer with its settings, and what it is made of; and what it takes in a request at least.
TOPIC_BYTES, TOPIC_BYTES_MIN = 4096, 10


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Create what can be created, by one change; with validate_only it only says what would happen."""
    # The requests behind it on the same connection take effect after it.
    return LongWork(_create(message, request), memory_bytes=lambda: TOPIC_BYTES * len(message.topics))


def answer_bytes_max(broker: "Broker", request_bytes: int) -> int:
    """Return how much memory an answer can take: the settings of every topic that may be named."""
    return TOPIC_BYTES * min(request_bytes // TOPIC_BYTES_MIN, REQUEST_OBJECTS_MAX)


async def _create(message: schema.Request, request: "Request") -> Buffers:
    named = Counter(topic.name for topic in message.topics)
    # Of topics that are named twice the last one is answered, at the position of the first.
    decisions = {
        topic.name: partial(_new_topic, topic, request, is_repeated=named[topic.name] > 1) for topic in message.topics
    }
    pace = Pace()
    outcomes: Sequence[Topic | NewTopic | Refused] = (
        await decide_each(decisions.values(), pace)
        if message.validate_only
        else await request.broker.logs.create_topics(list(decisions.values()))
    )
    configs = _Configs()
    body = LongBody(schema, request)
    for name, outcome in zip(decisions, outcomes, strict=True):
        await body.add(_answer(name, outcome, request, configs))
        await pace.step()
    return body.finish(schema.Response(topics=[]))


def _new_topic(wanted: schema.RequestTopic, request: "Request", *, is_repeated: bool) -> NewTopic:
    """Return what is to be created; raises Refused if that cannot be."""
    if is_repeated:
        raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    request.broker.logs.check_new_name(wanted.name)
    partitions = _partition_count(wanted, request)
    overrides = {config.name: config.value for config in wanted.configs}
    given = {name: value for name, value in overrides.items() if value is not None}
    if len(given) < len(overrides):
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(sorted(set(overrides) - set(given)))}",
        )
    check_size(given)
    return NewTopic(wanted.name, partitions, given)


def _answer(
    name: str, outcome: Topic | NewTopic | Refused, request: "Request", configs: "_Configs"
) -> schema.ResponseTopic:
    """Return the answer for a topic that was created, that could be created, or that was refused."""
    try:
        if isinstance(outcome, Refused):
            raise outcome
        if isinstance(outcome, NewTopic):
            settings = request.broker.logs.check_new_topic(outcome)
            topic_id, partitions = NO_UUID, outcome.partitions
        else:
            settings, topic_id, partitions = outcome.settings, outcome.id, outcome.partition_count
    except Refused as refused:
        return schema.ResponseTopic(
            name=name,
            error_code=refused.code,
            error_message=refused.message,
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    return schema.ResponseTopic(
        name=name,
        topic_id=topic_id,
        num_partitions=partitions,
        replication_factor=1,
        configs=configs.get(settings) if request.version >= CONFIGS_FROM else [],
    )


class _Configs:
    """The settings of topics as they are answered: made once for topics that share theirs."""

    def __init__(self) -> None:
        self._known: dict[TopicSettings, list[schema.ResponseConfig]] = {}

    def get(self, settings: TopicSettings) -> list[schema.ResponseConfig]:
        found = self._known.get(settings)
        if found is None:
            found = self._known[settings] = [
                schema.ResponseConfig(
                    name=name,
                    value=value,
                    read_only=False,
                    config_source=TOPIC_CONFIG_SOURCES[source],
                    is_sensitive=False,
                )
                for name, value, source in settings.in_force()
            ]
        return found


def _partition_count(wanted: schema.RequestTopic, request: "Request") -> int:
    if wanted.assignments:
        if wanted.num_partitions != DEFAULT or wanted.replication_factor != DEFAULT:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                "Partitions are assigned by hand: their number and the replication factor must both be -1.",
            )
        indexes = sorted(assignment.partition_index for assignment in wanted.assignments)
        if indexes != list(range(len(indexes))) or any(
            assignment.broker_ids != [request.broker.node_id] for assignment in wanted.assignments
        ):
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Every partition must be assigned to broker {request.broker.node_id} alone.",
            )
        return len(indexes)
    if wanted.replication_factor not in (DEFAULT, 1):
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value."
            if wanted.replication_factor < 1
            else f"Unable to replicate the partition {wanted.replication_factor} time(s): "
            "The target replication factor of 1 is the most that one broker can give.",
        )
    if wanted.num_partitions == DEFAULT:
        return request.broker.config.int("num.partitions")
    return wanted.num_partitions


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return every topic with the error."""
    return schema.Response(
        topics=[schema.ResponseTopic(name=topic.name, error_code=code, configs=[]) for topic in message.topics]
    )
