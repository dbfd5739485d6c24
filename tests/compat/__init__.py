"""Unmodified clients and Apache Kafka's own Java tools against our broker."""
