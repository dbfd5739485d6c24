"""The pipelines of examples/clicks as the Spark bench runs them: the same functions on either source, into Parquet."""

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from logmark.spark import Pipeline

NAMES = ("billing", "fraud", "features")


def pipeline(name: str) -> Pipeline:
    """The pipeline that a file of examples/clicks declares."""
    declared: Pipeline = getattr(import_module(f"examples.clicks.{name}"), name)
    return declared


def clicks(count: int) -> list[tuple[bytes, bytes]]:
    """Keys and values of clicks of the last hours: older ones count as too late, and would be no work."""
    from examples.clicks.generator import generate

    now_ms = time.time_ns() // 1_000_000
    made = generate(count, seed=7, start_ms=now_ms - 6 * 3600 * 1000, end_ms=now_ms)
    return [(click.key, click.value) for click in made]


def start(name: str, records: Any, *, folder: Callable[[], str]) -> Any:
    """A query of a pipeline's function over records whose `value` is typed; each batch becomes Parquet files."""
    rows = pipeline(name).transform(records)
    mode = "update" if name == "features" else "append"

    def write(batch: Any, number: int) -> None:
        batch.write.parquet(folder())

    writer = rows.writeStream.outputMode(mode).trigger(availableNow=True).foreachBatch(write)
    return writer.option("checkpointLocation", folder()).start()
