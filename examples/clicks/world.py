"""Where the clicks come from: cities, households, campaigns and what these pay; the same for every seed."""

import zlib
from functools import cache
from math import asin, cos, radians, sin, sqrt
from random import Random
from typing import NamedTuple

TOPIC = "clicks"
PARTITIONS = 4
USERS = 5_000

# Degrees north and east.
CITIES = {
    "Berlin": (52.52, 13.40),
    "Hamburg": (53.55, 9.99),
    "Vienna": (48.21, 16.37),
    "Lisbon": (38.72, -9.14),
    "Athens": (37.98, 23.73),
    "Oslo": (59.91, 10.75),
    "Lagos": (6.52, 3.38),
    "Toronto": (43.65, -79.38),
    "Lima": (-12.05, -77.04),
    "Osaka": (34.69, 135.50),
}


class Campaign(NamedTuple):
    """What a click costs on average, in millionths of the currency (money is never a float), and when it runs."""

    price_micros: int
    from_hour: int = 0
    to_hour: int = 24


CAMPAIGNS = {
    "spring-sale": Campaign(412_000),
    "new-shoes": Campaign(385_500),
    "coffee-club": Campaign(127_250, 4, 14),
    "city-breaks": Campaign(1_240_900),
    "night-bus": Campaign(58_330, 18, 30),
    "used-books": Campaign(31_770),
    "garden-days": Campaign(204_610, 6, 20),
    "piano-lessons": Campaign(766_040, 9, 22),
}

_HOUR_MS = 3600 * 1000


@cache
def people() -> tuple[tuple[str, str, str], ...]:
    """Every user, with the address of a household of one to four, and its city."""
    chance = Random("people")
    users: list[tuple[str, str, str]] = []
    households = 0
    while len(users) < USERS:
        city = chance.choice(list(CITIES))
        address = f"198.18.{households >> 8}.{households & 255}"
        households += 1
        members = min(chance.randint(1, 4), USERS - len(users))
        users += [(f"u{len(users) + member:04d}", address, city) for member in range(members)]
    return tuple(users)


def offers_at(at_ms: int) -> tuple[tuple[str, int], ...]:
    """The campaigns that run at this hour of the day (UTC), and what they pay for a click now, more or less."""
    return _offers(at_ms // _HOUR_MS)


@cache
def partition_of(user: str) -> int:
    """Where the clicks of a user go: the choice of librdkafka's `consistent` partitioner."""
    return zlib.crc32(user.encode()) % PARTITIONS


@cache
def distance_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """How far two locations are apart."""
    north, east, north_there, east_there = map(radians, (*one, *other))
    part = sin((north - north_there) / 2) ** 2 + cos(north) * cos(north_there) * sin((east - east_there) / 2) ** 2
    return 2 * 6371 * asin(sqrt(part))


@cache
def _offers(hours: int) -> tuple[tuple[str, int], ...]:
    hour, quarter_of_a_day = hours % 24, hours // 6
    return tuple(
        (name, _price_micros(name, quarter_of_a_day))
        for name, campaign in CAMPAIGNS.items()
        if campaign.from_hour <= hour < campaign.to_hour or hour + 24 < campaign.to_hour
    )


def _price_micros(campaign: str, quarter_of_a_day: int) -> int:
    """Seven to thirteen tenths of its average."""
    swing = zlib.crc32(f"{campaign} {quarter_of_a_day}".encode()) % 1_000
    return CAMPAIGNS[campaign].price_micros * (700 + swing * 6 // 10) // 1_000
