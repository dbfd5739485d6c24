"""A standalone cluster reads from Apache Kafka and writes what a local Spark writes on our broker."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.brokers import BrokerUnderTest
from tests.harness.spark_cluster import SparkCluster, spark_cluster
from tests.spark.cluster.bare_session_driver import bare_python, only_on_the_driver, package
from tests.spark.cluster.cluster_driver import values, work
from tests.spark.sink_rows import rows as sent
from tests.spark.table_batches import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]


def topics(broker: BrokerUnderTest) -> tuple[str, str]:
    """A topic of clicks, and one to write to."""
    topic = broker.create_topic("clicks", partitions=2)
    for partition in (0, 1):
        broker.produce(topic, values(200), partition=partition)
    return topic, broker.create_topic("bad", partitions=2)


def results(broker: BrokerUnderTest, target: str, folder: Path) -> dict[str, Any]:
    """All that the work has left behind."""
    return {
        "clicks": rows(folder / "clicks"),
        "totals": rows(folder / "totals"),
        "bad": sorted((row["key"], row["value"]) for number in (0, 1) for row in sent(broker, target, number)),
    }


def run_work(
    cluster: SparkCluster,
    *arguments: str,
    config: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Any:
    """What the work answers when its driver runs beside the cluster."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.spark.cluster.cluster_driver",
            cluster.master,
            *arguments,
            json.dumps(config or {}),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "SPARK_HOME": str(cluster.home), **(env or {})},
    )
    assert 0 == done.returncode, f"{done.stderr[-4000:]}\n{cluster.output()}"
    return json.loads(done.stdout.splitlines()[-1])


def test_a_cluster_on_apache_kafka_gives_the_results_of_a_local_spark_on_our_broker(
    apache_kafka: BrokerUnderTest, our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    our_broker.share_names(apache_kafka)
    topic, target = topics(our_broker)
    expected = work(spark, our_broker.bootstrap_servers, topic, target, tmp_path / "local")
    topics(apache_kafka)

    with spark_cluster(tmp_path / "cluster") as cluster:
        found = run_work(cluster, apache_kafka.bootstrap_servers, topic, target, str(tmp_path / "shared"))

    assert json.loads(json.dumps(expected)) == found
    assert results(our_broker, target, tmp_path / "local") == results(apache_kafka, target, tmp_path / "shared")
    assert {"worker-0", "worker-1"} == cluster.executors(), "one of the workers ran nothing"


@pytest.mark.soak
def test_executors_that_lack_the_package_get_it_as_an_archive(
    apache_kafka: BrokerUnderTest, our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    our_broker.share_names(apache_kafka)
    topic, target = topics(our_broker)
    expected = work(spark, our_broker.bootstrap_servers, topic, target, tmp_path / "local")
    topics(apache_kafka)
    python, archive = bare_python(tmp_path / "bare"), package(tmp_path)
    env = only_on_the_driver(python)
    config = {"spark.archives": f"{archive}#logmark", "spark.executorEnv.PYTHONPATH": "logmark"}
    arguments = (apache_kafka.bootstrap_servers, topic, target)

    with spark_cluster(tmp_path / "cluster") as cluster:
        found = run_work(cluster, *arguments, str(tmp_path / "shipped"), config=config, env=env)
        with pytest.raises(AssertionError, match="No module named 'cython'"):
            # Such files are imported where they lie, and from an archive Python imports no compiled module.
            files = {"spark.submit.pyFiles": str(archive)}
            run_work(cluster, *arguments, str(tmp_path / "lacking"), config=files, env=env)

    assert json.loads(json.dumps(expected)) == found
    assert rows(tmp_path / "local" / "clicks") == rows(tmp_path / "shipped" / "clicks")
