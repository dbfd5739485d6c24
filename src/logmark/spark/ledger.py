"""What a table knows of the offsets that its rows came from, and which batch it takes: pure decisions.

A Delta commit can carry application transactions: pairs of a name and a number that are part of the table's state, so
they survive checkpoints and the cleaning of old log files, unlike the text beside a commit. The ledger is kept in them:
the generation of the last batch and the next offset of every partition. The same facts, with the group and the batch's
beginning, stand in the commit's text for people.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.position import Offsets, Position

_GENERATION = "logmark/generation"
_GROUP = "logmark/group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The last batch that a table holds: None everywhere for a table without one."""

    group_number: int | None
    generation: int | None
    ends: Offsets


def read_ledger(number_of: Callable[[str], int | None], places: Iterable[TopicPartition]) -> Ledger:
    """The ledger of a table, as far as these partitions are concerned."""
    ends = {place: number_of(_name(place)) for place in places}
    return Ledger(
        group_number=number_of(_GROUP),
        generation=number_of(_GENERATION),
        ends={place: end for place, end in ends.items() if end is not None},
    )


def entries(batch: Position) -> dict[str, int]:
    """The ledger after a batch, as names and numbers."""
    numbers = {_GROUP: _number(batch.group), _GENERATION: batch.generation}
    return numbers | {_name(place): end for place, end in batch.next.items()}


def note(batch: Position) -> dict[str, Any]:
    """The batch in words, for the table's history: group, generation, first and next offsets."""
    fields = batch.to_json()
    return {"group": batch.group, "generation": batch.generation, "start": fields["f"], "end": fields["t"]}


def takes(ledger: Ledger, batch: Position, *, table: str) -> bool:
    """True if the table takes the batch, False if it already holds it; raises a sentence if it must not have it.

    Within a generation each batch begins where the last one ended, so a batch that ends where the table stands is one
    that Spark repeats. A newer generation follows a seek or comes from a query that took the group over, and may begin
    anywhere. An older one comes from a query that has lost its group.
    """
    if ledger.generation is None:
        return True
    if ledger.group_number not in (None, _number(batch.group)):
        raise UserError(
            f"The table {table} holds the rows of another group than {batch.group}, and two groups would replace each "
            "other's rows. Nothing was written. Give this group a table of its own."
        )
    if batch.generation > ledger.generation:
        return True
    if batch.generation < ledger.generation:
        raise UserError(
            f"A newer query has taken over the group {batch.group} and written the table {table} (generation "
            f"{ledger.generation}, this query has {batch.generation}). Nothing was written. Stop this query; to let it "
            "have the group back, stop the other one and reset the group's offsets."
        )
    if ledger.ends == batch.next:
        return False
    for place, end in ledger.ends.items():
        if batch.first.get(place, end) != end:
            raise UserError(
                f"The table {table} stands at offset {end} of {place}, but the batch begins at {batch.first[place]}: "
                "the table was replaced or restored behind the query's back. Nothing was written. Reset group "
                f"{batch.group} to {end} and the query goes on from there."
            )
    return True


def _name(place: TopicPartition) -> str:
    return f"logmark/next/{place.topic}/{place.partition}"


def _number(group: str) -> int:
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:7], "big")
