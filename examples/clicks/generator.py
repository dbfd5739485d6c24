"""A click stream out of a seed: the same seed and the same days give the same clicks."""

import random
import zlib
from collections.abc import Iterator
from typing import NamedTuple

TOPIC = "clicks"
PARTITIONS = 4
DAY_MS = 24 * 3600 * 1000
USERS = 5_000

# What a click costs on average, in millionths of the currency: money is never a float.
CAMPAIGNS = {
    "spring-sale": 412_000,
    "new-shoes": 385_500,
    "coffee-club": 127_250,
    "city-breaks": 1_240_900,
    "night-bus": 58_330,
    "used-books": 31_770,
    "garden-days": 204_610,
    "piano-lessons": 766_040,
}
_NAMES = tuple(CAMPAIGNS)

CRAWLERS = 0.02  # say who they are, and are not charged for
BOTS = 0.015  # say that they are browsers, and are gone faster than anybody can read
HURRIED = 0.06  # people who look at the page for about a second
DOUBLE_CLICKS = 0.01  # arrive a second time, a moment later, with the same id


class Click(NamedTuple):
    """One click on an advertisement."""

    id: str
    user: str
    campaign: str
    price_micros: int
    at_ms: int
    agent: str
    dwell_ms: int
    kind: str  # who it really was; no reader is told

    @property
    def key(self) -> bytes:
        """Clicks of one user are in one partition, in order."""
        return self.user.encode()

    @property
    def partition(self) -> int:
        """Where the click goes: the choice of librdkafka's `consistent` partitioner."""
        return zlib.crc32(self.key) % PARTITIONS

    @property
    def value(self) -> bytes:
        """The click as JSON; no field needs escaping."""
        return (
            f'{{"id":"{self.id}","user":"{self.user}","campaign":"{self.campaign}",'
            f'"price_micros":{self.price_micros},"at_ms":{self.at_ms},"agent":"{self.agent}",'
            f'"dwell_ms":{self.dwell_ms}}}'
        ).encode()


def generate(count: int, *, seed: int, start_ms: int, end_ms: int, first_id: int = 0) -> Iterator[Click]:
    """Exactly `count` clicks between two points in time, about evenly spaced and nearly in order."""
    chance = random.Random(seed)
    step_ms = (end_ms - start_ms) / max(count, 1)
    made = 0
    while made < count:
        at_ms = int(start_ms + (made + chance.random()) * step_ms)
        click = _click(chance, f"c{first_id + made:09d}", at_ms)
        yield click
        made += 1
        if made < count and chance.random() < DOUBLE_CLICKS:
            yield click._replace(at_ms=min(at_ms + 40 + int(chance.random() * 360), end_ms))
            made += 1


def _click(chance: random.Random, id: str, at_ms: int) -> Click:
    campaign = _NAMES[int(chance.random() * len(_NAMES))]
    # Squared: a few users click much, many click little.
    user = int(chance.random() ** 2 * USERS)
    price_micros = int(CAMPAIGNS[campaign] * (0.5 + chance.random()))
    kind, shortest_ms, longest_ms = _visitor(chance.random())
    dwell_ms = shortest_ms + int(chance.random() * (longest_ms - shortest_ms))
    agent = "crawler" if kind == "crawler" else "browser"
    return Click(id, f"u{user:04d}", campaign, price_micros, at_ms, agent, dwell_ms, kind)


def _visitor(chance: float) -> tuple[str, int, int]:
    """Who clicks, and how long such a visitor looks at the page: from, and below."""
    if chance < CRAWLERS:
        return "crawler", 1, 60_000
    if chance < CRAWLERS + BOTS:
        return "bot", 1, 120
    if chance < CRAWLERS + BOTS + HURRIED:
        return "hurried", 150, 1_200
    return "person", 1_200, 60_000
