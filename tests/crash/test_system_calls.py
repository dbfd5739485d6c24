"""A process that is killed at a system call has lost nothing that it promised before."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from logmark.clock import ManualClock
from logmark.disk.file_system import RealFileSystem
from tests.crash.broker_logs import BrokerLogsDriver
from tests.crash.promises import NOW_MS, Promises
from tests.crash.scripted_process import promised, promised_during

REPOSITORY = Path(__file__).resolve().parents[2]
CALLS = ("pwrite64", "write", "fdatasync", "fsync", "rename", "ftruncate", "unlink", "mkdir", "rmdir")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="strace is a tool of Linux"),
    pytest.mark.timeout(1800),
]


def live(folder: Path, *strace: str) -> int:
    """Runs the life under strace and returns how many steps it finished."""
    command = [
        "strace",
        "-f",
        "-qq",
        "--seccomp-bpf",
        *strace,
        sys.executable,
        "-m",
        "tests.crash.scripted_process",
        str(folder),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=False)
    return len(done.stdout)


@pytest.fixture(scope="module")
def expected() -> list[Promises]:
    return promised()


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory, expected: list[Promises]) -> list[tuple[str, int]]:
    """Every system call of the whole life that changes the disk: its kind, and the how manieth it is."""
    if subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False).returncode:
        pytest.skip("this system lets no process be traced, as some containers do not")
    folder = tmp_path_factory.mktemp("whole")
    trace = folder / "trace"
    assert len(expected) == live(folder / "data", "-e", f"trace={','.join(CALLS)}", "-o", str(trace))
    lines = trace.read_text().splitlines()
    counts = {call: sum(f" {call}(" in line for line in lines) for call in CALLS}
    assert counts["pwrite64"] and counts["fdatasync"] and counts["fsync"] and counts["rename"]
    return [(call, number) for call in CALLS for number in range(1, counts[call] + 1)]


def survive_a_kill(folder: Path, call: str, number: int, expected: list[Promises]) -> None:
    """Kills the life at one system call, recovers, checks what it had promised, and goes on."""
    inject = f"inject={call}:signal=SIGKILL:when={number}"
    steps = live(folder / "data", "-e", f"trace={call}", "-e", inject, "-o", "/dev/null")
    promises, clock = promised_during(max(0, steps - 1), expected), ManualClock(NOW_MS + 60_000)
    for _ in range(2):
        driver = BrokerLogsDriver(RealFileSystem(sync=False), clock, folder / "data")
        promises.check(driver)
        promises.check_producers(driver)
        promises.go_on(driver)
        assert driver.close()
    shutil.rmtree(folder)


@pytest.mark.parametrize("share", [pytest.param(1 / 6, id="some"), pytest.param(0, id="all", marks=pytest.mark.soak)])
def test_a_kill_at_a_system_call_breaks_no_promise(
    share: float, tmp_path: Path, expected: list[Promises], points: list[tuple[str, int]],
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    every = max(1, int(share * len(points)))
    killed = range(every // 2, len(points), every)
    for at in killed:
        call, number = points[at]
        try:
            survive_a_kill(tmp_path / str(at), call, number, expected)
        except Exception as error:
            error.add_note(f"killed at {call} number {number}")
            raise
    record_property("system calls", len(points))
    record_property("killed at", len(killed))
