"""The partition that a copied record goes to."""

from dataclasses import dataclass

from logmark.offsets.partitioner import partition_for_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way of a record: a fixed partition, its own number where both topics have as many, else by its key."""

    source_partitions: int
    target_partitions: int
    fixed: int | None = None

    @property
    def is_direct(self) -> bool:
        """Whether all records of a partition go to one partition."""
        return self.fixed is not None or self.source_partitions == self.target_partitions

    def back_to(self, partition: int, key: bytes | None) -> int:
        """Return the partition of a record that goes back: its old one, if a partition of that number exists."""
        if self.fixed is not None:
            return self.fixed
        if partition < self.target_partitions or key is None:
            return partition % self.target_partitions
        return partition_for_key(key, self.target_partitions)

    def to(self, partition: int, key: bytes | None) -> int:
        """Return the target partition as Java's producer maps a key.

        Without a key, the old number modulo the new count.
        """
        if self.fixed is not None:
            return self.fixed
        if self.source_partitions == self.target_partitions:
            return partition
        return partition % self.target_partitions if key is None else partition_for_key(key, self.target_partitions)
