"""The tests of Logmark; tests.harness brings a real Apache Kafka."""
