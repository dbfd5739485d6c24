"""Metadata tells where the cluster is and what its topics look like.

v1  controller, racks, internal topics    v4  the client may forbid auto-creation    v7  leader epochs
v9  flexible                              v10 topic ids                              v12 topics by id alone
"""

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from logmark.broker.answers import Buffers, LongBody
from logmark.broker.logs import NewTopic, Topic
from logmark.broker.pace import Pace
from logmark.errors import ErrorCode, Refused
from logmark.log import catalog
from logmark.wire.schema import metadata as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 13)

NO_ID = bytes(16)
# "Nobody asked for it": the value Kafka sends where authorized operations were not requested.
NO_OPERATIONS = -(2**31)
# Without authentication everybody may do everything: read (3), write (4), create (5), delete (6), alter (7),
# describe (8), cluster action (9), describe configs (10), alter configs (11), idempotent write (12).
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
CLUSTER_OPERATIONS_IN = range(8, 11)
IDS_FROM = 12
# So many topics take a millisecond, if each has a partition or two.
LARGE = 100


Key = tuple[str | None, bytes]
Missing = Mapping[str, Callable[[], NewTopic]]


def handle(
    request: schema.Request, at: "Request"
) -> schema.Response | Coroutine[Any, Any, Buffers]:
    """The one broker, and every topic that was asked for; later if there are many, or if some are to be created."""
    if at.version < IDS_FROM and any(topic.name is None or topic.topic_id != NO_ID for topic in request.topics or ()):
        # Versions 10 and 11 have a place for ids, but they are not looked up by them.
        return refuse(request, ErrorCode.INVALID_REQUEST, at.version)
    wanted: Collection[Topic | Key]
    missing: Missing
    # Version 0 has no null array: an empty one means all topics.
    if request.topics is None or (at.version == 0 and not request.topics):
        wanted, missing = at.broker.logs.topics(), {}
    else:
        keys = {(topic.name, topic.topic_id): None for topic in request.topics}
        wanted, missing = list(keys), _to_be_created(keys, request, at)
    if missing or len(wanted) > LARGE:
        return _answer_later(wanted, missing, request, at)
    return _response([_answer(each, {}, request, at) for each in wanted], request, at)


async def _answer_later(
    wanted: Collection[Topic | Key], missing: Missing, request: schema.Request, at: "Request"
) -> Buffers:
    refused: dict[str, ErrorCode] = {}
    if missing:
        outcomes = await at.broker.logs.create_topics(list(missing.values()))
        refused = {
            name: outcome.code for name, outcome in zip(missing, outcomes, strict=True) if isinstance(outcome, Refused)
        }
    pace = Pace()
    body = LongBody(schema, at.version)
    for each in wanted:
        body.add(_answer(each, refused, request, at))
        await pace.step()
    return body.finish(_response([], request, at), bytes_behind=4 if at.version in CLUSTER_OPERATIONS_IN else 0)


def _response(topics: list[schema.ResponseTopic], request: schema.Request, at: "Request") -> schema.Response:
    broker, advertised = at.broker, at.connection.listener.advertised
    return schema.Response(
        brokers=[schema.ResponseBroker(node_id=broker.node_id, host=advertised.host, port=advertised.port, rack=None)],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_OPERATIONS
        ),
    )


def _to_be_created(wanted: Iterable[Key], request: schema.Request, at: "Request") -> Missing:
    """Return the topics that are not there, if the client and the broker allow that they are created."""
    logs = at.broker.logs
    unknown = [name for name, topic_id in wanted if name and topic_id == NO_ID and logs.topic(name) is None]
    is_allowed = at.version < 4 or request.allow_auto_topic_creation
    if not (unknown and is_allowed and at.broker.config.bool("auto.create.topics.enable")):
        return {}
    partitions = at.broker.config.int("num.partitions")
    return {
        name: logs.new_offsets_topic if name == logs.offsets_topic_name else partial(NewTopic, name, partitions, {})
        for name in unknown
    }


def _answer(
    wanted: Topic | Key, refused: Mapping[str, ErrorCode], request: schema.Request, at: "Request"
) -> schema.ResponseTopic:
    if isinstance(wanted, Topic):
        return _described(wanted, request, at)
    logs = at.broker.logs
    name, topic_id = wanted
    if name is None or topic_id != NO_ID:
        found = logs.topic_by_id(topic_id)
        missing = schema.ResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    else:
        found = logs.topic(name)
        missing = schema.ResponseTopic(error_code=refused.get(name) or _problem(name), name=name)
    return missing if found is None else _described(found, request, at)


def _problem(name: str) -> ErrorCode:
    """Return why there is no topic of a name that nobody tried to create."""
    try:
        catalog.check_name(name)
    except Refused as refused:
        return refused.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _described(topic: Topic, request: schema.Request, at: "Request") -> schema.ResponseTopic:
    node = at.broker.node_id
    return schema.ResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            schema.ResponsePartition(
                error_code=ErrorCode.NONE if partition.failure is None else ErrorCode.KAFKA_STORAGE_ERROR,
                partition_index=partition.index,
                leader_id=node,
                leader_epoch=0,
                replica_nodes=[node],
                isr_nodes=[node],
                offline_replicas=[],
            )
            for partition in topic.partitions
        ],
        topic_authorized_operations=TOPIC_OPERATIONS if request.include_topic_authorized_operations else NO_OPERATIONS,
    )


def refuse(request: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Every topic that was asked for, with the error."""
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                error_code=code,
                name=topic.name if version >= IDS_FROM else topic.name or "",
                topic_id=topic.topic_id,
            )
            for topic in request.topics or []
        ]
    )
