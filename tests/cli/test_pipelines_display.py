"""What a run of pipelines shows, and what it ships: without Spark and without a terminal."""

import os
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from logmark.cli.pipelines import spark_session
from logmark.cli.pipelines.run_display import GroupLags, count_read, make_board, show_bars, show_lines
from logmark.cli.pipelines.spark_session import parse_conf
from logmark.cli.pipelines.status import format_batch
from logmark.client.answers import Committed
from logmark.client.errors import BrokerUnreachable
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.pipelines.status import FinishedBatch, RunState, RunStatus
from logmark.spark.pipelines.views import describe_state

NOW_MS = 1_794_837_600_000
P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
STATUS = RunStatus(
    state=RunState.RUNNING, pid=7, version=2, since_ms=NOW_MS, at_ms=NOW_MS, batches=4, records=100, rate=1234.5,
    restarts=3, batch=FinishedBatch(number=9, records=50, duration_ms=1500, at_ms=NOW_MS - 2000),
)  # fmt: skip


def worker(name: str = "billing", status: RunStatus = STATUS) -> Any:
    job = SimpleNamespace(pipeline=SimpleNamespace(group=name), brokers=SimpleNamespace(bootstrap_servers="kafka:9092"))
    return SimpleNamespace(name=name, job=job, status=status)


class FakeClient:
    """A client of a cluster in which a group is 5 records behind."""

    def __init__(self) -> None:
        self.is_away = False

    def committed(self, group: str) -> dict[TopicPartition, Committed]:
        if self.is_away:
            raise BrokerUnreachable("Nobody answers.")
        return {P0: Committed(offset=10), P1: Committed(offset=20)} if group == "billing" else {}

    def latest(self, partitions: Any) -> dict[TopicPartition, int]:
        return {P0: 15, P1: 20}


def test_the_lag_of_a_group_is_asked_for_and_unknown_where_nobody_can_tell() -> None:
    broker = FakeClient()
    lags = GroupLags({"kafka:9092": broker})  # type: ignore[dict-item]
    workers = [worker("billing"), worker("fraud")]

    assert lags.measure(workers)
    assert {"billing": 5, "fraud": None} == lags.records
    assert not lags.measure(workers), "a broker is not asked at every look"

    broker.is_away = True
    assert lags.measure(workers, every_s=0)
    assert {"billing": None, "fraud": None} == lags.records


def test_the_board_shows_group_version_state_lag_rate_batch_and_restarts() -> None:
    out = StringIO()

    Console(file=out, width=160).print(make_board([STATUS], [worker()], {"billing": 1204}))

    words = out.getvalue().splitlines()[1]
    for text in ("billing", "2", "running", "1,204", "9: 50 records in 1.5 s, 2 s ago", "3"):
        assert text in words


def test_the_last_batch_is_told_with_its_size_and_age() -> None:
    assert "9: 50 records in 1.5 s, 2 s ago" == format_batch(STATUS, NOW_MS)


def test_lines_tell_of_batches_and_of_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    with show_lines({"kafka:9092": FakeClient()}) as (watch, tell):  # type: ignore[dict-item]
        watch([worker()])
        watch([worker()])
        tell("billing: version 1 runs as group billing")

    said = capsys.readouterr().err.splitlines()
    assert 2 == len(said)
    assert said[0].startswith("billing: batch 9: 50 records in 1.5 s, 2 s ago, ")
    assert said[0].endswith(", 5 records behind")


class Terminal(StringIO):
    """A terminal, and all that was written to it."""

    def isatty(self) -> bool:
        return True


def test_each_pipeline_has_one_bar_however_often_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("logmark.cli.pipelines.run_display._MEASURE_EVERY_S", 0)
    with show_bars({"kafka:9092": FakeClient()}) as (watch, tell):  # type: ignore[dict-item]
        for _ in range(3):
            watch([worker("billing"), worker("fraud")])
        tell("billing: version 1 runs as group billing")

    last_drawn = terminal.getvalue().rpartition("\x1b[1A")[2]  # one line up: what follows is drawn over the rest
    assert (1, 1) == (last_drawn.count("billing"), last_drawn.count("fraud")), last_drawn


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({P0: 0, P1: 0}, (0, 30)),
        ({P0: 5, P1: 20}, (25, 30)),
        ({P0: 99, P1: 20}, (30, 30)),  # what came since the beginning is not counted
        ({P0: 0}, (0, 30)),
    ],
)
def test_a_bar_counts_what_was_there_at_the_beginning(
    now: dict[TopicPartition, int], expected: tuple[int, int]
) -> None:
    assert expected == count_read({P0: 0, P1: 0}, {P0: 10, P1: 20}, now)


@pytest.mark.parametrize(
    ("status", "is_live", "is_replaying", "said"),
    [
        (None, False, False, "never ran"),
        (None, True, False, "running"),
        (RunState.RUNNING, True, False, "running"),
        (RunState.RESTARTING, True, True, "restarting, being replayed"),
        (RunState.RUNNING, False, False, "died"),
        (RunState.STOPPED, False, False, "stopped"),
        (RunState.FAILED, False, False, "failed"),
        (RunState.DONE, True, False, "running"),  # started by hand since
        (RunState.SUPERSEDED, False, True, "superseded, being replayed"),
    ],
)
def test_locks_tell_more_than_last_words(status: RunState | None, is_live: bool, is_replaying: bool, said: str) -> None:
    known = None if status is None else replace(STATUS, state=status)

    assert said == describe_state(known, is_live=is_live, is_replaying=is_replaying)


def test_settings_of_spark_are_names_and_values() -> None:
    assert {"spark.a": "b=c", "spark.d": ""} == parse_conf(["spark.a=b=c", "spark.d="])
    with pytest.raises(UserError, match=r"--conf takes NAME=VALUE, not 'spark\.a'"):
        parse_conf(["spark.a"])


def test_a_wheel_is_shipped_as_an_archive_that_executors_unpack_and_import_from(tmp_path: Path) -> None:
    wheel = tmp_path / "logmark-0.1.0-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"PK")
    extra = tmp_path / "shop.tar.gz"

    settings = spark_session._shipping_settings([wheel, extra, Path("plain.py")], tmp_path, is_local=False)

    assert f"{tmp_path}/{wheel.stem}.zip#logmark,{extra}#shop" == settings["spark.archives"]
    assert "logmark:shop" == settings["spark.executorEnv.PYTHONPATH"]
    assert b"PK" == (tmp_path / f"{wheel.stem}.zip").read_bytes()
    assert {} == spark_session._shipping_settings([wheel], tmp_path, is_local=True), (
        "workers of this machine have what we have"
    )
    with pytest.raises(UserError, match=r"--package takes \.whl"):
        spark_session._shipping_settings([tmp_path / "shop.exe"], tmp_path, is_local=False)


def test_what_processes_write_goes_to_the_log_and_what_we_write_does_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "home" / "spark.log"
    with spark_session._redirect_stderr(path):
        subprocess.run(["sh", "-c", "echo of a process >&2"], check=True)
    os.write(2, b"of ours\n")

    assert "of a process\n" == path.read_text()
    assert "of ours\n" == capfd.readouterr().err
