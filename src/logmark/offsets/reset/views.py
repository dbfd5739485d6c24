"""Plans of resets as programs read them: JSON."""

from dataclasses import dataclass
from typing import Any

from logmark.offsets.reset.executor import AppliedReset
from logmark.offsets.reset.plan import PartitionMove, ResetPlan
from logmark.offsets.times import format_time


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan, and the reset if it was applied."""

    plan: ResetPlan
    applied: AppliedReset | None

    def to_json(self) -> dict[str, Any]:
        """Return everything that is known about the plan and the change that it has become."""
        plan, applied = self.plan, self.applied
        return {
            "group": plan.group,
            "action": plan.action,
            "how": plan.how,
            "creates_group": plan.creates_group,
            "undoes": plan.undoes,
            "read_again": plan.read_again,
            "skipped": plan.skipped,
            "is_upper_bound": plan.is_upper_bound,
            "size_bytes_about": plan.size_bytes,
            "warnings": [*plan.warnings, *plan.cautions],
            "moves": [_move_json(move) for move in plan.moves],
            "applied": applied is not None,
            "change": applied.change.id if applied else None,
            "repeats": applied.repeats if applied else None,
            "overwritten_by": (applied.overwritten_by or None) if applied else None,
            "picked_up_by": (applied.picked_up_by or None) if applied else None,
        }


def view_plan(plan: ResetPlan, applied: AppliedReset | None = None) -> PlanView:
    """Return a plan, and the reset if it was applied, in the form that programs read."""
    return PlanView(plan, applied)


def _move_json(move: PartitionMove) -> dict[str, Any]:
    """Return one partition of a plan; `from` and `to` are committed offsets, None for no commit."""
    span = move.span
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "from": move.committed.offset if move.committed else None,
        "last_processed": move.committed.offset - 1 if move.committed and move.committed.offset else None,
        "to": move.to,
        "start": move.start,
        "end": move.end,
        "read_again": move.read_again,
        "skipped": move.skipped,
        "lag_after": move.lag_after,
        "first_record": format_time(span.first_ms) if span and span.first_ms is not None else None,
        "last_record": format_time(span.last_ms) if span and span.last_ms is not None else None,
        "size_bytes_about": span.size_bytes if span else None,
        "is_upper_bound": span.is_upper_bound if span else False,
        "is_change": move.is_change,
        "note": move.note,
    }
