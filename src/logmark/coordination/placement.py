"""Where a group lives: Kafka's choice of internal partition, so that a hand-over finds every group."""

import struct
from functools import lru_cache

from logmark.names import OFFSETS_TOPIC_PARTITIONS


def java_hash(text: str) -> int:
    """Java's String.hashCode: 31 * h + UTF-16 code unit, in 32 signed bits."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", encoded):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=4096)
def partition_of(group: str, partition_count: int = OFFSETS_TOPIC_PARTITIONS) -> int:
    """The internal partition that keeps this group."""
    value = java_hash(group)
    # Java's abs of the smallest integer is negative, so Kafka defines it as 0.
    return 0 if value == -(2**31) else abs(value) % partition_count
