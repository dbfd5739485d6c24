"""The Spark settings of pipelines: each has its own, and a first batch that fails fixes none of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.errors import UserError
from logmark.spark import Pipeline, Table, read_table
from logmark.spark.checkpoint import planned_batch
from logmark.spark.errors import SettingRefused, StateIncompatible
from logmark.spark.pipelines import query as query_module
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.settings import (
    HDFS,
    PROVIDER,
    ROCKSDB,
    check_names,
    find_ineffective_settings,
    open_session,
    read_pinned_settings,
    release_first_batch,
)
from tests.harness.brokers import BrokerUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHUFFLE = "spark.sql.shuffle.partitions"
EARLIEST = {"auto.offset.reset": "earliest"}


def counted(records: "DataFrame") -> "DataFrame":
    return records.selectExpr("CAST(value AS STRING) AS word").groupBy("word").count()


def processed(records: "DataFrame") -> "DataFrame":
    """The same with transformWithState."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Counter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n LONG")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            known = self.count.get()[0] if self.count.exists() else 0
            known += sum(1 for _ in rows)
            self.count.update((known,))
            yield Row(word=key[0], count=known)

        def close(self) -> None:
            pass

    words = records.selectExpr("CAST(value AS STRING) AS word").groupBy("word")
    return words.transformWithState(Counter(), "word STRING, count LONG", "Update", "None")


class Words:
    """A topic of words, and pipelines that count them."""

    def __init__(self, broker: BrokerUnderTest, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.topic = broker.create_topic("words")
        self.send("a", "b", "a")

    def send(self, *words: str) -> None:
        self.broker.produce(self.topic, words)

    def pipeline(self, name: str, **more: Any) -> Pipeline:
        given: dict[str, Any] = {"transform": counted, "sink": Table(self.folder / name, mode="upsert", keys="word")}
        return Pipeline(
            name=name, group=self.broker.group(name), bootstrap_servers=self.broker.bootstrap_servers,
            topics=self.topic, options=EARLIEST, **given | more,
        )  # fmt: skip

    def run(self, pipeline: Pipeline, spark: "SparkSession") -> dict[str, int]:
        """Read all there is, and return the counts."""
        pipeline.run(spark, home=self.folder / "home")
        return self.counts(pipeline.name)

    def counts(self, name: str) -> dict[str, int]:
        """Return the counts that the table of a pipeline holds."""
        rows = read_table(self.folder / name, ["word", "count"]).to_pylist()
        assert len(rows) == len({row["word"] for row in rows})
        return {row["word"]: row["count"] for row in rows}

    def checkpoint(self, name: str) -> Path:
        return Home(self.folder / "home", name).checkpoint(1)


@pytest.fixture
def words(our_broker: BrokerUnderTest, tmp_path: Path) -> Words:
    return Words(our_broker, tmp_path)


@pytest.mark.spark
def test_each_pipeline_has_its_own_settings_and_new_versions_keep_their_state_in_rocksdb(
    words: Words, spark: "SparkSession"
) -> None:
    before = spark.conf.getAll
    plain, set_up = words.pipeline("plain"), words.pipeline("set-up", conf={SHUFFLE: 3, PROVIDER: HDFS})

    assert {"a": 2, "b": 1} == words.run(plain, spark)
    assert {"a": 2, "b": 1} == words.run(set_up, spark)

    pinned = {name: read_pinned_settings(words.checkpoint(name)) for name in ("plain", "set-up")}
    assert (ROCKSDB, "1") == (pinned["plain"][PROVIDER], pinned["plain"][SHUFFLE])
    assert (HDFS, "3") == (pinned["set-up"][PROVIDER], pinned["set-up"][SHUFFLE])
    assert before == spark.conf.getAll, "a setting of one pipeline would be one of all"

    # What a version began with counts for as long as it lives; the settings of the session are those of now.
    changed = words.pipeline("set-up", conf={SHUFFLE: 5, "spark.sql.ansi.enabled": False})
    words.send("b")
    assert {"a": 2, "b": 2} == words.run(changed, spark)
    assert pinned["set-up"] == read_pinned_settings(words.checkpoint("set-up"))
    assert {SHUFFLE: "3"} == find_ineffective_settings(changed, words.checkpoint("set-up"))
    own = open_session(changed, spark)
    assert ("5", "false") == (own.conf.get(SHUFFLE), own.conf.get("spark.sql.ansi.enabled"))
    assert ROCKSDB == own.conf.get(PROVIDER), "a setting that was taken out is forgotten"


@pytest.mark.spark
def test_a_transform_sees_the_views_and_functions_of_the_session_that_runs_it(
    words: Words, spark: "SparkSession"
) -> None:
    spark.range(1).selectExpr("'a' AS word", "'first' AS label").createOrReplaceTempView("labels_of_words")

    def labelled(records: "DataFrame") -> "DataFrame":
        # It begins with a table of the session, and not with the records.
        return spark.table("labels_of_words").join(counted(records), "word").selectExpr("word", "count")

    pipeline = words.pipeline("labelled", transform=labelled, conf={SHUFFLE: 2})

    assert {"a": 2} == words.run(pipeline, spark)
    assert "2" == read_pinned_settings(words.checkpoint("labelled"))[SHUFFLE]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"spark.executor.memory": "4g"}, "spark.executor.memory in its conf"),
        ({"spark.sql.warehouse.dir": "/tmp"}, "spark.sql.warehouse.dir in its conf"),
        ({"spark.sql.shufle.partitions": 4}, "Did you mean spark.sql.shuffle.partitions?"),
        ({SHUFFLE: "many"}, "sets spark.sql.shuffle.partitions to 'many', and Spark refuses that"),
    ],
)
def test_settings_that_one_query_cannot_have_are_refused_before_anything_is_read(
    conf: dict[str, Any], message: str, spark: "SparkSession", tmp_path: Path
) -> None:
    pipeline = Pipeline(
        name="refused", bootstrap_servers="127.0.0.1:1", topics="words", transform=counted,
        sink=Table(tmp_path / "table", mode="upsert", keys="word"), conf=conf,
    )  # fmt: skip

    with pytest.raises(UserError, match="Nothing was read or written") as refused:
        pipeline.run(spark, home=tmp_path / "home")

    assert message in str(refused.value)
    assert not (tmp_path / "home" / "refused" / "v1").exists()


def test_a_setting_of_the_whole_spark_is_refused_before_there_is_one() -> None:
    with pytest.raises(SettingRefused, match=r"The pipeline billing sets spark\.executor\.memory in its conf"):
        check_names(["spark.sql.ansi.enabled", "spark.executor.memory"], "billing")


@pytest.mark.spark
def test_a_run_without_the_state_store_that_it_needs_is_refused_and_leaves_nothing_behind(
    words: Words, spark: "SparkSession"
) -> None:
    wrong = words.pipeline("processed", transform=processed, conf={PROVIDER: HDFS})

    with pytest.raises(UserError, match="transformWithState, which needs a state store such as RocksDB"):
        words.run(wrong, spark)

    assert None is planned_batch(words.checkpoint("processed"))
    assert {"a": 2, "b": 1} == words.run(words.pipeline("processed", transform=processed), spark)
    # And a version that began with another state store says what to do.
    words.run(words.pipeline("counted", conf={PROVIDER: HDFS}), spark)
    with pytest.raises(StateIncompatible, match="was made with HDFSBackedStateStoreProvider"):
        words.run(words.pipeline("counted", transform=processed), spark)


@pytest.mark.spark
def test_a_first_batch_that_failed_fixes_no_setting_and_is_repeated_with_the_same_records(
    words: Words, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(query_module, "check_state_store", lambda *_: None)  # as any other mistake of a first batch
        with pytest.raises(Exception, match="is not supported by TransformWithState"):
            words.run(words.pipeline("first", transform=processed, conf={PROVIDER: HDFS, SHUFFLE: 2}), spark)
    checkpoint = words.checkpoint("first")
    planned = (checkpoint / "offsets" / "0").read_text().splitlines()
    assert HDFS == read_pinned_settings(checkpoint)[PROVIDER]
    words.send("b", "c")

    assert {"a": 2, "b": 2, "c": 1} == words.run(words.pipeline("first", transform=processed), spark)

    repeated = (checkpoint / "offsets" / "0").read_text().splitlines()
    assert planned[2:] == repeated[2:], "the records of the first batch are those that were planned"
    pinned = json.loads(repeated[1])["conf"]
    assert (ROCKSDB, "1") == (pinned[PROVIDER], pinned[SHUFFLE])
    assert not release_first_batch(checkpoint, spark), "what was committed keeps its settings"
    assert repeated == (checkpoint / "offsets" / "0").read_text().splitlines()
