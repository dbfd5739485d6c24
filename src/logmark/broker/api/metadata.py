"""Metadata tells where the cluster is and what its topics look like.

v1  controller, racks, internal topics    v4  the client may forbid auto-creation    v7  leader epochs
v9  flexible                              v10 topic ids                              v12 topics by id alone
"""

from typing import TYPE_CHECKING

from logmark.errors import ErrorCode, Refused
from logmark.log import catalog
from logmark.wire.schema import metadata as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.logs import Topic

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


def handle(request: schema.Request, at: "Request") -> schema.Response:
    """The one broker, and every topic that was asked for."""
    broker = at.broker
    if at.version < IDS_FROM and any(topic.name is None or topic.topic_id != NO_ID for topic in request.topics or ()):
        # Versions 10 and 11 have a place for ids, but they are not looked up by them.
        return refuse(request, ErrorCode.INVALID_REQUEST, at.version)
    advertised = at.connection.listener.advertised
    return schema.Response(
        brokers=[schema.ResponseBroker(node_id=broker.node_id, host=advertised.host, port=advertised.port, rack=None)],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=_topics(request, at),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_OPERATIONS
        ),
    )


def _topics(request: schema.Request, at: "Request") -> list[schema.ResponseTopic]:
    logs = at.broker.logs
    # Version 0 has no null array: an empty one means all topics.
    if request.topics is None or (at.version == 0 and not request.topics):
        return [_described(topic, request, at) for topic in logs.topics()]
    found = []
    for name, topic_id in {(wanted.name, wanted.topic_id): None for wanted in request.topics}:
        if name is None or topic_id != NO_ID:
            topic = logs.topic_by_id(topic_id)
            found.append(
                schema.ResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
                if topic is None
                else _described(topic, request, at)
            )
            continue
        try:
            found.append(_described(_found_or_created(name, request, at), request, at))
        except Refused as refused:
            found.append(schema.ResponseTopic(error_code=refused.code, name=name))
    return found


def _found_or_created(name: str, request: schema.Request, at: "Request") -> "Topic":
    logs = at.broker.logs
    topic = logs.topic(name)
    if topic is not None:
        return topic
    catalog.check_name(name)
    allowed = at.version < 4 or request.allow_auto_topic_creation
    if not (allowed and at.broker.config.bool("auto.create.topics.enable")):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if name == logs.offsets_topic_name:
        logs.create_internal_offsets_topic()
    else:
        logs.create_topic(name, at.broker.config.int("num.partitions"), {})
    created = logs.topic(name)
    assert created is not None
    return created


def _described(topic: "Topic", request: schema.Request, at: "Request") -> schema.ResponseTopic:
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
