"""What a checkpoint says of its query, and what is refused because it says nothing of the kind."""

import os
from pathlib import Path

import fsspec
import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.spark_checkpoints.checkpoint import Checkpoint, read_checkpoint
from logmark.offsets.spark_checkpoints.folder import open_folder
from tests.offsets.spark_checkpoints.checkpoint_builder import FIRST_MS, QUERY, CheckpointBuilder, dumped, ends, kafka

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def read(builder: CheckpointBuilder, **more: int) -> Checkpoint:
    return read_checkpoint(open_folder(str(builder.path)), **more)


@pytest.fixture
def builder(tmp_path: Path) -> CheckpointBuilder:
    return CheckpointBuilder(tmp_path / "checkpoint", first=ends([0, 0]))


def test_a_query_stands_at_the_end_of_its_last_committed_batch(builder: CheckpointBuilder) -> None:
    builder.batches(ends([3, 3]), ends([6, 5]), ends([9, 9]))

    found = read(builder)

    assert (QUERY, {P0: 9, P1: 9}, None) == (found.query_id, found.offsets, found.unfinished)
    assert [(0, 3, True), (1, 6, True), (2, 9, True)] == [
        (batch.id, batch.offsets[P0], batch.is_committed) for batch in found.batches
    ]
    assert FIRST_MS + 4000 == found.last.plan.planned_ms
    assert FIRST_MS + 5000 == found.last.committed_ms == found.changed_ms


def test_a_batch_that_was_planned_and_not_committed_is_not_where_the_query_stands(builder: CheckpointBuilder) -> None:
    builder.batches(ends([3, 3])).plan(1, kafka(ends([6, 5])))

    found = read(builder)

    assert {P0: 3, P1: 3} == found.offsets
    assert found.unfinished is not None
    assert (1, {P0: 6, P1: 5}) == (found.unfinished.id, found.unfinished.offsets)


def test_before_its_first_commit_a_query_stands_where_it_began(builder: CheckpointBuilder) -> None:
    builder.plan(0, kafka(ends([3, 3])))

    assert {P0: 0, P1: 0} == read(builder).offsets


def test_the_last_committed_batch_is_found_behind_the_batches_that_are_shown(builder: CheckpointBuilder) -> None:
    builder.batches(ends([3, 3])).plan(1, kafka(ends([6, 5])))

    found = read(builder, batches=1)

    assert [1] == [batch.id for batch in found.batches]
    assert {P0: 3, P1: 3} == found.offsets


def test_only_the_last_batches_are_read(builder: CheckpointBuilder) -> None:
    builder.batches(*(ends([number, number]) for number in range(12)), start=90)

    assert [99, 100, 101] == [batch.id for batch in read(builder, batches=3).batches]


def test_temporary_files_and_checksums_are_no_batches_but_a_sign_of_life(builder: CheckpointBuilder) -> None:
    builder.batches(ends([3, 3])).write("offsets/.1.b1f3.tmp", b"", FIRST_MS + 77_000)

    found = read(builder)

    assert ([0], FIRST_MS + 77_000) == ([batch.id for batch in found.batches], found.changed_ms)


def test_the_watermark_after_a_batch_is_the_later_of_both_files(builder: CheckpointBuilder) -> None:
    builder.plan(0, kafka(ends([3, 3])), batchWatermarkMs=5).commit(0, nextBatchWatermarkMs=9)

    assert 9 == read(builder).last.watermark_ms


def test_state_is_seen_in_its_folder_or_in_a_commit(builder: CheckpointBuilder) -> None:
    builder.batches(ends([3, 3]))
    assert not read(builder).has_state

    builder.plan(1, kafka(ends([4, 4]))).commit(1, 2, stateUniqueIds={"0": [["x"]]})
    assert read(builder).has_state

    builder.commit(1).write("state/0/0/1.delta", b"", FIRST_MS)
    assert read(builder).has_state


def test_the_second_format_of_the_offset_log_is_read(builder: CheckpointBuilder) -> None:
    builder.plan(0, kafka(ends([3, 3])), version=2, sourceMetadataInfo={}).commit(0)

    assert {P0: 3, P1: 3} == read(builder).offsets


def test_a_checkpoint_elsewhere_is_read_like_one_here(builder: CheckpointBuilder) -> None:
    builder.batches(ends([3, 3]), ends([6, 5]))
    files = fsspec.filesystem("memory")
    files.put(str(builder.path), "/bucket/cp", recursive=True)

    found = read_checkpoint(open_folder("memory://bucket/cp"))

    files.rm("/bucket", recursive=True)
    assert ("memory://bucket/cp", QUERY, {P0: 6, P1: 5}) == (found.url, found.query_id, found.offsets)
    assert found.changed_ms is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            dumped({"clicks": {"0": 2}, "~logmark": {"first": {}, "generation": 1, "group": "billing", "query": "x"}}),
            r'belongs to a query on format\("logmark"\).*Nothing was changed; .*plan_reset moves them',
        ),
        ('{"logOffset":3}', r"a query that reads something else, not Kafka through Spark's own connector"),
        ("12", "not Kafka"),
        ("-", "not Kafka"),
    ],
)
def test_the_checkpoint_of_another_source_is_refused(builder: CheckpointBuilder, line: str, message: str) -> None:
    builder.plan(0, line).commit(0)

    with pytest.raises(UserError, match=message):
        read(builder)


def test_the_kind_of_another_source_is_named_where_it_is_known(builder: CheckpointBuilder) -> None:
    info = {"0": {"sourceId": "0", "providerName": "delta", "apiVersion": "v1"}}
    builder.plan(0, '{"index":1}', version=2, sourceMetadataInfo=info).commit(0)

    with pytest.raises(UserError, match="a query that reads delta, not Kafka"):
        read(builder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"There is no checkpoint at .*: no such folder, or an empty one\. Nothing was changed\."),
        (["x.parquet"], "is not a Spark checkpoint: it has no folder named offsets. Give the folder"),
        (["_spark_metadata/0"], "is where a query of Spark's writes its files, not its checkpoint"),
        (["billing/offsets/0", "fraud/offsets/0"], "In it there is one: billing, fraud."),
        (["offsets/.0.crc"], "has no batch yet: its query was stopped before its first one was planned"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_what_it_is(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        os.makedirs((tmp_path / "at" / name).parent, exist_ok=True)
        (tmp_path / "at" / name).touch()

    with pytest.raises(UserError, match=message):
        read_checkpoint(open_folder(str(tmp_path / "at")))


def test_a_damaged_name_of_the_query_is_an_error(builder: CheckpointBuilder) -> None:
    builder.batches(ends([3, 3])).write("metadata", b"{", FIRST_MS)

    with pytest.raises(UserError, match="metadata is damaged"):
        read(builder)


def test_a_checkpoint_without_the_name_of_its_query_is_shown(builder: CheckpointBuilder) -> None:
    builder.batches(ends([3, 3]))
    (builder.path / "metadata").unlink()

    assert None is read(builder).query_id
