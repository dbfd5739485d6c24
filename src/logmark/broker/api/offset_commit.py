"""OffsetCommit stores the next offsets that a group will read, and answers when they are on disk.

v2-4  a retention of its own     v6  leader epoch     v7  static members (KIP-345)     v8  flexible
v9    member epochs of the new protocol (KIP-848), which is not served here     v10  topic ids, not served here
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from logmark.broker.answers import LARGE, LateReply, LongWork
from logmark.broker.event_loop_turns import Pace, Steps, run_at_once, run_in_turns
from logmark.coordination.commands import CommitOffsets, OffsetsCommitted, OffsetToCommit
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import offset_commit as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(2, 10)
GROUP_FIELD = "group_id"

# A commit is one step, however many partitions it has: nobody sees half of it, and a crash or a rebalance takes all of
# it or nothing. Only one with more metadata than this is decided and written in portions.
METADATA_CHARS_AT_ONCE = 8 * 1024 * 1024

Errors = dict[tuple[str, int], ErrorCode]


def handle(message: schema.Request, request: "Request") -> schema.Response | LateReply | LongWork:
    """Commit the offsets of partitions that exist; the response has an error code for every partition.

    Of a partition that is named several times the last offset counts.
    """
    if sum(len(topic.partitions) for topic in message.topics) > LARGE:
        return LongWork(_commit_many(message, request))
    errors, known = run_at_once(_known_offsets(message, request))
    if errors and not known:
        # A request of unknown partitions only is answered as such, whatever the group.
        return run_at_once(_response(message, errors))
    reply = LateReply()

    def answered(outcome: OffsetsCommitted | Refused) -> None:
        _note(outcome, known, errors)
        reply.complete(run_at_once(_response(message, errors)))

    try:
        request.broker.groups.commit_offsets(_command(message, request, known), answered)
    except Refused as refused:
        answered(refused)
    return reply


async def _commit_many(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    errors, known = await run_in_turns(_known_offsets(message, request), pace)
    waiting: list[tuple[list[OffsetToCommit], asyncio.Future[OffsetsCommitted | Refused]]] = []
    # Without a known partition the group is not looked at, as above.
    for portion in _portions(known):
        answer: asyncio.Future[OffsetsCommitted | Refused] = asyncio.get_running_loop().create_future()
        waiting.append((portion, answer))
        try:
            request.broker.groups.commit_offsets(_command(message, request, portion), partial(_settle, answer))
        except Refused as refused:
            answer.set_result(refused)
        # Deciding, writing and applying it took about that many steps.
        await pace.step(2 * len(portion))
    for portion, answer in waiting:
        _note(await answer, portion, errors)
        await pace.step(len(portion))
    return await run_in_turns(_response(message, errors), pace)


def _settle(
    answer: "asyncio.Future[OffsetsCommitted | Refused]", outcome: OffsetsCommitted | Refused
) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _known_offsets(message: schema.Request, request: "Request") -> Steps[tuple[Errors, list[OffsetToCommit]]]:
    """Return the errors of unknown partitions, and what is to be committed for the others."""
    logs = request.broker.logs
    errors: Errors = {}
    known: dict[tuple[str, int], OffsetToCommit] = {}
    for topic in message.topics:
        for each in topic.partitions:
            where = topic.name, each.partition_index
            if logs.partition(*where) is None:
                errors[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                metadata = each.committed_metadata or ""
                known[where] = OffsetToCommit(*where, each.committed_offset, each.committed_leader_epoch, metadata)
            yield 1
    return errors, list(known.values())


def _portions(offsets: list[OffsetToCommit]) -> Iterator[list[OffsetToCommit]]:
    portion: list[OffsetToCommit] = []
    chars = 0
    for offset in offsets:
        portion.append(offset)
        chars += len(offset.metadata)
        if chars >= METADATA_CHARS_AT_ONCE:
            yield portion
            portion, chars = [], 0
    if portion:
        yield portion


def _command(message: schema.Request, request: "Request", offsets: list[OffsetToCommit]) -> CommitOffsets:
    return CommitOffsets(
        group=message.group_id,
        generation=message.generation_id_or_member_epoch,
        member_id=message.member_id,
        instance_id=message.group_instance_id,
        retention_ms=None if message.retention_time_ms == -1 else message.retention_time_ms,
        offsets=tuple(offsets),
        unknown_group_error=ErrorCode.GROUP_ID_NOT_FOUND if request.version >= 9 else ErrorCode.ILLEGAL_GENERATION,
    )


def _note(outcome: OffsetsCommitted | Refused, offsets: list[OffsetToCommit], errors: Errors) -> None:
    codes = itertools.repeat(outcome.code) if isinstance(outcome, Refused) else outcome.errors
    for offset, code in zip(offsets, codes, strict=False):
        errors[offset.topic, offset.partition] = code


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return the same error for every partition: the response has no other field for it."""
    return run_at_once(_response(message, defaultdict(lambda: code)))


def _response(message: schema.Request, errors: Mapping[tuple[str, int], ErrorCode]) -> Steps[schema.Response]:
    found: dict[str, dict[int, schema.ResponsePartition]] = {}
    for topic in message.topics:
        answers = found.setdefault(topic.name, {})
        for each in topic.partitions:
            index = each.partition_index
            answers[index] = schema.ResponsePartition(partition_index=index, error_code=errors[topic.name, index])
            yield 1
    return schema.Response(
        topics=[
            schema.ResponseTopic(name=topic, partitions=list(answers.values())) for topic, answers in found.items()
        ]
    )
