"""Plans of resets as programs read them; `dataclasses.asdict` makes them JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from logmark.offsets.reset.executor import AppliedReset
from logmark.offsets.reset.plan import PartitionMove, ResetPlan
from logmark.offsets.times import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveView:
    """One partition of a plan; `from_` and `to` are committed offsets, None for no commit."""

    topic: str
    partition: int
    from_: int | None
    last_processed: int | None
    to: int | None
    start: int
    end: int
    read_again: int
    skipped: int
    lag_after: int | None
    first_record: str | None
    last_record: str | None
    size_bytes_about: int | None
    is_upper_bound: bool
    is_change: bool
    note: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields in their order, `from_` under the name `from`."""
        return {name.rstrip("_"): getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan, and the change that it has become if it was applied."""

    group: str
    action: str
    how: str
    creates_group: bool
    undoes: str | None
    read_again: int
    skipped: int
    is_upper_bound: bool
    size_bytes_about: int | None
    warnings: Sequence[str]
    moves: Sequence[MoveView]
    applied: bool
    change: str | None
    repeats: int | None
    overwritten_by: str | None
    picked_up_by: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in their order."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {"warnings": list(self.warnings), "moves": [move.to_json() for move in self.moves]}


def view_plan(plan: ResetPlan, applied: AppliedReset | None = None) -> PlanView:
    """Return everything that is known about a plan, and about the reset if it was applied."""
    return PlanView(
        group=plan.group,
        action=plan.action,
        how=plan.how,
        creates_group=plan.creates_group,
        undoes=plan.undoes,
        read_again=plan.read_again,
        skipped=plan.skipped,
        is_upper_bound=plan.is_upper_bound,
        size_bytes_about=plan.size_bytes,
        warnings=list(plan.warnings),
        moves=[_view_move(move) for move in plan.moves],
        applied=applied is not None,
        change=applied.change.id if applied else None,
        repeats=applied.repeats if applied else None,
        overwritten_by=(applied.overwritten_by or None) if applied else None,
        picked_up_by=(applied.picked_up_by or None) if applied else None,
    )


def _view_move(move: PartitionMove) -> MoveView:
    span = move.span
    return MoveView(
        topic=move.partition.topic,
        partition=move.partition.partition,
        from_=move.committed.offset if move.committed else None,
        last_processed=move.committed.offset - 1 if move.committed and move.committed.offset else None,
        to=move.to,
        start=move.start,
        end=move.end,
        read_again=move.read_again,
        skipped=move.skipped,
        lag_after=move.lag_after,
        first_record=format_time(span.first_ms) if span and span.first_ms is not None else None,
        last_record=format_time(span.last_ms) if span and span.last_ms is not None else None,
        size_bytes_about=span.size_bytes if span else None,
        is_upper_bound=span.is_upper_bound if span else False,
        is_change=move.is_change,
        note=move.note,
    )
