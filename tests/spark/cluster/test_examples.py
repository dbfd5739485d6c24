"""The example pipelines on a standalone cluster, against Apache Kafka, beside a local Spark on our broker."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from examples.clicks.checks import alerts
from tests.harness.brokers import own_broker, warm_up
from tests.harness.node import kafka_node, wait_until
from tests.harness.spark_cluster import SparkCluster, driver_settings, spark_cluster
from tests.spark.cluster.bare_session_driver import bare_python, only_on_the_driver, package
from tests.spark.example_pipelines import ExamplePipelines
from tests.spark.kills.processes import Program
from tests.spark.kills.test_kills import SEED
from tests.spark.table_batches import rows

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(3600)]

CLICKS = 20_000


def results(
    examples: ExamplePipelines,
    cluster: SparkCluster | None = None,
    *more: str,
    meanwhile: Callable[[], None] = lambda: None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All that the pipelines make of the clicks, which is what they must."""
    examples.publish(CLICKS)
    how: dict[str, Any] = {} if cluster is None else {"master": cluster.master, "config": driver_settings()}
    home = {} if cluster is None else {"SPARK_HOME": str(cluster.home)}
    log, around = examples.folder / "run.log", {**examples.environment, **home, **(env or {})}
    with Program(examples.command("--available-now", *more, **how), log, around) as program:
        meanwhile()
        code = program.wait(1800)
    assert 0 == code, f"{program.output()}\n{examples.output()}\n{cluster.output() if cluster is not None else ''}"
    examples.check("on a cluster" if cluster is not None else "on this machine")
    tables = {name: rows(examples.folder / "tables" / name) for name in ("billing", "features")}
    return {**tables, "alerts": alerts(examples.servers)}


def test_the_example_pipelines_give_the_same_on_a_cluster_with_apache_kafka_as_here_on_our_broker(
    tmp_path: Path,
) -> None:
    with own_broker("logmark", tmp_path) as broker:
        here = results(ExamplePipelines(broker.bootstrap_servers, tmp_path / "here", seed=SEED, clicks=CLICKS))
    with kafka_node(tmp_path / "kafka") as node, spark_cluster(tmp_path / "cluster") as cluster:
        warm_up(node.bootstrap_servers)
        examples = ExamplePipelines(node.bootstrap_servers, tmp_path / "there", seed=SEED, clicks=CLICKS)
        there = results(examples, cluster)

    assert here == there
    assert {"worker-0", "worker-1"} == cluster.executors(), "one of the workers ran nothing"


def test_a_worker_machine_that_is_lost_costs_no_result(tmp_path: Path) -> None:
    with kafka_node(tmp_path / "kafka") as node, spark_cluster(tmp_path / "cluster") as cluster:
        warm_up(node.bootstrap_servers)
        examples = ExamplePipelines(node.bootstrap_servers, tmp_path / "there", seed=SEED, clicks=CLICKS)

        def lose_a_machine() -> None:
            planned = examples.home / "billing" / "v1" / "offsets" / "0"
            wait_until(planned.exists, "a batch has begun", deadline_s=600)
            cluster.kill_worker()

        results(examples, cluster, meanwhile=lose_a_machine)


def test_executors_that_lack_the_package_get_it_by_the_option(tmp_path: Path) -> None:
    with own_broker("logmark", tmp_path) as broker, spark_cluster(tmp_path / "cluster") as cluster:
        examples = ExamplePipelines(broker.bootstrap_servers, tmp_path / "there", seed=SEED, clicks=CLICKS)
        env = only_on_the_driver(bare_python(tmp_path / "bare"))
        results(examples, cluster, "--package", str(package(tmp_path)), env=env)

    assert {"worker-0", "worker-1"} == cluster.executors(), "one of the workers ran nothing"
