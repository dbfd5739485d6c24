"""The partition that Kafka's Java producer gives to a key: murmur2 of its bytes."""

from functools import lru_cache

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash of Kafka's default partitioner."""
    size = len(data)
    found = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        found = (found * _FACTOR & _MASK) ^ word
    if size > whole:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    found = (found ^ found >> 13) * _FACTOR & _MASK
    return found ^ found >> 15


# Keys come again: most of what is written has few of them.
@lru_cache(maxsize=65_536)
def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key among so many."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
