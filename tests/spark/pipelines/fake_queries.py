"""Queries on paper: they read, count, send and keep checkpoints as Spark's do, in milliseconds and without Spark."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.records import read_records
from logmark.spark.checkpoint import committed_batch, planned_batch, read_position, resume_position
from logmark.spark.pipelines.declaration import Table, Version
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.replay.build import measure_progress
from logmark.spark.pipelines.replay.fence import commit_marked
from logmark.spark.source.position import (
    GroupCommit,
    GroupMoved,
    GroupTakenOver,
    Offsets,
    Position,
    compare_with_group,
    first_position,
)
from logmark.spark.tables.modes import REPLACE, Rules
from logmark.spark.tables.table import read_batch
from logmark.wire import batches
from tests.spark.pipelines.number_pipelines import NumberPipelines
from tests.spark.table_batches import WHERE, write

COMPLETE = Rules.of("complete")
COLUMNS = {"label": "string", "rest": "long", "count": "long"}


class Superseded(Exception):
    """Another query has the group."""


class QueryDied(Exception):
    """The driver of a query is gone."""


class FakeQueries:
    """Runs versions of the pipelines of `NumberPipelines`; what stands for `building.run`."""

    def __init__(self, numbers: NumberPipelines) -> None:
        self._numbers = numbers
        self.runs = 0
        self.dies_in_the_batch = False

    def run(
        self,
        job: Job,
        version: Version,
        spark: object,
        client: Client,
        *,
        starts: Offsets,
        stops: Offsets | None = None,
        report: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        """One batch of all there is; one that was planned and not finished is repeated before that."""
        self.runs += 1
        planned = planned_batch(version.checkpoint)
        if planned is not None and planned != committed_batch(version.checkpoint):
            self._finish(job, version, client, planned, read_position(version.checkpoint, planned))
        position = self._position(job, version, client)
        ends = client.latest(position.next)
        wanted = {
            partition: max(min(end, (stops or ends).get(partition, end)), position.next[partition])
            for partition, end in ends.items()
        }
        last = planned_batch(version.checkpoint)
        number = 0 if last is None else last + 1
        following = position.batch(first=position.next, next=wanted, held={})
        _note(version.checkpoint / "offsets" / str(number), following)
        if self.dies_in_the_batch:
            raise QueryDied
        self._finish(job, version, client, number, following)
        commit_marked(client, version.group, following)
        report(*measure_progress(client, version.group, starts, stops or client.latest(starts)))

    def _finish(self, job: Job, version: Version, client: Client, number: int, following: Position) -> None:
        records = [
            (partition, record.offset, (record.value or b"").decode())
            for partition, (first, stop) in sorted(following.ranges.items())
            for record in read_records(client, partition, first, stop)
        ]
        values = [value for _, _, value in records]
        if isinstance(version.sink, Table) and version.sink.mode == REPLACE:
            self._keep(version, number, records)
        elif isinstance(version.sink, Table):
            self._count(version, number, values)
        elif job.pipeline.name.startswith("forwards"):
            wanted = [one for one in records if any(int(one[2]) % each == 0 for each in self._numbers.divisors)]
            self._send(version, client, [(at.partition, value, f"{at.partition}/{one}") for at, one, value in wanted])
        else:
            self._alert(version, client, values)
        _note(version.checkpoint / "commits" / str(number), following)

    def run_live(self, job: Job, client: Client) -> None:
        """A batch of the live version; raises `Superseded` if its group is another query's."""
        version = job.home.live_version(job.pipeline)
        self.run(job, version, None, client, starts={})

    def _position(self, job: Job, version: Version, client: Client) -> Position:
        """Where the version goes on, as the source finds it out."""
        now_ms = time.time_ns() // 1_000_000
        found = {
            partition: GroupCommit(offset=one.offset, mark=CommitMetadata.parse(one.metadata))
            for partition, one in client.committed(version.group).items()
        }
        position = resume_position(version.checkpoint)
        if position is None:
            partitions = [TopicPartition(self._numbers.topic, number) for number in (0, 1)]
            starts = {partition: found[partition].offset if partition in found else 0 for partition in partitions}
            query = f"{version.group}-{now_ms}-{version.number}"
            return first_position(group=version.group, query=query, now_ms=now_ms, found=found, starts=starts)
        (position,) = position.sources
        if position.group != version.group:
            assert position.group == version.group_before, "a checkpoint of a third group"
            return position.adopt_into(version.group, found, now_ms=now_ms)
        verdict = compare_with_group(position, found, held=position.possible_commits())
        if isinstance(verdict, GroupTakenOver):
            raise Superseded(str(verdict.owner))
        if isinstance(verdict, GroupMoved):
            assert not (version.checkpoint / "state").is_dir(), "a query with state was moved"
            return position.seek(verdict.to, now_ms=now_ms)
        return position

    def _keep(self, version: Version, number: int, records: list[tuple[TopicPartition, int, str]]) -> None:
        label = self._numbers.label
        rows = [
            {"topic": at.topic, "partition": at.partition, "offset": offset, "value": value, "label": label}
            for at, offset, value in records
        ]
        one = read_batch(version.checkpoint, number, Rules())
        assert isinstance(version.sink, Table)
        write(Path(version.sink.path), one, Rules(), WHERE | {"value": "string", "label": "string"}, rows)

    def _count(self, version: Version, number: int, values: list[str]) -> None:
        counts = Counter({int(rest): count for rest, count in _state(version.checkpoint).items()})
        counts.update(int(value) % 5 for value in values)
        (version.checkpoint / "state").mkdir(exist_ok=True)
        (version.checkpoint / "state" / "counts").write_text(json.dumps(counts))
        label = self._numbers.label
        rows = [{"label": label, "rest": rest, "count": count} for rest, count in sorted(counts.items())]
        one = read_batch(version.checkpoint, number, COMPLETE)
        assert isinstance(version.sink, Table)
        write(Path(version.sink.path), one, COMPLETE, COLUMNS, rows)

    def _alert(self, version: Version, client: Client, values: list[str]) -> None:
        known = _state(version.checkpoint)
        new = [value for value in dict.fromkeys(values) if value not in known]
        (version.checkpoint / "state").mkdir(exist_ok=True)
        (version.checkpoint / "state" / "counts").write_text(json.dumps(known | dict.fromkeys(new, 1)))
        alerts = [value for value in new if any(int(value) % one == 0 for one in self._numbers.divisors)]
        self._send(version, client, [(int(value) % 2, value, f"number-{value}") for value in alerts])

    def _send(self, version: Version, client: Client, alerts: list[tuple[int, str, str]]) -> None:
        assert not isinstance(version.sink, Table)
        for partition in (0, 1):
            mine = [(value.encode(), own_id.encode()) for at, value, own_id in alerts if at == partition]
            if mine:
                records = [(value, value) for value, _ in mine]
                headers = [[("logmark.id", own_id)] for _, own_id in mine]
                built = batches.build(records, timestamp_ms=time.time_ns() // 1_000_000, headers=headers)
                client.produce(TopicPartition(version.sink.name, partition), built)


def _state(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / "state" / "counts"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _note(path: Path, position: Position) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent.parent / "metadata").write_text("{}")
    path.write_text(f"v1\n{{}}\n{json.dumps(position.to_json())}")
