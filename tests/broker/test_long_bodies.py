"""Long answers are encoded piece by piece, to the same bytes as in one piece."""

import pytest

from logmark.broker.answers import LongBody
from logmark.broker.api.metadata import CLUSTER_OPERATIONS_IN, VERSIONS
from logmark.wire import messages
from logmark.wire.schema import create_topics, metadata


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
@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_to_metadata_is_the_same_in_pieces(version: int, count: int) -> None:
    def response(topics: list[metadata.ResponseTopic]) -> metadata.Response:
        brokers = [metadata.ResponseBroker(node_id=1, host="here", port=9092)]
        return metadata.Response(brokers=brokers, cluster_id="c", topics=topics, cluster_authorized_operations=77)

    partitions = [metadata.ResponsePartition(partition_index=3, leader_id=1, replica_nodes=[1], isr_nodes=[1])]
    topics = [metadata.ResponseTopic(name=f"t{number}", partitions=partitions) for number in range(count)]
    body = LongBody(metadata, version)
    for topic in topics:
        body.add(topic)

    pieces = body.finish(response([]), bytes_behind=4 if version in CLUSTER_OPERATIONS_IN else 0)
    assert messages.encode_response(metadata, version, response(topics)) == b"".join(pieces)
