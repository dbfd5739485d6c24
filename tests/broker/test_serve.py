"""`logmark serve`: a ready line, a clean stop, and error messages for invalid options."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVE = [sys.executable, "-m", "logmark", "serve"]


class ServeProcess:
    """A `logmark serve` of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*SERVE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()

    def port(self) -> int:
        found = re.search(r"listening on \S+?:(\d+)", self.ready_line)
        assert found, self.ready_line
        return int(found[1])

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Return the exit code and what it complained of, but for a busy machine."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=120)
        complaints = [line for line in said.splitlines(keepends=True) if "The event loop was held" not in line]
        return self.process.returncode, "".join(complaints)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServeProcess]:
    # So few connections can be had on every machine: nothing is said of them.
    broker = ServeProcess(
        "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--set", "max.connections=100"
    )
    yield broker
    if broker.process.poll() is None:
        broker.stop(signal.SIGKILL)


def refused(*arguments: str) -> tuple[int, str]:
    result = subprocess.run([*SERVE, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in result.stderr
    return result.returncode, result.stderr


def test_the_ready_line_says_where_it_listens_and_where_the_data_is(served: ServeProcess, tmp_path: Path) -> None:
    assert f"listening on 127.0.0.1:{served.port()}" in served.ready_line
    assert str(tmp_path / "data") in served.ready_line
    with socket.create_connection(("127.0.0.1", served.port()), timeout=60):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(served: ServeProcess, tmp_path: Path, number: int) -> None:
    code, complaints = served.stop(number)

    assert 0 == code
    assert "" == complaints
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_stop_that_could_not_close_the_directory_cleanly_is_told_with_exit_code_1(
    served: ServeProcess, tmp_path: Path
) -> None:  # fmt: skip
    # Something is in the way of the mark that a clean stop leaves.
    in_the_way = tmp_path / "data" / ".kafka_cleanshutdown"
    in_the_way.mkdir()

    code, complaints = served.stop()

    assert 1 == code
    assert f"could not close {tmp_path / 'data'} cleanly" in complaints
    assert "The next start recovers the directory." in complaints
    assert "Traceback" not in complaints
    in_the_way.rmdir()
    again = ServeProcess("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert 0 == again.stop()[0]


def test_a_second_start_on_the_same_directory_is_refused_with_an_error_message(
    served: ServeProcess, tmp_path: Path
) -> None:
    code, message = refused("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")

    assert 1 == code
    assert "in use" in message


def test_a_port_in_use_is_refused_with_an_error_message(served: ServeProcess, tmp_path: Path) -> None:
    code, message = refused("--data-dir", str(tmp_path / "other"), "--listen", f"127.0.0.1:{served.port()}")

    assert 1 == code
    assert f"127.0.0.1:{served.port()}" in message
    assert "--listen" in message


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--listen", "0.0.0.0:0"], "--advertise"),
        (["--listen", "[::]:0"], "--advertise"),
        (["--listen", "nonsense"], "HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--advertise", "a:1", "--advertise", "b:2"], "one --advertise for each"),
        (["--set", "num.partitionz=3"], "num.partitionz"),
        (["--set", "num.partitions"], "name=value"),
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--set", "max.connections.per.ip.overrides=127.0.0.1"], "HOST:COUNT"),
        (["--set", "max.connections.per.ip.overrides=127.0.0.1:few"], "HOST:COUNT"),
        (["--set", "max.connections.per.ip.overrides=no-such-host.invalid:3"], "no-such-host.invalid"),
        (["--set", "listeners=SSL://127.0.0.1:0"], "PLAINTEXT"),
        (["--config", "no-such-file.properties"], "no-such-file.properties"),
        (["--durability", "hope"], "hope"),
    ],
)
def test_an_invalid_option_is_refused_and_nothing_is_created(
    tmp_path: Path, arguments: list[str], cause: str
) -> None:
    code, message = refused("--data-dir", str(tmp_path / "data"), *arguments)

    assert 2 == code
    assert cause in message
    assert not (tmp_path / "data").exists()


def test_a_listener_beyond_loopback_warns_and_clients_are_told_the_advertised_address(tmp_path: Path) -> None:
    broker = ServeProcess(
        "--data-dir", str(tmp_path), "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:4711", "--log-format", "json",
        "--set", "num.io.threads=8",
    )  # fmt: skip
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port()}"})
    told = admin.list_topics(timeout=60).brokers
    _, complaints = broker.stop()

    assert [4711] == [node.port for node in told.values()]
    events = [json.loads(line)["event"] for line in complaints.splitlines()]
    assert any("no authentication" in event for event in events)
    assert any("num.io.threads" in event for event in events)


def test_settings_come_from_a_file_and_single_ones_win(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text("num.partitions=5\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs=" + str(tmp_path / "d") + "\n")
    broker = ServeProcess("--config", str(settings), "--set", "num.partitions=7")
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port()}"})
    admin.list_topics("auto", timeout=60)
    topic = admin.list_topics("auto", timeout=60).topics["auto"]
    broker.stop()

    assert 7 == len(topic.partitions)
    assert (tmp_path / "d" / "meta.properties").exists()
