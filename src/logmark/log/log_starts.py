"""Where the logs of a data directory start, by the files that have a checksum.

Kafka's own file has none: a bit that was flipped in it would hide records, and retention would delete them. It counts
where nothing else says it: in a directory that Apache Kafka has used, and after a crash with `--durability os`.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed
from logmark.log import checkpoints
from logmark.log.checkpoints import SegmentList
from logmark.log.wal import inventory
from logmark.log.wal import recovery_points as wal
from logmark.names import TopicPartition

BESIDE_WAL = f"{wal.FOLDER}/{wal.LOG_STARTS}"


def encode(log_starts: Mapping[TopicPartition, int], wal_id: bytes) -> bytes:
    """Return the file of log starts that lies beside a WAL with that id."""
    return checkpoints.seal(wal_id.hex().encode() + b"\n" + checkpoints.write_offsets(log_starts))


def read_in_force(
    path: str,
    files: FileSystem,
    listed: SegmentList | None,
    of_kafka: Mapping[TopicPartition, int] | None,
    *,
    on_damage: Callable[[Malformed], object] = lambda error: None,
) -> dict[TopicPartition, int]:
    """Return where a start takes the logs to start: by a file with a checksum, else by Kafka's own.

    `on_damage` is called with what is wrong with the file beside the WAL, which is not used then.
    """
    known = None
    try:
        # A broker that runs may remove the file meanwhile.
        with suppress(FileNotFoundError):
            known = _read(path, files, listed)
    except Malformed as error:
        on_damage(error)
    return dict((of_kafka or {}) if known is None else known)


def _read(path: str, files: FileSystem, listed: SegmentList | None) -> Mapping[TopicPartition, int] | None:
    """Return the log starts in the list of a clean stop, else those beside a WAL; None if there are neither.

    Raises Malformed if a crash or damage has torn those beside the WAL, or they are of another WAL.
    """
    if listed is not None:
        return listed.log_starts
    if not files.exists(f"{path}/{BESIDE_WAL}"):
        return None
    content = checkpoints.unseal(files.read(f"{path}/{BESIDE_WAL}"))
    wal_id = inventory.read_wal_id(f"{path}/{wal.FOLDER}", files)
    if wal_id is not None:
        found, _, content = content.partition(b"\n")
        if found != wal_id.hex().encode():
            raise Malformed("it is not of this write-ahead log, but of another one")
    return checkpoints.read_offsets(content)
