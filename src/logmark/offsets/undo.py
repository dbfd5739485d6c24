"""Undo journaled changes and finish interrupted ones, of consumer groups and of Spark checkpoints alike."""

from logmark.client.client import Client
from logmark.offsets.journal.changes import CHECKPOINT
from logmark.offsets.journal.journal import Journal, find_change, list_changes, mark_undone, open_journal, select_change
from logmark.offsets.reset.executor import AppliedReset, WatchTimeouts, apply_plan, reject_changed_plan
from logmark.offsets.reset.plan import ResetPlan
from logmark.offsets.reset.undo import plan_finish, plan_undo
from logmark.offsets.spark_checkpoints.folder import open_folder
from logmark.offsets.spark_checkpoints.rewind import check_writable, complete_rewind
from logmark.offsets.spark_checkpoints.undo import undo_rewind


def undo_change(
    client: Client,
    id: str | None = None,
    *,
    force: bool = False,
    reason: str = "",
    journal: Journal | None = None,
    timeouts: WatchTimeouts | None = None,
) -> AppliedReset | None:
    """Undo a change, by default this user's last one; return None if there was nothing left to undo.

    Offsets, metadata and leader epochs are restored exactly; a partition without a commit has none again. The undo is
    a change of its own in the journal, and can be undone. Raises ChangeConflict, unless `force`, where the group has
    moved since, or the topic is not the same any more.
    """
    journal = journal or open_journal(client)
    change = select_change(list_changes(client, journal=journal), id)
    if change.subject == CHECKPOINT:
        now_ms = (timeouts or WatchTimeouts()).clock.now_ms()
        done = undo_rewind(client, journal, change, force=force, reason=reason, now_ms=now_ms)
        return None if done is None else AppliedReset(plan=done[0].plan, change=done[1])
    plan = plan_undo(client, change, force=force)
    if not plan.changes:
        mark_undone(journal, change)
        return None
    return apply_plan(
        client, plan, journal=journal, reason=reason, timeouts=timeouts, agree=_accept if force else reject_changed_plan
    )


def finish_change(
    client: Client,
    id: str,
    *,
    force: bool = False,
    journal: Journal | None = None,
    timeouts: WatchTimeouts | None = None,
) -> AppliedReset | None:
    """Finish a pending change; return None if nothing was left to do, and for a change of a checkpoint."""
    journal = journal or open_journal(client)
    change = find_change(list_changes(client, journal=journal), id)
    if change.subject == CHECKPOINT:
        check_writable(client)
        complete_rewind(open_folder(change.name), journal, change)
        return None
    plan = plan_finish(client, change, force=force)
    if not plan.changes:
        journal.set_state(change.id, "done")
        return None
    agree = _accept if force else reject_changed_plan
    return apply_plan(client, plan, journal=journal, timeouts=timeouts, pending=change, agree=agree)


def _accept(plan: ResetPlan) -> None:
    """Accept whatever the group does meanwhile, because the undo is forced."""
