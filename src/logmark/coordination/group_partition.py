"""The internal partition of a group: Kafka's choice, so that a hand-over to Apache Kafka finds every group."""

import struct
from functools import lru_cache

from logmark.names import OFFSETS_TOPIC_PARTITIONS


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: 31 * h + UTF-16 code unit, in 32 signed bits."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", encoded):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=4096)
def partition_of_group(group: str, partition_count: int = OFFSETS_TOPIC_PARTITIONS) -> int:
    """Return the internal partition that keeps a group."""
    value = java_hash(group)
    # Java's abs of the smallest integer is negative, so Kafka defines it as 0.
    return 0 if value == -(2**31) else abs(value) % partition_count
