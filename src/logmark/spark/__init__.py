"""Spark pipelines that are consumer groups: `format("logmark")`, exactly-once tables, and what runs them.

    from logmark.spark import Pipeline, Table, read_table, session

    spark = session("billing")
    billing = Pipeline(name="billing", topics="clicks", transform=charges, sink=Table("tables/billing"))
    billing.run(spark)                              # reads all there is, then returns
    query = billing.start(spark)                    # goes on until query.stop()
    read_table("tables/billing")                    # a pyarrow.Table

`session` starts a local Spark. `Pipeline` joins a stream, a function of DataFrame to DataFrame and a `Table` or a
`Topic`; `logmark pipelines` runs, shows and replays those that a file declares.
`write_table` writes any stream of `format("logmark")` into a Delta table, each offset once, in one of four modes, as
`format("logmark.delta")` does. `read_table` reads one with Arrow, `load_table` with Spark. `optimize_table` and
`vacuum_table` keep its files few. `version_path`, `swap_in` and `take_back` build a table anew beside the old one.
`write_topic` writes rows to a topic, each batch once, as `format("logmark")` does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logmark.spark.pipelines.pipeline import Pipeline, Table, Topic
    from logmark.spark.sessions import session
    from logmark.spark.sink.topics import write_topic
    from logmark.spark.tables.compaction import optimize_table, vacuum_table
    from logmark.spark.tables.table import load_table, read_table, write_table
    from logmark.spark.tables.versions import (
        drop_version,
        list_versions,
        next_version,
        swap_in,
        take_back,
        version_path,
    )

__all__ = [
    "Pipeline",
    "Table",
    "Topic",
    "drop_version",
    "list_versions",
    "load_table",
    "next_version",
    "optimize_table",
    "read_table",
    "session",
    "swap_in",
    "take_back",
    "vacuum_table",
    "version_path",
    "write_table",
    "write_topic",
]

_NAMES = {
    "pipelines.pipeline": ("Pipeline", "Table", "Topic"),
    "sessions": ("session",),
    "sink.topics": ("write_topic",),
    "tables.compaction": ("optimize_table", "vacuum_table"),
    "tables.table": ("load_table", "read_table", "write_table"),
    "tables.versions": ("drop_version", "list_versions", "next_version", "swap_in", "take_back", "version_path"),
}


def __getattr__(name: str) -> Any:
    # Spark starts a Python process for every stream, which needs the source and none of these: importing them took as
    # long as the source itself.
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
