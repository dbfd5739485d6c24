"""The benches run from end to end on tiny input; what they measure then means nothing and is not looked at.

That takes a minute of two processors, so it belongs to the long tests; the short ones see that each bench starts.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def rows_of(bench: str) -> list[dict[str, Any]]:
    return list(report_of(bench)["rows"])


def report_of(bench: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, f"bench/{bench}.py", "--tiny", "--output", "json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    for row in report["rows"]:
        (ratio,) = (value for name, value in row.items() if "ratio" in name)
        # Processor time is counted in ticks, and tiny input may not use up one.
        assert 0 <= min(row["logmark"], row["other"], ratio), row
    return report


def ratios(rows: list[dict[str, Any]]) -> set[str]:
    """The names of all ratios."""
    return {name for row in rows for name in row if "ratio" in name}


@pytest.mark.parametrize("bench", ["broker", "log", "lag", "spark"])
def test_a_bench_starts_and_tells_what_it_takes(bench: str) -> None:
    done = subprocess.run(
        [sys.executable, f"bench/{bench}.py", "--help"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )

    assert 0 == done.returncode, done.stderr
    assert {"--output", "--tiny", "--rounds"} <= set(done.stdout.replace(",", " ").split())


@pytest.mark.soak
@pytest.mark.kafka
def test_the_broker_bench_runs() -> None:
    rows = rows_of("broker")

    works = " ".join(row["work"] for row in rows)
    for work in ("start to first", "memory", "processor time per GB", "produce, librdkafka, 100 B", "64 connections"):
        assert work in works
    pairs = {(row["logmark_as"], row["against"]) for row in rows}
    assert {("os", "kafka default"), ("sync", "kafka default"), ("sync", "kafka flush.messages=1")} <= pairs


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.spark
def test_the_spark_bench_runs() -> None:
    report = report_of("spark")

    rows = report["rows"]
    works = {name: [row["work"] for row in rows if name in row] for name in ratios(rows)}
    names = {"scan_ratio", "available_now_ratio", "json_ratio", "pipeline_ratio", "start_ratio", "latency_ratio"}
    assert names == works.keys() == {name for name in report if "ratio" in name}, "and each kind has its mean"
    assert all("batch" in work for work in works["scan_ratio"]) and "zstd" in " ".join(works["scan_ratio"])
    assert all("availableNow" in work for work in works["available_now_ratio"])
    assert ["billing, availableNow into Parquet from Logmark"] == works["pipeline_ratio"]


@pytest.mark.soak
@pytest.mark.kafka
def test_the_log_bench_runs() -> None:
    rows = rows_of("log")

    assert all("log_ratio" in row for row in rows)
    works = " ".join(row["work"] for row in rows)
    for work in (
        "append, batches of 1 MiB",
        "sequential read",
        "zstd",
        "recovery",
        "compaction",
        "heartbeat",
        "kill -9",
    ):
        assert work in works
    pairs = {(row["logmark_as"], row["against"]) for row in rows}
    assert {("os", "plain write"), ("sync", "plain write + fdatasync"), ("columns", "memcpy")} <= pairs
    assert {("columns", "pyarrow copy"), ("os", "kafka default")} <= pairs


@pytest.mark.soak
@pytest.mark.kafka
def test_the_lag_bench_runs() -> None:
    rows = rows_of("lag")

    assert all("time_ratio" in row or "stall_ratio" in row for row in rows)
    works = {(row["logmark_as"], row["against"]) for row in rows}
    assert ("sampler, on Kafka", "kafka-consumer-groups --describe --all-groups, on Kafka") in works
