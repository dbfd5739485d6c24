"""CreatePartitions adds partitions to topics; no record moves.

v2  flexible     v3  the same as v2, with quota errors
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from logmark.broker.answers import LongWork
from logmark.broker.event_loop_turns import Pace, decide_each
from logmark.errors import ErrorCode, Refused
from logmark.log.catalog import check_partition_count
from logmark.wire.schema import create_partitions as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.logs import Topic

KEY = schema.KEY
VERSIONS = range(0, 4)


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Grow topics, all that can grow by one change."""
    # The requests behind it on the same connection take effect after it.
    return LongWork(_answer(message, request))


async def _answer(message: schema.Request, request: "Request") -> schema.Response:
    named = Counter(topic.name for topic in message.topics)
    decisions = {
        topic.name: partial(_growth, topic, request, is_repeated=named[topic.name] > 1) for topic in message.topics
    }
    pace = Pace()
    outcomes: Sequence[object] = (
        await decide_each(decisions.values(), pace)
        if message.validate_only
        else await request.broker.logs.add_partitions(list(decisions.values()))
    )
    results = []
    for name, outcome in zip(decisions, outcomes, strict=True):
        results.append(
            schema.ResponseTopic(name=name, error_code=outcome.code, error_message=outcome.message)
            if isinstance(outcome, Refused)
            else schema.ResponseTopic(name=name)
        )
        await pace.step()
    return schema.Response(results=results)


def _growth(wanted: schema.RequestTopic, request: "Request", *, is_repeated: bool) -> tuple["Topic", int]:
    """Return the topic and the number of partitions that it gets; raises Refused if it cannot get that many."""
    if is_repeated:
        raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    topic = request.broker.logs.find(wanted.name)
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
    check_partition_count(wanted.count)
    if wanted.assignments is not None:
        more = wanted.count - have
        if len(wanted.assignments) != more or any(
            assignment.broker_ids != [request.broker.node_id] for assignment in wanted.assignments
        ):
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{more} partition(s) are to be added: each must be assigned to broker {request.broker.node_id} alone.",
            )
    return topic, wanted.count


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return every topic with the error."""
    return schema.Response(
        results=[schema.ResponseTopic(name=topic.name, error_code=code) for topic in message.topics]
    )
