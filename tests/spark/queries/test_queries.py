"""Streaming queries of other people as pipelines: exact by a direct computation, after a crash and in a replay."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.spark import ReplayRequest
from logmark.spark.pipelines.replay.runner import ReplayCallbacks
from logmark.spark.pipelines.replay.session import open_replay
from tests.harness.brokers import BrokerUnderTest
from tests.spark.queries import events, nexmark_queries
from tests.spark.queries.query_case import QueryCase, parse, read_rows
from tests.spark.queries.query_driver import BY_NAME, GUIDE, NEXMARK, RunningQueries, spark_of_queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# One of each kind: rows, state of Spark's own, windows, a union, two joins, state by functions; and of Nexmark.
SAMPLE = (
    "united_filters", "count_of_users_updated", "tumbling_windows", "first_of_each_id_and_time", "orders_paid_or_not",
    "orders_near_each_other",
)  # fmt: skip
SETS: dict[str, tuple[Sequence[QueryCase], Any]] = {"guide": (GUIDE, events), "nexmark": (NEXMARK, nexmark_queries)}


def publish(broker: BrokerUnderTest, topic: str, part: Sequence[Any]) -> None:
    """Sends a part of the events, in its order."""
    broker.produce(topic, [one.value for one in part], partition=0)


def check(queries: RunningQueries, all_events: Sequence[Any], *, what: str, late_counts: bool = False) -> None:
    """Each table has the rows that a direct computation has of these events."""
    wrong = []
    for case in queries.cases:
        counted = [one for one in all_events if late_counts or not (one.is_late and case.drops_late)]
        expected, found = case.rows(counted), read_rows(queries.table(case))
        if expected != found:
            missing, more = list((expected - found).elements()), list((found - expected).elements())
            wrong.append(f"{case.name}: missing {missing[:3]}, too many {more[:3]} ({len(missing)}, {len(more)})")
    assert not wrong, f"{what}:\n" + "\n".join(wrong)


def replay(queries: RunningQueries, case: QueryCase, spark: "SparkSession") -> None:
    """Replays a query from the beginning."""
    with open_replay(queries.job(case), lambda: spark) as session:
        request = ReplayRequest(start="earliest")
        session.execute(session.plan(request), request, ReplayCallbacks(say=lambda text: None))


def test_queries_of_other_people_are_exact_after_a_lost_commit_and_after_a_replay(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = our_broker.create_topic("events")
    queries = RunningQueries(our_broker.bootstrap_servers, topic, tmp_path, [BY_NAME[name] for name in SAMPLE])
    publish(our_broker, topic, events.FIRST)
    queries.run(spark)
    publish(our_broker, topic, events.SECOND)
    queries.run(spark)
    assert len(SAMPLE) == queries.lose_last_commits()
    publish(our_broker, topic, events.THIRD)
    queries.run(spark)

    check(queries, events.ALL, what="after a lost commit")

    for case in queries.cases[1:3]:
        replay(queries, case, spark)
    queries.cases = queries.cases[1:3]
    queries.run(spark)
    check(queries, events.ALL, what="after a replay, which counts what was late", late_counts=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(SETS))
@pytest.mark.parametrize(
    "broker", ["logmark", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True
)
def test_every_query_is_exact_after_a_kill_and_after_a_replay(
    broker: BrokerUnderTest, name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cases, parts = SETS[name]
    topic = broker.create_topic("events")
    # A third of them on Apache Kafka.
    queries = RunningQueries(broker.bootstrap_servers, topic, tmp_path, cases if broker.is_ours else cases[::3])
    publish(broker, topic, parts.FIRST)
    queries.run_in_process()
    publish(broker, topic, parts.SECOND)
    killed_at = queries.kill_in_the_middle()
    queries.run_in_process()
    publish(broker, topic, parts.THIRD)
    queries.run_in_process()

    check(queries, parts.ALL, what="after a kill")

    spark = spark_of_queries()
    for case in queries.cases:
        replay(queries, case, spark)
    queries.run(spark)
    check(queries, parts.ALL, what="after a replay, which counts what was late", late_counts=True)
    record_property("queries", len(queries.cases))
    record_property("tables changed when it was killed", killed_at)


@pytest.mark.parametrize("name", list(nexmark_queries.REFUSED))
def test_queries_of_nexmark_that_spark_does_not_take_are_refused_by_spark(
    name: str, our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException

    from logmark.spark import share_source, write_table

    text, table = nexmark_queries.REFUSED[name]
    topic = our_broker.create_topic("events")
    options = {"bootstrap.servers": our_broker.bootstrap_servers, "subscribe": topic, "group.id": our_broker.group("q")}
    records = share_source(spark.readStream.format("logmark").options(**options).load())

    with pytest.raises(AnalysisException):
        write_table(nexmark_queries.sql(text)(parse(records, nexmark_queries.FIELDS)), tmp_path / "table", **table)
