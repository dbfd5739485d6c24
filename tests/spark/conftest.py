"""One Spark for all tests of a process."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from bench import connector
from tests.harness import distribution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What starts quickly; a longer run would want Java's second compiler and several threads for its garbage.
QUICK_JAVA = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
}


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A local Spark with two threads and a small heap, and with Spark's own connector where it can be had."""
    from logmark.spark import session

    config = dict(QUICK_JAVA)
    with contextlib.suppress(distribution.KafkaUnavailable):
        config["spark.jars"] = ",".join(map(str, connector.jars()))
    spark = session("tests", master="local[2]", config=config)
    yield spark
    spark.stop()
