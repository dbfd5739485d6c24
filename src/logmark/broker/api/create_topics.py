"""CreateTopics makes topics, each by itself: one that is refused does not stop the others.

v4  partition count and replication factor -1 mean the broker's default     v5  flexible, answers the topic's settings
v7  answers the topic's id
"""

from collections import Counter
from typing import TYPE_CHECKING

from logmark.broker.api.describe_configs import TOPIC_CONFIG_SOURCES
from logmark.errors import ErrorCode, Refused
from logmark.log.settings import TopicSettings
from logmark.wire.schema import create_topics as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(2, 8)

DEFAULT = -1


def handle(request: schema.Request, at: "Request") -> schema.Response:
    """Creates what can be created; with validate_only it only says what would happen."""
    named = Counter(topic.name for topic in request.topics)
    return schema.Response(
        topics=[
            _create(topic, at, validate_only=request.validate_only, is_repeated=named[topic.name] > 1)
            for topic in {topic.name: topic for topic in request.topics}.values()
        ]
    )


def _create(
    wanted: schema.RequestTopic, at: "Request", *, validate_only: bool, is_repeated: bool
) -> schema.ResponseTopic:
    try:
        if is_repeated:
            raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        logs = at.broker.logs
        logs.check_new_name(wanted.name)
        partitions = _partition_count(wanted, at)
        overrides = {config.name: config.value for config in wanted.configs}
        given = {name: value for name, value in overrides.items() if value is not None}
        if len(given) < len(overrides):
            raise Refused(
                ErrorCode.INVALID_CONFIG,
                f"Null value not supported for topic configs: {','.join(sorted(set(overrides) - set(given)))}",
            )
        if validate_only:
            settings = logs.check_new_topic(wanted.name, partitions, given)
            return schema.ResponseTopic(
                name=wanted.name, num_partitions=partitions, replication_factor=1, configs=_configs(settings)
            )
        topic = logs.create_topic(wanted.name, partitions, given)
    except Refused as refused:
        return schema.ResponseTopic(
            name=wanted.name,
            error_code=refused.code,
            error_message=refused.message,
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    return schema.ResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        num_partitions=len(topic.partitions),
        replication_factor=1,
        configs=_configs(topic.settings),
    )


def _configs(settings: TopicSettings) -> list[schema.ResponseConfig]:
    return [
        schema.ResponseConfig(
            name=name, value=value, read_only=False, config_source=TOPIC_CONFIG_SOURCES[source], is_sensitive=False
        )
        for name, value, source in settings.in_force()
    ]


def _partition_count(wanted: schema.RequestTopic, at: "Request") -> int:
    if wanted.assignments:
        if wanted.num_partitions != DEFAULT or wanted.replication_factor != DEFAULT:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                "Partitions are assigned by hand: their number and the replication factor must both be -1.",
            )
        indexes = sorted(assignment.partition_index for assignment in wanted.assignments)
        if indexes != list(range(len(indexes))) or any(
            assignment.broker_ids != [at.broker.node_id] for assignment in wanted.assignments
        ):
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Every partition must be assigned to broker {at.broker.node_id} alone.",
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
        return at.broker.config.int("num.partitions")
    return wanted.num_partitions


def refuse(request: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Every topic, with the error."""
    return schema.Response(
        topics=[schema.ResponseTopic(name=topic.name, error_code=code, configs=[]) for topic in request.topics]
    )
