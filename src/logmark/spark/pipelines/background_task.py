"""Long work beside a loop that must not wait for it."""

import threading
from collections.abc import Callable
from typing import Any


class BackgroundTask:
    """Work in a thread of its own; the loop that finds it done runs the callback for its result or its error."""

    def __init__(
        self,
        work: Callable[[], Any],
        *,
        on_result: Callable[[Any], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._work = work
        self._on_result = on_result
        self._on_error = on_error
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the work has returned or raised."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Run the callback for the finished task."""
        if self._error is not None:
            self._on_error(self._error)
        else:
            self._on_result(self._result)

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - `finish` hands it to the callback
            self._error = error
