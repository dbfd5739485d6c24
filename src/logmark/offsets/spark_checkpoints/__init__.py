"""Checkpoints of queries on Spark's own Kafka connector: their offsets, and how to rewind them."""
