"""Work that takes long, beside a loop that must not wait for it."""

import threading
from collections.abc import Callable
from typing import Any


class Aside:
    """Work that takes long, in a thread of its own; what follows from it is done by whoever finds it done."""

    def __init__(
        self, work: Callable[[], Any], *, then: Callable[[Any], None], otherwise: Callable[[BaseException], None]
    ) -> None:
        self._work = work
        self._then = then
        self._otherwise = otherwise
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, either way."""
        return not self._thread.is_alive()

    def conclude(self) -> None:
        """What follows is done."""
        if self._error is not None:
            self._otherwise(self._error)
        else:
            self._then(self._result)

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is looked at
            self._error = error
