"""Lets Spark find `format("logmark")` by itself: it looks for a DefaultSource in every module named pyspark_*."""

from logmark.errors import UserError
from logmark.spark.sessions import check_spark

try:
    check_spark()
except UserError:
    # Spark passes over a module that fails at import and says that there is no such format: say what is wrong instead.
    from logmark.spark.outdated import DefaultSource
else:
    from logmark.spark.source.reader import DefaultSource  # type: ignore[assignment]

__all__ = ["DefaultSource"]
