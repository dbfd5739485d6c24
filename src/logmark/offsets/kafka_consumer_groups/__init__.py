"""A drop-in for Apache Kafka's kafka-consumer-groups.sh: its options, columns, messages, streams and exit codes."""

KAFKA_VERSION = "4.3.1"  # the release whose tool this follows
