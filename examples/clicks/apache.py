"""Apache Kafka's own ConsumerGroupCommand, where it is there."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

MAIN_CLASS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
TIMEOUT_S = 90


@dataclass(frozen=True, slots=True)
class ConsumerGroupCommand:
    """A way to run the tool on this machine."""

    command: Sequence[str]

    def reset_to_datetime(self, bootstrap_servers: str, group: str, topic: str, at_ms: int) -> str:
        """Moves the group to the first records at or after a point in time; what the tool printed."""
        moment = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
        when = moment.isoformat(timespec="milliseconds").removesuffix("+00:00")
        what = ["--reset-offsets", "--group", group, "--topic", topic, "--to-datetime", when, "--execute"]
        done = subprocess.run(  # noqa: S603 - the tool that was found, with words of our own
            [*self.command, "--bootstrap-server", bootstrap_servers, *what],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0 or "Error" in done.stdout:
            raise RuntimeError(f"Apache's ConsumerGroupCommand failed: {(done.stdout + done.stderr).strip()}")
        return done.stdout.strip()


def find() -> ConsumerGroupCommand | None:
    """The tool of an installed Apache Kafka, or the one that the tests have fetched; None if there is neither."""
    for name in ("kafka-consumer-groups.sh", "kafka-consumer-groups"):
        script = shutil.which(name)
        if script is not None:
            return ConsumerGroupCommand([script])
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    cache = Path(os.environ.get("LOGMARK_CACHE") or CACHE)
    for jars in sorted(cache.glob("kafka-*/lib"), reverse=True):
        if java is not None and any(jars.glob("kafka-tools-*.jar")):
            return ConsumerGroupCommand([java, "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{jars}/*", MAIN_CLASS])
    return None
