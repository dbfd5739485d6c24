"""Orders and payments for the queries: three parts, with events that are late, out of order, and sent twice.

The watermark of a query is the newest time of the parts before, less ten minutes. What the second part sends again,
or out of order, is not older than that. What it sends late is hours older, so that every operator with a watermark
drops it. The third part comes a day later and closes every window.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH = datetime(2026, 1, 5, 12, tzinfo=UTC)
DELAY = "10 minutes"
FIELDS = "kind STRING, id STRING, user STRING, amount INT, at TIMESTAMP"
DAY_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Event:
    """An order or a payment; the payment of an order has its id."""

    kind: str
    id: str
    user: str
    amount: int
    at_s: int
    is_late: bool = False

    @property
    def at(self) -> datetime:
        """The event time."""
        return EPOCH + timedelta(seconds=self.at_s)

    @property
    def value(self) -> str:
        """The record's value."""
        fields = {"kind": self.kind, "id": self.id, "user": self.user, "amount": self.amount}
        return json.dumps({**fields, "at": self.at.strftime("%Y-%m-%dT%H:%M:%SZ")})


def _orders(numbers: Iterable[int], at_s: Mapping[int, int]) -> list[Event]:
    return [Event("order", f"o{n}", f"u{n % 3}", (n * 7) % 50 + 1, at_s[n]) for n in numbers]


def _payments(orders: Iterable[Event], after_s: int) -> list[Event]:
    return [replace(order, kind="payment", at_s=order.at_s + after_s) for order in orders]


def _first() -> list[Event]:
    orders = _orders(range(12), {n: (n * 170) % 600 for n in range(12)})
    return [*orders, *_payments([one for one in orders if one.at_s < 400 and int(one.id[1:]) % 2 == 0], 60)]


def _second(first: list[Event]) -> list[Event]:
    orders = _orders(range(12, 20), {n: 1200 - (n * 130) % 700 for n in range(12, 20)})
    repeated = [one for one in first if one.kind == "order"][:3]
    late = [
        Event("order", "o90", "u0", 5, -7200, is_late=True),
        Event("payment", "o90", "u0", 5, -7190, is_late=True),
        Event("order", "o91", "u7", 6, -7500, is_late=True),
    ]
    return [*orders[4:], *repeated, *late, *orders[:4], *_payments(orders[::2], 90)]


def _third() -> list[Event]:
    return [Event("order", "o99", "u9", 9, DAY_S), Event("payment", "o98", "u8", 8, DAY_S + 1)]


FIRST = _first()
SECOND = _second(FIRST)
THIRD = _third()
ALL = [*FIRST, *SECOND, *THIRD]
IN_TIME = [one for one in ALL if not one.is_late]


def orders_of(events: Iterable[Event]) -> list[Event]:
    """Return the orders."""
    return [one for one in events if one.kind == "order"]


def payments_of(events: Iterable[Event]) -> list[Event]:
    """Return the payments."""
    return [one for one in events if one.kind == "payment"]


def window_start(at_s: int, size_s: int) -> datetime:
    """Return the start of the tumbling window that holds a time; windows begin at full multiples since 1970."""
    epoch = int(EPOCH.timestamp()) + at_s
    return datetime.fromtimestamp(epoch - epoch % size_s, UTC)


def group_by(events: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Return the events by a function of each."""
    found: dict[Any, list[T]] = {}
    for one in events:
        found.setdefault(key(one), []).append(one)
    return found
