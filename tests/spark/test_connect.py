"""Spark Connect: reads, streams, and what their progress says to the client."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.brokers import BrokerUnderTest
from tests.spark.test_pipelines import numbers

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 300


def test_a_client_of_spark_connect_reads_topics_and_hears_of_the_progress_of_its_queries(
    our_broker: BrokerUnderTest, tmp_path: Path
) -> None:
    topic = our_broker.create_topic("clicks")
    our_broker.produce(topic, numbers(100))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])

    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_driver", our_broker.bootstrap_servers, topic, str(tmp_path / "c")],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=SECONDS_MAX,
        check=False,
    )

    assert 0 == ran.returncode, ran.stderr[-4000:]
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    assert not found["is_classic"]
    assert list(range(90, 100)) == found["offsets"]
    assert found["refused"].startswith("start of read_topic is 'sometime'. Nothing was read.")
    assert ("100", "0") == (found["records"], found["lag"])
