"""DeleteTopics removes topics with their records; what groups had committed for them goes too.

v4  flexible     v5  error messages     v6  topics by id
"""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from logmark.broker.answers import LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import delete_topics as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.logs import Topic

KEY = schema.KEY
VERSIONS = range(1, 7)

NO_ID = bytes(16)


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Delete topics, all that can be deleted by one change."""
    # The requests behind it on the same connection take effect after it.
    return LongWork(_answer(message, request))


async def _answer(message: schema.Request, request: "Request") -> schema.Response:
    wanted: list[tuple[str | None, bytes]] = (
        [(topic.name, topic.topic_id) for topic in message.topics]
        if request.version >= 6
        else [(name, NO_ID) for name in message.topic_names]
    )
    named = Counter(wanted)
    outcomes = await request.broker.logs.delete_topics(
        [partial(_find, *each, request, is_repeated=count > 1) for each, count in named.items()]
    )
    pace = Pace()
    answers = []
    for (name, topic_id), outcome in zip(named, outcomes, strict=True):
        if isinstance(outcome, Refused):
            answer = schema.ResponseTopic(
                name=name, topic_id=topic_id, error_code=outcome.code, error_message=outcome.message
            )
        else:
            answer = schema.ResponseTopic(name=outcome.name, topic_id=outcome.id)
        answers.append(answer)
        await pace.step()
    return schema.Response(responses=answers)


def _find(name: str | None, topic_id: bytes, request: "Request", *, is_repeated: bool) -> "Topic":
    """Return the topic that is to be deleted; raises Refused if it cannot be."""
    logs = request.broker.logs
    if is_repeated:
        raise Refused(ErrorCode.INVALID_REQUEST, "A topic may be named once in a request.")
    if name is not None and topic_id != NO_ID:
        raise Refused(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if name is None and topic_id == NO_ID:
        raise Refused(ErrorCode.INVALID_REQUEST, "Neither topic name nor topic id was specified.")
    topic = logs.topic_by_id(topic_id) if name is None else logs.topic(name)
    if topic is None:
        raise Refused(
            ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        )
    if topic.is_internal:
        # It holds the committed offsets of all groups: deleting it would delete them.
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The internal topic {topic.name} cannot be deleted.")
    if not request.broker.config.bool("delete.topic.enable"):
        raise Refused(ErrorCode.TOPIC_DELETION_DISABLED, "Topics cannot be deleted: delete.topic.enable=false.")
    return topic


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return every topic with the error."""
    names = [topic.name for topic in message.topics] if version >= 6 else list(message.topic_names)
    return schema.Response(responses=[schema.ResponseTopic(name=name, error_code=code) for name in names])
