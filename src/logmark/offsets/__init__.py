"""Offset tools for any Kafka: read lag, reset committed offsets, undo a reset, copy a bounded range of a topic.

    from logmark import offsets

    with offsets.Client("127.0.0.1:9092") as client:
        sample = offsets.take_sample(client)                                       # committed offsets of every group
        print(sample.total("fraud").records)
        plan = offsets.plan_reset(client, "fraud", {"clicks": None}, offsets.ToEarliest())
        print(plan.read_again, plan.skipped)
        applied = offsets.apply_plan(client, plan, reason="a bug in the model")    # journaled, then read back
        offsets.undo_change(client, applied.change.id)

The commands use these names themselves; docs/api.md lists them. Each name is imported when it is first used, so that a
command pays only for what it needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logmark.client.answers import Committed
    from logmark.client.client import Client
    from logmark.names import TopicPartition
    from logmark.offsets.bounded_replay.copier import ReplayCopier
    from logmark.offsets.bounded_replay.plan import plan_target, resolve_ranges, start_run
    from logmark.offsets.bounded_replay.runs import ReplayRequest, RunStore
    from logmark.offsets.journal.changes import Change
    from logmark.offsets.journal.journal import Journal, list_changes, open_journal
    from logmark.offsets.lag.ages import Age, compute_ages
    from logmark.offsets.lag.history import History, default_history_path
    from logmark.offsets.lag.report import build_lag_report
    from logmark.offsets.lag.sample import Sample, take_sample
    from logmark.offsets.lag.trend import Trend
    from logmark.offsets.lag.verdicts import Finding, Verdict
    from logmark.offsets.monitor.monitor import Monitor
    from logmark.offsets.records import first_record, read_records
    from logmark.offsets.reset.deletion import plan_deletion
    from logmark.offsets.reset.executor import AppliedReset, PlanOutdated, apply_plan
    from logmark.offsets.reset.key_search import find_key
    from logmark.offsets.reset.members import GroupActive
    from logmark.offsets.reset.offset_files import export_offsets, parse_offsets
    from logmark.offsets.reset.plan import PartitionMove, ResetPlan
    from logmark.offsets.reset.planner import offsets_of_group, plan_reset
    from logmark.offsets.reset.targets import (
        ShiftBy,
        ToCurrent,
        ToEarliest,
        ToKey,
        ToLatest,
        ToOffset,
        ToOffsets,
        ToTime,
    )
    from logmark.offsets.reset.undo import ChangeConflict
    from logmark.offsets.spark_checkpoints.checkpoint import read_checkpoint
    from logmark.offsets.spark_checkpoints.folder import open_folder
    from logmark.offsets.undo import finish_change, undo_change

__all__ = [
    "Age",
    "AppliedReset",
    "Change",
    "ChangeConflict",
    "Client",
    "Committed",
    "Finding",
    "GroupActive",
    "History",
    "Journal",
    "Monitor",
    "PartitionMove",
    "PlanOutdated",
    "ReplayCopier",
    "ReplayRequest",
    "ResetPlan",
    "RunStore",
    "Sample",
    "ShiftBy",
    "ToCurrent",
    "ToEarliest",
    "ToKey",
    "ToLatest",
    "ToOffset",
    "ToOffsets",
    "ToTime",
    "TopicPartition",
    "Trend",
    "Verdict",
    "apply_plan",
    "build_lag_report",
    "compute_ages",
    "default_history_path",
    "export_offsets",
    "find_key",
    "finish_change",
    "first_record",
    "list_changes",
    "offsets_of_group",
    "open_folder",
    "open_journal",
    "parse_offsets",
    "plan_deletion",
    "plan_reset",
    "plan_target",
    "read_checkpoint",
    "read_records",
    "resolve_ranges",
    "start_run",
    "take_sample",
    "undo_change",
]

_MODULES = {
    "logmark.client.answers": ("Committed",),
    "logmark.client.client": ("Client",),
    "logmark.names": ("TopicPartition",),
    "logmark.offsets.bounded_replay.copier": ("ReplayCopier",),
    "logmark.offsets.bounded_replay.plan": ("plan_target", "resolve_ranges", "start_run"),
    "logmark.offsets.bounded_replay.runs": ("ReplayRequest", "RunStore"),
    "logmark.offsets.undo": ("finish_change", "undo_change"),
    "logmark.offsets.journal.changes": ("Change",),
    "logmark.offsets.journal.journal": ("Journal", "list_changes", "open_journal"),
    "logmark.offsets.lag.ages": ("Age", "compute_ages"),
    "logmark.offsets.lag.history": ("History", "default_history_path"),
    "logmark.offsets.lag.report": ("build_lag_report",),
    "logmark.offsets.lag.sample": ("Sample", "take_sample"),
    "logmark.offsets.lag.trend": ("Trend",),
    "logmark.offsets.lag.verdicts": ("Finding", "Verdict"),
    "logmark.offsets.monitor.monitor": ("Monitor",),
    "logmark.offsets.records": ("first_record", "read_records"),
    "logmark.offsets.reset.deletion": ("plan_deletion",),
    "logmark.offsets.reset.executor": ("AppliedReset", "PlanOutdated", "apply_plan"),
    "logmark.offsets.reset.key_search": ("find_key",),
    "logmark.offsets.reset.members": ("GroupActive",),
    "logmark.offsets.reset.offset_files": ("export_offsets", "parse_offsets"),
    "logmark.offsets.reset.plan": ("PartitionMove", "ResetPlan"),
    "logmark.offsets.reset.planner": ("offsets_of_group", "plan_reset"),
    "logmark.offsets.reset.targets": (
        "ShiftBy", "ToCurrent", "ToEarliest", "ToKey", "ToLatest", "ToOffset", "ToOffsets", "ToTime",
    ),
    "logmark.offsets.reset.undo": ("ChangeConflict",),
    "logmark.offsets.spark_checkpoints.checkpoint": ("read_checkpoint",),
    "logmark.offsets.spark_checkpoints.folder": ("open_folder",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"logmark.offsets has no {name}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
