"""Queries after Spark's guide to structured streaming: every operator that selects, groups, joins or drops rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.spark.queries.events import DELAY, EPOCH, Event, group_by, orders_of, payments_of, window_start
from tests.spark.queries.query_case import QueryCase, Row

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

COMPLETE = {"mode": "complete"}
APPEND = {"mode": "append"}
COUNTRIES = {"u0": "NL", "u1": "DE"}
ORIGIN = ["topic", "partition", "offset"]


def upsert(*keys: str) -> dict[str, Any]:
    """Return a table of rows by these keys, for a query in update mode."""
    return {"mode": "upsert", "keys": keys}


def f() -> Any:
    """Return Spark's functions, which need Spark."""
    from pyspark.sql import functions

    return functions


def orders(events: "DataFrame") -> "DataFrame":
    return events.where("kind = 'order'")


def payments(events: "DataFrame") -> "DataFrame":
    return events.where("kind = 'payment'")


# Without state.


def large_orders(events: "DataFrame") -> "DataFrame":
    return orders(events).where("amount > 20").select(*ORIGIN, "id", "amount")


def exploded(events: "DataFrame") -> "DataFrame":
    return orders(events).select(*ORIGIN, "id", f().explode(f().sequence(f().lit(1), f().expr("amount % 3 + 1"))))


def by_python_function(events: "DataFrame") -> "DataFrame":
    @f().udf("string")
    def label(user: str, amount: int) -> str:
        return f"{user}:{amount // 10}"

    return events.select(*ORIGIN, label("user", "amount").alias("label"))


def by_pandas_function(events: "DataFrame") -> "DataFrame":
    import pandas as pd

    def double(amounts: pd.Series) -> pd.Series:
        return amounts * 2

    return events.select(*ORIGIN, f().pandas_udf(double, "int")("amount").alias("double"))


def in_pandas(events: "DataFrame") -> "DataFrame":
    def keep_even(frames: "Iterable[pd.DataFrame]") -> "Iterator[pd.DataFrame]":
        for frame in frames:
            yield frame[frame["amount"] % 2 == 0]

    rows = events.select(*ORIGIN, "id", "amount")
    return rows.mapInPandas(keep_even, rows.schema)


def in_arrow(events: "DataFrame") -> "DataFrame":
    def keep_odd(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow.compute as pc

        for batch in batches:
            yield batch.filter(pc.equal(pc.bit_wise_and(batch.column("amount"), 1), 1))

    rows = events.select(*ORIGIN, "id", "amount")
    return rows.mapInArrow(keep_odd, rows.schema)


def _countries(events: "DataFrame") -> "DataFrame":
    return events.sparkSession.createDataFrame(list(COUNTRIES.items()), "user STRING, country STRING")


def joined_with_a_table(events: "DataFrame") -> "DataFrame":
    return events.join(_countries(events), "user").select(*ORIGIN, "id", "country")


def joined_with_a_table_or_not(events: "DataFrame") -> "DataFrame":
    return events.join(f().broadcast(_countries(events)), "user", "left").select(*ORIGIN, "id", "country")


def united_filters(events: "DataFrame") -> "DataFrame":
    small = events.where("amount < 10").select(*ORIGIN, "id", f().lit("small").alias("size"))
    large = events.where("amount > 40").select(*ORIGIN, "id", f().lit("large").alias("size"))
    return small.unionByName(large)


def united_kinds(events: "DataFrame") -> "DataFrame":
    ordered = orders(events).select(*ORIGIN, "id", f().col("amount").alias("due"))
    paid = payments(events).select(*ORIGIN, "id", (-f().col("amount")).alias("due"))
    return ordered.union(paid)


STATELESS = (
    QueryCase(
        name="large_orders",
        transform=large_orders,
        expected=lambda events: [(one.amount, one.id) for one in orders_of(events) if one.amount > 20],
    ),
    QueryCase(
        name="exploded",
        transform=exploded,
        expected=lambda events: [(n, one.id) for one in orders_of(events) for n in range(1, one.amount % 3 + 2)],
    ),
    QueryCase(
        name="by_python_function",
        transform=by_python_function,
        expected=lambda events: [(f"{one.user}:{one.amount // 10}",) for one in events],
    ),
    QueryCase(
        name="by_pandas_function",
        transform=by_pandas_function,
        expected=lambda events: [(one.amount * 2,) for one in events],
    ),
    QueryCase(
        name="in_pandas",
        transform=in_pandas,
        expected=lambda events: [(one.amount, one.id) for one in events if one.amount % 2 == 0],
    ),
    QueryCase(
        name="in_arrow",
        transform=in_arrow,
        expected=lambda events: [(one.amount, one.id) for one in events if one.amount % 2 == 1],
    ),
    QueryCase(
        name="joined_with_a_table",
        transform=joined_with_a_table,
        expected=lambda events: [(COUNTRIES[one.user], one.id) for one in events if one.user in COUNTRIES],
    ),
    QueryCase(
        name="joined_with_a_table_or_not",
        transform=joined_with_a_table_or_not,
        expected=lambda events: [(COUNTRIES.get(one.user), one.id) for one in events],
    ),
    QueryCase(
        name="united_filters",
        transform=united_filters,
        expected=lambda events: [
            (one.id, "small" if one.amount < 10 else "large") for one in events if one.amount < 10 or one.amount > 40
        ],
    ),
    QueryCase(
        name="united_kinds",
        transform=united_kinds,
        expected=lambda events: [(one.amount if one.kind == "order" else -one.amount, one.id) for one in events],
    ),
)


# Aggregations.


def window(length: str, *slide: str) -> "Column":
    return f().window("at", length, *slide)


def in_time(events: "DataFrame") -> "DataFrame":
    return events.withWatermark("at", DELAY)


def is_closing(event: Event) -> bool:
    """The events that close the windows before them; nothing closes theirs."""
    return event.at_s > 20_000


def _tumbling(events: Sequence[Event], size_s: int) -> dict[Any, list[Event]]:
    return group_by([one for one in events if not is_closing(one)], lambda one: window_start(one.at_s, size_s))


def _sessions(events: Sequence[Event], gap_s: int) -> list[Row]:
    found: list[Row] = []
    for user, own in group_by([one for one in events if not is_closing(one)], lambda one: one.user).items():
        times = sorted(one.at for one in own)
        first = last = times[0]
        count = 0
        for at in times:
            if at >= last + timedelta(seconds=gap_s):
                found.append((count, last + timedelta(seconds=gap_s), first, user))
                first, count = at, 0
            last = at
            count += 1
        found.append((count, last + timedelta(seconds=gap_s), first, user))
    return found


def _sliding(events: Sequence[Event]) -> list[Row]:
    counts: dict[Any, int] = {}
    for one in events:
        newest = window_start(one.at_s, 300)
        for start in (newest, newest - timedelta(seconds=300)):
            counts[start] = counts.get(start, 0) + 1
    return [(count, start) for start, count in counts.items()]


def _chained(events: Sequence[Event]) -> list[Row]:
    outer: dict[Any, int] = {}
    for start, _ in {(window_start(one.at_s, 300), one.user) for one in events if not is_closing(one)}:
        long = window_start(int((start - EPOCH).total_seconds()), 600)
        outer[long] = outer.get(long, 0) + 1
    return [(count, start) for start, count in outer.items()]


def _by_user(events: Sequence[Event], row: Callable[[str, list[Event]], Row]) -> list[Row]:
    return [row(user, own) for user, own in group_by(events, lambda one: one.user).items()]


def _closed_windows(events: "DataFrame") -> "DataFrame":
    return in_time(events).groupBy(window("5 minutes")).agg(f().count("*").alias("n"), f().sum("amount").alias("sum"))


def _chained_windows(events: "DataFrame") -> "DataFrame":
    inner = in_time(events).groupBy(window("5 minutes"), "user").count()
    outer = inner.groupBy(f().window(f().window_time("window"), "10 minutes").alias("long")).count()
    return outer.selectExpr("long.start AS start", "count")


AGGREGATIONS = (
    QueryCase(
        name="count_of_users_whole",
        transform=lambda events: events.groupBy("user").count(),
        expected=lambda events: _by_user(events, lambda user, own: (len(own), user)),
        table=COMPLETE,
    ),
    QueryCase(
        name="count_of_users_updated",
        transform=lambda events: events.groupBy("user").count(),
        expected=lambda events: _by_user(events, lambda user, own: (len(own), user)),
        table=upsert("user"),
    ),
    QueryCase(
        name="amounts_of_users",
        transform=lambda events: events.groupBy("user").agg(
            f().avg("amount").alias("avg"), f().max("amount").alias("max"), f().min("amount").alias("min")
        ),
        expected=lambda events: _by_user(
            events,
            lambda user, own: (
                sum(one.amount for one in own) / len(own),
                max(one.amount for one in own),
                min(one.amount for one in own),
                user,
            ),
        ),
        table=upsert("user"),
    ),
    QueryCase(
        name="tumbling_windows",
        transform=lambda events: _closed_windows(events).selectExpr("window.start AS start", "n", "sum"),
        expected=lambda events: [
            (len(own), start, sum(one.amount for one in own)) for start, own in _tumbling(events, 300).items()
        ],
        table=APPEND,
        drops_late=True,
    ),
    QueryCase(
        name="sliding_windows",
        transform=lambda events: in_time(events)
        .groupBy(window("10 minutes", "5 minutes"))
        .count()
        .selectExpr("window.start AS start", "count"),
        expected=_sliding,
        table=upsert("start"),
        drops_late=True,
    ),
    QueryCase(
        name="session_windows",
        transform=lambda events: in_time(events)
        .groupBy(f().session_window("at", "3 minutes").alias("session"), "user")
        .count()
        .selectExpr("count", "session.end AS end", "session.start AS start", "user"),
        expected=lambda events: _sessions(events, 180),
        table=APPEND,
        drops_late=True,
    ),
    QueryCase(
        name="windows_of_windows",
        transform=_chained_windows,
        expected=_chained,
        table=APPEND,
        drops_late=True,
    ),
    QueryCase(
        name="distinct_users_about",
        transform=lambda events: events.groupBy("kind").agg(f().approx_count_distinct("user").alias("users")),
        expected=lambda events: [
            (kind, len({one.user for one in own})) for kind, own in group_by(events, lambda one: one.kind).items()
        ],
        table=COMPLETE,
    ),
    QueryCase(
        name="collected_amounts",
        transform=lambda events: events.groupBy("user").agg(f().sort_array(f().collect_set("amount")).alias("amounts")),
        expected=lambda events: _by_user(events, lambda user, own: (tuple(sorted({one.amount for one in own})), user)),
        table=COMPLETE,
    ),
    QueryCase(
        name="cube_of_kinds_and_users",
        transform=lambda events: events.cube("kind", "user").count(),
        expected=lambda events: [(count, *key) for key, count in _cube(events).items()],
        table=COMPLETE,
    ),
    QueryCase(
        name="first_users_in_order",
        transform=lambda events: events.groupBy("user").count().orderBy("user").limit(2),
        expected=lambda events: sorted(
            _by_user(events, lambda user, own: (len(own), user)), key=lambda row: str(row[1])
        )[:2],
        table=COMPLETE,
    ),
)


def _cube(events: Sequence[Event]) -> dict[Row, int]:
    counts: dict[Row, int] = {}
    for one in events:
        for key in ((one.kind, one.user), (one.kind, None), (None, one.user), (None, None)):
            counts[key] = counts.get(key, 0) + 1
    return counts


# Duplicates.

DUPLICATES = (
    QueryCase(
        name="first_of_each_id",
        transform=lambda events: orders(events).dropDuplicates(["id"]).select("id", "amount"),
        expected=lambda events: {(one.amount, one.id) for one in orders_of(events)},
        table=APPEND,
    ),
    QueryCase(
        name="first_of_each_id_and_time",
        transform=lambda events: in_time(orders(events)).dropDuplicates(["id", "at"]).select("id", "at"),
        expected=lambda events: {(one.at, one.id) for one in orders_of(events)},
        table=APPEND,
        drops_late=True,
    ),
    QueryCase(
        name="first_of_each_id_within_the_watermark",
        transform=lambda events: in_time(orders(events)).dropDuplicatesWithinWatermark(["id"]).select("id", "amount"),
        expected=lambda events: {(one.amount, one.id) for one in orders_of(events)},
        table=APPEND,
        drops_late=True,
    ),
    QueryCase(
        name="distinct_users",
        transform=lambda events: events.select("user").distinct(),
        expected=lambda events: {(one.user,) for one in events},
        table=APPEND,
    ),
)


# Joins of streams. An order is paid within ten minutes, or not at all.


def _sides(events: "DataFrame") -> "tuple[DataFrame, DataFrame]":
    ordered = orders(events).selectExpr("id", "user", "amount", "at AS ordered_at")
    paid = payments(events).selectExpr("id AS paid_id", "at AS paid_at")
    return ordered.withWatermark("ordered_at", DELAY), paid.withWatermark("paid_at", DELAY)


def _joined(how: str) -> "Callable[[DataFrame], DataFrame]":
    def transform(events: "DataFrame") -> "DataFrame":
        ordered, paid = _sides(events)
        soon = "id = paid_id AND paid_at >= ordered_at AND paid_at <= ordered_at + INTERVAL 10 MINUTES"
        rows = ordered.join(paid, f().expr(soon), how)
        return rows.select("id") if how == "left_semi" else rows.select("id", "paid_id")

    return transform


def _pairs(events: Sequence[Event]) -> list[tuple[Event, Event]]:
    return [
        (order, payment)
        for order in orders_of(events)
        for payment in payments_of(events)
        if order.id == payment.id and 0 <= payment.at_s - order.at_s <= 600
    ]


def _inner(events: Sequence[Event]) -> list[Row]:
    return [(order.id, payment.id) for order, payment in _pairs(events)]


def _paid(events: Sequence[Event]) -> list[Row]:
    paid = {id(order) for order, _ in _pairs(events)}
    return [(one.id,) for one in orders_of(events) if id(one) in paid]


def _left_only(events: Sequence[Event]) -> list[Row]:
    paid = {id(order) for order, _ in _pairs(events)}
    return [(one.id, None) for one in orders_of(events) if id(one) not in paid and not is_closing(one)]


def _right_only(events: Sequence[Event]) -> list[Row]:
    used = {id(payment) for _, payment in _pairs(events)}
    return [(None, one.id) for one in payments_of(events) if id(one) not in used and not is_closing(one)]


def _with_itself(events: "DataFrame") -> "DataFrame":
    rows = orders(events).select("id", "user", "at").withWatermark("at", DELAY)
    a, b = rows.alias("a"), rows.alias("b")
    near = "a.user = b.user AND a.at < b.at AND b.at <= a.at + INTERVAL 5 MINUTES"
    return a.join(b, f().expr(near)).selectExpr("a.id AS first", "b.id AS second")


def _near(events: Sequence[Event]) -> list[Row]:
    every = orders_of(events)
    return [(a.id, b.id) for a in every for b in every if a.user == b.user and 0 < b.at_s - a.at_s <= 300]


def _joined_and_counted(events: "DataFrame") -> "DataFrame":
    ordered, paid = _sides(events)
    soon = "id = paid_id AND paid_at >= ordered_at AND paid_at <= ordered_at + INTERVAL 10 MINUTES"
    rows = ordered.join(paid, f().expr(soon))
    return rows.groupBy(f().window("ordered_at", "10 minutes")).count().selectExpr("window.start AS start", "count")


def _paid_by_window(events: Sequence[Event]) -> list[Row]:
    found = group_by([order for order, _ in _pairs(events)], lambda one: window_start(one.at_s, 600))
    return [(len(own), start) for start, own in found.items()]


JOINS = (
    QueryCase(name="orders_paid", transform=_joined("inner"), expected=_inner, table=APPEND, drops_late=True),
    QueryCase(
        name="orders_paid_or_not",
        transform=_joined("left_outer"),
        expected=lambda events: [*_inner(events), *_left_only(events)],
        table=APPEND,
        drops_late=True,
    ),
    QueryCase(
        name="payments_with_and_without_order",
        transform=_joined("right_outer"),
        expected=lambda events: [*_inner(events), *_right_only(events)],
        table=APPEND,
        drops_late=True,
    ),
    QueryCase(
        name="orders_and_payments",
        transform=_joined("full_outer"),
        expected=lambda events: [*_inner(events), *_left_only(events), *_right_only(events)],
        table=APPEND,
        drops_late=True,
    ),
    QueryCase(
        name="orders_that_were_paid",
        transform=_joined("left_semi"),
        expected=_paid,
        table=APPEND,
        drops_late=True,
    ),
    QueryCase(name="orders_near_each_other", transform=_with_itself, expected=_near, table=APPEND, drops_late=True),
    QueryCase(
        name="paid_orders_by_window",
        transform=_joined_and_counted,
        expected=_paid_by_window,
        table=APPEND,
        drops_late=True,
    ),
)
