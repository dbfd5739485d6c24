"""The Spark of the tests: one for all of a process, because a second session would get the first one's settings."""

import contextlib
from typing import TYPE_CHECKING

from bench import connector
from tests.harness import distribution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What starts quickly; a longer run would want Java's second compiler and several threads for its garbage.
QUICK_JAVA = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
}


def spark_of_tests() -> "SparkSession":
    """A local Spark with two threads and a small heap, and with Spark's own connector where it can be had."""
    from logmark.spark import session

    config = dict(QUICK_JAVA)
    with contextlib.suppress(distribution.KafkaUnavailable):
        config["spark.jars"] = ",".join(map(str, connector.jars()))
    return session("tests", master="local[2]", config=config)
