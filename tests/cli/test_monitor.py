"""`logmark monitor` as a process: started, asked, told to stop."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Logmark, run
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "monitor.md"
BEHIND = '[[alert]]\nname = "behind"\nwhen = "lag"\nover = 2\n'


class MonitorProcess:
    """A monitor in a process of its own."""

    def __init__(self, servers: str, folder: Path, *args: str) -> None:
        self.history = folder / "history.sqlite"
        self._errors = folder / "stderr"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from logmark.cli.main import run; run()", "monitor", "-b", servers),
                *("--listen", "127.0.0.1:0", "--interval", "1s", "--history", str(self.history), *args),
            ],
            stdout=subprocess.PIPE,
            stderr=self._errors.open("w"),
            text=True,
        )

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def url(self) -> str:
        found = re.search(r"http://\S+/metrics", self.errors)
        return found[0] if found else ""

    def metrics(self) -> str:
        return urllib.request.urlopen(self.url, timeout=60).read().decode()

    def wait_for_sample(self) -> None:
        wait_until(lambda: bool(self.url) and "\nlogmark_up 1\n" in self.metrics(), "a sample was taken")

    def stop(self, number: int) -> tuple[int, str]:
        self._process.send_signal(number)
        out, _ = self._process.communicate(timeout=120)
        return self._process.returncode, out

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(our_broker: BrokerUnderTest, tmp_path: Path) -> Iterator[Callable[..., MonitorProcess]]:
    """Starts a monitor of our broker."""
    started: list[MonitorProcess] = []

    def starting(*args: str) -> MonitorProcess:
        started.append(MonitorProcess(our_broker.bootstrap_servers, tmp_path, *args))
        return started[-1]

    yield starting
    for one in started:
        one.close()


@pytest.fixture
def group(our_broker: BrokerUnderTest) -> str:
    """A group that is three records behind."""
    topic, group = our_broker.create_topic("orders"), our_broker.group("billing")
    our_broker.produce(topic, ["a", "b", "c"])
    our_broker.commit(group, {(topic, 0): 0})
    return group


def test_it_serves_metrics_writes_alerts_and_stops_cleanly(
    start: Callable[..., MonitorProcess], group: str, tmp_path: Path
) -> None:
    (tmp_path / "alerts.toml").write_text(BEHIND)
    monitor = start("--alerts", str(tmp_path / "alerts.toml"), "--group", group)
    monitor.wait_for_sample()
    assert f'logmark_group_lag_records{{group="{group}"' in monitor.metrics(), monitor.errors

    code, out = monitor.stop(signal.SIGTERM)

    assert (0, "Stopped.") == (code, monitor.errors.splitlines()[-1].split(" ", 1)[1])
    (line,) = out.splitlines()
    assert line.endswith(f"FIRING behind: Group {group} is 3 records behind, more than 2.")
    with sqlite3.connect(f"file:{monitor.history}?mode=ro", uri=True) as history:
        assert [("ok",)] == history.execute("PRAGMA integrity_check").fetchall()
        assert 1 <= history.execute("SELECT COUNT(*) FROM samples").fetchone()[0]


def test_ctrl_c_is_a_clean_end_also_while_a_broker_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monitor = MonitorProcess(f"127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        try:
            silent.settimeout(60)
            connection, _ = silent.accept()
            connection.settimeout(60)
            assert connection.recv(1), "it asks, and nobody answers"
            code, _ = monitor.stop(signal.SIGINT)
        finally:
            monitor.close()
        connection.close()

    assert 0 == code
    assert monitor.errors.endswith("Stopped.\n")


def test_once_tells_by_its_exit_code_whether_an_alert_is_firing(broker: BrokerUnderTest, tmp_path: Path) -> None:
    topic, group = broker.create_topic("orders"), broker.group("billing")
    broker.produce(topic, ["a", "b", "c"])
    broker.commit(group, {(topic, 0): 1})
    (tmp_path / "alerts.toml").write_text(BEHIND)

    def once() -> tuple[int, list[str]]:
        ran = run(
            *("monitor", "--once", "--alerts", str(tmp_path / "alerts.toml"), "--group", group, "--output", "json"),
            *("--history", str(tmp_path / "history.sqlite")),
            servers=broker.bootstrap_servers,
        )
        return ran.exit_code, [re.sub(r'.*"event": "(\w+)".*', r"\1", line) for line in ran.lines]

    assert (0, []) == once()
    broker.produce(topic, ["d"])
    assert (1, ["firing"]) == once()
    assert (1, []) == once()
    broker.commit(group, {(topic, 0): 4})
    assert (0, ["resolved"]) == once()


def test_a_cluster_that_is_not_there_is_an_error_within_ten_seconds(tmp_path: Path, pauses: list[float]) -> None:
    for args, code in (((), 1), (("--once",), 4)):
        pauses.clear()
        ran = run("monitor", *args, "--history", str(tmp_path / "h.sqlite"), servers="127.0.0.1:9")

        assert (code, "") == (ran.exit_code, ran.out)
        assert "refused the connection" in ran.error
        assert 0 < sum(pauses) < 10
        assert not (tmp_path / "h.sqlite").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--families", "kafka-exporter"), "There are no metrics called kafka-exporter. Did you mean kafka_exporter?"),
        (("--interval", "0.1s"), "An interval of 0.1s would only keep the brokers busy: write 1s or more."),
        (("--listen", "9308"), "'9308' is no address to listen on"),
        (("--alerts", "/no/such.toml"), "The alerts in /no/such.toml cannot be read"),
    ],
)
def test_a_mistake_is_an_error(logmark: Logmark, args: tuple[str, ...], message: str) -> None:
    ran = logmark("monitor", *args)

    assert (2, "") == (ran.exit_code, ran.out)
    assert message in ran.error


def test_a_file_of_alerts_can_be_checked_without_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text(BEHIND)
    good = run("monitor", "--check-alerts", str(path), servers="127.0.0.1:9")
    path.write_text(BEHIND + 'form = "5m"\n')
    bad = run("monitor", "--check-alerts", str(path), servers="127.0.0.1:9")

    assert (0, f"{path}: 1 alert and 0 notifiers; nothing is wrong, and nothing was sent.\n") == (
        good.exit_code,
        good.out,
    )
    assert (2, "") == (bad.exit_code, bad.out)
    assert f"{path}:5: form means nothing for when = 'lag'. Did you mean for?" in bad.error


def test_the_example_of_the_document_is_a_good_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "alerts.toml").write_text(example)
    monkeypatch.setenv("LOGMARK_HOOK_SECRET", "x")

    ran = run("monitor", "--check-alerts", str(tmp_path / "alerts.toml"))

    assert 0 == ran.exit_code, ran.error
    assert ": 7 alerts and 2 notifiers;" in ran.out
    assert os.environ["LOGMARK_HOOK_SECRET"] not in ran.out.split(": ")[-1]
