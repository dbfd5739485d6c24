"""What the pipelines must find, from the clicks as they are made: in one pass, without a log and without batches."""

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from examples.clicks.bounces import PERSON_DWELL_MS_MIN
from examples.clicks.features import NIGHT_HOURS
from examples.clicks.fraud import BURST_CLICKS, FAR_KM, FAR_MINUTES, HOUR_MS, LATE_MS_MAX, MINUTE_MS
from examples.clicks.generator import MISSING, Click
from examples.clicks.world import PARTITIONS, distance_km

_Subject = tuple[str, str]


def _times() -> "array[int]":
    return array("q")


class ClickOffset(NamedTuple):
    """Where in the topic a click is."""

    partition: int
    offset: int


@dataclass(slots=True)
class UserTotals:
    """What one user did."""

    clicks: int = 0
    campaigns: set[str] = field(default_factory=set)
    dwell_ms: int = 0
    first_ms: int = 1 << 62
    last_ms: int = 0
    at_night: int = 0
    price_micros: int = 0

    def add(self, click: Click) -> None:
        """Counts one more click."""
        at_ms = click.at_ms
        self.clicks += 1
        self.campaigns.add(click.campaign)
        self.dwell_ms += click.dwell_ms
        if at_ms < self.first_ms:
            self.first_ms = at_ms
        if at_ms > self.last_ms:
            self.last_ms = at_ms
        self.at_night += at_ms // HOUR_MS % 24 in NIGHT_HOURS
        self.price_micros += click.price_micros

    def row(self) -> dict[str, int | float]:
        """The same as columns of the table."""
        return {
            "clicks": self.clicks,
            "campaigns": len(self.campaigns),
            "dwell_ms": self.dwell_ms,
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "night_share": self.at_night / self.clicks,
            "mean_price_micros": self.price_micros / self.clicks,
        }


class Truth:
    """The sums over all clicks so far, and where in the log each kind of click must be."""

    def __init__(self) -> None:
        self.owed_micros: dict[tuple[str, int], int] = {}
        self.bounced: set[ClickOffset] = set()
        self.hurried: set[ClickOffset] = set()
        self.undecodable: dict[ClickOffset, str] = {}
        self.incomplete: set[ClickOffset] = set()
        self.users: dict[str, UserTotals] = defaultdict(UserTotals)
        self.crawlers: dict[str, UserTotals] = defaultdict(UserTotals)
        self._arrivals_ms = [array("q") for _ in range(PARTITIONS)]
        self._ids: set[str] = set()
        self._clicks_of: dict[_Subject, array[int]] = defaultdict(_times)
        self._locations_of: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def noting(self, clicks: Iterable[Click]) -> Iterator[Click]:
        """The same clicks, each counted as it goes by."""
        for click in clicks:
            self.note(click)
            yield click

    def note(self, click: Click) -> None:
        """Counts a click that gets the next offset of its partition."""
        arrivals_ms = self._arrivals_ms[click.partition]
        offset = ClickOffset(click.partition, len(arrivals_ms))
        arrivals_ms.append(click.arrived_ms)
        if click.flaw:
            self._note_broken(click, offset)
        elif click.kind == "crawler":
            self.crawlers[click.user].add(click)
        else:
            self._note_visitor(click, offset)

    def _note_broken(self, click: Click, offset: ClickOffset) -> None:
        if click.flaw != MISSING:
            self.undecodable[offset] = click.flaw
            return
        if click.kind != "crawler":
            self.incomplete.add(offset)
            # A price is nothing to the others.
            self._note_dwell(click, offset)
            self._note_suspect(click)

    def _note_visitor(self, click: Click, offset: ClickOffset) -> None:
        self.users[click.user].add(click)
        self._note_dwell(click, offset)
        if click.id in self._ids:
            return
        self._note_suspect(click)
        which = click.campaign, click.at_ms - click.at_ms % HOUR_MS
        self.owed_micros[which] = self.owed_micros.get(which, 0) + click.price_micros

    def _note_dwell(self, click: Click, offset: ClickOffset) -> None:
        if click.dwell_ms < PERSON_DWELL_MS_MIN:
            self.bounced.add(offset)
        elif click.dwell_ms < 10 * PERSON_DWELL_MS_MIN:
            self.hurried.add(offset)

    def _note_suspect(self, click: Click) -> None:
        self._ids.add(click.id)
        if click.arrived_ms - click.at_ms > LATE_MS_MAX:
            return
        self._clicks_of["user", click.user].append(click.at_ms)
        self._locations_of[click.user].append((click.north, click.east))
        self._clicks_of["address", click.address].append(click.at_ms)

    @property
    def ends(self) -> dict[int, int]:
        """The log end offset that each partition must have."""
        return {partition: len(times_ms) for partition, times_ms in enumerate(self._arrivals_ms)}

    @property
    def count(self) -> int:
        """All clicks."""
        return sum(self.ends.values())

    def first_since(self, at_ms: int) -> dict[int, int]:
        """The offset of the first click that arrived at or after a point in time, or the end, by partition."""
        return {partition: bisect_left(times_ms, at_ms) for partition, times_ms in enumerate(self._arrivals_ms)}

    def alerts(self, burst_clicks: int = BURST_CLICKS) -> set[str]:
        """The ids of all alerts that there must be."""
        return self._bursts(burst_clicks) | self._far()

    def _bursts(self, burst_clicks: int) -> set[str]:
        return {
            f"{kind}-burst:{subject}:{minute * MINUTE_MS}"
            for (kind, subject), times_ms in self._clicks_of.items()
            if len(times_ms) >= burst_clicks
            for minute, clicks in Counter(at_ms // MINUTE_MS for at_ms in times_ms).items()
            if clicks >= burst_clicks
        }

    def _far(self) -> set[str]:
        found = set()
        for user, locations in self._locations_of.items():
            times_ms = self._clicks_of["user", user]
            seen = sorted({(at_ms // MINUTE_MS, location) for at_ms, location in zip(times_ms, locations, strict=True)})
            for number, (minute, location) in enumerate(seen):
                soon = takewhile(lambda one: one[0] - minute <= FAR_MINUTES, seen[number + 1 :])  # noqa: B023
                if any(distance_km(location, other) > FAR_KM for _, other in soon):
                    found.add(f"far:{user}:{minute * MINUTE_MS // HOUR_MS * HOUR_MS}")
        return found

    def features(self, *, with_crawlers: bool = False) -> Mapping[str, dict[str, int | float]]:
        """The features of every user, and of crawlers as if they were some."""
        known = self.users | (self.crawlers if with_crawlers else {})
        return {user: totals.row() for user, totals in known.items()}
