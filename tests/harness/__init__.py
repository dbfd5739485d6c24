"""Brings a real Apache Kafka and its tools to the tests, and runs them beside our broker."""
