"""Long answers are encoded piece by piece, to the same bytes as in one piece."""

import pytest

from logmark.broker.answers import LongBody
from logmark.wire import messages
from logmark.wire.schema import create_topics, join_group


@pytest.mark.parametrize("count", [0, 1, 50, 130])
@pytest.mark.parametrize("version", create_topics.VERSIONS)
def test_an_answer_to_create_topics_is_the_same_in_pieces(version: int, count: int) -> None:
    configs = [create_topics.ResponseConfig(name="retention.ms", value="1", config_source=1)]
    topics = [
        create_topics.ResponseTopic(name=f"t{number}", topic_id=bytes(16), error_code=number, configs=configs)
        for number in range(count)
    ]
    body = LongBody(create_topics, version)
    for topic in topics:
        body.add(topic)

    whole = messages.encode_response(create_topics, version, create_topics.Response(topics=topics))
    assert whole == b"".join(body.finish(create_topics.Response(topics=[])))


@pytest.mark.parametrize("count", [0, 1, 50, 130])
@pytest.mark.parametrize("version", join_group.VERSIONS)
def test_an_answer_to_a_leader_is_the_same_in_pieces(version: int, count: int) -> None:
    def response(members: list[join_group.ResponseMember]) -> join_group.Response:
        return join_group.Response(generation_id=7, protocol_name="range", leader="m0", member_id="m0", members=members)

    members = [join_group.ResponseMember(member_id=f"m{number}", metadata=b"topics") for number in range(count)]
    body = LongBody(join_group, version)
    for member in members:
        body.add(member)

    assert messages.encode_response(join_group, version, response(members)) == b"".join(body.finish(response([])))
