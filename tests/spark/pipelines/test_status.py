"""The status of a run: what reports of progress mean, how fast it is, and the file that others read."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from logmark.names import TopicPartition
from logmark.spark.pipelines.status import (
    BatchMeter,
    FinishedBatch,
    RunState,
    RunStatus,
    parse_progress,
    read_status,
    write_status,
)
from logmark.spark.source.position import Position

SECOND_MS = 1000
START_MS = 1_794_837_600_000  # 2026-11-16T14:00:00Z


def offset(first: int, next: int) -> str:
    before, after = {TopicPartition("clicks", 0): first}, {TopicPartition("clicks", 0): next}
    return json.dumps(Position(group="b", query="q", generation=1, first=before, next=after).to_json())


OF_THE_FIRST_FORM = '{"f": {"clicks": {"0": 1}}, "g": 1, "group": "b", "q": "q", "t": {"clicks": {"0": 4}}}'


def report(number: int, first: int, next: int, *, second: int = 0, took_ms: int = 500, **more: Any) -> dict[str, Any]:
    """A report of progress as Spark writes it."""
    return {
        "batchId": number,
        "timestamp": f"2026-11-16T14:00:{second:02}.000Z",
        "durationMs": {"addBatch": took_ms - 100, "triggerExecution": took_ms},
        "sources": [{"startOffset": offset(0, first), "endOffset": offset(first, next)}],
        **more,
    }


def test_a_report_tells_the_batch_its_records_and_when_it_ended() -> None:
    assert FinishedBatch(number=3, records=40, duration_ms=500, at_ms=START_MS + 500) == parse_progress(
        report(3, 10, 50)
    )


@pytest.mark.parametrize(
    ("progress", "records"),
    [
        (report(1, 7, 7), 0),
        (report(1, 50, 10), 0),
        (report(1, 0, 5, sources=[]), 0),
        (report(1, 0, 5, sources=[{"startOffset": None, "endOffset": {"rate": 7}}]), 0),
        (report(1, 0, 5, sources=[{"startOffset": None, "endOffset": 7}]), 0),
        (report(1, 0, 5, sources=[{"startOffset": OF_THE_FIRST_FORM, "endOffset": OF_THE_FIRST_FORM}]), 0),
        (report(1, 0, 5, sources=[{"startOffset": None, "endOffset": OF_THE_FIRST_FORM}]), 3),
        (report(1, 0, 5, sources=[{"startOffset": None, "endOffset": json.loads(offset(0, 5))}]), 5),
        (report(1, 0, 5, sources=[{"startOffset": offset(0, 5), "endOffset": offset(0, 5)}]), 0),
        (report(1, 0, 5, sources=[{"startOffset": None, "endOffset": offset(0, 5)}] * 2), 10),
    ],
)
def test_records_are_offsets_that_were_read_whatever_else_a_report_holds(
    progress: dict[str, Any], records: int
) -> None:
    done = parse_progress(progress)

    assert done is not None
    assert records == done.records


def test_rows_that_the_watermark_drops_are_counted_over_all_operators_and_batches() -> None:
    meter = BatchMeter()

    operators = [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}]
    for number in (0, 1):
        meter.add(report(number, 0, 5, stateOperators=operators))
    meter.add(report(2, 0, 5, stateOperators=[{"operatorName": "stateStoreSave"}]))

    assert (6, 0) == (meter.dropped_rows, meter.last.dropped_rows if meter.last else None)


def test_a_status_of_an_earlier_version_has_dropped_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    fields = json.loads(json.dumps(asdict(STATUS)))
    del fields["dropped_rows"], fields["batch"]["dropped_rows"]
    path.write_text(json.dumps(fields))

    assert STATUS == read_status(path)


def test_a_report_of_an_idle_query_is_no_batch() -> None:
    assert parse_progress(report(4, 0, 5) | {"durationMs": {"latestOffset": 3, "triggerExecution": 3}}) is None


def test_a_batch_is_counted_once_however_often_it_is_reported() -> None:
    meter = BatchMeter()

    assert [True, False, True, False] == [meter.add(report(number, 0, 10)) for number in (0, 0, 1, 0)]
    assert (2, 20) == (meter.batches, meter.records)


def test_batches_of_another_version_count_though_they_are_numbered_from_0() -> None:
    meter = BatchMeter()
    meter.add(report(7, 0, 10))
    meter.reset()

    assert meter.add(report(0, 10, 15))
    assert (2, 15) == (meter.batches, meter.records)


def test_the_rate_is_that_of_the_last_batches_and_nothing_when_they_are_long_ago() -> None:
    meter = BatchMeter()
    for second in range(20):
        meter.add(report(second, 100 * second, 100 * second + 100, second=second, took_ms=1000))
    now_ms = START_MS + 20 * SECOND_MS

    assert pytest.approx(100) == meter.rate(now_ms)
    assert 0 == meter.rate(now_ms + 61 * SECOND_MS)
    assert 0 == BatchMeter().rate(now_ms)


STATUS = RunStatus(
    state=RunState.RUNNING,
    pid=7,
    version=2,
    since_ms=START_MS,
    at_ms=START_MS + 5,
    batch=FinishedBatch(number=3, records=40, duration_ms=500, at_ms=START_MS),
    batches=4,
    records=160,
    rate=12.5,
    restarts=1,
    error="Nobody answers.",
    error_at_ms=START_MS,
)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "billing" / "status.json"

    write_status(path, STATUS)

    assert STATUS == read_status(path)
    assert [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "dancing"}', '{"batch": 7, "state": "running"}'])
def test_a_file_that_says_nothing_is_no_status(tmp_path: Path, text: str) -> None:
    path = tmp_path / "status.json"
    path.write_text(text)

    assert read_status(path) is None
    assert read_status(tmp_path / "nowhere") is None
