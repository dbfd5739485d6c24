"""Queries that keep state by functions of their own, in every form that Spark has for Python, and chained operators."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tests.spark.queries.events import DELAY, Event, group_by, orders_of, window_start
from tests.spark.queries.guide_queries import APPEND, f, is_closing, orders, upsert
from tests.spark.queries.query_case import QueryCase, Row

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

SUMS = "user STRING, sum INT, n INT"


def _sums(events: Sequence[Event]) -> list[Row]:
    found = group_by(orders_of(events), lambda one: one.user)
    return [(len(own), sum(one.amount for one in own), user) for user, own in found.items()]


def sums_in_pandas(events: "DataFrame") -> "DataFrame":
    def add(key: Any, frames: "Iterable[pd.DataFrame]", state: "GroupState") -> "Iterator[pd.DataFrame]":
        import pandas as pd

        total, count = state.get if state.exists else (0, 0)
        for frame in frames:
            total, count = total + int(frame["amount"].sum()), count + len(frame)
        state.update((total, count))
        yield pd.DataFrame({"user": [key[0]], "sum": [total], "n": [count]})

    return orders(events).groupBy("user").applyInPandasWithState(add, SUMS, "sum INT, n INT", "update", "NoTimeout")


def sums_by_row_processor(events: "DataFrame") -> "DataFrame":
    from pyspark.sql import Row as SparkRow
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Summing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("sums", "sum INT, n INT")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            total, count = self.state.get() if self.state.exists() else (0, 0)
            for row in rows:
                total, count = total + row.amount, count + 1
            self.state.update((total, count))
            yield SparkRow(user=key[0], sum=total, n=count)

        def close(self) -> None:
            pass

    return orders(events).groupBy("user").transformWithState(Summing(), SUMS, "update", "none")


def sums_by_pandas_processor(events: "DataFrame") -> "DataFrame":
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Summing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("sums", "sum INT, n INT")

        def handleInputRows(
            self, key: Any, rows: "Iterator[pd.DataFrame]", timerValues: Any
        ) -> "Iterator[pd.DataFrame]":
            import pandas as pd

            total, count = self.state.get() if self.state.exists() else (0, 0)
            for frame in rows:
                total, count = total + int(frame["amount"].sum()), count + len(frame)
            self.state.update((total, count))
            yield pd.DataFrame({"user": [key[0]], "sum": [total], "n": [count]})

        def close(self) -> None:
            pass

    return orders(events).groupBy("user").transformWithStateInPandas(Summing(), SUMS, "update", "none")


def silence_after_orders(events: "DataFrame") -> "DataFrame":
    """A row for each user, ten minutes of event time after the last order."""
    from pyspark.sql import Row as SparkRow
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Waiting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.last = handle.getValueState("last", "at_ms LONG")
            self.ids = handle.getListState("ids", "id STRING")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            before = self.last.get()[0] if self.last.exists() else 0
            found = list(rows)
            last = max([before, *(int(row.at.timestamp() * 1000) for row in found)])
            self.ids.appendList([(row.id,) for row in found])
            if last > before:
                if before:
                    self.handle.deleteTimer(before + 600_000)
                self.handle.registerTimer(last + 600_000)
                self.last.update((last,))
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            count = sum(1 for _ in self.ids.get())
            self.ids.clear()
            self.last.clear()
            yield SparkRow(user=key[0], orders=count)

        def close(self) -> None:
            pass

    rows = orders(events).withWatermark("at", DELAY).groupBy("user")
    return rows.transformWithState(Waiting(), "user STRING, orders INT", "append", "eventTime")


def _silences(events: Sequence[Event]) -> list[Row]:
    found = group_by([one for one in orders_of(events) if not is_closing(one)], lambda one: one.user)
    return [(len(own), user) for user, own in found.items()]


def windows_of_first_orders(events: "DataFrame") -> "DataFrame":
    first = orders(events).withWatermark("at", DELAY).dropDuplicates(["id", "at"])
    return first.groupBy(f().window("at", "10 minutes")).count().selectExpr("window.start AS start", "count")


def _first_by_window(events: Sequence[Event]) -> list[Row]:
    first = {(one.id, one.at_s) for one in orders_of(events) if not is_closing(one)}
    found = group_by(first, lambda one: window_start(one[1], 600))
    return [(len(own), start) for start, own in found.items()]


STATE = (
    QueryCase(name="sums_in_pandas", transform=sums_in_pandas, expected=_sums, table=upsert("user")),
    QueryCase(name="sums_by_row_processor", transform=sums_by_row_processor, expected=_sums, table=upsert("user")),
    QueryCase(
        name="sums_by_pandas_processor", transform=sums_by_pandas_processor, expected=_sums, table=upsert("user")
    ),
    QueryCase(
        name="silence_after_orders", transform=silence_after_orders, expected=_silences, table=APPEND, drops_late=True
    ),
    QueryCase(
        name="windows_of_first_orders",
        transform=windows_of_first_orders,
        expected=_first_by_window,
        table=APPEND,
        drops_late=True,
    ),
)
