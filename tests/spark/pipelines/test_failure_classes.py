"""The table of failures, by failures that Spark really raises, and its copy in the documentation."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.errors import UserError
from logmark.spark.errors import FailureKind, StateIncompatible, StateUnreadable
from logmark.spark.pipelines.failure_classes import FAILURE_CLASSES, Origin, format_failure_classes
from logmark.spark.pipelines.failures import classify_failure
from logmark.spark.pipelines.settings import HDFS, PROVIDER, ROCKSDB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = Path(__file__).parents[3] / "docs" / "pipeline-failures.md"
PERMANENT, TRANSIENT, UNKNOWN = FailureKind.PERMANENT, FailureKind.TRANSIENT, FailureKind.UNKNOWN


def test_the_documentation_shows_the_table() -> None:
    """To write it again, put what `format_failure_classes()` returns between the two comments."""
    _, _, after = PAGE.read_text().partition("<!-- table -->\n")
    assert format_failure_classes() == after.partition("<!-- end of the table -->")[0]


def test_no_name_is_in_two_rows() -> None:
    for origin in Origin:
        names = [name for one in FAILURE_CLASSES if one.origin is origin for name in one.names]
        assert len(names) == len(set(names))


def test_every_condition_of_the_table_is_one_of_spark() -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    known = dict(json.loads((home / "errors" / "error-conditions.json").read_text()))
    for jar in (home / "jars").glob("spark-common-utils*.jar"):
        with zipfile.ZipFile(jar) as archive:
            if "error/error-conditions.json" in archive.namelist():
                known |= json.loads(archive.read("error/error-conditions.json"))
    names = {name for one in FAILURE_CLASSES if one.origin is Origin.CONDITION for name in one.names}

    missing = [name for name in names if not _is_known(name, known)]

    assert [] == missing


def _is_known(name: str, known: dict[str, Any]) -> bool:
    main, _, inner = name.partition(".")
    return main in known and (not inner or inner in known[main].get("subClass", {}))


@dataclass(frozen=True)
class Occurrence:
    """A failure that Spark raises, the words by which it is known, and what it means."""

    words: str
    kind: FailureKind
    action: "Callable[[Streams], object]"
    exception: type[UserError] | None = None
    is_of_code: bool = False


class Streams:
    """Queries over a folder of JSON files, each with the checkpoint of its name."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        (folder / "input").mkdir()
        self._files = 0
        self.feed()

    def feed(self) -> None:
        """Add a file to the input."""
        part = self.folder / "part"
        part.write_text('{"k": "a", "v": 1}\n{"k": "b", "v": 2}\n')
        part.rename(self.folder / "input" / f"{self._files}.json")
        self._files += 1

    def rows(self, provider: str = HDFS) -> "DataFrame":
        """Return the stream, in a session with this state store."""
        own = self.spark.newSession()
        own.conf.set(PROVIDER, provider)
        return own.readStream.schema("k STRING, v LONG").json(str(self.folder / "input"))

    def run(self, name: str, rows: "DataFrame", mode: str = "update") -> None:
        """Run a query over all that is there; it raises what Spark raises."""
        writer = rows.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder / name)).start()
        query.awaitTermination()

    def counted(self, name: str) -> Path:
        """Return the checkpoint of a query that has counted, and give it more to read."""
        self.run(name, self.rows().groupBy("k").sum("v"))
        self.feed()
        return self.folder / name


def sql(text: str) -> "Callable[[Streams], object]":
    return lambda streams: streams.spark.sql(text).collect()


def in_python(function: Callable[..., object]) -> "Callable[[Streams], object]":
    """A function of the user's, called for a row."""

    def act(streams: Streams) -> object:
        from pyspark.sql.functions import col, udf

        return streams.spark.range(1).select(udf(function, "string")(col("id"))).collect()

    return act


def in_pandas(function: Callable[..., object], schema: str = "a LONG") -> "Callable[[Streams], object]":
    return lambda streams: streams.spark.range(1).mapInPandas(function, schema).collect()  # type: ignore[arg-type]


def raising(error: Exception) -> Callable[[object], str]:
    def function(value: object) -> str:
        raise error

    return function


def exiting(value: object) -> str:
    os._exit(1)


def renamed(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.rename(columns={"id": "other"})


def unfit(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.assign(a=["no number"] * len(frame))[["a"]]


def on_counted(name: str, change: "Callable[[DataFrame], DataFrame]", mode: str = "update") -> Any:
    """A query that was changed after it had counted."""

    def act(streams: Streams) -> None:
        streams.counted(name)
        streams.run(name, change(streams.rows()), mode)

    return act


def damaged(name: str, *paths: str) -> "Callable[[Streams], object]":
    """The query of before, of whose checkpoint these files are gone."""

    def act(streams: Streams) -> None:
        checkpoint = streams.counted(name)
        for path in paths:
            shutil.rmtree(checkpoint / path) if (checkpoint / path).is_dir() else (checkpoint / path).unlink()
        rows = streams.rows(f"{HDFS}")
        # Spark keeps what it has loaded of a state store in memory.
        streams.spark.sparkContext._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
        streams.run(name, rows.groupBy("k").sum("v"))

    return act


def processing(kind: str, provider: str = ROCKSDB) -> "Callable[[Streams], DataFrame]":
    """transformWithState with a state variable of this kind."""

    def rows(streams: Streams) -> "DataFrame":
        from pyspark.sql import Row
        from pyspark.sql.streaming import StatefulProcessor

        class Processor(StatefulProcessor):
            def init(self, handle: Any) -> None:
                make = handle.getValueState if kind == "value" else handle.getListState
                self.state = make("state", "n LONG")

            def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
                count = sum(1 for _ in rows)
                self.state.update((count,)) if kind == "value" else self.state.put([(count,)])
                yield Row(k=key[0], n=count)

            def close(self) -> None:
                pass

        grouped = streams.rows(provider).groupBy("k")
        return grouped.transformWithState(Processor(), "k STRING, n LONG", "Update", "None")

    return rows


def variable_changed(streams: Streams) -> None:
    streams.run("variable", processing("value")(streams))
    streams.feed()
    streams.run("variable", processing("list")(streams))


def in_each_batch(error: Exception) -> "Callable[[Streams], object]":
    def act(streams: Streams) -> None:
        def write(rows: object, number: int) -> None:
            raise error

        query = streams.rows().writeStream.foreachBatch(write).trigger(availableNow=True)
        checkpoint = streams.folder / f"each-{type(error).__name__}"
        query.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    return act


def broker_away(streams: Streams) -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "subscribe": "clicks", "group.id": "g", "waitForBroker": "0s"}
    rows = streams.spark.readStream.format("logmark").options(**options).load()
    streams.run("away", rows, "append")


OCCURRENCES = (
    Occurrence("CAST_INVALID_INPUT", PERMANENT, sql("SELECT CAST('a' AS INT)"), is_of_code=True),
    Occurrence("DIVIDE_BY_ZERO", PERMANENT, sql("SELECT 1 / (id - id) FROM range(1)"), is_of_code=True),
    Occurrence("ARITHMETIC_OVERFLOW", PERMANENT, sql("SELECT CAST(2147483647 + id AS INT) + 1 FROM range(1)"),
               is_of_code=True),
    Occurrence("INVALID_ARRAY_INDEX", PERMANENT, sql("SELECT array(1)[5]"), is_of_code=True),
    Occurrence("USER_RAISED_EXCEPTION", PERMANENT, sql("SELECT raise_error('bad row')"), is_of_code=True),
    Occurrence("UNRESOLVED_COLUMN", PERMANENT, sql("SELECT nothing FROM range(1)"), is_of_code=True),
    Occurrence("TABLE_OR_VIEW_NOT_FOUND", PERMANENT, sql("SELECT * FROM nowhere"), is_of_code=True),
    Occurrence("UNRESOLVED_ROUTINE", PERMANENT, sql("SELECT nothing(1)"), is_of_code=True),
    Occurrence("DATATYPE_MISMATCH", PERMANENT, sql("SELECT array(1) + 1"), is_of_code=True),
    Occurrence("PARSE_SYNTAX_ERROR", PERMANENT, sql("SELEC 1"), is_of_code=True),
    Occurrence("ValueError: boom", PERMANENT, in_python(raising(ValueError("boom"))), is_of_code=True),
    Occurrence("KeyError", PERMANENT, in_each_batch(KeyError("price")), is_of_code=True),
    Occurrence("MemoryError", TRANSIENT, in_python(raising(MemoryError("no memory")))),
    Occurrence("ConnectionResetError", TRANSIENT, in_python(raising(ConnectionResetError("reset")))),
    Occurrence("TimeoutError", TRANSIENT, in_each_batch(TimeoutError("slow"))),
    Occurrence("Python worker exited unexpectedly", TRANSIENT, in_python(exiting)),
    Occurrence("TypeError", PERMANENT, in_python(lambda one, two: "")),
    Occurrence("TypeError", PERMANENT, in_pandas(lambda: iter(()))),
    Occurrence("RESULT_COLUMN_NAMES_MISMATCH", PERMANENT, in_pandas(renamed, "id LONG")),
    Occurrence("UDF_RETURN_TYPE", PERMANENT, in_pandas(lambda frames: 5)),
    Occurrence("Arrow", PERMANENT, in_pandas(unfit)),
    Occurrence("STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE", PERMANENT,
               on_counted("value", lambda rows: rows.groupBy("k").avg("v")), StateIncompatible),
    Occurrence("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", PERMANENT,
               on_counted("key", lambda rows: rows.groupBy("v").sum("v")), StateIncompatible),
    Occurrence("STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA", PERMANENT,
               on_counted("operator", lambda rows: rows.dropDuplicates(["k"])), StateIncompatible),
    Occurrence("STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA", PERMANENT,
               on_counted("none", lambda rows: rows.select("k"), "append"), StateIncompatible),
    Occurrence("STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE", PERMANENT, variable_changed, StateIncompatible),
    Occurrence("STREAMING_CHECKPOINT_MISSING_METADATA_FILE", PERMANENT, damaged("metadata", "metadata"),
               StateUnreadable),
    Occurrence("STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY", PERMANENT, damaged("directory", "state"),
               StateUnreadable),
    Occurrence("CANNOT_READ_DELTA_FILE_NOT_EXISTS", PERMANENT, damaged("delta", "state/0/0/1.delta"),
               StateUnreadable),
    Occurrence("STORE_BACKEND_NOT_SUPPORTED_FOR_TWS", PERMANENT,
               lambda streams: streams.run("tws", processing("value", HDFS)(streams))),
    Occurrence("STATE_STORE_INVALID_PROVIDER", PERMANENT,
               lambda streams: streams.run("provider", streams.rows("java.lang.String").groupBy("k").count())),
    Occurrence("com.example.Nothing", UNKNOWN,
               lambda streams: streams.run("class", streams.rows("com.example.Nothing").groupBy("k").count())),
    Occurrence("STREAMING_OUTPUT_MODE", PERMANENT,
               lambda streams: streams.run("mode", streams.rows().groupBy("k").count(), "append"), is_of_code=True),
    Occurrence("BrokerUnreachable", TRANSIENT, broker_away),
)  # fmt: skip


@pytest.mark.spark
def test_what_spark_raises_is_classified_by_the_table(spark: "SparkSession", tmp_path: Path) -> None:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    streams = Streams(spark, tmp_path)
    wrong = []
    for number, one in enumerate(OCCURRENCES):
        try:
            one.action(streams)
        except (PySparkException, Py4JJavaError) as error:
            text = str(error)
        else:
            text = "nothing was raised"
        found = classify_failure(text)
        seen = (one.words in text, found.kind, found.is_of_code)
        exception = found.exception if one.exception is not None else None
        if seen != (True, one.kind, one.is_of_code) or exception is not one.exception:
            wrong.append(f"{number} {one.words}: {seen}, {found.exception}, {found.message}\n{text[:700]}")

    assert len(OCCURRENCES) >= 25
    assert not wrong, "\n\n".join(wrong)
