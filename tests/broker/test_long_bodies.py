"""Long answers are encoded piece by piece, to the same bytes as in one piece."""

import asyncio
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from logmark.broker.answers import LongBody
from logmark.broker.memory_budget import MemoryBudget
from logmark.wire import messages
from logmark.wire.schema import create_topics, join_group


def request_of(version: int, budget: MemoryBudget | None = None) -> Any:
    broker = SimpleNamespace(budget=budget or MemoryBudget(1 << 30))
    return SimpleNamespace(version=version, broker=broker, reservation=None)


def encode_one_by_one(
    schema: ModuleType, version: int, elements: Sequence[messages.Message], rest: messages.Message
) -> bytes:
    async def encode() -> bytes:
        body = LongBody(schema, request_of(version))
        for element in elements:
            await body.add(element)
        return bytes_of(body.finish(rest))

    return asyncio.run(encode())


def bytes_of(buffers: Any) -> bytes:
    return b"".join(bytes(each.take(len(each))) if hasattr(each, "take") else each for each in buffers)


@pytest.mark.parametrize("count", [0, 1, 50, 130])
@pytest.mark.parametrize("version", create_topics.VERSIONS)
def test_an_answer_to_create_topics_is_the_same_in_pieces(version: int, count: int) -> None:
    configs = [create_topics.ResponseConfig(name="retention.ms", value="1", config_source=1)]
    topics = [
        create_topics.ResponseTopic(name=f"t{number}", topic_id=bytes(16), error_code=number, configs=configs)
        for number in range(count)
    ]
    whole = messages.encode_response(create_topics, version, create_topics.Response(topics=topics))
    assert whole == encode_one_by_one(create_topics, version, topics, create_topics.Response(topics=[]))


@pytest.mark.parametrize("count", [0, 1, 50, 130])
@pytest.mark.parametrize("version", join_group.VERSIONS)
def test_an_answer_to_a_leader_is_the_same_in_pieces(version: int, count: int) -> None:
    def response(members: list[join_group.ResponseMember]) -> join_group.Response:
        return join_group.Response(generation_id=7, protocol_name="range", leader="m0", member_id="m0", members=members)

    members = [join_group.ResponseMember(member_id=f"m{number}", metadata=b"topics") for number in range(count)]
    whole = messages.encode_response(join_group, version, response(members))
    assert whole == encode_one_by_one(join_group, version, members, response([]))
