"""Offsets of several topic-partitions: as JSON nests them by topic and partition, and as text for people."""

from collections.abc import Mapping
from typing import TypeVar

from logmark.names import TopicPartition

T = TypeVar("T")


def nest_by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """Return the values by topic and partition, with sorted keys: Spark compares offsets as text."""
    nested: dict[str, dict[str, T]] = {}
    for partition in sorted(values, key=lambda one: (one.topic, str(one.partition))):
        nested.setdefault(partition.topic, {})[str(partition.partition)] = values[partition]
    return nested


def flatten_by_partition(nested: Mapping[str, Mapping[str, T]]) -> dict[TopicPartition, T]:
    """Return what `nest_by_topic` nested; raises ValueError or AttributeError if it is something else."""
    return {
        TopicPartition(topic, int(partition)): value
        for topic, partitions in nested.items()
        for partition, value in partitions.items()
    }


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the offsets in one line, such as `clicks-0: 100, clicks-1: 250`."""
    return ", ".join(f"{partition}: {offset}" for partition, offset in sorted(offsets.items()))
