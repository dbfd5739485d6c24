"""Signals of `logmark serve`: a second one never breaks a clean stop, a third one ends the process at once."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logmark.testing import Broker
from tests.harness import wire

# `logmark serve` that stands still at each stage, with its event loop blocked, until the test sends a line.
DRIVER = """
import atexit, sys
from logmark.broker.server import Broker
from logmark.cli import main

def stand_still(stage):
    print(stage, flush=True)
    sys.stdin.readline()

start, stop = Broker.start, Broker.stop

async def held_start(broker):
    stand_still("starting")
    await start(broker)

async def held_stop(broker):
    stand_still("stopping")
    is_clean = await stop(broker)
    stand_still("stopped")
    return is_clean

Broker.start, Broker.stop = held_start, held_stop
atexit.register(stand_still, "ending")
main.run()
"""
# The command that stands still where it imports the modules of the broker.
IMPORTING = """
import sys

class HeldImport:
    def find_spec(self, name, path=None, target=None):
        if name == "logmark.cli.main":
            print("importing", flush=True)
            sys.stdin.readline()

sys.meta_path.insert(0, HeldImport())
from logmark.__main__ import run
run()
"""
STAGES = ["starting", "stopping", "stopped", "ending"]
BOTH = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture(autouse=True)
def sighup_is_not_ignored() -> Iterator[None]:
    """Let no broker inherit that these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class HeldBroker:
    """A broker under the driver above."""

    def __init__(self, data_dir: Path, driver: str = DRIVER, **options: Any) -> None:
        # So few connections can be had on every machine: nothing is said of them.
        arguments = ["serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--set", "max.connections=100"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", driver, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip

    def wait_for(self, stage: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert stage in line, (stage, line, self.process.poll())

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def is_closed_cleanly(data_dir: Path) -> bool:
    return (data_dir / ".kafka_cleanshutdown").exists() and not (data_dir / "logmark.wal").exists()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_a_second_signal_at_any_moment_does_not_break_a_clean_stop(
    tmp_path: Path, stage: str, first: int, second: int
) -> None:
    held = HeldBroker(tmp_path / "data")
    held.wait_for("starting")
    if stage == "starting":
        held.send(first)
        held.send(second)
    held.go_on()
    held.wait_for("listening")
    if stage != "starting":
        held.send(first)
    for each in STAGES[1:]:
        held.wait_for(each)
        if each == stage:
            held.send(second)
        held.go_on()
    code, said = held.end()

    assert 0 == code, said
    assert is_closed_cleanly(tmp_path / "data")
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [*BOTH, signal.SIGHUP])
def test_a_signal_while_modules_are_imported_ends_it_with_0_and_without_a_directory(
    tmp_path: Path, number: int
) -> None:
    held = HeldBroker(tmp_path / "data", IMPORTING)
    held.wait_for("importing")
    held.send(number)
    held.go_on()
    code, said = held.end()

    assert (0, "") == (code, said)
    assert not (tmp_path / "data").exists()


def test_an_interrupt_while_modules_of_another_command_are_imported_has_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTING, "topics"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "importing" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)

    assert (130, "") == (process.returncode, said)


def test_the_end_of_its_terminal_stops_it_cleanly(tmp_path: Path) -> None:
    held = HeldBroker(tmp_path / "data")
    for stage in ("starting", "listening", "stopping", "stopped", "ending"):
        held.wait_for(stage)
        if stage == "listening":
            held.send(signal.SIGHUP)
        else:
            held.go_on()
    code, said = held.end()

    assert 0 == code, said
    assert is_closed_cleanly(tmp_path / "data")


def test_under_nohup_it_ignores_the_end_of_its_terminal(tmp_path: Path) -> None:
    def ignore_hangups() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    held = HeldBroker(tmp_path / "data", preexec_fn=ignore_hangups)
    held.wait_for("starting")
    for _ in range(3):
        held.send(signal.SIGHUP)
    held.go_on()
    held.wait_for("listening")
    held.send(signal.SIGTERM)
    for stage in STAGES[1:]:
        held.wait_for(stage)
        held.go_on()
    code, said = held.end()

    assert (0, False) == (code, "stopping already" in said)


def test_sigquit_shows_the_stacks_of_all_threads_and_it_goes_on(tmp_path: Path) -> None:
    held = HeldBroker(tmp_path / "data")
    held.wait_for("starting")
    held.send(signal.SIGQUIT)
    assert held.process.stderr is not None
    assert "most recent call first" in held.process.stderr.readline()
    held.go_on()
    held.wait_for("listening")
    held.send(signal.SIGTERM)
    for stage in STAGES[1:]:
        held.wait_for(stage)
        held.go_on()

    assert 0 == held.end()[0]


@pytest.mark.parametrize("number", BOTH)
def test_a_third_signal_ends_it_at_once_and_the_next_start_recovers(tmp_path: Path, number: int) -> None:
    data_dir = tmp_path / "data"
    with Broker(durability="sync", data_dir=str(data_dir)) as before:
        before.create_topic("orders")
        assert 0 == wire.produce(before.bootstrap_servers, "orders", wire.batch([b"kept"])).error_code
    held = HeldBroker(data_dir)
    held.wait_for("starting")
    held.go_on()
    held.wait_for("listening")
    held.send(number)
    held.wait_for("stopping")
    held.send(number)
    # Both must be handled one after the other: two that wait at the same time count as one.
    assert held.process.stderr is not None
    assert "stopping already" in held.process.stderr.readline()
    held.send(number)
    code, said = held.end()

    assert 1 == code
    assert "The next start recovers" in said and "Traceback" not in said
    assert not is_closed_cleanly(data_dir)
    with Broker(durability="sync", data_dir=str(data_dir)) as after:
        assert 1 == wire.produce(after.bootstrap_servers, "orders", wire.batch([b"next"])).base_offset


def test_signals_that_follow_each_other_at_once_stop_it_cleanly(tmp_path: Path) -> None:
    for turn in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "logmark", "serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert "listening" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)

        assert 0 == process.returncode, (turn, said)
        assert is_closed_cleanly(tmp_path / "data")
