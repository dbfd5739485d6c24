"""Metadata tells where the cluster is and what its topics look like.

v1  controller, racks, internal topics    v4  the client may forbid auto-creation    v7  leader epochs
v9  flexible                              v10 topic ids                              v12 topics by id alone
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from logmark.broker.answers import LARGE, Buffers, LongWork, SharedBody, SharedBytes, share_long
from logmark.broker.event_loop_turns import STEPS_IN_A_TURN, Pace
from logmark.broker.logs import NewTopic, Topic
from logmark.errors import ErrorCode, Refused
from logmark.log import catalog
from logmark.log.partition import Partition
from logmark.wire.messages import lazy_array
from logmark.wire.schema import metadata as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.server import Broker

KEY = schema.KEY
VERSIONS = range(0, 13)

NO_ID = bytes(16)
# "Nobody asked for it": the value Kafka sends where authorized operations were not requested.
NO_OPERATIONS = -(2**31)
# Without authentication everybody may do everything: read (3), write (4), create (5), delete (6), alter (7),
# describe (8), cluster action (9), describe configs (10), alter configs (11), idempotent write (12).
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
IDS_FROM = 12
# What a topic takes in an answer without its partitions, and a partition; and what they are made of.
TOPIC_BYTES, PARTITION_BYTES = 500, 100

Key = tuple[str | None, bytes]
Missing = Mapping[str, Callable[[], NewTopic]]


def handle(message: schema.Request, request: "Request") -> schema.Response | LongWork:
    """Describe the one broker and every requested topic; later if there are many, or if some are to be created."""
    # Version 0 has no null array: an empty one means all topics.
    if message.topics is None or (request.version == 0 and not message.topics):
        topics = request.broker.logs.topics()
        if _is_large(topics, request):
            return LongWork(_share_all(message, request), is_in_line=False)
        return _response(topics, {}, message, request)
    if len(message.topics) > LARGE:
        return LongWork(_answer_many(message, request), memory_bytes=lambda: _answer_bytes(message, request))
    if not all(_is_askable(topic, request) for topic in message.topics):
        return refuse(message, ErrorCode.INVALID_REQUEST, request.version)
    keys = list({(topic.name, topic.topic_id): None for topic in message.topics})
    missing = _to_be_created(keys, message, request)
    if missing or _is_large(keys, request):
        return LongWork(
            _answer_later(keys, missing, message, request), memory_bytes=lambda: _answer_bytes(message, request)
        )
    return _response(keys, {}, message, request)


def answer_bytes_max(broker: "Broker", request_bytes: int) -> int:
    """Return how much memory an answer can take: all topics, and errors for other names."""
    return _catalog_bytes(broker) + 10 * request_bytes


def _catalog_bytes(broker: "Broker") -> int:
    topics = broker.logs.topics()
    return TOPIC_BYTES * len(topics) + PARTITION_BYTES * sum(topic.partition_count for topic in topics)


def _answer_bytes(message: schema.Request, request: "Request") -> int:
    """Return how much memory the answer for named topics may take."""
    found = {_find((topic.name, topic.topic_id), request) for topic in message.topics or ()}
    partitions = sum(topic.partition_count for topic in found if topic is not None)
    return TOPIC_BYTES * len(message.topics or ()) + PARTITION_BYTES * partitions


def _is_askable(topic: schema.RequestTopic, request: "Request") -> bool:
    """Return whether the version has this way to name a topic."""
    # Versions 10 and 11 have a field for ids, but topics are not looked up by them.
    return request.version >= IDS_FROM or (topic.name is not None and topic.topic_id == NO_ID)


async def _share_all(message: schema.Request, request: "Request") -> Buffers:
    """Return the answer with all topics, which others share who ask for it at the same time.

    They get it one after another, each in a turn of the event loop.
    """
    broker = request.broker
    operations = message.include_cluster_authorized_operations, message.include_topic_authorized_operations
    key = (KEY, request.version, request.connection.listener.advertised, *operations)
    shared = broker.dispatcher.share(
        request, key, partial(_catalog_bytes, broker), partial(_encode_all, message, request)
    )
    bodies = await asyncio.shield(shared)
    await Pace().step(STEPS_IN_A_TURN)
    return [SharedBytes(body) for body in bodies]


async def _encode_all(message: schema.Request, request: "Request") -> list[SharedBody]:
    response = _response(request.broker.logs.topics(), {}, message, request)
    return await share_long(schema, request, response)


def _is_large(wanted: Collection[Topic | Key], request: "Request") -> bool:
    """Return whether there are many topics, or many partitions in them."""
    if len(wanted) > LARGE:
        return True
    found = (_find(each, request) for each in wanted)
    return sum(topic.partition_count for topic in found if topic is not None) > LARGE


async def _answer_many(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    keys: dict[Key, None] = {}
    for topic in message.topics or ():
        if not _is_askable(topic, request):
            return refuse(message, ErrorCode.INVALID_REQUEST, request.version)
        keys[topic.name, topic.topic_id] = None
        await pace.step()
    wanted = list(keys)
    missing: dict[str, Callable[[], NewTopic]] = {}
    for at in range(0, len(wanted), STEPS_IN_A_TURN):
        missing |= _to_be_created(wanted[at : at + STEPS_IN_A_TURN], message, request)
        await pace.step(STEPS_IN_A_TURN)
    return await _answer_later(wanted, missing, message, request)


async def _answer_later(
    wanted: Sequence[Key], missing: Missing, message: schema.Request, request: "Request"
) -> schema.Response:
    refused: dict[str, ErrorCode] = {}
    if missing:
        outcomes = await request.broker.logs.create_topics(list(missing.values()))
        refused = {
            name: outcome.code for name, outcome in zip(missing, outcomes, strict=True) if isinstance(outcome, Refused)
        }
    return _response(wanted, refused, message, request)


def _answers(
    wanted: Iterable[Topic | Key], refused: Mapping[str, ErrorCode], message: schema.Request, request: "Request"
) -> Iterator[schema.ResponseTopic]:
    """Yield the answer for each topic when it is encoded; the partitions are those that it has then."""
    for each in wanted:
        found = _find(each, request)
        answer = _answer(each, found, refused, message)
        if found is not None:
            partitions, node = list(found.partitions), request.broker.node_id
            answer.partitions = lazy_array(len(partitions), partial(map, partial(_described, node=node), partitions))
        yield answer


def _response(
    wanted: Sequence[Topic | Key], refused: Mapping[str, ErrorCode], message: schema.Request, request: "Request"
) -> schema.Response:
    broker, advertised = request.broker, request.connection.listener.advertised
    return schema.Response(
        brokers=[schema.ResponseBroker(node_id=broker.node_id, host=advertised.host, port=advertised.port, rack=None)],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=lazy_array(len(wanted), partial(_answers, wanted, refused, message, request)),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if message.include_cluster_authorized_operations else NO_OPERATIONS
        ),
    )


def _to_be_created(wanted: Iterable[Key], message: schema.Request, request: "Request") -> Missing:
    """Return the topics that are not there, if the client and the broker allow that they are created."""
    logs = request.broker.logs
    unknown = [name for name, topic_id in wanted if name and topic_id == NO_ID and logs.topic(name) is None]
    is_allowed = request.version < 4 or message.allow_auto_topic_creation
    if not (unknown and is_allowed and request.broker.config.bool("auto.create.topics.enable")):
        return {}
    partitions = request.broker.config.int("num.partitions")
    return {
        name: logs.new_offsets_topic if name == logs.offsets_topic_name else partial(NewTopic, name, partitions, {})
        for name in unknown
    }


def _find(wanted: Topic | Key, request: "Request") -> Topic | None:
    if isinstance(wanted, Topic):
        return wanted
    name, topic_id = wanted
    logs = request.broker.logs
    return logs.topic_by_id(topic_id) if name is None or topic_id != NO_ID else logs.topic(name)


def _answer(
    wanted: Topic | Key, found: Topic | None, refused: Mapping[str, ErrorCode], message: schema.Request
) -> schema.ResponseTopic:
    """Return the answer for a topic without its partitions."""
    if found is not None:
        return schema.ResponseTopic(
            name=found.name,
            topic_id=found.id,
            is_internal=found.is_internal,
            topic_authorized_operations=(
                TOPIC_OPERATIONS if message.include_topic_authorized_operations else NO_OPERATIONS
            ),
        )
    assert not isinstance(wanted, Topic)
    name, topic_id = wanted
    if name is None or topic_id != NO_ID:
        return schema.ResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return schema.ResponseTopic(error_code=refused.get(name) or _problem(name), name=name)


def _problem(name: str) -> ErrorCode:
    """Return why there is no topic of a name that nobody tried to create."""
    try:
        catalog.check_name(name)
    except Refused as refused:
        return refused.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _described(partition: Partition, node: int) -> schema.ResponsePartition:
    return schema.ResponsePartition(
        error_code=ErrorCode.NONE if partition.failure is None else ErrorCode.KAFKA_STORAGE_ERROR,
        partition_index=partition.index,
        leader_id=node,
        leader_epoch=0,
        replica_nodes=[node],
        isr_nodes=[node],
        offline_replicas=[],
    )


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return every requested topic with the error."""
    return schema.Response(
        topics=[
            schema.ResponseTopic(
                error_code=code,
                name=topic.name if version >= IDS_FROM else topic.name or "",
                topic_id=topic.topic_id,
            )
            for topic in message.topics or []
        ]
    )
