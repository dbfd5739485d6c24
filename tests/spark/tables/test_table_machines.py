"""Tables under everything that happens to queries, against a model: no row twice, none lost, in every mode.

Two machines drive queries by hand: one without state, which may be moved anywhere and may lose its checkpoint, and one
that counts, which is built again as a new version when it was moved back or has lost its state. Both crash while rows
are staged, before the commit, after it, and before Spark has noted the batch, and then repeat the batch.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.tables import commits
from logmark.spark.tables.commits import write_batch
from logmark.spark.tables.compaction import optimize_table, vacuum_table
from logmark.spark.tables.ledger import Batch
from logmark.spark.tables.modes import Rules
from logmark.spark.tables.versions import next_version, swap_in_version, version_path
from tests.spark.table_batches import P0, P1, WHERE, Columns, Row, batch, rows, spark_schema, staging

PARTITIONS = (P0, P1)
CRASHES = ("none", "none", "staging", "before commit", "after commit", "before checkpoint")
Offsets = dict[TopicPartition, int]


class Crash(Exception):
    """The driver is gone."""


@contextmanager
def crashing(when: str) -> Iterator[None]:
    """Lets the driver die at this moment of a commit."""
    commit = commits.commit

    def dying(*arguments: Any, **named: Any) -> bool:
        if when == "before commit":
            raise Crash
        is_done = commit(*arguments, **named)
        if when == "after commit":
            raise Crash
        return is_done

    with mock.patch.object(commits, "commit", dying):
        yield


class QueryMachine(RuleBasedStateMachine):
    """What both kinds of queries have in common: a log that grows, and batches that are planned, run and repeated."""

    how: Rules
    columns: ClassVar[Columns]
    is_stateful: bool

    def __init__(self) -> None:
        super().__init__()
        self.table = Path(tempfile.mkdtemp())
        self.ends: Offsets = dict.fromkeys(PARTITIONS, 0)
        self.next: Offsets = dict(self.ends)
        self.generation, self.query, self.number = 1, 1, 0
        self.planned: Batch | None = None
        self.has_read: set[int] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.table)

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 6))
    def produce(self, partition: TopicPartition, count: int) -> None:
        self.ends[partition] += count

    @rule()
    def optimize(self) -> None:
        if commits.open_table(self.table) is not None:
            optimize_table(self.table)

    @rule()
    def vacuum(self) -> None:
        if commits.open_table(self.table) is not None:
            vacuum_table(self.table, retention_hours=1)

    def batch(self, first: Offsets, end: Offsets) -> Batch:
        names = {"query": f"q{self.query}", "generation": self.generation, "number": self.number}
        known = {"is_stateful": self.is_stateful, "is_continued": self.generation in self.has_read}
        return batch(dict(first), dict(end), self.how, **names, **known)  # type: ignore[arg-type]

    def plan(self, limit: int) -> Batch:
        """The batch that was planned and not finished, or the next one."""
        if self.planned is None:
            end = {
                partition: max(first, min(self.ends[partition], first + limit))
                for partition, first in self.next.items()
            }
            self.planned = self.batch(self.next, end)
        return self.planned

    def run(self, one: Batch, found: list[Row], crash: str) -> bool:
        """Runs the batch; True if the table holds it now, whatever the query knows of it."""

        def stage(folder: Path) -> None:
            staging(self.columns, found[::2], found[1::2])(folder)
            if crash == "staging":
                raise Crash

        with crashing(crash):
            try:
                write_batch(self.table, one, spark_schema(self.columns), stage, self.how)
            except Crash:
                return crash == "after commit"
        if crash != "before checkpoint":
            self.next, self.number, self.planned = dict(one.position.next), self.number + 1, None
            self.has_read |= {one.position.generation} if one.position.ranges else set()
        return True


class StatelessMachine(QueryMachine):
    """A query whose rows follow from the records, in mode replace, append or upsert."""

    columns: ClassVar[Columns] = {**WHERE, "key": "long", "value": "string"}
    is_stateful = False

    def __init__(self) -> None:
        super().__init__()
        self.code = 0
        self.committed: Offsets = dict(self.next)
        self.model: dict[Any, tuple[TopicPartition, int, str]] = {}
        self.read: set[tuple[TopicPartition, int]] = set()
        self.held: Batch | None = None

    @rule()
    def deploy(self) -> None:
        self.code += 1

    @rule(limit=st.integers(1, 8), crash=st.sampled_from(CRASHES))
    def run_batch(self, limit: int, crash: str) -> None:
        one = self.plan(limit)
        if not one.position.ranges:
            self.planned = None
            return
        self.committed = dict(one.position.first)
        found = [row for partition, span in one.position.ranges.items() for row in self.made(partition, span)]
        if self.run(one, found, crash) and one != self.held:
            self.take(one, found)
            self.held = one

    def made(self, partition: TopicPartition, span: tuple[int, int]) -> list[Row]:
        """The rows that the code makes of a range: none for some offsets, and a null now and then."""
        return [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": offset,
                "key": offset % 3 + 10 * partition.partition,
                "value": None if (offset + self.code) % 7 == 0 else f"{self.code}",
            }
            for offset in range(*span)
            if (offset + self.code) % 5
        ]

    def take(self, one: Batch, found: list[Row]) -> None:
        rows_of = {(TopicPartition(row["topic"], row["partition"]), row["offset"]): row for row in found}
        read = {(partition, offset) for partition, span in one.position.ranges.items() for offset in range(*span)}
        if self.how.mode == "replace":
            self.model = {at: row for at, row in self.model.items() if at not in read}
            self.model |= {at: (*at, row["value"]) for at, row in rows_of.items()}
        elif self.how.mode == "append":
            self.model |= {at: (*at, row["value"]) for at, row in rows_of.items() if at not in self.read}
        else:
            newest = {row["key"]: row for _, row in sorted(rows_of.items())}
            for key, row in newest.items():
                if key in self.model and self.model[key][1] > row["offset"]:
                    continue
                self.model.pop(key, None)
                if row["value"] is not None:
                    self.model[key] = (TopicPartition("clicks", row["partition"]), row["offset"], row["value"])
        self.read |= read

    @precondition(lambda self: self.planned is None)
    @rule(partition=st.sampled_from(PARTITIONS), share=st.floats(0, 1))
    def seek(self, partition: TopicPartition, share: float) -> None:
        self.generation += 1
        self.next[partition] = round(self.ends[partition] * share)
        write_batch(self.table, self.batch(self.next, self.next), spark_schema(self.columns), pytest.fail, self.how)
        self.number += 1

    @rule()
    def lose_checkpoint(self) -> None:
        self.generation, self.query, self.number = self.generation + 1, self.query + 1, 0
        self.planned, self.next = None, dict(self.committed)

    @precondition(lambda self: commits.open_table(self.table) is not None)
    @rule()
    def lose_table(self) -> None:
        """Somebody takes the table away, and does what the error says where that is not enough for a new one."""
        shutil.rmtree(self.table)
        self.table.mkdir()
        one = self.plan(5)
        if one.is_continued and one.position.ranges:
            with pytest.raises(UserError, match="take the query's checkpoint away"):
                write_batch(self.table, one, spark_schema(self.columns), pytest.fail, self.how)
            self.lose_checkpoint()
        else:
            self.generation, self.number, self.planned = self.generation + 1, self.number + 1, None
        self.next, self.committed = dict.fromkeys(PARTITIONS, 0), dict.fromkeys(PARTITIONS, 0)
        self.model, self.read, self.held = {}, set(), None

    @invariant()
    def the_table_holds_what_it_should(self) -> None:
        if commits.open_table(self.table) is None:
            assert not self.model
            return
        held = rows(self.table, "partition", "offset", "value")
        expected = [(partition.partition, offset, value) for partition, offset, value in self.model.values()]
        assert sorted(expected, key=str) == sorted(held, key=str)


class CountingMachine(QueryMachine):
    """A query with state, in mode append, upsert or complete; a new version takes over where it cannot go on."""

    columns: ClassVar[Columns] = {"key": "string", "count": "long"}
    is_stateful = True

    def __init__(self) -> None:
        super().__init__()
        self.state: Counter[str] = Counter()
        self.taken: dict[int, list[Row]] = {}
        self.model: list[Row] = []
        self.is_dead = False

    @precondition(lambda self: not self.is_dead)
    @rule(limit=st.integers(1, 8), crash=st.sampled_from(CRASHES))
    def run_batch(self, limit: int, crash: str) -> None:
        self.execute(self.plan(limit), crash)

    @precondition(lambda self: not self.is_dead and self.planned is None and self.number > 0)
    @rule(crash=st.sampled_from(CRASHES))
    def run_idle_batch(self, crash: str) -> None:
        """A timer: Spark's log has the position of the last batch once more."""
        last = self.last.position
        self.planned = self.batch(dict(last.first), dict(last.next))
        self.execute(self.planned, crash)

    def execute(self, one: Batch, crash: str) -> None:
        is_idle = one.number > 0 and one.position == self.last.position
        after, found = self.counted(one, is_idle=is_idle)
        number = self.number
        if self.run(one, found, crash) and number not in self.taken:
            self.taken[number] = found
            self.take(found)
        if self.number > number:
            self.state, self.last = after, one

    def counted(self, one: Batch, *, is_idle: bool) -> tuple[Counter[str], list[Row]]:
        """The state after the batch, and the rows that it yields."""
        after, found = Counter(self.state), []
        for partition, span in () if is_idle else one.position.ranges.items():
            for offset in range(*span):
                key = f"{partition.partition}-{offset % 3}"
                after[key] += 1
                found.append({"key": key, "count": after[key]})
        if self.how.mode == "complete":
            return after, [{"key": key, "count": count} for key, count in after.items()]
        if self.how.mode == "upsert":
            return after, [{"key": key, "count": after[key]} for key in sorted({row["key"] for row in found})]
        return after, found + ([{"key": "timer", "count": one.number}] if is_idle else [])

    def take(self, found: list[Row]) -> None:
        if self.how.mode == "complete":
            self.model = found
        elif self.how.mode == "upsert":
            self.model = list(({row["key"]: row for row in self.model} | {row["key"]: row for row in found}).values())
        else:
            self.model = self.model + found

    @precondition(lambda self: not self.is_dead and self.planned is None and any(self.next.values()))
    @rule()
    def is_moved_back(self) -> None:
        self.generation += 1
        self.next = dict.fromkeys(PARTITIONS, 0)
        self.refuse("was moved back")

    @precondition(lambda self: not self.is_dead and bool(self.taken))
    @rule()
    def lose_checkpoint(self) -> None:
        self.generation, self.query, self.number, self.planned = self.generation + 1, self.query + 1, 0, None
        self.refuse("its checkpoint is new")

    def refuse(self, message: str) -> None:
        end = {partition: max(1, end) for partition, end in self.ends.items()}
        with pytest.raises(UserError, match=message):
            self.run(self.batch(self.next, end), [{"key": "wrong", "count": 1}], "none")
        self.is_dead, self.planned = True, None

    @precondition(lambda self: self.is_dead)
    @rule(crash=st.sampled_from(["none", "before checkpoint"]))
    def rebuild(self, crash: str) -> None:
        """A new version reads everything from the beginning, and is swapped in."""
        table, number = self.table, next_version(self.table)
        self.table = version_path(table, number)
        self.generation, self.query, self.number = self.generation + 1, self.query + 1, 0
        self.next, self.state, self.taken, self.model = dict.fromkeys(PARTITIONS, 0), Counter(), {}, []
        self.is_dead = False
        self.execute(self.plan(3), crash)
        self.execute(self.plan(1000), crash)
        swap_in_version(table, number)
        self.table = table

    @invariant()
    def the_table_holds_what_it_should(self) -> None:
        if commits.open_table(self.table) is None:
            assert not self.model
            return
        held = rows(self.table, "key", "count")
        assert sorted((row["key"], row["count"]) for row in self.model) == sorted(held)


def drive(machine: type[QueryMachine], mode: str, *, examples: int) -> None:
    """Runs the machine in this mode."""
    keys = {"keys": "key"} if mode == "upsert" else {}
    if mode == "upsert" and machine is StatelessMachine:
        keys["delete_by"] = "value"
    configured = type(machine.__name__, (machine,), {"how": Rules.of(mode, **keys)})
    health = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        configured,
        settings=settings(max_examples=examples, stateful_step_count=20, suppress_health_check=health),
    )


@pytest.mark.parametrize("mode", ["replace", "append", "upsert"])
def test_each_record_counts_once_whatever_happens_to_a_query_without_state(mode: str) -> None:
    drive(StatelessMachine, mode, examples=10)


@pytest.mark.parametrize("mode", ["append", "upsert", "complete"])
def test_each_record_counts_once_whatever_happens_to_a_query_with_state(mode: str) -> None:
    drive(CountingMachine, mode, examples=10)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["replace", "append", "upsert", "complete"])
def test_each_record_counts_once_in_thousands_of_steps(mode: str) -> None:
    if mode != "complete":
        drive(StatelessMachine, mode, examples=200)
    if mode != "replace":
        drive(CountingMachine, mode, examples=200)
