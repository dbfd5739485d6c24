"""Spark's own checkpoints: where a query on Spark's Kafka connector stands, and how it is moved."""
