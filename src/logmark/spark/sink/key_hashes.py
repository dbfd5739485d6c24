"""The partitions of a whole column of keys, as Java's default partitioner gives them."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logmark.offsets.partitioner import murmur2

_SEED, _FACTOR = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)
# One step takes the next word of all keys, so a single long one would cost as many steps for nothing.
_LENGTH_MAX = 128


def partitions_of_keys(keys: pa.Array, count: int) -> list[int]:
    """Return the partition of each key of a binary column among so many; what it says for a null means nothing."""
    _, offsets_buffer, data_buffer = keys.buffers()
    if not len(keys) or data_buffer is None:
        return [(murmur2(b"") & 0x7FFFFFFF) % count] * len(keys)
    bounds = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)
    starts, lengths = bounds[:-1], np.diff(bounds)
    hashes = _hashes(data, starts, np.where(lengths > _LENGTH_MAX, 0, lengths))
    for row in np.flatnonzero(lengths > _LENGTH_MAX).tolist():
        hashes[row] = murmur2(data[bounds[row] : bounds[row + 1]].tobytes())
    found: list[int] = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(count)).tolist()
    return found


def _hashes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    hashes = _SEED ^ lengths.astype(np.uint32)
    words = lengths // 4
    for index in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > index)
        word = _bytes(data, starts[rows] + 4 * index, 4) * _FACTOR
        word = (word ^ word >> np.uint32(24)) * _FACTOR
        hashes[rows] = hashes[rows] * _FACTOR ^ word
    for size in (1, 2, 3):
        rows = np.flatnonzero(lengths % 4 == size)
        rest = _bytes(data, starts[rows] + words[rows] * 4, size)
        hashes[rows] = (hashes[rows] ^ rest) * _FACTOR
    hashes = (hashes ^ hashes >> np.uint32(13)) * _FACTOR
    return hashes ^ hashes >> np.uint32(15)


def _bytes(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint32]:
    """Return so many bytes at each index as one little-endian number."""
    found = data[at].astype(np.uint32)
    for index in range(1, size):
        found |= data[at + index].astype(np.uint32) << np.uint32(8 * index)
    return found
