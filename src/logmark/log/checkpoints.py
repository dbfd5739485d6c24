"""The small text files of a data directory, in Kafka's bytes; and the list of segments, which is ours."""

import base64
import enum
from collections.abc import Mapping
from typing import NamedTuple

from logmark.errors import Malformed
from logmark.names import TopicPartition
from logmark.wire import columns
from logmark.wire.columns import HEADER_BYTES

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
SEGMENTS = "logmark.segments"
_CRC_AT = 17
# The versions of the list of segments, and what marks a line about cleaning in it.
_WITHOUT_CLEANED, _WITH_CLEANED, _CLEANED_TO = "0", "1", "cleaned"


class Condition(enum.StrEnum):
    """What was known of a segment when the broker stopped."""

    WHOLE = "whole"
    # A part of it was found damaged, and is not served.
    DAMAGED = "damaged"
    # It was missing: its first offset is where the missing offsets begin.
    MISSING = "missing"


class ListedContent(NamedTuple):
    """What a segment that a compaction wrote holds: an older output may have the same size."""

    checksum: int
    # With the same stamp nobody has written to the file since.
    change_stamp: str


class ListedSegment(NamedTuple):
    """A segment as a clean stop has left it."""

    size_bytes: int
    condition: Condition
    # Of its transaction index; None if it has none.
    aborted_checksum: int | None
    # Of the header of its first batch: whether it is this segment and not another one. Only of the last segment.
    head_checksum: int | None = None
    # None if no compaction has written it.
    content: ListedContent | None = None


# The segments of all partitions, by base offset.
ListedSegments = Mapping[TopicPartition, Mapping[int, ListedSegment]]


def write_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the text of an offset checkpoint."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def read_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint's text; an empty file holds none."""
    offsets = {}
    for line in _entries(data):
        topic, partition, offset = _split(line, 3)
        offsets[TopicPartition(topic, _number(partition))] = _number(offset)
    return offsets


class SegmentList(NamedTuple):
    """What a clean stop has left of each partition: its segments, its log start, and how far it was cleaned."""

    segments: ListedSegments
    log_starts: Mapping[TopicPartition, int]
    # None in a list of the first version, which did not say it.
    cleaned: Mapping[TopicPartition, int] | None

    def encode(self) -> bytes:
        """Return the text: log starts, cleaned offsets, then segments.

        A segment has size, condition, and the checksums of aborts, head and content.
        """
        lines = [f"{topic} {partition} {start}" for (topic, partition), start in sorted(self.log_starts.items())]
        lines += [
            f"{topic} {partition} {_CLEANED_TO} {offset}"
            for (topic, partition), offset in sorted((self.cleaned or {}).items())
        ]
        lines += [
            f"{topic} {partition} {base_offset} {listed.size_bytes} {listed.condition} "
            f"{_optional_text(listed.aborted_checksum)} {_optional_text(listed.head_checksum)}"
            + ("" if listed.content is None else f" {listed.content.checksum} {listed.content.change_stamp}")
            for (topic, partition), found in sorted(self.segments.items())
            for base_offset, listed in sorted(found.items())
        ]
        version = _WITHOUT_CLEANED if self.cleaned is None else _WITH_CLEANED
        return seal("\n".join([version, str(len(lines)), *lines, ""]).encode())

    @classmethod
    def decode(cls, data: bytes) -> "SegmentList":
        """Return what the text says; raise Malformed if a bit of it has changed."""
        log_starts: dict[TopicPartition, int] = {}
        cleaned: dict[TopicPartition, int] = {}
        segments: dict[TopicPartition, dict[int, ListedSegment]] = {}
        text = unseal(data)
        version = _WITH_CLEANED if text.startswith(_WITH_CLEANED.encode()) else _WITHOUT_CLEANED
        for line in _entries(text, version):
            parts = line.split(" ")
            if len(parts) == 3:
                log_starts[TopicPartition(parts[0], _number(parts[1]))] = _number(parts[2])
                continue
            if len(parts) == 4 and parts[2] == _CLEANED_TO:
                cleaned[TopicPartition(parts[0], _number(parts[1]))] = _number(parts[3])
                continue
            if len(parts) not in (7, 9):
                raise Malformed(f"checkpoint line {line!r} has {len(parts)} parts")
            topic, partition, base_offset, size, condition, aborted, head, *content = parts
            if condition not in _CONDITIONS:
                raise Malformed(f"{condition!r} is not the condition of a segment")
            listed = ListedSegment(
                _number(size), Condition(condition), _optional_number(aborted), _optional_number(head),
                ListedContent(_number(content[0]), content[1]) if content else None,
            )  # fmt: skip
            segments.setdefault(TopicPartition(topic, _number(partition)), {})[_number(base_offset)] = listed
        return cls(segments, log_starts, None if version == _WITHOUT_CLEANED else cleaned)


def seal(text: bytes) -> bytes:
    """Return a text of ours with a line behind it that has its checksum."""
    return text + b"checksum %d\n" % columns.crc32c(text, 0, len(text))


def unseal(data: bytes) -> bytes:
    """Return the text before the checksum; raise Malformed if a bit of it has changed."""
    text, mark, checksum = data.rpartition(b"checksum ")
    if not mark or checksum != b"%d\n" % columns.crc32c(text, 0, len(text)):
        raise Malformed("its checksum is wrong")
    return text


def checksum_head(data: bytes) -> int:
    """Return the checksum of the header of a segment's first batch, by which a start knows the segment again.

    It begins with the batch's own CRC: a bit that is flipped before that, which no CRC covers, makes no other segment.
    """
    head = data[_CRC_AT:HEADER_BYTES]
    return columns.crc32c(head, 0, len(head))


def write_epochs(epochs: list[tuple[int, int]]) -> bytes:
    """Return the text of a leader-epoch checkpoint."""
    lines = [f"{leader_epoch} {start_offset}" for leader_epoch, start_offset in epochs]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def read_epochs(data: bytes) -> list[tuple[int, int]]:
    """Return the leader epochs in a checkpoint's text, each with its first offset."""
    pairs = (_split(line, 2) for line in _entries(data))
    return [(_number(leader_epoch), _number(start_offset)) for leader_epoch, start_offset in pairs]


def write_partition_metadata(topic_id: bytes) -> bytes:
    """Return the text of partition.metadata, which has no newline at its end."""
    return f"version: 0\ntopic_id: {id_text(topic_id)}".encode()


def read_partition_metadata(data: bytes) -> bytes:
    """Return the topic id in a partition.metadata."""
    lines = dict(line.split(": ", 1) for line in data.decode("utf-8", "replace").splitlines() if ": " in line)
    if lines.get("version") != "0" or "topic_id" not in lines:
        raise Malformed("partition.metadata has no topic id of version 0")
    return id_bytes(lines["topic_id"])


def id_text(value: bytes) -> str:
    """Return Kafka's text of a 16-byte id: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def id_bytes(text: str) -> bytes:
    """Return the 16 bytes of an id's text."""
    try:
        value = base64.urlsafe_b64decode(text.strip() + "==")
    except ValueError:
        value = b""
    if len(value) != 16:
        raise Malformed(f"{text!r} is not an id of 22 characters")
    return value


_CONDITIONS = frozenset(Condition)


def _entries(data: bytes, version: str = "0") -> list[str]:
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines:
        return []
    if lines[0].strip() != version:
        raise Malformed(f"checkpoint of unknown version {lines[0]!r}")
    if len(lines) < 2 or len(lines) - 2 != _number(lines[1]):
        raise Malformed("checkpoint whose count does not match its lines")
    return lines[2:]


def _split(line: str, count: int) -> list[str]:
    parts = line.split(" ")
    if len(parts) != count:
        raise Malformed(f"checkpoint line {line!r} does not have {count} parts")
    return parts


def _optional_text(number: int | None) -> str:
    return "-" if number is None else str(number)


def _optional_number(text: str) -> int | None:
    return None if text == "-" else _number(text)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Malformed(f"{text!r} is not a number") from None
