"""Lets Spark find `format("logmark.delta")` by itself: it looks for a DefaultSource in every module named pyspark_*."""

from logmark.spark.tables.data_source import DefaultSource

__all__ = ["DefaultSource"]
