"""The processes of a driver: a session of its own that can be killed, and the Python workers that Spark forks in it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self


def python_workers(of: int) -> Iterator[int]:
    """The Python processes that Spark runs for a process, without the one that forks them."""
    children: dict[int, list[int]] = {}
    daemons = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            is_daemon = b"pyspark.daemon" in (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        pid = int(status.parent.name)
        children.setdefault(parent, []).append(pid)
        if is_daemon:
            daemons.add(pid)
    waiting = [of]
    while waiting:
        parent = waiting.pop()
        for pid in children.get(parent, []):
            waiting.append(pid)
            if pid in daemons and parent in daemons:
                yield pid


class Program:
    """A program in a session of its own: Python, the Java machine that it starts, and the workers of that."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str]) -> None:
        self._log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.kill()

    def output(self) -> str:
        """Its last words, for a test that fails."""
        return self._log.read_text()[-4000:]

    def is_running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Its exit code, when it has ended by itself."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """All of its processes are gone, without a chance to say anything."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_workers(self) -> int:
        """Kills its Python workers, and says how many there were."""
        killed = 0
        for pid in python_workers(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        return killed
