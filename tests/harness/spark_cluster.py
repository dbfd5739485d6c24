"""A standalone Spark cluster from the pip package: a master and two workers on loopback, one core each."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.harness.node import wait_until
from tests.harness.spark_archive import java_options

_DEADLINE_S = 120
_HERE = "127.0.0.1"
_DAEMON = {
    "SPARK_DAEMON_MEMORY": "128m",
    "SPARK_LOCAL_IP": _HERE,
}


def driver_settings() -> dict[str, str]:
    """Return the settings of a driver of this cluster: it listens on loopback, and its executors are small."""
    return {
        "spark.driver.host": _HERE,
        "spark.driver.bindAddress": _HERE,
        "spark.executor.memory": "480m",
        "spark.executor.extraJavaOptions": java_options(),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.sql.shuffle.partitions": "2",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCluster:
    """A running cluster: its address for `--master`, and the folder of its logs."""

    master: str
    folder: Path
    processes: "tuple[subprocess.Popen[bytes], ...]" = ()

    @property
    def home(self) -> Path:
        """Spark as it is installed, without the archive of PySpark, from which each Python would compile anew."""
        return self.folder / "home"

    def output(self) -> str:
        """The last words of the master, the workers and their executors, for a test that fails."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("worker-*/app-*/*/stderr")]
        return "\n".join(f"--- {log.relative_to(self.folder)}\n{log.read_text()[-3000:]}" for log in sorted(logs))

    def kill_worker(self) -> None:
        """The last worker and its executors are gone, as if its machine were."""
        os.killpg(self.processes[-1].pid, signal.SIGKILL)

    def executors(self) -> set[str]:
        """The workers that have run executors, by the names of their folders."""
        return {path.parents[2].name for path in self.folder.glob("worker-*/app-*/*/stderr")}


@contextlib.contextmanager
def spark_cluster(folder: Path, *, workers: int = 2, env: Mapping[str, str] | None = None) -> Iterator[SparkCluster]:
    """A cluster of the caller's own; its processes are gone in the end, and its logs stay in the folder."""
    link_spark(folder / "home")
    with contextlib.ExitStack() as running:
        started = [running.enter_context(_daemon(folder, "master", ["--host", _HERE, "--port", "0"], env or {}))]
        master = folder / "master.log"
        address = r"Starting Spark master at (spark://\S+)"

        def stand(pattern: str, count: int) -> bool:
            ended = [process.args for process in started if process.poll() is not None]
            assert not ended, f"{ended} ended too early:\n{SparkCluster(master='', folder=folder).output()}"
            return len(re.findall(pattern, master.read_text())) >= count

        wait_until(lambda: stand(address, 1), "Spark's master listens", deadline_s=_DEADLINE_S)
        found = re.search(address, master.read_text())
        assert found is not None
        for number in range(workers):
            name = f"worker-{number}"
            size = ["--host", _HERE, "--cores", "1", "--memory", "512m", "--work-dir", str(folder / name)]
            started.append(running.enter_context(_daemon(folder, name, [*size, found[1]], env or {})))
        wait_until(lambda: stand("Registering worker ", workers), "Spark's workers are there", deadline_s=_DEADLINE_S)
        yield SparkCluster(master=found[1], folder=folder, processes=tuple(started))


def link_spark(home: Path) -> Path:
    """Link the installed Spark into a new `SPARK_HOME` without PySpark's archive, which each Python would compile."""
    import pyspark

    home.mkdir(parents=True)
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home


@contextlib.contextmanager
def _daemon(
    folder: Path, name: str, arguments: list[str], env: Mapping[str, str]
) -> "Iterator[subprocess.Popen[bytes]]":
    """A master or a worker, in a session of its own with all that it starts; it ends when this process does."""
    home, logging = folder / "home", folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    kind = name.partition("-")[0]
    settings = {
        **_DAEMON,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(folder / f"{name}-scratch"),
        "SPARK_DAEMON_JAVA_OPTS": f"{java_options()} -Dlog4j2.configurationFile={logging.as_uri()}",
    }
    command = [
        *(sys.executable, str(Path(__file__).with_name("guard.py")), str(os.getpid()), str(home / "bin/spark-class")),
        *(f"org.apache.spark.deploy.{kind}.{kind.capitalize()}", "--webui-port", "0", *arguments),
    ]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings, **env},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            # A worker ends its executors itself, but not those of a driver that has been killed this very moment.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(folder / f"{name}-scratch", ignore_errors=True)


_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
