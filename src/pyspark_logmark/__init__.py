"""Lets Spark find `format("logmark")` by itself: it looks for a DefaultSource in every module named pyspark_*."""

from logmark.spark.source import DefaultSource

__all__ = ["DefaultSource"]
