"""The jars of Apache Kafka, fetched once by Maven into a cache folder."""

import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KAFKA_VERSION = "4.3.1"
JAVA_VERSION_MIN = 17
REPOSITORY = Path(__file__).resolve().parents[2]

POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>logmark.tests</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{KAFKA_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class KafkaUnavailable(Exception):
    """Apache Kafka cannot be had on this machine; the message says why and what to do."""


def cache_folder() -> Path:
    """Where everything that was fetched or derived is kept between runs."""
    root = Path(os.environ.get("LOGMARK_CACHE") or REPOSITORY / ".cache")
    return root / f"kafka-{KAFKA_VERSION}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path` against every other process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def java() -> str:
    """The Java runtime, new enough for Apache Kafka."""
    home = os.environ.get("JAVA_HOME")
    named = str(Path(home, "bin", "java")) if home else None
    path = shutil.which(named) if named else shutil.which("java")
    if path is None:
        raise KafkaUnavailable(
            f"No Java was found, and Apache Kafka {KAFKA_VERSION} needs one: install a Java {JAVA_VERSION_MIN} runtime "
            "(Debian: openjdk-17-jre-headless) or set JAVA_HOME."
        )
    version = java_version(path)
    major = re.search(r'version "(\d+)', version)
    if major is None or int(major.group(1)) < JAVA_VERSION_MIN:
        raise KafkaUnavailable(
            f"{path} is too old for Apache Kafka {KAFKA_VERSION} ({version.splitlines()[0]}): install a Java "
            f"{JAVA_VERSION_MIN} runtime or set JAVA_HOME."
        )
    return path


@functools.cache
def java_version(path: str) -> str:
    """What `java -version` says, as the runtime's identity."""
    return subprocess.run([path, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr


@functools.cache
def jars() -> Path:
    """The folder that holds every jar of Apache Kafka; Maven fills it on first use."""
    folder = cache_folder() / "lib"
    if folder.is_dir():
        return folder
    with locked(cache_folder() / ".lock"):
        if not folder.is_dir():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    """Fills `folder` in one step, so that an interrupted fetch leaves nothing that looks whole."""
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(
            f"No Maven was found, and it is what fetches Apache Kafka {KAFKA_VERSION}: install it (Debian: maven)."
        )
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        pom, filled = Path(work, "pom.xml"), Path(work, "lib")
        pom.write_text(POM)
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={filled}"],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode != 0 or not any(filled.glob("kafka-tools-*.jar")):
            reason = (done.stdout + done.stderr).strip().splitlines()
            raise KafkaUnavailable(
                f"Maven could not fetch Apache Kafka {KAFKA_VERSION}: {reason[0] if reason else 'it gave no reason'} "
                "Check the network or Maven's settings and run again."
            )
        filled.rename(folder)


@functools.cache
def class_path() -> str:
    """Every jar by name: the JVM refuses a class archive when the order of a wildcard changes."""
    return os.pathsep.join(str(jar) for jar in sorted(jars().glob("*.jar")))


@functools.cache
def why_not() -> str | None:
    """The message that says why Apache Kafka cannot be had here, or None when it can."""
    try:
        java()
        jars()
    except KafkaUnavailable as reason:
        return str(reason)
    except (OSError, subprocess.SubprocessError) as error:
        return f"Apache Kafka {KAFKA_VERSION} could not be brought into {cache_folder()}: {error}"
    return None
