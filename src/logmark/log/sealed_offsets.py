"""Where the logs of a data directory start and how far they were cleaned, by the files of ours that have a checksum.

Kafka's own files have none. A bit that was flipped in the one of log starts would hide records, and retention would
delete them. A log that is missing in the one of the cleaner may have no holes, so that what compaction has left of it
would pass for damage. Kafka's files count where nothing else says it: in a directory that Apache Kafka has used, and
after a crash with `--durability os`.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed
from logmark.log import checkpoints
from logmark.log.checkpoints import SegmentList
from logmark.log.wal import inventory
from logmark.log.wal import recovery_points as wal
from logmark.names import TopicPartition

BESIDE_WAL = f"{wal.FOLDER}/{wal.LOG_STARTS}"
_CLEANED = b"cleaned\n"


class SealedOffsets(NamedTuple):
    """Where logs start, and how far those were cleaned that ever were."""

    log_starts: Mapping[TopicPartition, int]
    # None if nobody knows which logs were cleaned: any of them may have holes.
    cleaned: Mapping[TopicPartition, int] | None

    def encode(self, wal_id: bytes) -> bytes:
        """Return the file that lies beside a WAL with that id."""
        text = wal_id.hex().encode() + b"\n" + checkpoints.write_offsets(self.log_starts)
        if self.cleaned is not None:
            text += _CLEANED + checkpoints.write_offsets(self.cleaned)
        return checkpoints.seal(text)


def read_in_force(
    path: str,
    files: FileSystem,
    listed: SegmentList | None,
    of_kafka: SealedOffsets,
    *,
    on_damage: Callable[[Malformed], object] = lambda error: None,
) -> SealedOffsets:
    """Return what a start believes: by a file with a checksum, else by Kafka's own.

    `on_damage` is called with what is wrong with the file beside the WAL, which is not used then.
    """
    known = None
    try:
        # A broker that runs may remove the file meanwhile.
        with suppress(FileNotFoundError):
            known = _read(path, files, listed)
    except Malformed as error:
        on_damage(error)
    if known is None:
        return of_kafka
    return known if known.cleaned is not None else known._replace(cleaned=of_kafka.cleaned)


def _read(path: str, files: FileSystem, listed: SegmentList | None) -> SealedOffsets | None:
    """Return the offsets in the list of a clean stop, else those beside a WAL; None if there are neither.

    Raises Malformed if a crash or damage has torn those beside the WAL, or they are of another WAL.
    """
    if listed is not None:
        return SealedOffsets(listed.log_starts, listed.cleaned)
    if not files.exists(f"{path}/{BESIDE_WAL}"):
        return None
    content = checkpoints.unseal(files.read(f"{path}/{BESIDE_WAL}"))
    wal_id = inventory.read_wal_id(f"{path}/{wal.FOLDER}", files)
    if wal_id is not None:
        found, _, content = content.partition(b"\n")
        if found != wal_id.hex().encode():
            raise Malformed("it is not of this write-ahead log, but of another one")
    starts, mark, cleaned = content.partition(_CLEANED)
    return SealedOffsets(
        checkpoints.read_offsets(starts), checkpoints.read_offsets(cleaned) if mark else None
    )  # fmt: skip
