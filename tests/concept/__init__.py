"""The worked examples of offsets, each on our broker and on Apache Kafka."""
