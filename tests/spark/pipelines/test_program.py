"""Pipelines without our command: by PySpark's own spark-submit, and inside a Spark Declarative Pipeline."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest

from logmark.spark import read_table
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import make_job
from logmark.spark.pipelines.status import RunState, read_status
from tests.harness.brokers import BrokerUnderTest
from tests.harness.spark_cluster import link_spark
from tests.harness.sparks import quick_java
from tests.spark.pipelines.test_pipeline import declared

BIN = Path(sys.executable).parent
PROGRAM = """
from prices import priced
from logmark.spark import Pipeline, Table

billing = Pipeline(
    name="billing", group={group!r}, topics={topic!r}, transform=priced, sink=Table({table!r}),
    options={{"auto.offset.reset": "earliest"}},
)

if __name__ == "__main__":
    billing.main()
"""
PRICES = """
from pyspark.sql.functions import udf

def doubled(text):
    return 2 * int(text)

def priced(frame):
    rows = frame.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) AS text")
    return rows.withColumn("cents", udf(doubled, "int")("text")).drop("text")
"""
DECLARED = """
from pyspark import pipelines

@pipelines.table
def clicks():
    return (
        spark.readStream.format("logmark")
        .option("bootstrap.servers", {servers!r})
        .option("subscribe", {topic!r})
        .option("group.id", {group!r})
        .option("auto.offset.reset", "earliest")
        .load()
        .selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
    )
"""
SPEC = """
name: shop
storage: file://{folder}/storage
database: default
libraries:
  - glob:
      include: transformations/**
"""


def run(command: list[str], folder: Path, **more: str) -> str:
    """What a program of Spark writes, which has to end well."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", **more}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=False, cwd=folder, env=environment
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.spark
def test_a_pipeline_is_run_by_plain_spark_submit(our_broker: BrokerUnderTest, tmp_path: Path) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("billing")
    our_broker.produce(topic, [str(number) for number in range(20)])
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM.format(group=group, topic=topic, table="table"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "prices.py").write_text(PRICES)
    settings = [part for name, value in quick_java().items() for part in ("--conf", f"{name}={value}")]
    arguments = [
        "--available-now",
        "--home",
        str(tmp_path / "home"),
        "--bootstrap-servers",
        our_broker.bootstrap_servers,
    ]

    command = [str(BIN / "spark-submit"), "--master", "local[1]", *settings, str(program), *arguments]
    said = run(command, tmp_path / "elsewhere", SPARK_HOME=str(link_spark(tmp_path / "spark")))

    assert "billing: all is read: 20 records in 1 batch" in said
    assert [2 * number for number in range(20)] == sorted(read_table(tmp_path / "table")["cents"].to_pylist())
    assert {(topic, 0): 20} == our_broker.committed(group)
    home = Home(tmp_path / "home", "billing")
    status = read_status(home.status_file)
    assert status is not None
    assert RunState.DONE is status.state
    assert str(program) == home.record().file


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_declarative_pipeline_reads_as_a_group_and_continues_where_it_was(
    our_broker: BrokerUnderTest, tmp_path: Path
) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("declared")
    our_broker.produce(topic, [f"v{number}" for number in range(20)])
    (tmp_path / "transformations").mkdir()
    text = DECLARED.format(servers=our_broker.bootstrap_servers, topic=topic, group=group)
    (tmp_path / "transformations" / "clicks.py").write_text(text)
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    settings = ["--conf", "spark.sql.catalogImplementation=hive"]

    for count in (20, 25):
        run([str(BIN / "spark-pipelines"), "run", *settings], tmp_path)
        files = tmp_path / "spark-warehouse" / "clicks"
        rows = pyarrow.dataset.dataset(str(files), format="parquet").to_table()
        assert count == rows.num_rows
        assert {(topic, 0): count} == our_broker.committed(group)
        our_broker.produce(topic, ["more"] * 5)


@pytest.mark.parametrize(
    ("given", "environment", "own", "expected"),
    [
        ("given:1", "environment:2", "own:3", "given:1"),
        (None, "environment:2", "own:3", "environment:2"),
        (None, None, "own:3", "own:3"),
        (None, None, None, "prod:4"),
    ],
)
def test_the_cluster_is_the_given_one_else_the_environments_else_the_pipelines_else_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    given: str | None,
    environment: str | None,
    own: str | None,
    expected: str,
) -> None:
    settings = tmp_path / "logmark.toml"
    settings.write_text('current = "prod"\n[contexts.prod]\nbootstrap_servers = "prod:4"\n')
    monkeypatch.setenv("LOGMARK_CONFIG", str(settings))
    if environment is not None:
        monkeypatch.setenv("LOGMARK_BOOTSTRAP_SERVERS", environment)

    job = make_job(declared(bootstrap_servers=own), home=tmp_path, bootstrap_servers=given)

    assert expected == job.brokers.bootstrap_servers
    assert ("prod" if expected == "prod:4" else None) == job.context


def test_the_properties_of_the_environment_count_for_programs_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=SASL_PLAINTEXT\n")
    monkeypatch.setenv("LOGMARK_COMMAND_CONFIG", str(properties))

    job = make_job(declared(), home=tmp_path, bootstrap_servers="given:1")

    assert {"security.protocol": "SASL_PLAINTEXT"} == job.brokers.properties
