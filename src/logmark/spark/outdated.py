"""`format("logmark")` on a Spark that is too old for it: one sentence."""

from pyspark.sql.datasource import DataSource

from logmark.spark.sessions import check_spark


class DefaultSource(DataSource):
    """Says which Spark is needed."""

    @classmethod
    def name(cls) -> str:
        return "logmark"

    def schema(self) -> str:
        check_spark()
        raise AssertionError("this Spark is new enough")
