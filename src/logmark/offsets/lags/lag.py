"""How far a group is behind in a partition, and what it will never see."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Records that a group can still read and has not, and records that expired before it read them."""

    records: int
    lost: int


def lag_of(committed: int, *, start: int, end: int) -> Lag:
    """Lag = visible end - max(committed, log start), never negative; what lies below the log start is lost."""
    return Lag(records=max(0, end - max(committed, start)), lost=max(0, min(start, end) - committed))
