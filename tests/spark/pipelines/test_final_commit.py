"""The last commit of a query that was stopped between two batches."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from logmark.client.answers import Committed
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.spark.checkpoint import finished_position
from logmark.spark.pipelines.final_commit import commit_position
from logmark.spark.source.position import Position

PARTITION = TopicPartition("clicks", 0)
POSITION = Position(group="billing", query="q", generation=7, first={PARTITION: 10}, next={PARTITION: 20})


class FakeGroupClient:
    """A cluster with one group in one partition."""

    def __init__(self, offset: int | None, mark: CommitMetadata | None = None) -> None:
        self.offset = offset
        self.mark = mark

    def committed(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> dict[Any, Committed]:
        if self.offset is None:
            return {}
        return {PARTITION: Committed(offset=self.offset, metadata=self.mark.to_text() if self.mark else "")}

    def commit(self, group: str, offsets: Mapping[TopicPartition, Any]) -> None:
        assert "billing" == group
        one = offsets[PARTITION]
        self.offset, self.mark = one.offset, CommitMetadata.parse(one.metadata)


def marked(offset: int, *, query: str = "q", generation: int = 7) -> FakeGroupClient:
    return FakeGroupClient(offset, CommitMetadata(query=query, generation=generation, offset=offset))


@pytest.mark.parametrize(
    ("group", "is_committed"),
    [
        (marked(10), True),  # a batch behind, as the query left it
        (marked(20), False),  # the query was asked once more before it was stopped
        (FakeGroupClient(None), True),  # expired
        (FakeGroupClient(4), False),  # reset by somebody
        (marked(15), False),  # reset by a tool that kept the mark
        (marked(10, query="r", generation=9), False),  # taken over
    ],
)
def test_a_finished_batch_is_committed_unless_somebody_else_has_moved_the_group(
    group: FakeGroupClient, is_committed: bool
) -> None:
    before = group.offset, group.mark

    assert is_committed == commit_position(group, POSITION)  # type: ignore[arg-type]

    expected = (20, POSITION.mark(PARTITION)) if is_committed else before
    assert expected == (group.offset, group.mark)


def test_a_query_that_was_stopped_in_a_batch_has_finished_nothing_new(tmp_path: Path) -> None:
    assert finished_position(tmp_path) is None
    for kind in ("offsets", "commits"):
        (tmp_path / kind).mkdir()
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(POSITION.to_json())}\n")
    assert finished_position(tmp_path) is None

    (tmp_path / "commits" / "0").write_text("v1\n{}")
    assert POSITION == finished_position(tmp_path)
