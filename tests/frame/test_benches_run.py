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
    report = run_tiny(bench, timeout_s=280)
    for row in report["rows"]:
        (ratio,) = (value for name, value in row.items() if "ratio" in name)
        # Processor time is counted in ticks, and tiny input may not use up one.
        assert 0 <= min(row["logmark"], row["other"], ratio), row
    return report


def run_tiny(bench: str, *options: str, timeout_s: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, f"bench/{bench}.py", "--tiny", "--output", "json", *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def ratios(rows: list[dict[str, Any]]) -> set[str]:
    """The names of all ratios."""
    return {name for row in rows for name in row if "ratio" in name}


@pytest.mark.parametrize("bench", ["broker", "log", "lag", "spark", "attacks"])
def test_a_bench_starts_and_tells_what_it_takes(bench: str) -> None:
    done = subprocess.run(
        [sys.executable, f"bench/{bench}.py", "--help"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )

    assert 0 == done.returncode, done.stderr
    assert {"--output", "--tiny", "--rounds"} <= set(done.stdout.replace(",", " ").split())


@pytest.mark.soak
@pytest.mark.kafka
def test_the_broker_bench_runs() -> None:
    report = report_of("broker")

    rows = report["rows"]
    works = " ".join(row["work"] for row in rows)
    for work in ("start to first", "memory", "processor time per GB", "produce, librdkafka, 100 B", "test fixture"):
        assert work in works
    for partitions in (4, 8):
        for work in (
            "one-record requests, 64 connections",
            "p99 of one-record requests, 1 connection",
            "produce, ready-made batches, 1 KiB",
            "OffsetCommits, 16 connections",
            "bytes written to the disk per byte produced, produce, ready-made batches, 100 B",
        ):
            assert f"{work}, {partitions} partitions" in works
    pairs = {(row["logmark_as"], row["against"]) for row in rows}
    assert {("os", "kafka default"), ("sync", "kafka default"), ("sync", "kafka flush.messages=1")} <= pairs
    assert ("sync", "os + one sync of a recycled file") in pairs
    goals, processors = report["shares"]
    assert {"met", "MISSED"} >= {line["verdict"] for line in goals["lines"]}
    assert len(goals["lines"]) == sum("goal" in row for row in rows) == 2 * 5 + 12, "each has a verdict"
    assert all(line["sync"] for line in processors["lines"]), "the load generator's share is shown for every work"


def test_the_broker_bench_refuses_a_work_that_it_does_not_know() -> None:
    done = subprocess.run(
        [sys.executable, "bench/broker.py", "--works", "requests,juggling"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert 2 == done.returncode
    assert "juggling: choose among start, clients, requests, batches, commits" in done.stderr


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
    assert {("columns", "pyarrow copy")} <= pairs
    restarted = "kafka default, without the wait for its old session"
    assert {("os", restarted), ("sync", restarted)} <= pairs


@pytest.mark.soak
@pytest.mark.kafka
def test_the_lag_bench_runs() -> None:
    rows = rows_of("lag")

    assert all("time_ratio" in row or "stall_ratio" in row for row in rows)
    works = {(row["logmark_as"], row["against"]) for row in rows}
    assert ("sampler, on Kafka", "kafka-consumer-groups --describe --all-groups, on Kafka") in works


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_attack_of_the_attacks_bench_runs() -> None:
    rows = run_tiny("attacks", "--no-kafka", timeout_s=880)["rows"]

    assert {"bombs", "churn-256", "deep-pipeline", "members", "slow-readers"} <= {row["attack"] for row in rows}
    for row in rows:
        assert 0 < row["most_mb"] and 0 < row["idle_mb"] < row["limit_mb"], row["attack"]
        assert {"producer", "consumer", "member"} == row["latencies"].keys()


@pytest.mark.soak
@pytest.mark.kafka
def test_the_attacks_bench_runs_on_apache_kafka() -> None:
    rows = run_tiny("attacks", "--works", "bombs,churn-256,members", timeout_s=280)["rows"]

    assert {("bombs", "Logmark"), ("bombs", "Apache Kafka"), ("churn-256", "Logmark"), ("members", "Logmark"),
            ("members", "Apache Kafka")} == {(row["attack"], row["broker"]) for row in rows}  # fmt: skip
    assert all((row["limit_mb"] is None) == (row["broker"] == "Apache Kafka") for row in rows), "only ours has goals"
