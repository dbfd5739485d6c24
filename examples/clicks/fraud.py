"""Clicks that no person made: an alert for each suspicion, once, to the topic `alerts`.

    burst   a user, or an address, has BURST_CLICKS clicks or more within one minute of their own time
    far     a user clicks at locations more than FAR_KM apart, in minutes that lie at most FAR_MINUTES apart; one alert
            for each hour in which the earlier click was made

Both are statements about *which* clicks there are, not about the order in which they come: a late click can only make
one true, and a click that comes twice, by its id, counts once. So the alerts of a set of records are always the same,
whatever the batches were, and the id of an alert says all that is in it: rule, subject, begin.

A click counts unless it arrives more than LATE_MS_MAX after it was made (or says that it was made after it arrived). So
a minute cannot change any more when every partition has brought a record that is a day younger, and it is forgotten
KEPT_MS after it: the state is as large as the clicks of two days. All clicks of a user are in one partition; those of
an address come from all of them, which are read at different paces: the slowest counts, unless it is IDLE_MS_MAX
behind. What comes later still is left out, and never told twice.

Spark hands every key to Python apart, with rows and a state of its own, which costs far more than looking at a handful
of clicks. So users and addresses share BUCKETS states, each one text of JSON; more of them make each one smaller.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from math import asin, cos, radians, sin, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from logmark.spark import Pipeline, Topic

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

SCHEMA = "id STRING, user STRING, address STRING, north DOUBLE, east DOUBLE, at_ms BIGINT, agent STRING"
MINUTE_MS, HOUR_MS, DAY_MS = 60 * 1000, 3600 * 1000, 24 * 3600 * 1000
BURST_CLICKS = 15
FAR_KM = 500
FAR_MINUTES = 10
LATE_MS_MAX = DAY_MS
KEPT_MS = 2 * DAY_MS
IDLE_MS_MAX = 30 * DAY_MS  # a partition to which nobody writes any more holds nothing up
BUCKETS = 8  # in each partition for its users, and in all for addresses

USER, ADDRESS = "user", "address"


class Seen(NamedTuple):
    """A click, as far as it matters for a user or an address; `order` sorts the clicks of a bucket."""

    order: int
    arrived_ms: int
    subject: str
    id: str
    at_ms: int
    north: float
    east: float
    partition: int = 0


class Alert(NamedTuple):
    """A suspicion: its id says all of it, so the same suspicion is the same record."""

    rule: str
    subject: str
    from_ms: int
    to_ms: int

    @property
    def id(self) -> str:
        return f"{self.rule}:{self.subject}:{self.from_ms}"

    @property
    def value(self) -> str:
        return json.dumps(self._asdict())


class Watch:
    """What is remembered of the users, or of the addresses, of one bucket: the minutes that can still change.

    ids     by subject and minute: the clicks, or null once they were enough for a burst
    locations  by user and location: the minutes
    told    by user: the hours for which there was an alert that locations are far apart
    """

    def __init__(self, kind: str, text: str | None = None, *, burst_clicks: int = BURST_CLICKS) -> None:
        self._kind = kind
        self._burst_clicks = burst_clicks
        known: dict[str, Any] = json.loads(text) if text else {}
        self._newest_ms: dict[str, int] = known.get("newest_ms", {})
        self._oldest_ms = self._oldest_that_can_change()
        self._ids: dict[str, dict[str, list[str] | None]] = known.get("ids", {})
        self._locations: dict[str, dict[str, list[int]]] = known.get("locations", {})
        self._told: dict[str, list[int]] = known.get("told", {})

    def text(self) -> str:
        """All of it, to go on from."""
        known = {"newest_ms": self._newest_ms, "ids": self._ids, "locations": self._locations, "told": self._told}
        return json.dumps(known, separators=(",", ":"))

    def see(self, clicks: Iterable[Seen]) -> Iterator[Alert]:
        """The suspicions that become true with these clicks."""
        for click in sorted(clicks):
            partition = str(click.partition)
            if click.arrived_ms > self._newest_ms.get(partition, 0):
                self._newest_ms[partition] = click.arrived_ms
                self._oldest_ms = self._oldest_that_can_change()
            if click.at_ms < self._oldest_ms:
                continue
            if self._is_burst(click):
                begin_ms = click.at_ms // MINUTE_MS * MINUTE_MS
                yield Alert(f"{self._kind}-burst", click.subject, begin_ms, begin_ms + MINUTE_MS)
            if self._kind == USER:
                yield from self._far_away(click)
        self._forget()

    def _oldest_that_can_change(self) -> int:
        """The time before which no minute can change any more, by the newest record of each partition."""
        times_ms = self._newest_ms.values()
        return max(min(times_ms) - KEPT_MS, max(times_ms) - IDLE_MS_MAX) if times_ms else 0

    def _is_burst(self, click: Seen) -> bool:
        """Whether there are enough clicks in this minute now, for the first time."""
        minutes = self._ids.get(click.subject)
        if minutes is None:
            minutes = self._ids[click.subject] = {}
        minute = str(click.at_ms // MINUTE_MS)
        ids = minutes.setdefault(minute, [])
        if ids is None or click.id in ids:
            return False
        ids.append(click.id)
        if len(ids) < self._burst_clicks:
            return False
        minutes[minute] = None
        return True

    def _far_away(self, click: Seen) -> Iterator[Alert]:
        here, minute = f"{click.north} {click.east}", click.at_ms // MINUTE_MS
        locations = self._locations.setdefault(click.subject, {})
        minutes = locations.setdefault(here, [])
        if minute in minutes:
            return
        minutes.append(minute)
        if len(locations) == 1:
            return
        oldest = self._oldest_ms // MINUTE_MS
        for there in [location for location in locations if _distance_km(here, location) > FAR_KM]:
            for other in locations[there]:
                begin_ms = min(minute, other) * MINUTE_MS // HOUR_MS * HOUR_MS
                told = self._told.setdefault(click.subject, [])
                if other >= oldest and abs(other - minute) <= FAR_MINUTES and begin_ms not in told:
                    told.append(begin_ms)
                    yield Alert("far", click.subject, begin_ms, begin_ms + HOUR_MS)

    def _forget(self) -> None:
        """Leaves out what no click can change any more."""
        oldest_ms = self._oldest_ms
        oldest = oldest_ms // MINUTE_MS
        self._ids = _kept(self._ids, lambda minutes: {at: ids for at, ids in minutes.items() if int(at) >= oldest})
        self._locations = _kept(
            self._locations, lambda locations: _kept(locations, lambda at: [one for one in at if one >= oldest])
        )
        self._told = _kept(self._told, lambda hours: [at_ms for at_ms in hours if at_ms > oldest_ms - HOUR_MS])


def _kept(known: dict[str, Any], keep: Callable[[Any], Any]) -> dict[str, Any]:
    """What is left of each, where anything is."""
    return {name: left for name, all_of_it in known.items() if (left := keep(all_of_it))}


def _distance_km(one: str, other: str) -> float:
    """How far two locations (degrees north and east) are apart."""
    north, east, north_there, east_there = (radians(float(part)) for part in f"{one} {other}".split())
    part = sin((north - north_there) / 2) ** 2 + cos(north) * cos(north_there) * sin((east - east_there) / 2) ** 2
    return 2 * 6371 * asin(min(1.0, sqrt(part)))


def alerts(records: "DataFrame") -> "DataFrame":
    """An alert for every burst and for every pair of clicks that is too far apart."""
    return _watched(records, BURST_CLICKS)


def alerts_with_a_bug(records: "DataFrame") -> "DataFrame":
    """The version that wants four times as many clicks for a burst, and so misses most of them."""
    return _watched(records, 4 * BURST_CLICKS)


def _watched(records: "DataFrame", burst_clicks: int) -> "DataFrame":
    def watch(
        bucket: tuple[Any, ...], frames: "Iterable[pandas.DataFrame]", state: "GroupState"
    ) -> "Iterator[pandas.DataFrame]":
        from pandas import DataFrame

        one = Watch(bucket[0], state.get[0] if state.exists else None, burst_clicks=burst_clicks)
        clicks = [click for frame in frames for click in map(Seen, *(frame[name].tolist() for name in Seen._fields))]
        found = list(one.see(clicks))
        state.update((one.text(),))
        yield DataFrame(
            {
                "key": [one.subject for one in found],
                "value": [one.value for one in found],
                "id": [one.id for one in found],
            },
            dtype="object",
        )

    # The functions of this file travel to the executors with the query: no executor needs the file.
    if __name__ in sys.modules:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    rows = _subjects(records).groupBy("kind", "bucket")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about every pandas since 3.0
        return rows.applyInPandasWithState(
            watch, "key STRING, value STRING, id STRING", "text STRING", "append", "NoTimeout"
        )


def _subjects(records: "DataFrame") -> "DataFrame":
    """Two rows for each click that counts: one for its user, one for its address."""
    clicks = records.selectExpr("partition", "offset", "unix_millis(timestamp) AS arrived_ms", "value.*")
    clicks = clicks.where("agent <> 'crawler' AND id IS NOT NULL AND north IS NOT NULL AND east IS NOT NULL")
    clicks = clicks.where(f"at_ms BETWEEN arrived_ms - {LATE_MS_MAX} AND arrived_ms + {MINUTE_MS}")
    return clicks.selectExpr(
        f"inline(array(struct('{USER}' AS kind, partition * {BUCKETS} + crc32(user) % {BUCKETS} AS bucket,"
        " offset AS order, user AS subject),"
        f" struct('{ADDRESS}' AS kind, crc32(address) % {BUCKETS} AS bucket,"
        " arrived_ms AS order, address AS subject)))",
        "arrived_ms", "id", "at_ms", "north", "east", "partition",
    ).where("subject IS NOT NULL")  # fmt: skip


fraud = Pipeline(
    name="fraud",
    topics="clicks",
    schema=SCHEMA,
    transform=alerts,
    sink=Topic("alerts"),
    dead_letters="clicks.dead",
    options={"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "200000"},
)

if __name__ == "__main__":
    fraud.main()
