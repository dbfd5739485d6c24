"""Moves the clock of an Apache Kafka node, which has no setting for it."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness.distribution import KafkaUnavailable, cache_folder

SOURCE = Path(__file__).with_suffix(".c")


class MovedClock:
    """The time of day of one node: the machine's, plus what a test has added."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "moved-clock"
        self._seconds = 0
        self._write()

    @property
    def env(self) -> dict[str, str]:
        """What the node's environment needs."""
        return {"LD_PRELOAD": str(library()), "MOVED_CLOCK_FILE": str(self._file)}

    def advance(self, *, days: float) -> None:
        """Moves the node's time of day forward, at once."""
        self._seconds += round(days * 86_400)
        self._write()

    def _write(self) -> None:
        # Written in place, never replaced: the node has mapped this very file.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(self._seconds.to_bytes(8, sys.byteorder, signed=True))


def library() -> Path:
    """The shared library that moves a process's clock, compiled on first use."""
    built = cache_folder() / f"moved-clock-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"
    if built.exists():
        return built
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        raise KafkaUnavailable("The clock of Apache Kafka is moved by a small library: that takes Linux and `cc`.")
    built.parent.mkdir(parents=True, exist_ok=True)
    scratch = built.with_suffix(f".{os.getpid()}")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(scratch), str(SOURCE)], check=True, timeout=60)
    scratch.replace(built)
    return built
