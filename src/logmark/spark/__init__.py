"""Spark pipelines that are consumer groups: `format("logmark")`, exactly-once tables, and what runs them.

    from logmark.spark import Pipeline, Table, read_table, session

    spark = session("billing")
    billing = Pipeline(name="billing", topics="clicks", transform=charges, sink=Table("tables/billing"))
    billing.run(spark)                              # reads all there is, then returns
    query = billing.start(spark)                    # runs until query.stop()
    billing.replay(spark, ReplayRequest(start="3d"))
    read_table("tables/billing")                    # a pyarrow.Table

session, report_progress            start a local Spark; report the progress of any session's queries
Pipeline, Table, Topic              declare a pipeline, which has the methods `run`, `start`, `replay`, `versions`,
                                    `rollback` and `drop`; `logmark pipelines` does the same with pipelines of a file
ReplayRequest, ReplayOptions        how to replay; `replay` returns a ReplayResult, `versions` a list of PipelineVersion
write_table, write_topic            write any stream of `format("logmark")`, each batch once
share_source                        use a stream several times in a query, such as on both sides of a join
read_table, load_table              read a table with Arrow, or with Spark
read_topic                          read topics from one time or offset to another, as a batch DataFrame
optimize_table, vacuum_table        keep the files of a table few
version_path, swap_in_version,      build a table again beside the old one, swap it in by one commit, and roll it back
roll_back_version, next_version,
list_versions, drop_version
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logmark.spark.pipelines.declaration import Table, Topic
    from logmark.spark.pipelines.pipeline import Pipeline
    from logmark.spark.pipelines.replay.runner import ReplayOptions, ReplayResult
    from logmark.spark.pipelines.replay.session import ReplayRequest
    from logmark.spark.pipelines.versions import PipelineVersion
    from logmark.spark.progress_listener import report_progress
    from logmark.spark.sessions import session
    from logmark.spark.sink.topics import write_topic
    from logmark.spark.source.topic_frame import read_topic
    from logmark.spark.stream_sources import share_source
    from logmark.spark.tables.compaction import optimize_table, vacuum_table
    from logmark.spark.tables.table import load_table, read_table, write_table
    from logmark.spark.tables.versions import (
        drop_version,
        list_versions,
        next_version,
        roll_back_version,
        swap_in_version,
        version_path,
    )

__all__ = [
    "Pipeline",
    "PipelineVersion",
    "ReplayOptions",
    "ReplayRequest",
    "ReplayResult",
    "Table",
    "Topic",
    "drop_version",
    "list_versions",
    "load_table",
    "next_version",
    "optimize_table",
    "read_table",
    "read_topic",
    "report_progress",
    "roll_back_version",
    "session",
    "share_source",
    "swap_in_version",
    "vacuum_table",
    "version_path",
    "write_table",
    "write_topic",
]

_MODULES = {
    "pipelines.declaration": ("Table", "Topic"),
    "pipelines.pipeline": ("Pipeline",),
    "pipelines.replay.runner": ("ReplayOptions", "ReplayResult"),
    "pipelines.replay.session": ("ReplayRequest",),
    "pipelines.versions": ("PipelineVersion",),
    "progress_listener": ("report_progress",),
    "sessions": ("session",),
    "stream_sources": ("share_source",),
    "sink.topics": ("write_topic",),
    "source.topic_frame": ("read_topic",),
    "tables.compaction": ("optimize_table", "vacuum_table"),
    "tables.table": ("load_table", "read_table", "write_table"),
    "tables.versions": (
        "drop_version",
        "list_versions",
        "next_version",
        "swap_in_version",
        "roll_back_version",
        "version_path",
    ),
}


def __getattr__(name: str) -> Any:
    # Spark starts a Python process for every stream, which needs the source and none of these: importing them took as
    # long as the source itself.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
