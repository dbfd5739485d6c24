"""The recovery points: how far the own files of each partition are durable, so that the WAL is not needed for them.

The file is replaced as a whole, and durable before a file of the WAL is used again or data below a point changes.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

from logmark.errors import Malformed
from logmark.wire import columns

FOLDER = "logmark.wal"
FILE_NAME = "recovery-points"
# Where each log starts, with a checksum, as Kafka's checkpoint of log starts lacks one.
LOG_STARTS = "log-starts"
_MAGIC = b"LOGMKPTS"
_VERSION = 1
# Magic, version, id of the WAL, number of the first entry that is needed, rows.
_HEADER = struct.Struct(">8sI16sQI")
_ROW = struct.Struct(">20sqqq")
_CHECKSUM = struct.Struct(">I")


class RecoveryPoint(NamedTuple):
    """An offset below which all is durable in the partition's own files, and its position."""

    offset: int
    segment_base: int
    position: int


class RecoveryPoints(NamedTuple):
    """The recovery point of each partition that has records, and the first entry that one of them still needs."""

    wal_id: bytes
    first_entry: int
    points: Mapping[bytes, RecoveryPoint]

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        rows = [_ROW.pack(key, *point) for key, point in self.points.items()]
        head = _HEADER.pack(_MAGIC, _VERSION, self.wal_id, self.first_entry, len(rows))
        content = b"".join([head, *rows])
        return content + _CHECKSUM.pack(columns.crc32c(content, 0, len(content)))

    @classmethod
    def decode(cls, data: bytes) -> "RecoveryPoints":
        """Return what the file says; raises Malformed if it is not intact."""
        content, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
        if len(content) < _HEADER.size or _CHECKSUM.pack(columns.crc32c(content, 0, len(content))) != checksum:
            raise Malformed("the recovery points have a wrong checksum")
        magic, version, wal_id, first_entry, count = _HEADER.unpack_from(content)
        if magic != _MAGIC or version != _VERSION or len(content) != _HEADER.size + count * _ROW.size:
            raise Malformed("the recovery points are not in a form that this version knows")
        rows = _ROW.iter_unpack(content[_HEADER.size :])
        return cls(wal_id, first_entry, {key: RecoveryPoint(*point) for key, *point in rows})
