"""The files of a Spark checkpoint as Spark reads and writes them: offsets/N, commits/N, metadata and sources/0/0.

offsets/N is written before batch N runs and says where it ends; commits/N when its sink has it. Their first line is the
version of the format, the second JSON; offsets/N has a line for each source after that. Spark's Kafka connector writes
its offsets as {"topic":{"partition":next offset}} and its very first ones, behind a zero byte, into sources/0/0.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logmark.errors import UserError
from logmark.names import TopicPartition

OFFSET_LOG_VERSIONS = (1, 2)  # 2, since Spark 4.1, names each source
COMMIT_LOG_VERSIONS = (1, 2, 3)  # 2 has the state's ids, 3, since Spark 4.3, the sinks
_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
_OURS = "~logmark"  # the key of what format("logmark") adds to the next offsets
_OURS_BEFORE = frozenset({"f", "g", "group", "q", "t"})  # as earlier versions wrote it

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """What one source of a query had read when a batch was planned; `text` is its line."""

    id: str
    text: str

    @property
    def offsets(self) -> Offsets | None:
        """The next offsets of a Kafka source; None for another kind of source."""
        return parse_kafka_offsets(self.text)

    @property
    def is_ours(self) -> bool:
        """The line was written by format("logmark")."""
        fields = _json(self.text)
        return isinstance(fields, dict) and (_OURS in fields or fields.keys() >= _OURS_BEFORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLogEntry:
    """The content of offsets/N: where batch N ends, in each source."""

    version: int
    metadata: Mapping[str, Any]
    sources: Sequence[SourceOffset]

    @property
    def planned_ms(self) -> int | None:
        """When the batch was planned."""
        return _whole(self.metadata.get("batchTimestampMs")) or None

    @property
    def watermark_ms(self) -> int:
        """The watermark that the batch ran with; 0 for none."""
        return _whole(self.metadata.get("batchWatermarkMs"))

    @property
    def providers(self) -> Mapping[str, str]:
        """The kind of each source, where the format tells it."""
        known = self.metadata.get("sourceMetadataInfo")
        if not isinstance(known, dict):
            return {}
        return {id: str(one.get("providerName", "")) for id, one in known.items() if isinstance(one, dict)}

    def moved(self, offsets: Offsets, *, now_ms: int) -> "OffsetLogEntry":
        """Return the entry with other end offsets in its only source; everything else stays."""
        (source,) = self.sources
        fields = _json(source.text)
        # The order stays as it is: Spark compares offsets as text, and another order would be new data.
        text = _dumped(
            {topic: {number: offsets[TopicPartition(topic, int(number))] for number in numbers}
             for topic, numbers in fields.items()}
        )  # fmt: skip
        metadata = {**self.metadata, "batchTimestampMs": now_ms} if self.metadata else self.metadata
        return OffsetLogEntry(version=self.version, metadata=metadata, sources=[SourceOffset(id=source.id, text=text)])

    def to_bytes(self) -> bytes:
        """Return the file's content as Spark writes it."""
        lines = [source.text if self.version == 1 else f"{source.id}:{source.text}" for source in self.sources]
        return "\n".join([f"v{self.version}", _dumped(self.metadata) if self.metadata else "", *lines]).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogEntry:
    """The content of commits/N: batch N is done."""

    version: int
    fields: Mapping[str, Any]

    @property
    def watermark_ms(self) -> int:
        """The watermark for the next batch; 0 for none."""
        return _whole(self.fields.get("nextBatchWatermarkMs"))

    @property
    def has_state(self) -> bool:
        """The query keeps state, and the commit names its versions."""
        return bool(self.fields.get("stateUniqueIds"))

    @property
    def sink(self) -> str | None:
        """The kind of sink that took the batch, where the format tells it."""
        known = self.fields.get("sinkMetadataMap")
        if not isinstance(known, dict):
            return None
        active = (one for one in known.values() if isinstance(one, dict) and one.get("isActive", True))
        return next((str(one["providerName"]) for one in active if one.get("providerName")), None)

    def to_bytes(self) -> bytes:
        """Return the file's content as Spark writes it."""
        return f"v{self.version}\n{_dumped(self.fields)}".encode()


def read_offset_log_entry(content: bytes, path: str) -> OffsetLogEntry:
    """Parse a file of `offsets`; raises UserError for an unknown version."""
    lines = _lines(content, path)
    version = _version(lines[0], OFFSET_LOG_VERSIONS, path)
    if len(lines) < 2:
        raise damaged_file(path)
    metadata = _json(lines[1]) if lines[1].strip() else {}
    if not isinstance(metadata, dict):
        raise damaged_file(path)
    if version == 1:
        sources = [SourceOffset(id=str(number), text=line) for number, line in enumerate(lines[2:])]
    else:
        named = [line.partition(":") for line in lines[2:]]
        if not all(colon for _, colon, _ in named):
            raise damaged_file(path)
        sources = [SourceOffset(id=id, text=text) for id, _, text in named]
    return OffsetLogEntry(version=version, metadata=metadata, sources=sources)


def read_commit_log_entry(content: bytes, path: str) -> CommitLogEntry:
    """Parse a file of `commits`; raises UserError for an unknown version."""
    lines = _lines(content, path)
    version = _version(lines[0], COMMIT_LOG_VERSIONS, path)
    fields = _json(lines[1]) if len(lines) > 1 else {}
    if not isinstance(fields, dict):
        raise damaged_file(path)
    return CommitLogEntry(version=version, fields=fields)


def read_initial_offsets(content: bytes, path: str) -> Offsets | None:
    """Parse the initial offsets of the Kafka connector, None for a file of another source."""
    if not content.startswith(b"\0"):
        return None
    # Spark 2.1.0 wrote no version, and could read no file without a byte before it.
    first, newline, rest = content[1:].decode("utf-8", errors="replace").partition("\n")
    if not newline:
        return parse_kafka_offsets(first)
    _version(first, (1,), path)
    return parse_kafka_offsets(rest)


def read_query_id(content: bytes, path: str) -> str:
    """Return the id of the query from the file `metadata`."""
    fields = _json(content.decode("utf-8", errors="replace"))
    if not isinstance(fields, dict) or not isinstance(fields.get("id"), str):
        raise damaged_file(path)
    return str(fields["id"])


def parse_kafka_offsets(text: str) -> Offsets | None:
    """Parse a line of the Kafka connector, None if it is not one."""
    fields = _json(text)
    if not isinstance(fields, dict) or not fields:
        return None
    found: dict[TopicPartition, int] = {}
    for topic, numbers in fields.items():
        if not isinstance(numbers, dict):
            return None
        for number, offset in numbers.items():
            if not _NUMBER.fullmatch(number) or not isinstance(offset, int) or isinstance(offset, bool):
                return None
            found[TopicPartition(topic, int(number))] = offset
    return found


def damaged_file(path: str) -> UserError:
    """Return the error for a file that is not in Spark's format."""
    return UserError(f"{path} is damaged, or is no file of a Spark checkpoint. Nothing was changed.")


def _lines(content: bytes, path: str) -> list[str]:
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise damaged_file(path) from None
    if lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise damaged_file(path)
    return lines


def _version(line: str, known: Sequence[int], path: str) -> int:
    match = re.fullmatch(r"v(\d{1,9})", line.strip(), re.ASCII)
    if match is None:
        raise damaged_file(path)
    if int(match[1]) not in known:
        raise UserError(
            f"{path} has version {match[1]} of its format, and this Logmark knows "
            f"{', '.join(map(str, known[:-1]))}{' and ' if len(known) > 1 else ''}{known[-1]}: a newer Spark wrote it. "
            "Nothing was changed; upgrade Logmark."
        )
    return int(match[1])


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
