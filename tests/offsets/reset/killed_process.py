"""A change that is killed at one of its steps, in a process of its own."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logmark.client.client import Client
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.reset.deletion import plan_deletion
from logmark.offsets.reset.executor import WatchTimeouts, apply_plan
from logmark.offsets.reset.plan import ResetPlan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ToOffset
from logmark.offsets.undo import undo_change

AT_ONCE = WatchTimeouts(watch_s=0, quiet_watch_s=0)
STEPS = (
    "before the journal",
    "after the journal",
    "before the commit",
    "after the commit",
    "before the end",
    "after the end",
)


def change(servers: str, group: str, topic: str, journal: Path, kind: str, step: str) -> None:
    """Makes a change and is killed at this step."""
    with Client(servers) as client:
        kept = FileJournal(journal)
        _stop_at(step, kept, client)
        if kind == "undo":
            undo_change(client, journal=kept, timeouts=AT_ONCE)
            return
        plan = _plan(client, group, topic, kind)
        apply_plan(client, plan, journal=kept, timeouts=AT_ONCE)


def _plan(client: Client, group: str, topic: str, kind: str) -> ResetPlan:
    if kind == "delete":
        return plan_deletion(client, group, {topic: None})
    return plan_reset(client, group, {topic: None}, ToOffset(2))


def _stop_at(step: str, journal: Any, client: Any) -> None:
    when, _, what = step.partition(" the ")
    names = {"journal": (journal, ("add",)), "commit": (client, ("commit", "delete_offsets"))}
    owner, calls = names.get(what, (journal, ("set_state",)))
    for name in calls:
        setattr(owner, name, _killed(getattr(owner, name), before=when == "before"))


def _killed(call: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    def wrapped(*args: Any) -> Any:
        if not before:
            call(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    return wrapped
