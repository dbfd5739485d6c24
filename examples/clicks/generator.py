"""A click stream out of a seed: the same seed and the same days give the same clicks.

People come in sessions, from an address that they share with their household, more by day than by night. Campaigns run
at their own hours and pay prices that change four times a day. Among the people are crawlers that say so, bots that do
not, and thieves who use an account far away from its owner. Some clicks arrive late, some twice, and some broken.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from examples.clicks.world import CITIES, offers_at, partition_of, people

DAY_MS = 24 * 3600 * 1000
CRAWLERS = 12

LATE_VISITS = 0.02  # of a telephone without a net: all its clicks arrive up to a day later
TWICE = 0.01  # of all clicks arrive again, the same to the byte
TWICE_MUCH_LATER = 0.2  # of those do so up to three days later, the others within the second
BROKEN = 0.002
HURRIED = 0.06  # of people's clicks: they look at the page for about a second
TRIPS = 0.03  # of people's visits are made on a journey

# Every so many visits, so that a short stream has some of each too.
CRAWL_EVERY, USER_BURST_EVERY, ADDRESS_BURST_EVERY, THEFT_EVERY = 300, 500, 530, 180

# How busy each hour of the day is (UTC).
_BUSY = (2, 1, 1, 1, 1, 2, 4, 6, 8, 9, 9, 9, 10, 9, 8, 8, 9, 10, 11, 12, 12, 10, 7, 4)
_SHARES = (0.0, *itertools.accumulate(busy / sum(_BUSY) for busy in _BUSY))

CUT, WORDS, TYPE, MISSING = "cut off", "no JSON", "of another type", "without a price"
_FLAWS = (CUT, WORDS, TYPE, MISSING)


class Click(NamedTuple):
    """One click on an advertisement."""

    id: str
    user: str
    address: str
    north: float
    east: float
    campaign: str
    price_micros: int
    at_ms: int
    agent: str
    dwell_ms: int
    arrived_ms: int
    kind: str  # who it really was; no reader is told
    flaw: str = ""  # what is wrong with the record, if it is broken

    @property
    def key(self) -> bytes:
        """Clicks of one user are in one partition, in order."""
        return self.user.encode()

    @property
    def partition(self) -> int:
        """Where the click goes."""
        return partition_of(self.user)

    @property
    def value(self) -> bytes:
        """The click as JSON; no field needs escaping."""
        if self.flaw:
            return self._broken()
        return (
            f'{{"id":"{self.id}","user":"{self.user}","address":"{self.address}",'
            f'"north":{self.north},"east":{self.east},"campaign":"{self.campaign}","price_micros":{self.price_micros},"at_ms":{self.at_ms},'
            f'"agent":"{self.agent}","dwell_ms":{self.dwell_ms}}}'
        ).encode()

    def _broken(self) -> bytes:
        whole = self._replace(flaw="").value
        if self.flaw == CUT:
            return whole[: len(whole) // 2]
        if self.flaw == WORDS:
            return b"click! " + self.id.encode()
        if self.flaw == TYPE:
            return whole.replace(b'"at_ms":%d' % self.at_ms, b'"at_ms":"noon"')
        return whole.replace(b'"price_micros":%d,' % self.price_micros, b"")


def generate(count: int, *, seed: int, start_ms: int, end_ms: int, first_id: int = 0) -> Iterator[Click]:
    """Exactly `count` clicks that arrive between two points in time, in the order of their arrival."""
    crowd, days = _Crowd(seed, first_id), _Days(start_ms, end_ms)
    return _arrivals(crowd, (days.at((made + crowd.chance.random()) / count) for made in range(count)))


def endless(rate: float, *, seed: int, start_ms: int, first_id: int = 0) -> Iterator[Click]:
    """Clicks for ever, so many a second by their arrival."""
    crowd = _Crowd(seed, first_id)
    return _arrivals(
        crowd, (start_ms + int((made + crowd.chance.random()) * 1000 / rate) for made in itertools.count())
    )


def _arrivals(crowd: "_Crowd", times_ms: Iterable[int]) -> Iterator[Click]:
    """A click for each of these times: one that has waited for it, or the first of a visit that begins then."""
    waiting: list[tuple[int, int, Click]] = []
    number = 0
    for now_ms in times_ms:
        if waiting and waiting[0][0] <= now_ms:
            yield heappop(waiting)[2]
            continue
        first, *later = crowd.visit(now_ms)
        for click in later:
            number += 1
            heappush(waiting, (click.arrived_ms, number, click))
        yield first


class _Days:
    """Days whose hours are more or less busy."""

    def __init__(self, start_ms: int, end_ms: int) -> None:
        self._start_ms, self._end_ms = start_ms, end_ms
        self._first, self._last = self._busy_until(start_ms), self._busy_until(end_ms)

    def at(self, share: float) -> int:
        """The time by which this share of all that happens has happened."""
        day, rest = divmod(self._first + share * (self._last - self._first), 1.0)
        hour = bisect_right(_SHARES, rest, 0, 24) - 1
        part = (rest - _SHARES[hour]) / (_SHARES[hour + 1] - _SHARES[hour])
        at_ms = int((day + (hour + part) / 24) * DAY_MS)
        return min(max(at_ms, self._start_ms), self._end_ms)

    @staticmethod
    def _busy_until(at_ms: int) -> float:
        day, rest_ms = divmod(at_ms, DAY_MS)
        hour, part_ms = divmod(rest_ms, DAY_MS // 24)
        return day + _SHARES[hour] + (_SHARES[hour + 1] - _SHARES[hour]) * part_ms / (DAY_MS // 24)


class _Crowd:
    """Everybody who clicks, one visit after the other."""

    def __init__(self, seed: int, first_id: int) -> None:
        self.chance = Random(seed)
        self._people = people()
        self._next_id = first_id
        self._visits = 0

    def visit(self, now_ms: int) -> list[Click]:
        """The clicks of the next visit, in the order of their arrival; the first arrives now."""
        self._visits += 1
        kind = _unusual(self._visits)
        clicks = getattr(self, f"_{kind}")(now_ms) if kind else self._person(now_ms)
        return sorted(self._delivered(clicks), key=_arrival) if kind or len(clicks) > 1 else self._delivered(clicks)

    def _person(self, now_ms: int) -> list[Click]:
        random = self.chance.random
        # Squared: a few users click much, many click little.
        user, address, city = self._people[int(random() ** 2 * len(self._people))]
        delay_ms = int(random() ** 2 * DAY_MS) if random() < LATE_VISITS else 0
        if random() < TRIPS:
            city, address = self._elsewhere(city)
        clicks, at_ms = [], now_ms - delay_ms
        for _ in range(1 + int(random() ** 2 * 7)):
            dwell_ms = 150 + int(random() * 1_050) if random() < HURRIED else 1_200 + int(random() * 58_800)
            clicks.append(self._click(user, address, city, at_ms, dwell_ms, "person", at_ms + delay_ms))
            at_ms += dwell_ms + 5_000 + int(random() * 40_000)
        return clicks

    def _crawl(self, now_ms: int) -> list[Click]:
        number = int(self.chance.random() * CRAWLERS)
        address, city = f"198.19.255.{number}", next(iter(CITIES))
        times = range(now_ms, now_ms + 24 * 9_000, 9_000)
        return [self._click(f"crawler-{number:02d}", address, city, at, 400, "crawler", at) for at in times]

    def _user_burst(self, now_ms: int) -> list[Click]:
        user, address, city = self._anybody()
        return [
            self._click(user, address, city, at_ms, 1 + int(self.chance.random() * 119), "bot", at_ms)
            for at_ms in self._burst(now_ms)
        ]

    def _address_burst(self, now_ms: int) -> list[Click]:
        _, address, city = self._anybody()
        return [
            self._click(self._anybody()[0], address, city, at_ms, 1 + int(self.chance.random() * 119), "bot", at_ms)
            for at_ms in self._burst(now_ms)
        ]

    def _theft(self, now_ms: int) -> list[Click]:
        user, address, city = self._anybody()
        there, from_there = self._elsewhere(city)
        soon_ms = now_ms + 60_000 + int(self.chance.random() * 420_000)
        return [
            self._click(user, address, city, now_ms, 9_000, "person", now_ms),
            self._click(user, from_there, there, soon_ms, 2_000, "thief", soon_ms),
        ]

    def _burst(self, now_ms: int) -> list[int]:
        gap_ms = 400 + int(self.chance.random() * 500)
        return [now_ms + number * gap_ms for number in range(30 + int(self.chance.random() * 50))]

    def _anybody(self) -> tuple[str, str, str]:
        return self.chance.choice(self._people)

    def _elsewhere(self, city: str) -> tuple[str, str]:
        """Another city, and an address there."""
        there = self.chance.choice([name for name in CITIES if name != city])
        return there, f"198.19.{list(CITIES).index(there)}.{int(self.chance.random() * 200)}"

    def _click(
        self, user: str, address: str, city: str, at_ms: int, dwell_ms: int, kind: str, arrived_ms: int
    ) -> Click:
        random = self.chance.random
        offers = offers_at(at_ms)
        campaign, price_micros = offers[int(random() * len(offers))]
        price_micros = int(price_micros * (0.9 + random() * 0.2))
        id = f"c{self._next_id:09d}"
        self._next_id += 1
        agent = "crawler" if kind == "crawler" else "browser"
        flaw = _FLAWS[int(random() * len(_FLAWS))] if random() < BROKEN else ""
        return Click(
            id, user, address, *CITIES[city], campaign, price_micros, at_ms, agent, dwell_ms, arrived_ms, kind, flaw
        )

    def _delivered(self, clicks: list[Click]) -> list[Click]:
        """The clicks, and some of them once more."""
        random = self.chance.random
        again = []
        for click in clicks:
            if random() < TWICE and not click.flaw:
                later_ms = int(random() * 3 * DAY_MS) if random() < TWICE_MUCH_LATER else 40 + int(random() * 360)
                again.append(click._replace(arrived_ms=click.arrived_ms + later_ms))
        return clicks + again if again else clicks


def _unusual(visit: int) -> str:
    if visit % CRAWL_EVERY == 20:
        return "crawl"
    if visit % USER_BURST_EVERY == 40:
        return "user_burst"
    if visit % ADDRESS_BURST_EVERY == 90:
        return "address_burst"
    return "theft" if visit % THEFT_EVERY == 60 else ""


def _arrival(click: Click) -> int:
    return click.arrived_ms
