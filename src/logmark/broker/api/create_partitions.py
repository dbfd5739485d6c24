"""CreatePartitions adds partitions to topics; no record moves.

v2  flexible     v3  the same as v2, with quota errors
"""

from collections import Counter
from typing import TYPE_CHECKING

from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import create_partitions as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 4)


def handle(request: schema.Request, at: "Request") -> schema.Response:
    """Grows each topic by itself."""
    named = Counter(topic.name for topic in request.topics)
    results = []
    for wanted in {topic.name: topic for topic in request.topics}.values():
        try:
            if named[wanted.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _grow(wanted, at, validate_only=request.validate_only)
            results.append(schema.ResponseTopic(name=wanted.name))
        except Refused as refused:
            results.append(
                schema.ResponseTopic(
                    name=wanted.name, error_code=refused.code, error_message=refused.message
                )
            )
    return schema.Response(results=results)


def _grow(wanted: schema.RequestTopic, at: "Request", *, validate_only: bool) -> None:
    topic = at.broker.logs.topic(wanted.name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    if topic.is_internal:
        # A group is found by its hash modulo the number of partitions: that number is for ever.
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The internal topic {topic.name} cannot grow.")
    have = len(topic.partitions)
    if wanted.count == have:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
    if wanted.count < have:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {wanted.name} currently has {have} partition(s); {wanted.count} would not be an increase.",
        )
    if wanted.assignments is not None:
        more = wanted.count - have
        if len(wanted.assignments) != more or any(
            assignment.broker_ids != [at.broker.node_id] for assignment in wanted.assignments
        ):
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{more} partition(s) are to be added: each must be assigned to broker {at.broker.node_id} alone.",
            )
    if not validate_only:
        at.broker.logs.create_partitions(wanted.name, wanted.count)


def refuse(request: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Every topic, with the error."""
    return schema.Response(
        results=[schema.ResponseTopic(name=topic.name, error_code=code) for topic in request.topics]
    )
