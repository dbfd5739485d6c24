"""The offset tools as a Python API, for any Kafka: see every group's place, move it safely, take it back.

    from logmark import offsets

    with offsets.Client("127.0.0.1:9092") as client:
        sample = offsets.take_sample(client)                                  # where every group stands
        print(sample.total("fraud").records)
        plan = offsets.plan_reset(client, "fraud", {"clicks": None}, offsets.ToEarliest())
        print(plan.read_again, plan.skipped)
        applied = offsets.apply(client, plan, reason="a bug in the model")    # journaled, read back
        offsets.undo(client, applied.change.id)                               # and taken back

The command line is a thin face over these names; docs/api.md lists them. A name is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logmark.client.answers import Committed as Committed
    from logmark.client.client import Client as Client
    from logmark.names import TopicPartition as TopicPartition
    from logmark.offsets.checkpoints.folder import open_folder as open_folder
    from logmark.offsets.checkpoints.reading import read_checkpoint as read_checkpoint
    from logmark.offsets.lags.ages import Age as Age
    from logmark.offsets.lags.ages import ages_of as ages_of
    from logmark.offsets.lags.history import History as History
    from logmark.offsets.lags.history import default_path as default_path
    from logmark.offsets.lags.sampling import Sample as Sample
    from logmark.offsets.lags.sampling import take_sample as take_sample
    from logmark.offsets.lags.standing import standing_of as standing_of
    from logmark.offsets.lags.trends import Trend as Trend
    from logmark.offsets.lags.verdicts import Finding as Finding
    from logmark.offsets.lags.verdicts import Verdict as Verdict
    from logmark.offsets.monitoring.monitor import Monitor as Monitor
    from logmark.offsets.moves.applying import Applied as Applied
    from logmark.offsets.moves.applying import MovedMeanwhile as MovedMeanwhile
    from logmark.offsets.moves.applying import apply as apply
    from logmark.offsets.moves.changes import Change as Change
    from logmark.offsets.moves.deleting import plan_delete as plan_delete
    from logmark.offsets.moves.exporting import export as export
    from logmark.offsets.moves.exporting import parse_offsets as parse_offsets
    from logmark.offsets.moves.journal import Journal as Journal
    from logmark.offsets.moves.journal import open_journal as open_journal
    from logmark.offsets.moves.keys import find_key as find_key
    from logmark.offsets.moves.members import GroupActive as GroupActive
    from logmark.offsets.moves.plan import Move as Move
    from logmark.offsets.moves.plan import ResetPlan as ResetPlan
    from logmark.offsets.moves.reset import copied_from as copied_from
    from logmark.offsets.moves.reset import plan_reset as plan_reset
    from logmark.offsets.moves.targets import ShiftBy as ShiftBy
    from logmark.offsets.moves.targets import ToCurrent as ToCurrent
    from logmark.offsets.moves.targets import ToEarliest as ToEarliest
    from logmark.offsets.moves.targets import ToKey as ToKey
    from logmark.offsets.moves.targets import ToLatest as ToLatest
    from logmark.offsets.moves.targets import ToOffset as ToOffset
    from logmark.offsets.moves.targets import ToPlaces as ToPlaces
    from logmark.offsets.moves.targets import ToTime as ToTime
    from logmark.offsets.moves.undo import MovedOn as MovedOn
    from logmark.offsets.moves.undo import finish as finish
    from logmark.offsets.moves.undo import history as history
    from logmark.offsets.moves.undo import undo as undo
    from logmark.offsets.records import first_record as first_record
    from logmark.offsets.records import read_records as read_records
    from logmark.offsets.replays.copying import Copier as Copier
    from logmark.offsets.replays.replaying import aim as aim
    from logmark.offsets.replays.replaying import begin as begin
    from logmark.offsets.replays.replaying import seek as seek
    from logmark.offsets.replays.runs import Request as Request
    from logmark.offsets.replays.runs import RunStore as RunStore

# Where each name lives: the command line must not import all of them to use one.
_HOMES = {
    "logmark.client.answers": ("Committed",),
    "logmark.client.client": ("Client",),
    "logmark.names": ("TopicPartition",),
    "logmark.offsets.lags.ages": ("Age", "ages_of"),
    "logmark.offsets.moves.applying": ("Applied", "MovedMeanwhile", "apply"),
    "logmark.offsets.moves.changes": ("Change",),
    "logmark.offsets.checkpoints.folder": ("open_folder",),
    "logmark.offsets.checkpoints.reading": ("read_checkpoint",),
    "logmark.offsets.replays.copying": ("Copier",),
    "logmark.offsets.moves.deleting": ("plan_delete",),
    "logmark.offsets.moves.exporting": ("export", "parse_offsets"),
    "logmark.offsets.lags.history": ("History", "default_path"),
    "logmark.offsets.moves.journal": ("Journal", "open_journal"),
    "logmark.offsets.moves.keys": ("find_key",),
    "logmark.offsets.moves.members": ("GroupActive",),
    "logmark.offsets.monitoring.monitor": ("Monitor",),
    "logmark.offsets.moves.plan": ("Move", "ResetPlan"),
    "logmark.offsets.records": ("first_record", "read_records"),
    "logmark.offsets.replays.replaying": ("aim", "begin", "seek"),
    "logmark.offsets.replays.runs": ("Request", "RunStore"),
    "logmark.offsets.moves.reset": ("copied_from", "plan_reset"),
    "logmark.offsets.lags.sampling": ("Sample", "take_sample"),
    "logmark.offsets.lags.standing": ("standing_of",),
    "logmark.offsets.moves.targets": (
        "ShiftBy", "ToCurrent", "ToEarliest", "ToKey", "ToLatest", "ToOffset", "ToPlaces", "ToTime",
    ),
    "logmark.offsets.lags.trends": ("Trend",),
    "logmark.offsets.moves.undo": ("MovedOn", "finish", "history", "undo"),
    "logmark.offsets.lags.verdicts": ("Finding", "Verdict"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"logmark.offsets has no {name}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
