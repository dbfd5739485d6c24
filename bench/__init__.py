"""Measures Logmark side by side with Apache Kafka and with Spark's own connector, in one run on one machine."""
