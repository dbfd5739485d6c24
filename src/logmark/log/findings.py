"""What a verification finds: where, what is wrong there, and what that means."""

from dataclasses import dataclass, field
from enum import StrEnum

from logmark.log.damage import Damage
from logmark.log.transactions import Aborted


class FindingKind(StrEnum):
    """What a finding is about, which decides what a repair can do."""

    RECORDS = "records"  # records cannot be read; a repair cuts them out
    HEAD = "head"  # a batch is all there but for its head; a repair puts that right
    INDEX = "index"  # made from the log; a repair makes it again and nothing is lost
    STATE = "state"  # producers, epochs, checkpoints: made from the log, or set aside
    CATALOGUE = "catalogue"  # topics, ids and settings: for a person to decide
    NOTE = "note"  # normal, and worth knowing


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of a verification; the path is relative to the data directory."""

    kind: FindingKind
    path: str
    problem: str
    meaning: str
    position: int | None = None
    size_bytes: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None
    records_lost_max: int | None = None

    @property
    def is_note(self) -> bool:
        return self.kind is FindingKind.NOTE

    def __str__(self) -> str:
        where = self.path
        if self.position is not None:
            where += f" at byte {self.position}"
            if self.size_bytes:
                where += f" ({self.size_bytes} bytes)"
        if self.first_offset is not None and self.first_offset != self.next_offset:
            until = "the end" if self.next_offset is None else str(self.next_offset - 1)
            where += f", offsets {self.first_offset} to {until}"
        return f"{where}: {self.problem}. {self.meaning}"


def of_damage(path: str, damage: Damage) -> Finding:
    """Return the finding for damage in a segment."""
    if damage.right_head is not None:
        kind = FindingKind.HEAD
        meaning = "The batch is whole but for its head; it is not served. A repair loses nothing."
    elif not damage.size_bytes:
        kind = FindingKind.RECORDS
        meaning = "These records are lost; reading them is refused. A repair makes it a gap."
    elif damage.next_offset is None:
        kind = FindingKind.RECORDS
        meaning = "These records are not served. A repair cuts them out."
    else:
        kind = FindingKind.RECORDS
        meaning = "These records are not served; what lies behind them is. A repair cuts them out."
    return Finding(
        kind=kind,
        path=path,
        problem=damage.problem,
        meaning=meaning,
        position=damage.position,
        size_bytes=damage.size_bytes,
        first_offset=damage.first_offset,
        next_offset=damage.next_offset,
        records_lost_max=damage.records_lost_max,
    )


@dataclass(slots=True, kw_only=True)
class SegmentFindings:
    """What is wrong in one segment's files."""

    base_offset: int
    size_bytes: int
    damage: list[Damage] = field(default_factory=list)
    # The end of a log that was not closed cleanly: a start cuts it.
    torn: Damage | None = None
    # Offsets that are missing between this segment and the next one.
    gap: Damage | None = None
    indexes_are_wrong: bool = False
    aborts_are_wrong: bool = False
    # The aborted transactions as the log has them, where it says all of them.
    aborted: list[Aborted] | None = None


@dataclass(slots=True, kw_only=True)
class PartitionFindings:
    """What is wrong in one partition's folder, and what the log says of itself."""

    folder: str
    segments: list[SegmentFindings] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    log_end_offset: int = 0
    records: int = 0
    producer_id_max: int = -1
    # Each leader epoch with the first offset that carries it.
    epochs: list[tuple[int, int]] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    wrong_snapshots: list[str] = field(default_factory=list)
    epochs_are_wrong: bool = False
    metadata_is_wrong: bool = False
