"""Several pipelines in one real Spark: those that are well finish, the others end with one error message each."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.spark import Pipeline, Table, read_table
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.query import Brokers
from logmark.spark.pipelines.runner import PipelineRunner
from logmark.spark.pipelines.status import RunState, read_status
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.spark.kept_rows_driver import keep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EARLIEST = {"auto.offset.reset": "earliest"}


class RunnerScenario:
    """A topic with a few records, and pipelines that read it."""

    def __init__(self, broker: BrokerUnderTest, folder: Path) -> None:
        self.broker = broker
        self.topic = broker.create_topic("clicks", partitions=2)
        self.folder = folder
        self.said: list[str] = []
        broker.produce(self.topic, [f"v{number}" for number in range(20)])
        broker.produce(self.topic, [f"v{number}" for number in range(10)], partition=1)

    def job(self, name: str, **more: Any) -> Job:
        fields: dict[str, Any] = {
            "topics": self.topic,
            "transform": keep,
            "options": EARLIEST,
            "sink": Table(self.folder / name),
        }
        pipeline = Pipeline(name=name, group=self.broker.group(name), **fields | more)
        brokers = Brokers(bootstrap_servers=self.broker.bootstrap_servers)
        return Job(pipeline=pipeline, brokers=brokers, home=Home(self.folder / "home", name))

    def run(self, spark: "SparkSession", *jobs: Job) -> bool:
        return PipelineRunner(jobs, spark, available_now=True, say=self.said.append).run()

    def last_words(self, name: str) -> str:
        return [line for line in self.said if line.startswith(f"{name}: ")][-1]

    def committed(self, job: Job) -> set[int]:
        return set(self.broker.committed(job.pipeline.group).values())


@pytest.fixture
def scenario(our_broker: BrokerUnderTest, tmp_path: Path) -> RunnerScenario:
    return RunnerScenario(our_broker, tmp_path)


def failing(frame: "DataFrame") -> "DataFrame":
    """Cannot make anything of the eighth record of partition 0."""
    return frame.selectExpr(
        "topic", "partition", "offset",
        "if(partition = 0 AND offset = 7, CAST(CAST(value AS STRING) AS INT), 1) AS number",
    )  # fmt: skip


def test_the_well_finish_and_the_others_end_with_an_error_and_nothing_half_written(
    scenario: RunnerScenario, spark: "SparkSession"
) -> None:
    first = scenario.job("well")
    assert scenario.run(spark, first)
    bad_schema = scenario.job("unfit", transform=lambda frame: keep(frame).selectExpr("*", "1 AS more"))
    # The table of another schema: as one whose pipeline was changed.
    assert scenario.run(spark, scenario.job("unfit"))
    scenario.broker.produce(scenario.topic, ["late"])

    jobs = {
        "well": first,
        "nowhere": scenario.job("nowhere", topics="nowhere"),
        "mistyped": scenario.job("mistyped", options={"startingOfsets": "earliest"}),
        "strict": scenario.job("strict", options={"auto.offset.reset": "none"}),
        "unfit": bad_schema,
        "failing": scenario.job("failing", transform=failing),
        "unreal": scenario.job("unreal", transform=lambda frame: frame.select("price")),
    }
    assert not scenario.run(spark, *jobs.values())

    assert "well: all is read: 1 records in 1 batch" == scenario.last_words("well")
    assert scenario.last_words("nowhere").startswith("nowhere: There is no topic nowhere at ")
    assert "has no option startingOfsets. Did you mean startingOffsets?" in scenario.last_words("mistyped")
    assert "has no committed offset for " in scenario.last_words("strict")
    assert "more" in scenario.last_words("unfit")
    assert "(CAST_INVALID_INPUT)" in scenario.last_words("failing")
    assert f"It fails on the record {scenario.topic}-0 offset 7." in scenario.last_words("failing")
    assert "UNRESOLVED_COLUMN" in scenario.last_words("unreal")
    assert all("\n" not in line for line in scenario.said)
    statuses = {name: read_status(job.home.status_file) for name, job in jobs.items()}
    assert {name: RunState.DONE if name == "well" else RunState.FAILED for name in jobs} == {
        name: status.state for name, status in statuses.items() if status is not None
    }
    assert 31 == read_table(scenario.folder / "well").num_rows
    assert 30 == read_table(scenario.folder / "unfit").num_rows
    assert {21, 10} == scenario.committed(jobs["well"])
    assert {20, 10} == scenario.committed(jobs["unfit"])
    assert {0} == scenario.committed(jobs["failing"]), "where it begins is committed, and nothing beyond"
    for name in ("nowhere", "mistyped", "strict", "unreal"):
        assert set() == scenario.committed(jobs[name])
    for name in ("nowhere", "mistyped", "strict", "unreal", "failing"):
        assert not (scenario.folder / name / "_delta_log").exists()


def test_a_pipeline_whose_group_is_taken_over_ends_and_names_the_new_owner(
    scenario: RunnerScenario, spark: "SparkSession"
) -> None:
    job = scenario.job("billing")
    runner = PipelineRunner([job], spark, say=scenario.said.append)
    taken: list[Any] = []

    def play(workers: Any) -> None:
        if not taken and scenario.committed(job) == {20, 10}:
            options = {"bootstrap.servers": scenario.broker.bootstrap_servers, "group.id": job.pipeline.group}
            options |= {"subscribe": scenario.topic, "takeover": "true"}
            stream = spark.readStream.format("logmark").options(**options).load()
            thief = stream.writeStream.format("noop").option("checkpointLocation", str(scenario.folder / "thief"))
            taken.append(thief.start())

    try:
        assert not runner.run(watch=play)
    finally:
        for query in taken:
            query.stop()

    assert f"Group {job.pipeline.group} was taken over by the query " in scenario.last_words("billing")
    assert 30 == read_table(scenario.folder / "billing").num_rows
    assert not job.home.is_live()


def state_of(job: Job) -> RunState | None:
    status = read_status(job.home.status_file)
    return None if status is None else status.state


def test_a_query_that_is_started_by_hand_holds_the_live_lock_until_it_ends(
    scenario: RunnerScenario, spark: "SparkSession"
) -> None:
    job = scenario.job("billing")
    pipeline, home = job.pipeline, job.home.root
    assert isinstance(pipeline, Pipeline)
    query = pipeline.start(spark, home=home, bootstrap_servers=scenario.broker.bootstrap_servers)
    assert job.home.is_live()
    assert RunState.RUNNING is state_of(job)

    query.stop()
    wait_until(lambda: not job.home.is_live(), "its lock is free", deadline_s=60)
    assert RunState.STOPPED is state_of(job)
    pipeline.run(spark, home=home, bootstrap_servers=scenario.broker.bootstrap_servers)

    assert {20, 10} == scenario.committed(job)
    assert 1 == job.home.record().begun
