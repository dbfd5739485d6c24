"""A fetch gets the same bytes and the same session from our broker and from Apache Kafka, in every version."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from logmark.broker import api
from logmark.wire.fetch import FetchPartition, FetchRequest, FetchResponse
from tests.compat.asking import Connection
from tests.harness import wire
from tests.harness.brokers import BrokerUnderTest

pytestmark = pytest.mark.kafka

VERSIONS = api.fetch.VERSIONS
SESSIONS_FROM = 7
FIRST_EPOCH, NO_SESSION = 0, -1

BrokerTopic = tuple[BrokerUnderTest, Connection, str]


@pytest.fixture
def both(our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest) -> Iterator[list[BrokerTopic]]:
    """Apache Kafka, then our broker, with the very same batches in partition 0: three records each, 30 in all."""
    apache_kafka.share_names(our_broker)
    batches = [wire.batch([b"ORD-%d" % (3 * number + each) for each in range(3)]) for number in range(10)]
    with closing(Connection(apache_kafka)) as theirs, closing(Connection(our_broker)) as ours:
        sides = []
        for broker, connection in ((apache_kafka, theirs), (our_broker, ours)):
            topic = broker.create_topic("orders", partitions=2)
            for number, batch in enumerate(batches):
                assert (0, 3 * number) == wire.produce(broker.bootstrap_servers, topic, batch)[:2]
            broker.delete_records(topic, 4)
            sides.append((broker, connection, topic))
        yield sides


def wanted(
    topic: str, *partitions: tuple[int, int], session: tuple[int, int] = (0, NO_SESSION), **more: Any
) -> FetchRequest:
    """A fetch of these partitions at these offsets."""
    bytes_max = more.pop("partition_bytes", 1 << 20)
    epoch = more.pop("leader_epoch", -1)
    asked = [FetchPartition(index, epoch, offset, -1, -1, bytes_max) for index, offset in partitions]
    values: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten": []}
    values.update(more)
    return FetchRequest(
        replica_id=-1,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[(topic, asked)] if asked else [],
        rack_id="",
        **values,
    )


def plain(answer: FetchResponse) -> Any:
    """An answer without the time to wait and the number of its session."""
    topics = [
        (topic, sorted(each._replace(records=bytes(each.records)) for each in found)) for topic, found in answer.topics
    ]
    return answer.error_code, bool(answer.session_id), topics


@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_bytes_come_from_every_offset(both: list[BrokerTopic], version: int) -> None:
    size = len(wire.batch([b"ORD-%d" % each for each in range(3)]))
    for name, partitions, more in (
        ("the log start, inside of a batch", [(0, 4)], {}),
        ("before the log start", [(0, 3)], {}),
        ("the middle", [(0, 15)], {}),
        ("inside of a batch", [(0, 16)], {}),
        ("the end", [(0, 30)], {}),
        ("behind the end", [(0, 31)], {}),
        ("an empty partition", [(1, 0)], {}),
        ("no partition", [(9, 0)], {}),
        ("two partitions", [(0, 20), (1, 0)], {}),
        ("one byte of a partition", [(0, 15)], {"partition_bytes": 1}),
        ("one byte in all", [(0, 15)], {"max_bytes": 1}),
        ("a batch and a half", [(0, 15)], {"partition_bytes": size * 3 // 2}),
        ("an old leader", [(0, 15)], {"leader_epoch": 0}),
        ("a later leader", [(0, 15)], {"leader_epoch": 5}),
    ):
        apache, ours = (
            plain(connection.fetch(version, wanted(topic, *partitions, **more))) for _, connection, topic in both
        )
        if "partition_bytes" in more or "max_bytes" in more:
            apache, ours = whole(apache, size), whole(ours, size)
        assert apache == ours, name


def whole(answer: Any, size: int) -> Any:
    """The answer with whole batches only: Apache Kafka may end with a part of one, which every client drops."""
    error, has_session, topics = answer
    cut = [
        (topic, [each._replace(records=each.records[: len(each.records) // size * size]) for each in found])
        for topic, found in topics
    ]
    return error, has_session, cut


def life_of_a_session(side: BrokerTopic, version: int, new_batch: bytes) -> Iterator[tuple[str, FetchResponse]]:
    """Opens, follows, disturbs and closes a session."""
    broker, connection, topic = side
    opened = connection.fetch(version, wanted(topic, (0, 27), (1, 0), session=(0, FIRST_EPOCH)))
    yield "open", opened

    def ask(*partitions: tuple[int, int], epoch: int, session: int = opened.session_id, **more: Any) -> FetchResponse:
        return connection.fetch(version, wanted(topic, *partitions, session=(session, epoch), **more))

    yield "the same again", ask(epoch=1)
    yield "moved to the end", ask((0, 30), epoch=2)
    assert (0, 0) == wire.produce(broker.bootstrap_servers, topic, new_batch, partition=1)[:2]
    yield "a record came", ask(epoch=3)
    yield "one is forgotten", ask(epoch=4, forgotten=[(topic, [1])])
    yield "an epoch too far", ask(epoch=9)
    yield "an epoch too old", ask(epoch=2)
    yield "no such session", ask(epoch=1, session=opened.session_id + 1)
    yield "close", ask(epoch=NO_SESSION)
    yield "after the close", ask(epoch=5)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= SESSIONS_FROM])
def test_a_session_tells_what_changed_and_forgets_what_it_is_told(both: list[BrokerTopic], version: int) -> None:
    new_batch = wire.batch([b"ORD-9001"])
    lives = [list(life_of_a_session(side, version, new_batch)) for side in both]
    for (step, apache), (_, ours) in zip(*lives, strict=True):
        assert plain(apache) == plain(ours), step
