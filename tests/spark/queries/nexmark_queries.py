"""Nexmark's queries over persons, auctions and bids, as far as Spark accepts them as streaming SQL.

Where a query says COUNT(DISTINCT …), which Spark refuses in a stream, it is approx_count_distinct here, which is exact
for so few. `REFUSED` has the queries that Spark does not take.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.spark.queries.events import DAY_S, DELAY, EPOCH, group_by, window_start
from tests.spark.queries.guide_queries import APPEND, COMPLETE, upsert
from tests.spark.queries.query_case import QueryCase, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIELDS = (
    "kind STRING, id INT, name STRING, city STRING, state STRING, item STRING, category INT, seller INT, "
    "auction INT, bidder INT, price INT, channel STRING, url STRING, at TIMESTAMP"
)
ORIGIN = "topic, partition, offset"
CHANNELS = ("Apple", "Google", "Facebook", "Baidu")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketEvent:
    """A person, an auction or a bid; fields of the other kinds are null."""

    kind: str
    at_s: int
    is_late: bool = False
    id: int | None = None
    name: str | None = None
    city: str | None = None
    state: str | None = None
    item: str | None = None
    category: int | None = None
    seller: int | None = None
    auction: int | None = None
    bidder: int | None = None
    price: int | None = None
    channel: str | None = None
    url: str | None = None

    @property
    def at(self) -> datetime:
        """The event time."""
        return EPOCH + timedelta(seconds=self.at_s)

    @property
    def value(self) -> str:
        """The record's value."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        del fields["at_s"], fields["is_late"]
        return json.dumps({**fields, "at": self.at.strftime("%Y-%m-%dT%H:%M:%SZ")})


def _person(number: int, at_s: int) -> MarketEvent:
    state = ("OR", "ID", "CA", "NY")[number % 4]
    return MarketEvent(kind="person", at_s=at_s, id=number, name=f"p{number}", city=f"c{number % 3}", state=state)


def _auction(number: int, at_s: int) -> MarketEvent:
    return MarketEvent(
        kind="auction", at_s=at_s, id=number, item=f"i{number}", category=10 + number % 2, seller=number % 6
    )


def _bid(number: int, at_s: int, *, is_late: bool = False) -> MarketEvent:
    return MarketEvent(
        kind="bid",
        at_s=at_s,
        is_late=is_late,
        auction=number % 8,
        bidder=number % 5,
        price=100 * (number * 37 % 100) + number,
        channel=CHANNELS[number % 4],
        url=f"https://example.org/a{number % 3}/b{number % 2}/item.htm?query=1&channel_id={number % 7}",
    )


FIRST = [
    *(_person(number, number * 50) for number in range(4)),
    *(_auction(number, 30 + number * 80) for number in range(6)),
    *(_bid(number, (number * 170) % 600) for number in range(24)),
]
SECOND = [
    *(_bid(number, 1200 - (number * 130) % 700) for number in range(24, 40)),
    *(_person(number, 400 + number * 60) for number in range(4, 7)),
    *(_auction(number, 500 + number * 40) for number in range(6, 9)),
    _bid(90, -7200, is_late=True),
    _bid(91, -7300, is_late=True),
]
THIRD = [_bid(99, DAY_S), _person(99, DAY_S), _auction(99, DAY_S)]
ALL = [*FIRST, *SECOND, *THIRD]
IN_TIME = [one for one in ALL if not one.is_late]
Events = Sequence[MarketEvent]


def sql(text: str) -> "Callable[[DataFrame], DataFrame]":
    """Return the rows of a query over `person`, `auction` and `bid`; `bid_in_time` and so on have a watermark."""

    def transform(events: "DataFrame") -> "DataFrame":
        spark = events.sparkSession
        for kind in ("person", "auction", "bid"):
            rows = events.where(f"kind = '{kind}'")
            rows.createOrReplaceTempView(kind)
            rows.withWatermark("at", DELAY).createOrReplaceTempView(f"{kind}_in_time")
        side = spark.createDataFrame([(number, f"side{number}") for number in range(4)], "key INT, side STRING")
        side.createOrReplaceTempView("side")
        return spark.sql(text)

    return transform


def _kind(events: Events, kind: str) -> list[MarketEvent]:
    return [one for one in events if one.kind == kind]


def bids(events: Events) -> list[MarketEvent]:
    return _kind(events, "bid")


def _case(name: str, text: str, expected: Callable[[Events], Any], **more: Any) -> QueryCase:
    return QueryCase(name=name, transform=sql(text), expected=expected, fields=FIELDS, **more)


def _open(one: MarketEvent) -> bool:
    return one.at_s < DAY_S


def _int(value: int | None) -> int:
    assert value is not None
    return value


def _hot_items(events: Events) -> list[Row]:
    counts: dict[tuple[datetime, int], int] = {}
    for one in filter(_open, bids(events)):
        newest = window_start(one.at_s, 300)
        for start in (newest, newest - timedelta(seconds=300)):
            key = start, _int(one.auction)
            counts[key] = counts.get(key, 0) + 1
    best: dict[datetime, int] = {}
    for (start, _), count in counts.items():
        best[start] = max(best.get(start, 0), count)
    return [(count, start) for start, count in best.items()]


def _sessions(events: Events) -> list[Row]:
    found: list[Row] = []
    for bidder, own in group_by(filter(_open, bids(events)), lambda one: one.bidder).items():
        times = sorted(one.at for one in own)
        sessions = [[times[0]]]
        for at in times[1:]:
            if at - sessions[-1][-1] >= timedelta(seconds=120):
                sessions.append([])
            sessions[-1].append(at)
        found += [(bidder, len(one), one[0]) for one in sessions]
    return found


def _same_window(events: Events) -> list[Row]:
    people, sales = _kind(events, "person"), _kind(events, "auction")
    return [
        (person.id, person.name, window_start(person.at_s, 600))
        for person in people
        for sale in sales
        if person.id == sale.seller and window_start(person.at_s, 600) == window_start(sale.at_s, 600)
    ]


def _hour(one: MarketEvent) -> str:
    return "day" if 8 <= one.at.hour <= 18 else "night"


def _channel_id(one: MarketEvent) -> str:
    return {"Apple": "0", "Google": "1"}.get(str(one.channel)) or str(one.url).partition("channel_id=")[2]


ACCEPTED = (
    _case(
        "q0_pass_through",
        f"SELECT {ORIGIN}, auction, bidder, price, at FROM bid",
        lambda events: [(one.at, one.auction, one.bidder, one.price) for one in bids(events)],
    ),
    _case(
        "q1_currency",
        f"SELECT {ORIGIN}, auction, CAST(price * 1000 DIV 908 AS INT) AS euros FROM bid",
        lambda events: [(one.auction, _int(one.price) * 1000 // 908) for one in bids(events)],
    ),
    _case(
        "q2_selection",
        f"SELECT {ORIGIN}, auction, price FROM bid WHERE auction % 3 = 0",
        lambda events: [(one.auction, one.price) for one in bids(events) if _int(one.auction) % 3 == 0],
    ),
    _case(
        "q3_local_items",
        "SELECT p.name, p.city, p.state, a.id AS item FROM auction a JOIN person p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
        lambda events: [
            (person.city, sale.id, person.name, person.state)
            for sale in _kind(events, "auction")
            for person in _kind(events, "person")
            if sale.seller == person.id and sale.category == 10 and person.state in ("OR", "ID", "CA")
        ],
        table=APPEND,
    ),
    _case(
        "q5_hot_items",
        "SELECT w.start AS start, max(n) AS n FROM (SELECT auction, window(at, '10 minutes', '5 minutes') AS w, "
        "count(*) AS n FROM bid_in_time GROUP BY auction, window(at, '10 minutes', '5 minutes')) GROUP BY w",
        _hot_items,
        table=APPEND,
        drops_late=True,
    ),
    _case(
        "q7_highest_bid",
        "SELECT window.start AS start, max(price) AS price, max_by(bidder, price) AS bidder FROM bid_in_time "
        "GROUP BY window(at, '5 minutes')",
        lambda events: [
            (best.bidder, best.price, start)
            for start, own in group_by(filter(_open, bids(events)), lambda one: window_start(one.at_s, 300)).items()
            for best in [max(own, key=lambda one: _int(one.price))]
        ],
        table=APPEND,
        drops_late=True,
    ),
    _case(
        "q8_new_users",
        "SELECT p.id, p.name, p.w.start AS start FROM "
        "(SELECT id, name, window(at, '10 minutes') AS w FROM person_in_time) p JOIN "
        "(SELECT seller, window(at, '10 minutes') AS w FROM auction_in_time) a ON p.id = a.seller AND p.w = a.w",
        _same_window,
        table=APPEND,
        drops_late=True,
    ),
    _case(
        "q11_sessions",
        "SELECT bidder, count(*) AS n, session_window.start AS start FROM bid_in_time "
        "GROUP BY bidder, session_window(at, '2 minutes')",
        _sessions,
        table=APPEND,
        drops_late=True,
    ),
    _case(
        "q13_side_input",
        f"SELECT {ORIGIN}, auction, side FROM bid JOIN side ON bid.auction = side.key",
        lambda events: [(one.auction, f"side{one.auction}") for one in bids(events) if _int(one.auction) < 4],
    ),
    _case(
        "q14_calculation",
        f"SELECT {ORIGIN}, auction, CASE WHEN hour(at) BETWEEN 8 AND 18 THEN 'day' ELSE 'night' END AS time, "
        "length(url) - length(replace(url, 'c', '')) AS cs FROM bid WHERE price > 1000",
        lambda events: [
            (one.auction, str(one.url).count("c"), _hour(one)) for one in bids(events) if _int(one.price) > 1000
        ],
    ),
    _case(
        "q15_bids_a_day",
        "SELECT date_format(at, 'yyyy-MM-dd') AS day, count(*) AS n, count(*) FILTER (WHERE price < 3000) AS cheap, "
        "approx_count_distinct(bidder) AS bidders FROM bid GROUP BY date_format(at, 'yyyy-MM-dd')",
        lambda events: [
            (len({one.bidder for one in own}), sum(_int(one.price) < 3000 for one in own), day, len(own))
            for day, own in group_by(bids(events), lambda one: one.at.strftime("%Y-%m-%d")).items()
        ],
        table=COMPLETE,
    ),
    _case(
        "q16_channels",
        "SELECT channel, count(*) AS n, approx_count_distinct(auction) AS auctions FROM bid GROUP BY channel",
        lambda events: [
            (len({one.auction for one in own}), channel, len(own))
            for channel, own in group_by(bids(events), lambda one: one.channel).items()
        ],
        table=upsert("channel"),
    ),
    _case(
        "q17_auctions",
        "SELECT auction, min(price) AS low, max(price) AS high, sum(price) AS total FROM bid GROUP BY auction",
        lambda events: [
            (auction, max(prices), min(prices), sum(prices))
            for auction, own in group_by(bids(events), lambda one: one.auction).items()
            for prices in [[_int(one.price) for one in own]]
        ],
        table=upsert("auction"),
    ),
    _case(
        "q20_bids_with_auction",
        "SELECT b.bidder, b.price, a.item FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10",
        lambda events: [
            (bid.bidder, sale.item, bid.price)
            for bid in bids(events)
            for sale in _kind(events, "auction")
            if bid.auction == sale.id and sale.category == 10
        ],
        table=APPEND,
    ),
    _case(
        "q21_channel_ids",
        f"SELECT {ORIGIN}, auction, CASE channel WHEN 'Apple' THEN '0' WHEN 'Google' THEN '1' "
        "ELSE regexp_extract(url, 'channel_id=(.*)', 1) END AS channel_id FROM bid",
        lambda events: [(one.auction, _channel_id(one)) for one in bids(events)],
    ),
    _case(
        "q22_url_parts",
        f"SELECT {ORIGIN}, split(url, '/')[3] AS one, split(url, '/')[4] AS two FROM bid",
        lambda events: [(f"{str(one.url).split('/')[3]}", f"{str(one.url).split('/')[4]}") for one in bids(events)],
    ),
)

# Queries that Spark does not accept as a stream, with the condition that it names.
REFUSED = {
    "q4_average_price": (
        "SELECT category, avg(final) FROM (SELECT a.id, a.category, max(b.price) AS final FROM auction a "
        "JOIN bid b ON a.id = b.auction GROUP BY a.id, a.category) GROUP BY category",
        COMPLETE,
    ),
    "q6_average_of_last_ten": (
        "SELECT auction, avg(price) OVER (PARTITION BY bidder ORDER BY at ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) "
        "FROM bid",
        APPEND,
    ),
    "q9_winning_bids": (
        "SELECT * FROM (SELECT auction, price, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank "
        "FROM bid) WHERE rank = 1",
        APPEND,
    ),
    "q15_distinct": ("SELECT count(DISTINCT bidder) FROM bid GROUP BY channel", COMPLETE),
    "q18_last_bid": (
        "SELECT * FROM (SELECT auction, bidder, row_number() OVER (PARTITION BY bidder, auction ORDER BY at DESC) AS n "
        "FROM bid) WHERE n = 1",
        APPEND,
    ),
    "q19_top_ten": (
        "SELECT * FROM (SELECT auction, price, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS n "
        "FROM bid) WHERE n <= 10",
        APPEND,
    ),
}
# q10 writes files by Spark's own sink, and q12 counts by the time of the processing: neither has one right result.
