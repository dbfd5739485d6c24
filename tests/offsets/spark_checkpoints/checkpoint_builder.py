"""Checkpoints made by hand, file by file as Spark 4.3 writes them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

QUERY = "52c18ca3-3fd0-4ca3-bcd5-3c2331eced25"
# The time of the first batch; each one takes a second and begins two seconds after the one before.
FIRST_MS = 1_763_000_000_000
CONF = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.multipleWatermarkPolicy": "min"}

Nested = Mapping[str, Mapping[int, int]]


def kafka(offsets: Nested) -> str:
    """The line of the Kafka connector."""
    return dumped({topic: {str(number): offset for number, offset in one.items()} for topic, one in offsets.items()})


def dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def plan_file(line: str, *more: str, version: int = 1, at_ms: int = FIRST_MS, **metadata: Any) -> bytes:
    """The content of offsets/N."""
    fields = {"batchWatermarkMs": 0, "batchTimestampMs": at_ms, "conf": CONF, **metadata}
    lines = [line, *more] if version == 1 else [f"{number}:{one}" for number, one in enumerate([line, *more])]
    return "\n".join([f"v{version}", dumped(fields), *lines]).encode()


def commit_file(version: int = 1, **fields: Any) -> bytes:
    """The content of commits/N."""
    return f"v{version}\n{dumped({'nextBatchWatermarkMs': 0, **fields})}".encode()


class CheckpointBuilder:
    """A checkpoint's folder that a test fills."""

    def __init__(self, path: Path, *, first: Nested | None = None) -> None:
        self.path = path
        for name in ("offsets", "commits", "sources/0"):
            (path / name).mkdir(parents=True)
        self.write("metadata", dumped({"id": QUERY}).encode(), FIRST_MS)
        if first is not None:
            self.write("sources/0/0", b"\0v1\n" + kafka(first).encode(), FIRST_MS)

    def batches(self, *ends: Nested, start: int = 0, **metadata: Any) -> "CheckpointBuilder":
        """Batches that ended there, each planned and committed."""
        for id, end in enumerate(ends, start):
            self.plan(id, kafka(end), **metadata)
            self.commit(id)
        return self

    def plan(self, id: int, *lines: str, **more: Any) -> "CheckpointBuilder":
        """Writes offsets/ID."""
        at_ms = FIRST_MS + 2000 * id
        return self.write(f"offsets/{id}", plan_file(*lines, at_ms=at_ms, **more), at_ms)

    def commit(self, id: int, version: int = 1, **fields: Any) -> "CheckpointBuilder":
        """Writes commits/ID."""
        return self.write(f"commits/{id}", commit_file(version, **fields), FIRST_MS + 2000 * id + 1000)

    def write(self, name: str, content: bytes, at_ms: int) -> "CheckpointBuilder":
        """Writes a file with its time, and the checksum that Hadoop puts beside it."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        checksum = file.with_name(f".{file.name}.crc")
        for one, data in ((file, content), (checksum, b"crc\0\0\0\2\0....")):
            one.write_bytes(data)
            os.utime(one, (at_ms / 1000, at_ms / 1000))
        return self

    def grow_old(self) -> None:
        """Gives every file the time of the first batch."""
        for file in self.path.rglob("*"):
            os.utime(file, (FIRST_MS / 1000, FIRST_MS / 1000))

    def files(self) -> dict[str, bytes]:
        """Every file that is no checksum, with its content."""
        return {
            str(file.relative_to(self.path)): file.read_bytes()
            for file in sorted(self.path.rglob("*"))
            if file.is_file() and file.suffix != ".crc"
        }


def ends(of: Sequence[int], topic: str = "clicks") -> Nested:
    """Offsets of a topic's partitions in order."""
    return {topic: dict(enumerate(of))}
