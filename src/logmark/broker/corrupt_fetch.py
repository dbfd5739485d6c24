"""The response to a fetch at a damaged offset: the error code, and if the client ignores that, a corrupt batch.

CORRUPT_MESSAGE in an answer to Fetch is raised to the user by Java, librdkafka and kafka-python. aiokafka (0.14, Fetch
11) writes a line to its log and asks again at once, for ever. So a client of old versions that asks again, on the same
connection, for the very offset of which it was told gets a batch instead, every second time, which nobody can take for
records: the checksum is wrong, which aiokafka raises as corruption, and the bytes are not the gzip that they claim to
be, for those who check no checksums. All of them keep their position, so that nothing is passed in silence. From
version 12 on the code alone is sent: those clients raise it, and kafka-python (3.0) never comes back from reading a
second batch with a wrong checksum.
"""

import struct

from logmark.names import TopicPartition
from logmark.wire import codecs, columns
from logmark.wire.batches import HEADER_BYTES, MAGIC

OLD_VERSIONS = range(12)
_HEAD = struct.Struct(">qiibIhiqqqhii")
_WORDS = b"The log is damaged at this offset. It can be found with: logmark verify"


class Complaints:
    """The damaged offsets that one connection was told of: of each partition the last one."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[TopicPartition, int] = {}

    def is_heard(self, where: TopicPartition, offset: int) -> bool:
        """Return whether the code is the right answer: it was not the last answer to the same question."""
        if self._told.get(where) == offset:
            del self._told[where]
            return False
        self._told[where] = offset
        return True


def batch(offset: int) -> bytes:
    """Return a batch that claims a record at an offset, and that every client refuses."""
    made = bytearray(HEADER_BYTES) + _WORDS
    fields = (codecs.GZIP, 0, -1, -1, -1, -1, -1, 1)
    _HEAD.pack_into(made, 0, offset, len(made) - 12, 0, MAGIC, 0, *fields)
    wrong = columns.crc32c(made, 21, len(made) - 21) ^ 0xFFFFFFFF
    struct.pack_into(">I", made, 17, wrong)
    return bytes(made)
