"""Spark pipelines that are consumer groups: `format("logmark")`, exactly-once tables, and what runs them.

    from logmark.spark import Pipeline, read_table, session

    spark = session("billing")
    billing = Pipeline(
        bootstrap_servers="127.0.0.1:9092", topics="clicks", group="billing", table="tables/billing", transform=charges
    )
    billing.run(spark)                              # reads all there is, then returns
    query = billing.start(spark, every="1 second")  # goes on until query.stop()
    read_table("tables/billing")                    # a pyarrow.Table

`session` starts a local Spark. `Pipeline` joins a stream, a function of DataFrame to DataFrame and a Delta table.
`write_table` writes any stream of `format("logmark")` into a Delta table, each offset once. `read_table` reads one.
"""

from logmark.spark.pipeline import Pipeline
from logmark.spark.sessions import session
from logmark.spark.tables import read_table, write_table

__all__ = ["Pipeline", "read_table", "session", "write_table"]
