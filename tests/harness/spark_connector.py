"""Spark's own Kafka connector, fetched once by Maven into the cache folder."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.harness.distribution import KafkaUnavailable, cache_folder, locked

# The connector of PySpark 4.3.0 itself is not published; this set reads batches and streams on it.
ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)
VERSION = "4.2.0"


def jars() -> list[Path]:
    """The connector and what it needs, for `spark.jars`."""
    folder = cache_folder().parent / f"spark-connector-{VERSION}"
    with locked(folder.parent / ".spark-connector.lock"):
        if not folder.is_dir():
            _fetch(folder)
    return sorted(folder.glob("*.jar"))


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(
            "No Maven was found, and it is what fetches Spark's connector: install it (Debian: maven)."
        )
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        filled = Path(work, "jars")
        for artifact in ARTIFACTS:
            # Each alone and without what it names itself: newer poms of Spark name a repository that need not answer.
            done = subprocess.run(
                [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={filled}"],
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
            )
            if done.returncode != 0:
                reason = (done.stdout + done.stderr).strip().splitlines()
                raise KafkaUnavailable(
                    f"Maven could not fetch {artifact}: {reason[0] if reason else 'no reason given'}"
                )
        filled.rename(folder)
