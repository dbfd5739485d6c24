"""Changes of a group's committed offsets that our own tools made, as remarks on its lag history."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from logmark.names import TopicPartition
from logmark.offsets.journal.changes import GROUP, Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A change of a group's offsets that our own tools made, so that nobody is alarmed by it."""

    id: str
    at_ms: int
    group: str
    text: str
    moves: Mapping[TopicPartition, int | None]  # where each partition was taken; None: its commit was deleted


def annotations_from_changes(changes: Iterable[Change]) -> list[Annotation]:
    """Return an annotation for each journaled change that moved a group; refused changes moved nothing."""
    return [
        Annotation(
            id=one.id,
            at_ms=one.at_ms,
            group=one.name,
            text=f"{one.action}{f' {one.how}' if one.how else ''}{f' by {one.who}' if one.who else ''}"
            f"{f': {one.reason}' if one.reason else ''}",
            moves={where: to.offset if to else None for where, to in one.after.items()},
        )
        for one in changes
        if one.subject == GROUP and one.state != "refused"
    ]
