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
_PRICES_HOLD_MS = 6 * _HOUR_MS


class People(NamedTuple):
    """Every user with the address and the city that he clicks from."""

    users: tuple[tuple[str, str, str], ...]


@cache
def people() -> People:
    """Households of one to four users behind one address."""
    chance = Random("people")
    users: list[tuple[str, str, str]] = []
    households = 0
    while len(users) < USERS:
        city = chance.choice(list(CITIES))
        address = f"198.18.{households >> 8}.{households & 255}"
        households += 1
        members = min(chance.randint(1, 4), USERS - len(users))
        users += [(f"u{len(users) + member:04d}", address, city) for member in range(members)]
    return People(tuple(users))


def campaigns_at(at_ms: int) -> tuple[str, ...]:
    """The campaigns that run at this hour of the day (UTC)."""
    return _campaigns_of(at_ms // _HOUR_MS % 24)


def price_micros(campaign: str, at_ms: int) -> int:
    """What the campaign pays for a click at this time, more or less: seven to thirteen tenths of its average."""
    return _price_of(campaign, at_ms // _PRICES_HOLD_MS)


@cache
def distance_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """How far two places are apart."""
    north, east, north_there, east_there = map(radians, (*one, *other))
    part = sin((north - north_there) / 2) ** 2 + cos(north) * cos(north_there) * sin((east - east_there) / 2) ** 2
    return 2 * 6371 * asin(sqrt(part))


@cache
def _campaigns_of(hour: int) -> tuple[str, ...]:
    return tuple(
        name
        for name, campaign in CAMPAIGNS.items()
        if campaign.from_hour <= hour < campaign.to_hour or hour + 24 < campaign.to_hour
    )


@cache
def _price_of(campaign: str, quarter_of_a_day: int) -> int:
    swing = zlib.crc32(f"{campaign} {quarter_of_a_day}".encode()) % 1_000
    return CAMPAIGNS[campaign].price_micros * (700 + swing * 6 // 10) // 1_000
