"""One Spark for all tests of a process."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What starts quickly; a longer run would want Java's second compiler and several threads for its garbage.
QUICK_JAVA = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
}


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A local Spark with two threads and a small heap."""
    from logmark.spark import session

    spark = session("tests", master="local[2]", config=QUICK_JAVA)
    yield spark
    spark.stop()
