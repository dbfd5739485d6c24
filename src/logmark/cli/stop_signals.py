"""The signals of `logmark serve`.

SIGTERM, SIGINT, SIGHUP   The first begins a clean stop, the second changes nothing, the third ends the process.
SIGQUIT                   The stacks of all threads go to standard error; the broker keeps running, as Kafka does.

SIGHUP comes when the terminal of the broker is closed. `nohup` sets it to be ignored, and then it stays ignored.

The handlers are Python's own and not the event loop's: a clean stop blocks the loop while it flushes and closes the
logs, and the third signal must work just then. They stay until the process ends, because the default action of a signal
would kill a stop that is under way.
"""

import faulthandler
import os
import signal
from collections.abc import Callable
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STDERR = 2
# The documented exit code of a stop that did not close the data directory cleanly.
UNCLEAN = 1

_SECOND = "logmark: The broker is stopping already. A third signal ends it at once, without closing the logs.\n"
_THIRD = (
    "logmark: The broker was ended by a third signal before it had closed its logs. What was acknowledged is kept. "
    "The next start recovers the directory.\n"
)


class StopSignals:
    """Counts the signals that ask this process to stop."""

    def __init__(self) -> None:
        self._count = 0
        self._on_first: Callable[[], object] | None = None

    @property
    def is_stop_requested(self) -> bool:
        return self._count > 0

    def install(self) -> None:
        """Handle the signals from now on; to be called in the main thread, a second time without effect."""
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        faulthandler.register(signal.SIGQUIT, file=_STDERR)

    def call_on_first(self, callback: Callable[[], object]) -> None:
        """Call back when the first signal comes, at once if it has come already; it must be safe in any thread."""
        self._on_first = callback
        if self._count:
            callback()

    def ignore(self) -> None:
        """Ignore the signals until the process ends: everything is closed, and its exit code must stay what it is."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            if self._on_first is not None:
                self._on_first()
        elif self._count == 2:
            # Past the buffers of standard error: the signal may have interrupted a write to them.
            os.write(_STDERR, _SECOND.encode())
        else:
            os.write(_STDERR, _THIRD.encode())
            os._exit(UNCLEAN)


# Those of this process: a signal may come before the broker is there.
stop_signals = StopSignals()
