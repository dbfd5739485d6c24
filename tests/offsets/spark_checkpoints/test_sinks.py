"""Which sink a query has: as far as can be seen, and as the user says."""

import os
from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.offsets.spark_checkpoints.checkpoint import read_checkpoint
from logmark.offsets.spark_checkpoints.folder import Entry, LocalFolder, open_folder
from logmark.offsets.spark_checkpoints.sinks import Sink, find_sink, parse_sink
from tests.offsets.spark_checkpoints.checkpoint_builder import FIRST_MS, CheckpointBuilder, ends, kafka


def found(builder: CheckpointBuilder) -> Sink | None:
    folder = open_folder(str(builder.path))
    return find_sink(read_checkpoint(folder), folder)


def manifest(folder: Path, **written_ms: int) -> None:
    """A file sink's manifest: b0=FIRST_MS is batch 0, c9 the compacted one of batch 9."""
    (folder / "_spark_metadata").mkdir(parents=True)
    for name, at_ms in written_ms.items():
        file = folder / "_spark_metadata" / (name[1:] + (".compact" if name[0] == "c" else ""))
        file.write_text("v1\n")
        os.utime(file, (at_ms / 1000, at_ms / 1000))


@pytest.fixture
def builder(tmp_path: Path) -> CheckpointBuilder:
    return CheckpointBuilder(tmp_path / "deep" / "er" / "checkpoint").batches(*(ends([number]) for number in range(12)))


def at(batch: int, offset_ms: int = 500) -> int:
    """A time in the middle of a batch."""
    return FIRST_MS + 2000 * batch + offset_ms


def test_a_checkpoint_alone_does_not_tell_its_sink(builder: CheckpointBuilder) -> None:
    assert None is found(builder)


def test_a_manifest_around_the_checkpoint_is_that_of_its_query(builder: CheckpointBuilder) -> None:
    manifest(builder.path.parent.parent, b0=0)

    sink = found(builder)

    assert sink is not None
    assert (True, str(builder.path.parent.parent)) == (sink.is_files, sink.name)


def test_a_manifest_next_to_the_checkpoint_is_known_by_its_times(builder: CheckpointBuilder) -> None:
    manifest(builder.path.parent / "table", c9=at(9), b10=at(10), b11=at(11))

    sink = found(builder)

    assert sink is not None
    assert (True, str(builder.path.parent / "table")) == (sink.is_files, sink.name)


@pytest.mark.parametrize(
    "written",
    [
        {"c9": at(9), "b10": at(10), "b11": at(11, 60_000)},
        {"c9": at(9), "b10": at(10, -60_000), "b11": at(11)},
        {"c9": at(9), "b10": at(10)},
        {"b20": at(11)},
        {},
    ],
)
def test_a_manifest_next_to_the_checkpoint_with_other_times_is_another_querys(
    builder: CheckpointBuilder, written: dict[str, int]
) -> None:
    manifest(builder.path.parent / "table", **written)

    assert None is found(builder)


def test_neighbours_that_may_not_be_seen_are_no_obstacle(builder: CheckpointBuilder) -> None:
    class Closed(LocalFolder):
        def parent(self) -> LocalFolder:
            return Unreadable(self._path.parent)

    class Unreadable(LocalFolder):
        def entries(self, path: str = "") -> list[Entry]:
            raise UserError("Permission denied")

    folder = Closed(builder.path)

    assert None is find_sink(read_checkpoint(folder), folder)


@pytest.mark.parametrize(
    ("provider", "is_files"),
    [("parquet", True), ("org.apache.spark.sql.execution.streaming.sinks.FileStreamSink", True), ("kafka", False)],
)
def test_the_newest_commit_log_names_the_sink(tmp_path: Path, provider: str, is_files: bool) -> None:
    sinks = {"sink": {"sinkName": "sink", "commitOffset": "-", "providerName": provider, "isActive": True}}
    builder = CheckpointBuilder(tmp_path / "checkpoint").plan(0, kafka(ends([1]))).commit(0, 3, sinkMetadataMap=sinks)

    sink = found(builder)

    assert sink is not None
    assert (provider, is_files) == (sink.name, sink.is_files)


@pytest.mark.parametrize(
    ("said", "name", "is_files"),
    [
        ("foreachbatch", "foreachBatch", False),
        ("Kafka", "kafka", False),
        ("other", "other", False),
        ("PARQUET", "parquet", True),
        ("csv", "csv", True),
    ],
)
def test_a_kind_of_sink_is_believed(said: str, name: str, is_files: bool) -> None:
    sink = parse_sink(said)

    assert (name, is_files) == (sink.name, sink.is_files)


def test_a_folder_is_looked_at(tmp_path: Path) -> None:
    manifest(tmp_path / "files", b0=0)
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)

    assert parse_sink(str(tmp_path / "files")).is_files
    assert not parse_sink(str(tmp_path / "table")).is_files


@pytest.mark.parametrize("said", ["foreachBatsch", "/nowhere/at/all"])
def test_what_is_neither_is_refused(said: str) -> None:
    with pytest.raises(UserError, match=r"is neither a kind of sink \(foreachBatch, .*\) nor a folder"):
        parse_sink(said)
