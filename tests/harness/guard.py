"""Runs a command and ends it when its owner has gone: `guard.py OWNER_PID COMMAND...`.

A node that is shared by several test processes must outlive the one that started it, and must not outlive them all.
SIGTERM stops the command, SIGUSR1 kills it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from types import FrameType


def main(owner_pid: int, command: list[str]) -> int:
    """Returns the exit code of the command."""
    child = subprocess.Popen(command)
    has_ended = threading.Event()

    def end(number: int, _: FrameType | None) -> None:
        child.send_signal(signal.SIGKILL if number == signal.SIGUSR1 else signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, end)
    threading.Thread(target=_watch, args=(owner_pid, child, has_ended), daemon=True).start()
    code = child.wait()
    has_ended.set()
    return code


def _watch(owner_pid: int, child: "subprocess.Popen[bytes]", has_ended: threading.Event) -> None:
    while not has_ended.wait(0.5):
        try:
            os.kill(owner_pid, 0)
        except ProcessLookupError:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
