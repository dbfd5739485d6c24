"""Pipelines that keep state: every stateful operation runs, and nobody can move their offsets away from their state."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.cli.remedies import next_step
from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.errors import StatefulGroup
from logmark.offsets.journal.journal import open_journal
from logmark.offsets.reset.executor import WatchTimeouts, apply_plan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ToEarliest
from logmark.offsets.undo import undo_change
from logmark.spark import Pipeline, ReplayRequest, Table, read_table
from logmark.spark.checkpoint import read_position
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import make_job
from logmark.spark.pipelines.runner import PipelineRunner
from logmark.spark.pipelines.settings import ROCKSDB, read_pinned_settings
from logmark.spark.pipelines.status import RunState
from logmark.spark.pipelines.views import measure_lag
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.spark.pipelines.test_settings import Words, processed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DEADLINE_S = 120.0


@pytest.fixture
def words(our_broker: BrokerUnderTest, tmp_path: Path) -> Words:
    return Words(our_broker, tmp_path)


def read(records: "DataFrame") -> "DataFrame":
    """Values such as `a 60`: a word and the second at which it came."""
    text = "split(CAST(value AS STRING), ' ')"
    rows = records.selectExpr(f"{text}[0] AS word", f"timestamp_seconds(CAST({text}[1] AS BIGINT)) AS at")
    return rows.withWatermark("at", "10 seconds")


def processed_in_pandas(records: "DataFrame") -> "DataFrame":
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor

    class Counter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n LONG")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            known = self.count.get()[0] if self.count.exists() else 0
            known += sum(len(frame) for frame in rows)
            self.count.update((known,))
            yield pd.DataFrame({"word": [key[0]], "count": [known]})

        def close(self) -> None:
            pass

    grouped = read(records).groupBy("word")
    return grouped.transformWithStateInPandas(Counter(), "word STRING, count LONG", "Update", "None")


def applied_in_pandas(records: "DataFrame") -> "DataFrame":
    import pandas as pd

    def count(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        known = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((known,))
        yield pd.DataFrame({"word": [key[0]], "count": [known]})

    return (
        read(records).groupBy("word")
        .applyInPandasWithState(count, "word STRING, count LONG", "n LONG", "update", "NoTimeout")
    )  # fmt: skip


def in_windows(records: "DataFrame") -> "DataFrame":
    windows = read(records).groupBy("word", _expression("window(at, '1 minute')")).count()
    return windows.selectExpr("concat(word, ' ', unix_seconds(window.start)) AS word", "count")


def in_sessions(records: "DataFrame") -> "DataFrame":
    sessions = read(records).groupBy("word", _expression("session_window(at, '30 seconds')")).count()
    return sessions.selectExpr("concat(word, ' ', unix_seconds(session_window.start)) AS word", "count")


def _expression(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def chained(records: "DataFrame") -> "DataFrame":
    """Windows of a minute, counted in windows of an hour."""
    from pyspark.sql.functions import sum as total
    from pyspark.sql.functions import window, window_time

    minutes = read(records).groupBy("word", window("at", "1 minute")).count()
    hours = minutes.groupBy("word", window(window_time("window"), "1 hour")).agg(total("count").alias("count"))
    return hours.selectExpr("word", "count")


def deduplicated(records: "DataFrame") -> "DataFrame":
    return read(records).dropDuplicates(["word"]).selectExpr("word", "1L AS count")


def deduplicated_in_time(records: "DataFrame") -> "DataFrame":
    return read(records).dropDuplicatesWithinWatermark(["word"]).selectExpr("word", "1L AS count")


UPSERT, APPEND, COMPLETE = {"mode": "upsert", "keys": "word"}, {"mode": "append"}, {"mode": "complete"}
FIRST, SECOND = ("a 0", "b 1", "a 2", "a 70"), ("a 80", "c 7300", "a 7300")
# What each makes of the first words, and of the second ones after a restart.
OPERATIONS: "dict[str, tuple[Callable[[DataFrame], DataFrame], dict[str, str], dict[str, int], dict[str, int]]]" = {
    "transformWithState": (lambda records: processed(_only_words(records)), UPSERT, {"a": 3, "b": 1},
                           {"a": 5, "b": 1, "c": 1}),
    "transformWithStateInPandas": (processed_in_pandas, UPSERT, {"a": 3, "b": 1}, {"a": 5, "b": 1, "c": 1}),
    "applyInPandasWithState": (applied_in_pandas, UPSERT, {"a": 3, "b": 1}, {"a": 5, "b": 1, "c": 1}),
    "dropDuplicates": (deduplicated, APPEND, {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}),
    "dropDuplicatesWithinWatermark": (deduplicated_in_time, APPEND, {"a": 1, "b": 1}, {"a": 2, "b": 1, "c": 1}),
    "windows": (in_windows, UPSERT, {"a 0": 2, "a 60": 1, "b 0": 1},
                {"a 0": 2, "a 60": 2, "b 0": 1, "a 7260": 1, "c 7260": 1}),
    "session windows": (in_sessions, COMPLETE, {"a 0": 2, "a 70": 1, "b 1": 1},
                        {"a 0": 2, "a 70": 2, "b 1": 1, "a 7300": 1, "c 7300": 1}),
    "chained": (chained, APPEND, {}, {"a": 4, "b": 1}),
}  # fmt: skip


def _only_words(records: "DataFrame") -> "DataFrame":
    return records.selectExpr("split(CAST(value AS STRING), ' ')[0] AS value")


def test_every_stateful_operation_runs_in_pipelines_and_keeps_its_state(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = our_broker.create_topic("words")
    found: dict[str, list[dict[str, int]]] = {name: [] for name in OPERATIONS}
    providers = set()
    for sent in (FIRST, SECOND):
        our_broker.produce(topic, sent)
        for number, (name, (transform, sink, _, _)) in enumerate(OPERATIONS.items()):
            key = f"pipeline-{number}"
            pipeline = Pipeline(
                name=key, group=our_broker.group(key), bootstrap_servers=our_broker.bootstrap_servers, topics=topic,
                transform=transform, sink=Table(tmp_path / key, **sink), options={"auto.offset.reset": "earliest"},
            )  # fmt: skip
            pipeline.run(spark, home=tmp_path / "home")
            rows = read_table(tmp_path / key, ["word", "count"]).to_pylist()
            counts: dict[str, int] = {}
            for row in rows:
                counts[row["word"]] = counts.get(row["word"], 0) + row["count"]
            found[name].append(counts)
            providers |= {read_pinned_settings(Home(tmp_path / "home", key).checkpoint(1))[_PROVIDER]}

    assert {name: [first, second] for name, (_, _, first, second) in OPERATIONS.items()} == found
    assert {ROCKSDB} == providers


_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def test_a_pipeline_with_state_restores_its_offsets_and_counts_every_record_once(
    words: Words, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    pipeline, at = words.pipeline("counted"), TopicPartition(words.topic, 0)
    assert {"a": 2, "b": 1} == words.run(pipeline, spark)
    with Client(words.broker.bootstrap_servers) as client:

        def mark() -> CommitMetadata | None:
            return CommitMetadata.parse(client.committed(pipeline.group)[at].metadata)

        known = mark()
        assert known is not None
        assert (True, None) == (known.is_stateful, known.restored_ms)
        with pytest.raises(StatefulGroup):
            plan_reset(client, pipeline.group, None, ToEarliest())

        # By our own tool while it is stopped, against its advice; the run after it is as if nothing had been.
        plan = plan_reset(client, pipeline.group, None, ToEarliest(), allow_stateful=True)
        quick = WatchTimeouts(watch_s=0, quiet_watch_s=0)
        applied = apply_plan(client, plan, journal=open_journal(client), timeouts=quick)
        words.send("b")
        assert {"a": 2, "b": 2} == words.run(pipeline, spark)
        restored = mark()
        assert restored is not None
        assert restored.restored_ms == measure_lag(client, pipeline.group, None).restored_at_ms is not None
        assert 4 == client.committed(pipeline.group)[at].offset

        # And undone: the pipeline runs again.
        undo_change(client, applied.change.id, force=True, timeouts=quick)
        words.send("c")
        assert {"a": 2, "b": 2, "c": 1} == words.run(pipeline, spark)

        # By Kafka's tool, under a running query.
        query = pipeline.start(spark, home=words.folder / "home")
        try:
            client.commit(pipeline.group, {at: Committed(offset=1)})
            wait_until(lambda: 5 == client.committed(pipeline.group)[at].offset, "restored", deadline_s=DEADLINE_S)
            words.send("c")
            wait_until(lambda: 6 == client.committed(pipeline.group)[at].offset, "read", deadline_s=DEADLINE_S)
        finally:
            query.stop()
    assert {"a": 2, "b": 2, "c": 2} == words.run(pipeline, spark)


def test_deterministic_failures_end_pipelines_at_the_first_try(words: Words, spark: "SparkSession") -> None:
    def renamed(records: "DataFrame") -> "DataFrame":
        return _only_words(records).mapInPandas(lambda frames: frames, "word STRING").selectExpr("word", "1 AS count")

    def unfit(records: "DataFrame") -> "DataFrame":
        return _only_words(records).mapInPandas(lambda: iter(()), "word STRING").selectExpr("word", "1 AS count")

    words.run(words.pipeline("changed"), spark)
    words.send("c")
    pipelines = [
        words.pipeline("changed", transform=_doubled),
        words.pipeline("names", transform=renamed, sink=Table(words.folder / "names", mode="append")),
        words.pipeline("signature", transform=unfit, sink=Table(words.folder / "signature", mode="append")),
    ]
    said: list[str] = []
    jobs = [make_job(one, home=words.folder / "home") for one in pipelines]
    runner = PipelineRunner(jobs, spark, available_now=True, say=said.append, next_step=next_step)

    assert not runner.run()

    assert [(RunState.FAILED, 0)] * 3 == [(one.status.state, one.status.restarts) for one in runner.supervisors]
    errors = {one.name: str(one.status.error) for one in runner.supervisors}
    assert "(STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE)" in errors["changed"]
    assert "`logmark pipelines replay changed` builds a new version" in errors["changed"]
    assert "(RESULT_COLUMN_NAMES_MISMATCH)" in errors["names"]
    assert "TypeError: " in errors["signature"]
    assert "A function of the pipeline does not fit the way Spark calls it" in errors["signature"]


def test_a_rollback_to_a_version_that_cannot_run_is_refused_before_anything_changes(
    words: Words, spark: "SparkSession"
) -> None:
    pipeline, at = words.pipeline("counted"), TopicPartition(words.topic, 0)
    words.run(pipeline, spark)
    # Moved back as earlier versions followed a reset: its checkpoint has planned the records once more.
    checkpoint = words.checkpoint("counted")
    position = read_position(checkpoint, 0)
    sought = position.sources[0].seek({at: 0}, now_ms=position.generation + 1)
    again = sought.batch(first={at: 0}, next={at: 3}, held={})
    lines = (checkpoint / "offsets" / "0").read_text().splitlines()[:2]
    _plan(checkpoint, 1, lines, sought.to_json())
    (checkpoint / "commits" / "1").write_text((checkpoint / "commits" / "0").read_text())
    _plan(checkpoint, 2, lines, again.to_json())

    result = pipeline.replay(spark, ReplayRequest(), home=words.folder / "home", say=lambda line: None)
    assert 2 == result.version
    before = words.counts("counted")
    with pytest.raises(UserError, match=r"Version 1 of counted cannot run any more.* was moved back"):
        pipeline.rollback(spark, home=words.folder / "home", say=lambda line: None)

    assert 2 == Home(words.folder / "home", "counted").record().live
    assert None is Home(words.folder / "home", "counted").record().building
    assert before == words.counts("counted") == words.run(pipeline, spark) == {"a": 2, "b": 1}


def test_a_rollback_to_state_that_other_code_made_is_refused_before_anything_changes(
    words: Words, spark: "SparkSession"
) -> None:
    home = words.folder / "home"
    words.run(words.pipeline("counted"), spark)
    doubled = words.pipeline("counted", transform=_doubled)
    assert 2 == doubled.replay(spark, ReplayRequest(), home=home, say=lambda line: None).version

    with pytest.raises(UserError, match="Version 1 of counted cannot run with the code of now"):
        doubled.rollback(spark, home=home, say=lambda line: None)

    assert (2, None) == (Home(home, "counted").record().live, Home(home, "counted").record().building)
    assert {"a": 4, "b": 2} == words.counts("counted") == words.run(doubled, spark)
    # With the code of version 1 it is what a rollback is for.
    assert 1 == words.pipeline("counted").rollback(spark, home=home, say=lambda line: None).version
    assert {"a": 2, "b": 1} == words.run(words.pipeline("counted"), spark)


def _doubled(records: "DataFrame") -> "DataFrame":
    """Twice as many, by other functions: the state of a count does not fit."""
    counts = "2 * count(1) + max(length(word)) - 1"
    return records.selectExpr("CAST(value AS STRING) AS word").groupBy("word").agg(_expression(counts).alias("count"))


def _plan(checkpoint: Path, batch: int, lines: list[str], position: dict[str, Any]) -> None:
    (checkpoint / "offsets" / str(batch)).write_text("\n".join([*lines, json.dumps(position)]))
