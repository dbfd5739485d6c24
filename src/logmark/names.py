"""The words that every layer shares."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One log: a partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_TOPIC_PARTITIONS = 50
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})
