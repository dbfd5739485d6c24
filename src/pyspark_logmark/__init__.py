"""Lets Spark find `format("logmark")` by itself: it looks for a DefaultSource in every module named pyspark_*."""

from logmark.errors import UserError
from logmark.spark.sessions import check_spark

try:
    check_spark()
except UserError:
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """The format on a Spark that is too old for it: every use raises the error that says which one is needed.

        Spark ignores a module that fails at import, and says that there is no such format.
        """

        @classmethod
        def name(cls) -> str:
            return "logmark"

        def schema(self) -> str:
            check_spark()
            raise AssertionError("this Spark is new enough")
else:
    from logmark.spark.source.data_source import DefaultSource  # type: ignore[assignment]

__all__ = ["DefaultSource"]
