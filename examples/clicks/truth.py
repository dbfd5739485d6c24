"""What the readers must find, added up directly from the clicks as they are made, without a log or a pipeline."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from examples.clicks.generator import PARTITIONS, Click


class Place(NamedTuple):
    """Where in the topic a click is."""

    partition: int
    offset: int


@dataclass(slots=True)
class UserTotals:
    """What one user did."""

    clicks: int = 0
    dwell_ms: int = 0
    campaigns: set[str] = field(default_factory=set)


class Truth:
    """The sums over all clicks so far, and where in the log each kind of click must be."""

    def __init__(self) -> None:
        self.owed_micros: dict[str, int] = {}
        self.bots: set[Place] = set()
        self.hurried: set[Place] = set()
        self.users: dict[str, UserTotals] = {}
        self._times_ms = [array("q") for _ in range(PARTITIONS)]
        self._charged: set[str] = set()

    def noting(self, clicks: Iterable[Click]) -> Iterator[Click]:
        """The same clicks, each counted as it goes by."""
        for click in clicks:
            self.note(click)
            yield click

    def note(self, click: Click) -> None:
        """Counts a click that gets the next offset of its partition."""
        times_ms = self._times_ms[click.partition]
        place = Place(click.partition, len(times_ms))
        times_ms.append(click.at_ms)
        if click.kind == "bot":
            self.bots.add(place)
        elif click.kind == "hurried":
            self.hurried.add(place)
        if click.kind != "crawler" and click.id not in self._charged:
            self._charged.add(click.id)
            self.owed_micros[click.campaign] = self.owed_micros.get(click.campaign, 0) + click.price_micros
        totals = self.users.setdefault(click.user, UserTotals())
        totals.clicks += 1
        totals.dwell_ms += click.dwell_ms
        totals.campaigns.add(click.campaign)

    @property
    def ends(self) -> dict[int, int]:
        """The log end offset that each partition must have."""
        return {partition: len(times_ms) for partition, times_ms in enumerate(self._times_ms)}

    @property
    def count(self) -> int:
        """All clicks."""
        return sum(self.ends.values())

    def first_since(self, at_ms: int) -> dict[int, int]:
        """The offset of the first click at or after a point in time, or the end, by partition."""
        return {
            partition: next((offset for offset, time_ms in enumerate(times_ms) if time_ms >= at_ms), len(times_ms))
            for partition, times_ms in enumerate(self._times_ms)
        }
