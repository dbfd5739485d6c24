"""What a table knows of the offsets that its rows came from, and which batch it takes: pure decisions.

A Delta commit can carry application transactions: pairs of a name and a number that are part of the table's state, so
they survive checkpoints and the cleaning of old log files, unlike the text beside a commit. The ledger is kept in them:
the group, the generation of the last batch and the next offset of every partition; the query and Spark's number of the
last batch; the mode; and for `append` which offsets were ever read. The same facts, with the batch's start, are
in the commit's text for people.

Which batch it is. A query without state is a function of the records: its batches are known by their offsets alone, so
it may lose its checkpoint, or be moved anywhere, and the ranges say what is new. The rows of a query with state
(aggregations, deduplication, transformWithState) also depend on all that it read before, and a batch may have rows
though it reads nothing, when a watermark or a timer has passed. So such a batch is known by the query's token, which is
made with the checkpoint, and the batch's number in it; what would make the state count anything twice, or begin from
nothing in the middle, is refused.

Several sources. The ledger has the generation and the offsets of each, by their topics, and by their groups where these
differ. A batch is taken if any source has something new in it, and refused if it must not be taken because of any.

Where a table begins. One that knows of no batch takes the first batch of a checkpoint, which begins where the group
stands, and without state also the first one after a seek, which begins where somebody wanted it to. Any other batch
continues rows that some table had and this one has not. A batch that is refused stays planned in Spark's checkpoint and
is tried again by every restart, before the group is looked at: so to begin elsewhere takes another checkpoint too.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.errors import Superseded, TableGone, TableReplaced
from logmark.spark.source.offset_maps import nest_by_topic
from logmark.spark.source.position import Offsets, Position
from logmark.spark.source.positions import QueryPosition, find_shared_partitions
from logmark.spark.tables.intervals import Intervals, merge_intervals
from logmark.spark.tables.modes import APPEND, MODES, REPLACE, UPSERT

PREFIX = "logmark/"
_GENERATION = "logmark/generation"
_GROUP = "logmark/group"
_GROUP_BEFORE = "logmark/group-before"
_QUERY = "logmark/query"
_BATCH = "logmark/batch"
_MODE = "logmark/mode"
_KEYS = "logmark/keys"
_CLOSED = "logmark/closed"
_SOURCES = "logmark/sources"
GONE = -1  # the number of an entry that no longer counts: Delta has no way to remove one


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of a query: what it reads, its number in the checkpoint, and whether state has a part in its rows.

    `is_continued` says that an earlier batch of the same generation has read records, so that there are rows of it.
    """

    position: QueryPosition
    number: int
    is_stateful: bool = False
    is_continued: bool = False
    checkpoint: Path | None = None
    mode: str = REPLACE
    keys: tuple[str, ...] = ()
    has_sequence: bool = False

    @property
    def goes_by_offset(self) -> bool:
        """True if offsets decide which rows of the table make way for those of the batch."""
        return self.mode == REPLACE or (self.mode == UPSERT and not self.is_stateful and not self.has_sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEnd:
    """Where the rows of one source end in a table, and in which generation; None for a source that it knows not."""

    generation: int | None
    ends: Offsets

    def has_read(self, position: Position) -> bool:
        """Return whether the source reads no record beyond those that the table has."""
        return not position.ranges or (self.generation == position.generation and self.ends == position.next)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The last batch that a table holds: None everywhere for a table without one.

    `ends` is in the order of the sources of the batch that the ledger was read for. Topics in `recreated` were deleted
    and created again since: what the table knows of their offsets is of other records, and is not in here any more.
    """

    group_number: int | None
    generation: int | None
    ends: tuple[SourceEnd, ...] = ()
    sources: int = 1
    query_number: int | None = None
    batch: int | None = None
    mode: str = REPLACE
    keys_number: int | None = None
    is_closed: bool = False
    read: Mapping[TopicPartition, Intervals] = field(default_factory=dict)
    recreated: frozenset[str] = frozenset()
    group_before_number: int | None = None

    def has_group(self, position: QueryPosition) -> bool:
        """Return True for the group of the table, and for the one in which its rows were made before it was swapped in.

        A batch that the query had planned by then is repeated as it was.
        """
        return self.group_number in (None, number_of_name(position.group)) or self.was_swapped_in(position)

    def was_swapped_in(self, position: QueryPosition) -> bool:
        """Return whether the groups of the query are that of the table and the one before, of which one is left.

        Each source goes over to the group of the table by itself, so for a moment they may have both.
        """
        groups = {number_of_name(source.group) for source in position.sources}
        return self.group_before_number in groups and groups <= {self.group_number, self.group_before_number}

    def has_read(self, batch: Batch) -> bool:
        """Return whether the batch reads no record beyond those of the last batch."""
        return all(end.has_read(source) for end, source in self.pair(batch))

    def pair(self, batch: Batch) -> "list[tuple[SourceEnd, Position]]":
        """Return each source of the batch with what the table knows of it."""
        return list(zip(self.ends, batch.position.sources, strict=True))


def read_ledger(number_of: Callable[[str], int | None], batch: QueryPosition | None = None) -> Ledger:
    """Return the ledger of a table, as far as the partitions of the batch are concerned."""

    def number(name: str) -> int | None:
        found = number_of(name)
        return None if found == GONE else found

    sources = batch.sources if batch is not None else ()
    ids = {topic: number_of_name(name) for topic, name in batch.ids.items()} if batch is not None else {}
    recreated = frozenset(topic for topic, one in ids.items() if number(_id(topic)) not in (None, one))
    partitions = [partition for source in sources for partition in source.next if partition.topic not in recreated]
    has_several = (number(_SOURCES) or 1) > 1
    scopes = _scopes(batch) if batch is not None else {}
    return Ledger(
        group_number=number(_GROUP),
        generation=number(_GENERATION),
        ends=tuple(
            _read_end(number, source, scopes[source.group], recreated=recreated, has_several=has_several)
            for source in sources
        ),
        sources=number(_SOURCES) or 1,
        query_number=number(_QUERY),
        batch=number(_BATCH),
        mode=MODES[number(_MODE) or 0],
        keys_number=number(_KEYS),
        is_closed=bool(number(_CLOSED)),
        read={partition: _read_spans(number, partition) for partition in partitions},
        recreated=recreated,
        group_before_number=number(_GROUP_BEFORE),
    )


def _scopes(position: QueryPosition) -> dict[str, str]:
    """Return what the names of a group's entries begin with: nothing, unless two groups read the same partition."""
    is_scoped = bool(find_shared_partitions(position, in_one_group=False))
    return {source.group: f"{number_of_name(source.group)}/" if is_scoped else "" for source in position.sources}


def _read_end(
    number: Callable[[str], int | None],
    source: Position,
    scope: str,
    *,
    recreated: Collection[str],
    has_several: bool,
) -> SourceEnd:
    """Return where the rows of a source end."""
    ends = {
        partition: number(_next(partition, scope)) for partition in source.next if partition.topic not in recreated
    }
    each = [number(_generation(partition, scope)) for partition in ends] if has_several else [number(_GENERATION)]
    return SourceEnd(
        generation=max((one for one in each if one is not None), default=None),
        ends={partition: end for partition, end in ends.items() if end is not None},
    )


def entries(batch: Batch, before: Ledger) -> dict[str, int]:
    """Return the ledger after a batch, as names and numbers."""
    position = batch.position
    kept = before.group_number if before.was_swapped_in(position) else None
    numbers = {
        _GROUP: kept or number_of_name(position.group),
        _QUERY: number_of_name(position.query),
        _BATCH: batch.number,
        _MODE: MODES.index(batch.mode),
    }
    if batch.keys:
        numbers[_KEYS] = number_of_name("/".join(sorted(batch.keys)))
    if batch.is_stateful and before.generation is not None and before.has_read(batch):
        # A seek: the rows are those of a timer. The state ends where its last records ended.
        return numbers
    numbers |= {_GENERATION: position.generation}
    numbers |= _source_entries(batch, before)
    numbers |= {_id(topic): number_of_name(name) for topic, name in position.ids.items()}
    if batch.mode == APPEND and not batch.is_stateful:
        for partition, span in position.ranges.items():
            numbers |= _span_entries(partition, merge_intervals((*before.read.get(partition, ()), span)))
    return numbers


def _source_entries(batch: Batch, before: Ledger) -> dict[str, int]:
    """Return where the rows of each source end after a batch."""
    sources = batch.position.sources
    scopes = _scopes(batch.position)
    numbers: dict[str, int] = {}
    if len(sources) > 1 or before.sources > 1:
        numbers[_SOURCES] = len(sources)
    for end, source in before.pair(batch):
        if batch.is_stateful and end.ends and not source.ranges:
            continue  # perhaps a seek: the state ends where the last records of this source ended
        scope = scopes[source.group]
        numbers |= {_next(partition, scope): offset for partition, offset in source.next.items()}
        if len(sources) > 1:
            numbers |= {_generation(partition, scope): source.generation for partition in source.next}
    return numbers


def closing_entries() -> dict[str, int]:
    """Return the entries of a table that takes no more batches, because its rows have become those of another."""
    return {_CLOSED: 1}


def transfer_ledger(numbers: Mapping[str, int], before: Mapping[str, int], *, group: str | None) -> dict[str, int]:
    """Return the entries of a table that takes over the ledger of another one; `before` is its own until then."""
    taken = {name: GONE for name in before if name.startswith(PREFIX)}
    taken |= {name: number for name, number in numbers.items() if name.startswith(PREFIX)}
    if group is not None:
        taken |= {_GROUP: number_of_name(group), _GROUP_BEFORE: numbers.get(_GROUP, GONE)}
    return taken | {_CLOSED: 0}


def summarize_ledger(numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return generation, last batch and next offsets of a ledger, for people."""
    ends: dict[str, dict[str, int]] = {}
    for name, number in sorted(numbers.items()):
        kind, _, rest = name.removeprefix(PREFIX).partition("/")
        if kind == "next" and number != GONE:
            *_, topic, partition = rest.split("/")
            known = ends.setdefault(topic, {})
            known[partition] = min(number, known.get(partition, number))
    return {"generation": numbers.get(_GENERATION), "batch": numbers.get(_BATCH), "end": ends}


def note(batch: Batch) -> dict[str, Any]:
    """Return the batch in words, for the table's history: group, generation, first and next offsets."""
    position = batch.position
    start, end = nest_by_topic(position.first), nest_by_topic(position.next)
    where = {"group": position.group, "generation": position.generation, "start": start, "end": end}
    return where | {"query": position.query, "batch": batch.number, "mode": batch.mode}


def takes(ledger: Ledger, batch: Batch, *, table: str) -> bool:
    """Return whether the table takes the batch, False if it holds it; raises UserError if it must not take it."""
    if ledger.is_closed:
        raise Superseded(
            f"The version in {table} was swapped in and is closed: its rows are those of the table itself now. Nothing "
            "was written. Let the query write the table itself."
        )
    if not batch.is_stateful:
        _check_tells_sources_apart(batch, table)
    if ledger.generation is None:
        _check_beginning(batch, table)
        return True
    position = batch.position
    if not ledger.has_group(position):
        raise UserError(
            f"The table {table} holds the rows of another group than {position.group}, and two groups would replace "
            "each other's rows. Nothing was written. Give this group a table of its own."
        )
    if ledger.mode != batch.mode:
        raise UserError(
            f"The table {table} is written in mode {ledger.mode}, and the rows of mode {batch.mode} would not go with "
            f"what it holds. Nothing was written. Write it in mode {ledger.mode}, or give this mode a table of its own."
        )
    if ledger.keys_number not in (None, number_of_name("/".join(sorted(batch.keys)))):
        raise UserError(
            f"The table {table} has other keys than {', '.join(batch.keys)}, one row for each. Nothing was written. "
            "Keep the keys that the table was made with, or give these a table of their own."
        )
    recreated = sorted({partition.topic for partition in position.ranges} & ledger.recreated)
    if recreated and batch.goes_by_offset:
        raise UserError(
            f"The topic {recreated[0]} was deleted and created again since the table {table} was written: its offsets "
            "are of other records now, and their rows would replace those of the old ones. Nothing was written. Give "
            "the new topic a table of its own, or take the old table away."
        )
    return _takes_of_state(ledger, batch, table) if batch.is_stateful else _takes_of_records(ledger, batch, table)


def _check_tells_sources_apart(batch: Batch, table: str) -> None:
    """Raise UserError if several sources of a query without state read the same partition.

    A row would say which offset it came from, and not which source read it.
    """
    shared = find_shared_partitions(batch.position, in_one_group=False)
    if shared:
        raise UserError(
            f"Several sources of this query read {shared[0]}, in the groups {batch.position.group}. The rows of one "
            f"would replace those of the other in the table {table}, because both come from the same offsets. Nothing "
            "was written. Load the topic once, and use that DataFrame several times."
        )


def _check_beginning(batch: Batch, table: str) -> None:
    """Raise TableGone if a table without batches would start in the middle with this one."""
    group = batch.position.group
    where = f" ({batch.checkpoint})" if batch.checkpoint is not None else ""
    gone = (
        f"The table {table} holds nothing of this query, which has finished batches before (this one is batch "
        f"{batch.number}): the table was removed, or the query wrote to another path until now. Nothing was "
        "written. Put the table back, or name its path again."
    )
    if batch.is_stateful and batch.number > 0:
        raise TableGone(
            f"{gone} Otherwise build it again from the beginning, as a new version (logmark pipelines replay), or "
            f"without a pipeline by taking the query's checkpoint away{where} and resetting its group {group} to the "
            "earliest offsets."
        )
    if batch.is_continued and not batch.is_stateful:
        raise TableGone(
            f"{gone} To let a new one begin, reset the group {group} to where it shall begin, for example to the "
            f"earliest offsets, take the query's checkpoint away{where} and start it again."
        )


def _takes_of_records(ledger: Ledger, one: Batch, table: str) -> bool:
    """Return whether a batch is taken whose rows follow from its records alone.

    Within a generation each batch begins where the last one ended, so a batch that ends where the table ends is one
    that Spark repeats. A newer generation follows a seek or comes from a query that took the group over, and may begin
    anywhere. An older one comes from a query that has lost its group.
    """
    pairs = ledger.pair(one)
    for end, source in pairs:
        if end.generation is not None and source.generation < end.generation:
            raise Superseded(
                f"A newer query has taken over the group {source.group} and written the table {table} (generation "
                f"{end.generation}, this query has {source.generation}). Nothing was written. Stop this query; to let "
                "it have the group back, stop the other one and reset the group's offsets."
            )
    if ledger.has_read(one):
        return False
    for end, source in pairs:
        if source.ranges and end.generation == source.generation:
            _check_no_gap(end, source, one, table)
    return True


def _takes_of_state(ledger: Ledger, batch: Batch, table: str) -> bool:
    """Return whether a batch of a stateful query is taken: only the next ones of the query that wrote the table."""
    position = batch.position
    if ledger.query_number != number_of_name(position.query):
        raise Superseded(
            f"The table {table} holds what another query made with its state, and this query ({position.query}) began "
            "without it: its checkpoint is new, or another version was swapped in. Nothing was written. If the state "
            "is lost, build the table again as a new version beside the old one (logmark pipelines replay)."
        )
    if ledger.batch is not None and batch.number <= ledger.batch:
        _check_is_repeated(ledger, batch, table)
        return False
    for end, source in ledger.pair(batch):
        if not end.has_read(source):
            _check_not_moved_back(end, source, table)
            if end.generation == source.generation:
                _check_no_gap(end, source, batch, table)
    return True


def _check_not_moved_back(known: SourceEnd, source: Position, table: str) -> None:
    for partition, end in known.ends.items():
        first = source.first.get(partition, end)
        if first < end:
            raise UserError(
                f"Group {source.group} was moved back: the batch begins at offset {first} of {partition}, and the "
                f"table {table} has counted up to {end}. The query keeps state, which would count those records again. "
                "Nothing was written. Replay it as a new version beside the old one (logmark pipelines replay)."
            )


def _check_is_repeated(ledger: Ledger, batch: Batch, table: str) -> None:
    """Raise UserError if a batch whose number the table knows reads records that it does not know."""
    for one, source in ledger.pair(batch):
        for partition, (_, end) in sorted(source.ranges.items()):
            known = one.ends.get(partition)
            if known is None or end > known:
                raise UserError(
                    f"The table {table} holds batch {ledger.batch} of this query, and now comes batch {batch.number} "
                    f"once more, with other records: up to offset {end} of {partition}, of which the table has counted "
                    f"{f'up to {known}' if known is not None else 'nothing'}. The query's checkpoint is older than the "
                    "table: it was restored from a backup, or has lost its last batches, and so has its state. Nothing "
                    "was written. Build the table again as a new version beside the old one (logmark pipelines "
                    "replay)."
                )


def _check_no_gap(known: SourceEnd, source: Position, batch: Batch, table: str) -> None:
    for partition, end in known.ends.items():
        if source.first.get(partition, end) != end:
            remedy = (
                "Build it again as a new version beside the old one (logmark pipelines replay)."
                if batch.is_stateful
                else f"Reset group {source.group} to {end} there, take the query's checkpoint away"
                f"{f' ({batch.checkpoint})' if batch.checkpoint is not None else ''} and start it again."
            )
            raise (UserError if batch.is_stateful else TableReplaced)(
                f"The table {table} ends at offset {end} of {partition}, but the batch starts at "
                f"{source.first[partition]}: the table was replaced or restored behind the query's back. Nothing was "
                f"written. {remedy}"
            )


def _read_spans(number: Callable[[str], int | None], partition: TopicPartition) -> Intervals:
    count = number(_read(partition)) or 0
    edges = [
        (number(f"{_read(partition)}/{index}/first"), number(f"{_read(partition)}/{index}/end"))
        for index in range(count)
    ]
    return tuple((first, end) for first, end in edges if first is not None and end is not None)


def _span_entries(partition: TopicPartition, spans: Intervals) -> dict[str, int]:
    numbers = {_read(partition): len(spans)}
    for index, (first, end) in enumerate(spans):
        numbers |= {f"{_read(partition)}/{index}/first": first, f"{_read(partition)}/{index}/end": end}
    return numbers


def _next(partition: TopicPartition, scope: str) -> str:
    return f"logmark/next/{scope}{partition.topic}/{partition.partition}"


def _generation(partition: TopicPartition, scope: str) -> str:
    return f"{_GENERATION}/{scope}{partition.topic}/{partition.partition}"


def _id(topic: str) -> str:
    return f"logmark/topic/{topic}"


def _read(partition: TopicPartition) -> str:
    return f"logmark/read/{partition.topic}/{partition.partition}"


def number_of_name(name: str) -> int:
    """Return the number that represents a group or a query."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
