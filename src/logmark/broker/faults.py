"""Faults on demand: the next answers of an API refused or late, on the real broker, for tests."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from logmark.broker.answers import Answer, Buffers, LateAnswer
from logmark.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one request instead of, or before, its handling."""

    code: ErrorCode | None
    delay_s: float

    def carry_out(
        self,
        handle: Callable[[ErrorCode | None], Answer],
        start: "Callable[[Coroutine[Any, Any, Buffers | None]], asyncio.Task[Buffers | None]]",
    ) -> Answer:
        """Handle the request, late or with an error instead of the work; `start` makes a task of what comes late."""
        if not self.delay_s:
            return handle(self.code)

        async def late() -> Buffers | None:
            await asyncio.sleep(self.delay_s)
            answer = handle(self.code)
            if isinstance(answer, LateAnswer):
                done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
                if not answer.done():
                    answer.add_done_callback(done.set_result)
                    await done
                return answer.result()
            return await answer if isinstance(answer, asyncio.Future) else answer

        return start(late())


class Faults:
    """Plans by API name; without one, requests pass untouched."""

    def __init__(self) -> None:
        self._codes: defaultdict[str, deque[ErrorCode]] = defaultdict(deque)
        self._delays: dict[str, float] = {}
        self.is_armed = False

    def fail_next(self, api: str, code: ErrorCode, *, times: int = 1) -> None:
        """Answer the next requests of this API with the error; they do nothing."""
        self._codes[api.lower()].extend([code] * times)
        self.is_armed = True

    def delay(self, api: str, seconds: float) -> None:
        """Every request of this API is handled that much later; 0 ends it."""
        if seconds:
            self._delays[api.lower()] = seconds
        else:
            self._delays.pop(api.lower(), None)
        self._arm()

    def clear(self) -> None:
        """No plan is left."""
        self._codes.clear()
        self._delays.clear()
        self.is_armed = False

    def take(self, api: str) -> Fault | None:
        """Remove and return the plan for this request."""
        codes = self._codes.get(api.lower())
        code = codes.popleft() if codes else None
        delay_s = self._delays.get(api.lower(), 0.0)
        self._arm()
        return Fault(code=code, delay_s=delay_s) if code is not None or delay_s else None

    def _arm(self) -> None:
        self.is_armed = bool(self._delays) or any(self._codes.values())
