"""Two pipelines that can be replayed: one that counts into a table, and one that sends alerts to a topic."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pytest

from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.records import read_records
from logmark.spark import read_table
from logmark.spark.pipelines.declaration import Table, Topic
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.pipeline import Pipeline
from logmark.spark.pipelines.query import Brokers
from logmark.spark.pipelines.replay.publication import record_id
from logmark.spark.pipelines.runner import PipelineRunner
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEADLINE_S = 240.0
# A real Spark on Apache Kafka as well: the long tests have it, the fast ones have queries on paper there.
BOTH = pytest.mark.parametrize(
    "broker", ["logmark", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.soak])], indirect=True
)
EARLY = {"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "400"}


def counting(label: Callable[[], str]) -> "Callable[[DataFrame], DataFrame]":
    """Counts numbers by their rest; each row carries the label that the code has when its query starts."""

    def transform(records: "DataFrame") -> "DataFrame":
        numbers = records.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) % 5 AS rest")
        return numbers.groupBy("rest").count().selectExpr(f"'{label()}' AS label", "rest", "count")

    return transform


def alerting(divisors: Callable[[], list[int]]) -> "Callable[[DataFrame], DataFrame]":
    """An alert for each number that one of these divides, the first time that it comes."""

    def transform(records: "DataFrame") -> "DataFrame":
        numbers = records.selectExpr("CAST(value AS STRING) AS value").dropDuplicates(["value"])
        wanted = " OR ".join(f"CAST(value AS BIGINT) % {one} = 0" for one in divisors())
        return numbers.where(wanted).selectExpr("value AS key", "value", "concat('number-', value) AS id")

    return transform


def keeping(label: Callable[[], str]) -> "Callable[[DataFrame], DataFrame]":
    """A row for each record, with the label that the code has when its query starts."""

    def transform(records: "DataFrame") -> "DataFrame":
        value = "CAST(value AS STRING) AS value"
        return records.selectExpr("topic", "partition", "offset", value, f"'{label()}' AS label")

    return transform


def forwarding(divisors: Callable[[], list[int]]) -> "Callable[[DataFrame], DataFrame]":
    """An alert for each record whose number one of these divides, by where the record is."""

    def transform(records: "DataFrame") -> "DataFrame":
        wanted = " OR ".join(f"CAST(CAST(value AS STRING) AS BIGINT) % {one} = 0" for one in divisors())
        own_id = "concat(partition, '/', offset) AS id"
        return records.where(wanted).selectExpr("value AS key", "value", own_id)

    return transform


class DeclaredPipelines:
    """The pipelines, for a topic of numbers and one of alerts; the code is what `label` and `divisors` say."""

    def __init__(self, *, servers: str, topic: str, alerts: str, folder: Path) -> None:
        self.servers = servers
        self.topic = topic
        self.alerts = alerts
        self.table = folder / "counts"
        self.folder = folder
        self.label = "old"
        self.divisors = [3]

    def counts(self, name: str) -> Job:
        """With state and a table."""
        return self._job(name, counting(lambda: self.label), Table(self.table, mode="complete"))

    def fraud(self, name: str) -> Job:
        """With state and a topic."""
        return self._job(name, alerting(lambda: self.divisors), Topic(self.alerts))

    def rows(self, name: str) -> Job:
        """Without state, with a table."""
        return self._job(name, keeping(lambda: self.label), Table(self.table))

    def forwards(self, name: str) -> Job:
        """Without state, with a topic."""
        return self._job(name, forwarding(lambda: self.divisors), Topic(self.alerts))

    def _job(self, name: str, transform: "Callable[[DataFrame], DataFrame]", sink: Table | Topic) -> Job:
        return Job(
            pipeline=Pipeline(name=name, topics=self.topic, transform=transform, sink=sink, options=EARLY),
            brokers=Brokers(bootstrap_servers=self.servers),
            home=Home(self.folder / "pipelines", name),
        )


class NumberPipelines(DeclaredPipelines):
    """A topic of numbers, in two partitions, each of them sent twice; and what the pipelines have made of them."""

    def __init__(self, broker: BrokerUnderTest, folder: Path, *, sent: int | None = None) -> None:
        """With `sent` the topics are there already, and hold so many numbers."""
        for name in ("numbers", "alerts") if sent is None else ():
            broker.create_topic(name, 2, config={"retention.ms": "-1"})
        super().__init__(
            servers=broker.bootstrap_servers,
            topic=broker.unique("numbers"),
            alerts=broker.unique("alerts"),
            folder=folder,
        )
        self.broker = broker
        self.sent = sent or 0

    def job(self, kind: str) -> Job:
        """One of the pipelines, by the name of its method."""
        made: Job = getattr(self, kind)(self.broker.group(kind))
        return made

    def send(self, count: int) -> None:
        """Sends the next numbers, each one twice."""
        for partition in (0, 1):
            values = [str(number) for number in range(self.sent, self.sent + count) if number % 2 == partition]
            self.broker.produce(self.topic, values + values, partition=partition)
        self.sent += count

    def counted(self) -> tuple[set[str], int]:
        """The labels of the table's rows, and how many numbers they count."""
        if not (self.table / "_delta_log").is_dir():
            return set(), 0
        rows = read_table(self.table, ["label", "count"])
        return set(rows["label"].to_pylist()), sum(rows["count"].to_pylist())

    def labels(self) -> dict[tuple[int, int], str]:
        """The label of the row of each record, by partition and offset; a record with two rows is a failure."""
        rows = read_table(self.table, ["partition", "offset", "label"]).to_pylist()
        found = {(row["partition"], row["offset"]): row["label"] for row in rows}
        assert len(rows) == len(found), "a record has two rows"
        return found

    def alerted(self) -> Counter[str | None]:
        """The ids in the topic of alerts."""
        with Client(self.broker.bootstrap_servers) as client:
            partitions = [TopicPartition(self.alerts, number) for number in (0, 1)]
            ends = client.latest(partitions)
            return Counter(
                record_id(record) for one in partitions for record in read_records(client, one, 0, ends[one])
            )

    def due(self, *divisors: int) -> Counter[str | None]:
        """The ids of all alerts that these divisors make of what was sent, each once."""
        numbers = (number for number in range(self.sent) if any(number % one == 0 for one in divisors))
        return Counter(f"number-{number}" for number in numbers)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, deadline_s=DEADLINE_S)


class RunningPipelines(AbstractContextManager["RunningPipelines"]):
    """Pipelines that run in a thread, as `logmark pipelines run` does."""

    def __init__(self, spark: "SparkSession", *jobs: Job) -> None:
        self.told: list[str] = []
        self._stop = threading.Event()
        self._runner = PipelineRunner(jobs, spark, say=self.told.append)
        self._thread = threading.Thread(target=lambda: self._runner.run(count_stops=lambda: int(self._stop.is_set())))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the runner did not stop"

    @property
    def states(self) -> list[str]:
        """How the pipelines are doing."""
        return [one.status.state.value for one in self._runner.supervisors]


class BackgroundProducer(AbstractContextManager["BackgroundProducer"]):
    """A producer that writes on in a thread while something else goes on."""

    def __init__(self, numbers: NumberPipelines, *, at_a_time: int = 4, every_s: float = 0.5) -> None:
        self._numbers = numbers
        self._stop = threading.Event()
        self._at_a_time, self._every_s = at_a_time, every_s
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        while not self._stop.wait(self._every_s):
            self._numbers.send(self._at_a_time)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)


class TableWatcher(AbstractContextManager["TableWatcher"]):
    """A reader that polls the table in a thread and notes whose rows it sees."""

    def __init__(self, numbers: NumberPipelines) -> None:
        self.seen: list[tuple[set[str], int]] = []
        self._numbers = numbers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.seen.append(self._numbers.counted())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
