"""Real queries and who owns their group: a job with a wrong group, and every way in which a query can end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata, Heartbeat, QueryState
from logmark.spark.errors import GroupInUse, find_exception
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DEADLINE_S = 120.0
DRIVER = """
import sys
from logmark.spark import session
servers, topic, group, folder = sys.argv[1:]
spark = session("killed")
stream = spark.readStream.format("logmark").options(**{"bootstrap.servers": servers, "subscribe": topic})
stream = stream.options(**{"group.id": group, "auto.offset.reset": "earliest"}).load()
query = stream.writeStream.format("noop").option("checkpointLocation", folder).start()
query.awaitTermination()
"""


class Group:
    """A topic, a group, and queries of one or the other checkpoint."""

    def __init__(self, broker: BrokerUnderTest, spark: "SparkSession", folder: Path) -> None:
        self.broker = broker
        self.topic = broker.create_topic("clicks")
        self.group = broker.group("billing")
        self._spark = spark
        self.folder = folder
        broker.produce(self.topic, ["x"] * 20)

    def start(self, checkpoint: str, each: Callable[[Any, int], None] | None = None, **options: str) -> Any:
        given = {"bootstrap.servers": self.broker.bootstrap_servers, "subscribe": self.topic, "group.id": self.group}
        stream = self._spark.readStream.format("logmark").options(
            **given, **{"auto.offset.reset": "earliest"}, **options
        )
        writer = stream.load().writeStream.option("checkpointLocation", str(self.folder / checkpoint))
        return (writer.format("noop") if each is None else writer.foreachBatch(each)).start()

    def heartbeat(self) -> Heartbeat | None:
        with Client(self.broker.bootstrap_servers) as client:
            found = client.committed(self.group).get(TopicPartition(self.topic, 0))
        mark = CommitMetadata.parse(found.metadata) if found is not None else None
        return None if mark is None else mark.heartbeat

    def committed(self) -> int | None:
        return self.broker.committed(self.group).get((self.topic, 0))

    def wait_for(self, state: QueryState) -> None:
        def holds() -> bool:
            beat = self.heartbeat()
            return beat is not None and beat.state is state

        wait_until(holds, f"the group's query is {state}", deadline_s=DEADLINE_S)

    def wait_until_read(self, query: Any, offset: int) -> None:
        def holds() -> bool:
            assert query.exception() is None, query.exception()
            return self.committed() == offset

        wait_until(holds, f"{offset} records are read", deadline_s=DEADLINE_S)


@pytest.fixture
def group(our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path) -> Group:
    return Group(our_broker, spark, tmp_path)


def failure_of(query: Any) -> str:
    wait_until(lambda: query.exception() is not None, "the query ends with an error", deadline_s=DEADLINE_S)
    return str(query.exception())


def test_a_job_with_a_wrong_group_is_refused_and_the_owner_runs_on(group: Group) -> None:
    owner = group.start("owner")
    group.wait_until_read(owner, 20)

    found = find_exception(failure_of(group.start("job")))

    assert found is not None and GroupInUse is found[0]
    assert f"Group {group.group} is in use by the query " in found[1]
    assert f"in process {_reader(group)} on " in found[1]
    group.broker.produce(group.topic, ["y"] * 5)
    group.wait_until_read(owner, 25)

    thief = group.start("job", takeover="true")
    assert "was taken over by the query" in failure_of(owner)
    back = group.start("owner", takeover="true")
    assert "was taken over by the query" in failure_of(thief)
    group.broker.produce(group.topic, ["z"] * 5)
    group.wait_until_read(back, 30)
    back.stop()


def _reader(group: Group) -> str:
    beat = group.heartbeat()
    assert beat is not None
    return beat.process.split("/")[2]


def test_every_end_of_a_query_frees_its_group_at_once(group: Group) -> None:
    stopped = group.start("stopped")
    group.wait_until_read(stopped, 20)
    group.wait_for(QueryState.RUNNING)
    stopped.stop()
    group.wait_for(QueryState.STOPPED)

    def fail(rows: Any, number: int) -> None:
        raise ValueError("of the user")

    group.broker.produce(group.topic, ["y"])
    failed = group.start("failed", fail)
    assert "of the user" in failure_of(failed)
    group.wait_for(QueryState.STOPPED)

    again = group.start("another")
    group.wait_until_read(again, 21)
    again.stop()
    group.wait_for(QueryState.STOPPED)


def test_a_killed_driver_frees_its_group_as_its_python_process_ends(group: Group) -> None:
    arguments = [group.broker.bootstrap_servers, group.topic, group.group, str(group.folder / "killed")]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: group.committed() == 20, "the driver has read all", deadline_s=DEADLINE_S)
        group.wait_for(QueryState.RUNNING)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    group.wait_for(QueryState.STOPPED)

    query = group.start("next")
    group.broker.produce(group.topic, ["y"])
    group.wait_until_read(query, 21)
    query.stop()
