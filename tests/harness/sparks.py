"""The Spark of the tests: one for all of a process, because a second session would get the first one's settings."""

import contextlib
from typing import TYPE_CHECKING

from tests.harness import distribution, spark_connector
from tests.harness.spark_archive import java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What costs a test that reads a hundred records more than it tells: tasks beside the first, a query without records
# that asks for some a hundred times a second, code that is generated and compiled for each expression, and checkpoint
# files through Hadoop's FileContext, which starts eight processes (readlink) for each. Tests that kill Spark, the
# cluster and the demo use Spark's defaults for the code and for checkpoints.
FEW = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def quick_java() -> dict[str, str]:
    """Return the settings of a Spark that starts quickly and does not run for long."""
    return {"spark.driver.extraJavaOptions": java_options(), "spark.sql.codegen.wholeStage": "false"}


def spark_of_tests() -> "SparkSession":
    """A local Spark with two threads and a small heap, and with Spark's own connector where it can be had."""
    from logmark.spark import session

    config = quick_java() | FEW
    with contextlib.suppress(distribution.KafkaUnavailable):
        config["spark.jars"] = ",".join(map(str, spark_connector.jars()))
    return session("tests", master="local[2]", config=config)
