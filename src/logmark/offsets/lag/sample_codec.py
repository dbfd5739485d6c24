"""Numbers of a sample as bytes and back: the bytes of equal weight side by side, so that they compress well."""

import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Self

from logmark.client.answers import Committed
from logmark.names import TopicPartition

_UNKNOWN = -1


class NameIds:
    """Small numbers for names of groups and topics, given once."""

    def __init__(self, rows: Iterable[tuple[int, str, str]], add: Callable[[str, str], int]) -> None:
        self._ids = {(kind, name): number for number, kind, name in rows}
        self._add = add

    def of(self, kind: str, name: str) -> int:
        """Return the number of a name; a new name gets one."""
        found = self._ids.get((kind, name))
        if found is None:
            found = self._ids[kind, name] = self._add(kind, name)
        return found

    def known(self, kind: str, name: str) -> int | None:
        """Return the number of a name, None if it has none."""
        return self._ids.get((kind, name))

    def names(self, kind: str) -> dict[int, str]:
        """Return the names of one kind by their numbers."""
        return {number: name for (of, name), number in self._ids.items() if of == kind}


class Ends:
    """Starts and ends of the partitions of one sample; -1 where they are not known."""

    def __init__(self, packed: bytes) -> None:
        self._numbers = unpack(packed)
        self._topics: dict[int, tuple[int, int]] = {}
        at, size = 0, len(self._numbers)
        while at < size:
            topic, count = self._numbers[at], self._numbers[at + 1]
            self._topics[topic] = (at + 2, count)
            at += 2 + 2 * count

    @classmethod
    def none(cls) -> Self:
        """Nothing is known."""
        return cls(pack(array("q")))

    @property
    def size(self) -> int:
        """How many numbers it holds in memory."""
        return len(self._numbers)

    def all(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Every end that is known, under topic and partition."""
        for topic, (at, count) in self._topics.items():
            for partition in range(count):
                if self._numbers[at + partition] >= 0:
                    yield (topic, partition), self._numbers[at + partition]

    def ends(self, topic: int, count: int) -> "array[int]":
        """Return the ends of a topic's first `count` partitions."""
        at, known = self._topics.get(topic, (0, 0))
        found = self._numbers[at : at + min(known, count)]
        return found if known >= count else found + array("q", [_UNKNOWN]) * (count - known)

    def end(self, topic: int, partition: int) -> int:
        at, count = self._topics.get(topic, (0, 0))
        return self._numbers[at + partition] if partition < count else _UNKNOWN

    def start(self, topic: int, partition: int) -> int:
        at, count = self._topics.get(topic, (0, 0))
        return self._numbers[at + count + partition] if partition < count else _UNKNOWN


def pack_ends(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], names: NameIds) -> bytes:
    """For each topic: its number, how many partitions, their ends, their starts."""
    topics: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, partition), end in ends.items():
        topics.setdefault(topic, {})[partition] = (end, starts[topic, partition])  # type: ignore[index]
    numbers = array("q")
    for topic, known in topics.items():
        count = max(known) + 1
        both = [known.get(partition, (_UNKNOWN, _UNKNOWN)) for partition in range(count)]
        numbers.append(names.of("topic", topic))
        numbers.append(count)
        numbers.extend(end for end, _ in both)
        numbers.extend(start for _, start in both)
    return pack(numbers)


def pack_positions(
    committed: Mapping[TopicPartition, Committed], ends: Mapping[TopicPartition, int], names: NameIds
) -> bytes:
    """For each topic: its number, how many partitions, the steps between their numbers, the distances to the ends."""
    topics: dict[str, list[tuple[int, int]]] = {}
    for where, commit in committed.items():
        end = ends.get(where)
        if end is not None:
            topics.setdefault(where.topic, []).append((where.partition, end - commit.offset))
    numbers = array("q")
    for topic, commits in topics.items():
        commits.sort()
        numbers.append(names.of("topic", topic))
        numbers.append(len(commits))
        before = 0
        for partition, _ in commits:
            numbers.append(partition - before)
            before = partition
        numbers.extend(distance for _, distance in commits)
    return pack(numbers)


def unpack_positions(packed: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the number of the topic, the partition and the distance to the end, for each commit."""
    numbers = unpack(packed)
    at, size = 0, len(numbers)
    while at < size:
        topic, count = numbers[at], numbers[at + 1]
        at += 2
        partition = 0
        for index in range(at, at + count):
            partition += numbers[index]
            yield topic, partition, numbers[index + count]
        at += 2 * count


def pack(numbers: "array[int]") -> bytes:
    """Return the numbers as bytes: all lowest bytes first, all highest last."""
    raw = _little(numbers).tobytes()
    return zlib.compress(b"".join(raw[index::8] for index in range(8)), 1)


def unpack(packed: bytes) -> "array[int]":
    """Return the numbers that `pack` was given."""
    planes = zlib.decompress(packed)
    count = len(planes) // 8
    raw = bytearray(len(planes))
    for index in range(8):
        raw[index::8] = planes[index * count : (index + 1) * count]
    return _little(array("q", bytes(raw)))


def _little(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return numbers
    swapped = array("q", numbers)
    swapped.byteswap()
    return swapped
