"""The pace of long work on the event loop: others have their turn after a bounded piece of it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from logmark.errors import Refused

T = TypeVar("T")

STEPS_IN_A_TURN = 50


class Pace:
    """Counts the steps of one piece of work, each of which takes some microseconds."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps = 0

    async def step(self, count: int = 1) -> None:
        """Count a step, or several for what takes longer; let the event loop serve others if there were enough."""
        self._steps += count
        if self._steps >= STEPS_IN_A_TURN:
            self._steps = 0
            await asyncio.sleep(0)


async def decide_each(decisions: Iterable[Callable[[], T]], pace: Pace) -> list[T | Refused]:
    """Make calls one after another; return what each returns, or how it refuses."""
    decided: list[T | Refused] = []
    for decide in decisions:
        try:
            decided.append(decide())
        except Refused as refused:
            decided.append(refused)
        await pace.step()
    return decided
