"""Work that takes long, some of it in each turn of the event loop, so that other clients are served meanwhile."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def map_in_turns(work: Callable[[T], R], items: Iterable[T], *, per_turn: int) -> list[R]:
    """Return the result for each item; after so many items others have their turn."""
    results: list[R] = []
    waiting = iter(items)
    while some := list(islice(waiting, per_turn)):
        results += map(work, some)
        await asyncio.sleep(0)
    return results
