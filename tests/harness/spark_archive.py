"""The class archive of Spark: a JVM that finds its classes parsed starts with two thirds of the work.

Run as a program, it makes the archive if there is none: `make test` does so before the tests, whose time is limited.
"""

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.harness.distribution import REPOSITORY, KafkaUnavailable, cache_folder, java, java_version, locked

# What starts quickly; a longer run would want Java's second compiler and several threads for its garbage. The classes
# come from jars that many others have verified. A JVM that cannot use the archive would say so on standard output.
OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-XX:-UsePerfData -Xlog:disable"
)


def java_options() -> str:
    """Return the options of a JVM that runs Spark for a short time."""
    return f'{OPTIONS} "-XX:SharedArchiveFile={class_archive()}"'


@functools.cache
def class_archive() -> Path:
    """Return the archive for this Java and this Spark; the first process that asks makes it.

    If it cannot be made, the file is empty, and a JVM starts without it.
    """
    import pyspark

    jars = Path(pyspark.__file__).resolve().parent / "jars"
    made_for = f"{java_version(java())} {pyspark.__version__} {jars} {OPTIONS}"
    identity = hashlib.sha256(made_for.encode()).hexdigest()[:12]
    archive = cache_folder().parent / "spark-classes" / f"{identity}.jsa"
    with locked(archive.with_suffix(".lock")):
        if not archive.exists():
            made = archive.with_suffix(".new")
            made.unlink(missing_ok=True)
            # A JVM compares the jars of its class path with those of the archive: these must stay where they are.
            home = archive.with_suffix(".home")
            home.mkdir(exist_ok=True)
            for part in ("bin", "jars"):
                (home / part).unlink(missing_ok=True)
                (home / part).symlink_to(jars.parent / part)
            command = [sys.executable, "-m", "tests.harness.spark_archive", str(made)]
            env = {**os.environ, "SPARK_HOME": str(home)}
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=600, check=False, env=env)
            # An empty one keeps the next process from trying again.
            made.touch()
            made.rename(archive)
    return archive


def _leave_archive(archive: str) -> None:
    """Run what most tests run, and end the JVM, which then writes the archive."""
    from pyspark import SparkContext

    from logmark.spark import session
    from logmark.testing import Broker
    from tests.harness.brokers import BrokerUnderTest

    config = {
        "spark.driver.extraJavaOptions": f'{OPTIONS} "-XX:ArchiveClassesAtExit={archive}"',
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    with Broker() as broker, tempfile.TemporaryDirectory() as folder:
        clients = BrokerUnderTest("logmark", broker.bootstrap_servers)
        topic = clients.create_topic("clicks")
        clients.produce(topic, ["1", "2", "2"])
        spark = session("classes", master="local[2]", config=config)
        options = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
        clicks = spark.readStream.format("logmark").options(**options).load().selectExpr("CAST(value AS STRING) value")
        for name, rows, mode in (("rows", clicks, "append"), ("counts", clicks.groupBy("value").count(), "update")):
            to = rows.writeStream.outputMode(mode).option("checkpointLocation", f"{folder}/{name}")
            to = to.trigger(availableNow=True).foreachBatch(lambda batch, number: batch.toArrow() and None)
            to.start().awaitTermination()
        spark.createDataFrame([(1, "a")], "id INT, name STRING").write.parquet(f"{folder}/table")
        spark.read.parquet(f"{folder}/table").groupBy("name").count().collect()
        gateway = SparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _leave_archive(sys.argv[1])
    else:
        with contextlib.suppress(KafkaUnavailable):  # no Java: the tests say so
            class_archive()
