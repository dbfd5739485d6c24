"""The Spark settings of a pipeline: a session of its own, and what the first batch of a version fixes for good.

Spark writes some settings into the first batch of a checkpoint, such as the state store and the number of shuffle
partitions, and uses those from then on, whatever the session says. A first batch that fails would so keep its settings
for every later try: `release_first_batch` gives it those of now, as long as it was never committed.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from logmark.errors import UserError
from logmark.offsets.suggestions import did_you_mean
from logmark.spark.checkpoint import committed_batch, planned_batch
from logmark.spark.errors import SettingRefused, StateIncompatible
from logmark.spark.pipelines.declaration import PipelineDeclaration
from logmark.spark.pipelines.stateful_operators import list_stateful_operators
from logmark.spark.sessions import activate_session, register_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STATE = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB, HDFS = f"{_STATE}.RocksDBStateStoreProvider", f"{_STATE}.HDFSBackedStateStoreProvider"
# Where neither the pipeline nor the session says otherwise. Spark's own default keeps all state on the Java heap, and
# cannot run transformWithState.
DEFAULTS = {PROVIDER: ROCKSDB}
_PREFIX = "spark.sql."
_OF_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb."  # Spark reads them where it needs them, and declares few
# The session of each pipeline, by the one that it was made from: one for all starts of its query, because Spark keeps a
# listener for each session that ever ran a query.
_own: "WeakKeyDictionary[SparkSession, dict[str, SparkSession]]" = WeakKeyDictionary()


def check_names(conf: Iterable[str], pipeline: str) -> None:
    """Raise SettingRefused if the name of a setting shows that it counts for a whole Spark and not for one query."""
    wrong = sorted(name for name in conf if not name.startswith(_PREFIX))
    if wrong:
        raise _refuse(wrong[0], pipeline)


def open_session(pipeline: PipelineDeclaration, spark: "SparkSession") -> "SparkSession":
    """Return the pipeline's own session, which has the settings of the given one and those of the pipeline.

    Raises SettingRefused if a setting of the pipeline cannot be set while Spark runs.
    """
    check_names(pipeline.conf, pipeline.name)
    sessions = _own.setdefault(spark, {})
    own = sessions.get(pipeline.name)
    if own is None:
        own = sessions[pipeline.name] = _clone_session(spark)
    register_format(own)
    for name in pipeline.conf:
        if not (name.startswith(_OF_ROCKSDB) or own.conf.isModifiable(name)):
            raise _refuse(name, pipeline.name, did_you_mean(name, _runtime_settings(own)))
    before, given = own.conf.getAll, spark.conf.getAll
    wanted = DEFAULTS | given | {name: str(value) for name, value in pipeline.conf.items()}
    for name in before.keys() - wanted.keys():
        own.conf.unset(name)
    for name, value in wanted.items():
        if before.get(name) != value:
            _set(own, name, value, pipeline.name)
    return own


def move_to_session(rows: "DataFrame", own: "SparkSession") -> "DataFrame":
    """Return the rows in the given session, also where they began with a DataFrame of another one."""
    jvm = own._jvm
    assert jvm is not None
    if rows._jdf.sparkSession().equals(own._jsparkSession):
        return rows
    # Only here: pipelines are declared and listed without Spark.
    from pyspark.sql import DataFrame

    classic = getattr(jvm.org.apache.spark.sql.classic, "Dataset$").__getattr__("MODULE$")
    return DataFrame(classic.ofRows(own._jsparkSession, rows._jdf.logicalPlan()), own)


@contextlib.contextmanager
def keep_active_session(spark: "SparkSession") -> Iterator[None]:
    """Make the session the active one of this thread again at the end, if it is so now."""
    active = type(spark).getActiveSession()
    try:
        yield
    finally:
        if active is not None:
            activate_session(active)


def read_pinned_settings(checkpoint: Path) -> dict[str, str]:
    """Return the settings that the query's last batch is bound to; empty if no batch was planned."""
    number = planned_batch(checkpoint)
    if number is None:
        return {}
    try:
        metadata = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[1])
        return {str(name): str(value) for name, value in metadata.get("conf", {}).items()}
    except (OSError, ValueError, IndexError, AttributeError):
        return {}


def find_ineffective_settings(pipeline: PipelineDeclaration, checkpoint: Path) -> dict[str, str]:
    """Return the pipeline's settings that its checkpoint overrules, with the values that count."""
    if committed_batch(checkpoint) is None:
        return {}
    pinned = read_pinned_settings(checkpoint)
    return {
        name: pinned[name] for name, value in pipeline.conf.items() if name in pinned and pinned[name] != str(value)
    }


def release_first_batch(checkpoint: Path, own: "SparkSession") -> bool:
    """Give a first batch that was planned and never committed the settings of now; return whether it changed.

    Its records stay the ones that were planned. What it left of state is removed: it is made again with the batch.
    """
    if planned_batch(checkpoint) != 0 or committed_batch(checkpoint) is not None:
        return False
    file = checkpoint / "offsets" / "0"
    lines = file.read_text().splitlines()
    try:
        metadata = json.loads(lines[1])
        pinned: dict[str, str] = metadata["conf"]
    except (ValueError, IndexError, KeyError, TypeError):
        return False
    state = checkpoint / "state"
    if state.is_dir():
        rmtree(state)
    now = {name: _value(own, name, value) for name, value in pinned.items()}
    if now == pinned:
        return False
    lines[1] = json.dumps(metadata | {"conf": now}, separators=(",", ":"))
    part = checkpoint / "offsets" / ".0.settings.tmp"
    part.write_text("\n".join(lines))
    # Spark's checksum of the old text; without one it reads the file as it is.
    (checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    part.replace(file)
    return True


def check_state_store(rows: "DataFrame", checkpoint: Path, own: "SparkSession") -> None:
    """Raise UserError, before anything is read, if the query needs a state store that it does not have."""
    if not any(name.startswith("TransformWithState") for name in list_stateful_operators(rows)):
        return
    pinned = read_pinned_settings(checkpoint).get(PROVIDER) if committed_batch(checkpoint) is not None else None
    if pinned == HDFS:
        raise StateIncompatible(
            f"The query uses transformWithState, which needs a state store such as RocksDB, and its checkpoint "
            f"{checkpoint} was made with {HDFS.rpartition('.')[2]}. Nothing was read or written."
        )
    if pinned is None and own.conf.get(PROVIDER) == HDFS:
        raise UserError(
            f"The query uses transformWithState, which needs a state store such as RocksDB, and {PROVIDER} is set to "
            f"{HDFS.rpartition('.')[2]}. Nothing was read or written. Leave the setting out: RocksDB is the default of "
            "pipelines."
        )


def _refuse(name: str, pipeline: str, hint: str = "") -> SettingRefused:
    return SettingRefused(
        f"The pipeline {pipeline} sets {name} in its conf, and that is no runtime setting of Spark SQL (spark.sql.…), "
        f"which alone can be set for one query.{hint} Nothing was read or written. Take it out of conf."
    )


def _set(own: "SparkSession", name: str, value: str, pipeline: str) -> None:
    # Only here: pipelines are declared and listed without Spark.
    from pyspark.errors import PySparkException

    try:
        own.conf.set(name, value)
    except PySparkException as error:
        message = str(error).partition("\n")[0]
        raise UserError(
            f"The pipeline {pipeline} sets {name} to {value!r}, and Spark refuses that: {message} Nothing was read or "
            "written."
        ) from None


def _value(own: "SparkSession", name: str, otherwise: str) -> str:
    """Return what a setting is in the session, or the other value where the session has none."""
    # Only here: pipelines are declared and listed without Spark.
    from pyspark.errors import PySparkException

    try:
        return own.conf.get(name) or otherwise
    except PySparkException:
        return otherwise


def _runtime_settings(own: "SparkSession") -> list[str]:
    return [str(row[0]) for row in own.sql("SET -v").select("key").collect()]


def _clone_session(spark: "SparkSession") -> "SparkSession":
    """Return a session with the same temporary views and functions: those that `transform` may use."""
    return type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
