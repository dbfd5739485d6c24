"""What reports of progress say of queries: how far they are behind, how fast they are, and what they dropped."""

import json
from typing import Any

import pytest

from logmark.names import TopicPartition
from logmark.offsets.monitor.prometheus_text import format_metrics
from logmark.spark.progress import (
    WARN_EVERY_S,
    DropWarnings,
    QueryBoard,
    describe_batch,
    parse_batch,
    parse_offsets,
)
from logmark.spark.source.position import Position

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def offset(next0: int, next1: int) -> str:
    offsets = {P0: next0, P1: next1}
    return json.dumps(Position(group="g", query="q", generation=1, first=offsets, next=offsets).to_json())


def report(
    number: int, next0: int, end0: int, *, second: int = 0, rows: int = 100, dropped: int = 0, **more: Any
) -> dict[str, Any]:
    """A report as Spark writes it, of a query that reads two partitions; the second one is read to its end, 50."""
    source = {
        "startOffset": offset(0, 50),
        "endOffset": offset(next0, 50),
        "latestOffset": json.dumps({"clicks": {"0": end0, "1": 50}}),
        "numInputRows": rows,
    }
    return {
        "id": "4711",
        "name": "sessions",
        "batchId": number,
        "timestamp": f"2026-11-16T14:00:{second:02}.000Z",
        "durationMs": {"addBatch": 400, "triggerExecution": 500},
        "sources": [source],
        "stateOperators": [{"numRowsDroppedByWatermark": dropped}, {"numRowsDroppedByWatermark": 0}],
        "eventTime": {"watermark": "2026-11-16T13:00:00.000Z"},
        **more,
    }


def test_a_report_tells_how_far_a_query_is_behind_and_what_it_dropped() -> None:
    batch = parse_batch(report(3, 100, 160, dropped=7))

    assert batch is not None
    assert (60, 7, 100, 3) == (batch.behind, batch.dropped, batch.rows, batch.number)
    assert {P0: 100, P1: 50} == batch.next
    assert batch.watermark_ms == 1_794_834_000_000


def test_a_report_of_an_idle_query_is_no_batch_and_of_another_source_has_no_lag() -> None:
    foreign = {"endOffset": "{\"logOffset\":3}", "latestOffset": None, "numInputRows": 5}

    assert parse_batch(report(1, 5, 5, durationMs={"triggerExecution": 3})) is None
    batch = parse_batch(report(1, 5, 5, sources=[foreign], stateOperators=None, eventTime={}))
    assert batch is not None
    assert ({}, 0, None, 5) == (batch.next, batch.behind, batch.watermark_ms, batch.rows)


@pytest.mark.parametrize("text", [None, "", "5", "[1]", '{"a": 5}', '{"a": {"x": 1}}', '{"a": {"0": null}}', 7])
def test_what_is_no_offset_of_topics_gives_none(text: Any) -> None:
    assert {} == parse_offsets(text)


def test_seconds_behind_are_known_from_the_ends_of_earlier_batches() -> None:
    board = QueryBoard()
    board.add("4711", report(0, 0, 100, second=0))
    totals = board.add("4711", report(1, 50, 200, second=10))

    assert totals is not None
    # The end passed 100 at second 0 and 200 at second 10, so offset 50 five seconds before; the batch ended at 10.5.
    assert totals.seconds_behind == pytest.approx(15.5)
    assert totals.last.behind == 150
    assert "Query sessions, batch 1: 100 records in 0.5 s (200 a second); 150 records, 16 s behind" == describe_batch(
        totals
    )
    totals = board.add("4711", report(2, 300, 300, second=20))
    assert totals is not None
    assert (0, 0.0) == (totals.last.behind, totals.seconds_behind)


def test_prometheus_finds_rates_lag_and_dropped_rows_of_the_queries_that_run() -> None:
    board = QueryBoard()
    board.add("4711", report(0, 0, 100, dropped=2))
    board.add("4711", report(1, 60, 100, second=10, dropped=3))
    text = "".join(format_metrics(board.families()))

    for line in (
        'logmark_query_batches_total{query="sessions"} 2',
        'logmark_query_records_total{query="sessions"} 200',
        'logmark_query_dropped_rows_total{query="sessions"} 5',
        'logmark_query_lag_records{query="sessions"} 40',
        'logmark_query_records_per_second{query="sessions"} 200.0',
        "# TYPE logmark_query_dropped_rows_total counter",
    ):
        assert line in text
    assert board.remove("4711") is not None
    assert "" == "".join(format_metrics(board.families()))


def test_dropped_rows_are_warned_about_at_once_and_then_at_most_once_a_minute() -> None:
    now = 0.0
    warnings = DropWarnings(lambda: now)

    assert [0, 5, 0] == [warnings.due(dropped) for dropped in (0, 5, 9)]
    now = WARN_EVERY_S
    assert [4, 0] == [warnings.due(dropped) for dropped in (9, 9)]
