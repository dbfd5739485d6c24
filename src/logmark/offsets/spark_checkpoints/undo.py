"""Takes a move of a query back, by one more batch, and brings an interrupted one to its end."""

from collections.abc import Mapping
from dataclasses import replace

from logmark.client.client import Client
from logmark.client.logs import by_topic
from logmark.errors import UserError
from logmark.offsets.errors import ChangeClosed, QueryRanSince
from logmark.offsets.journal.changes import Change
from logmark.offsets.journal.journal import Journal
from logmark.offsets.reset.targets import ToOffsets
from logmark.offsets.spark_checkpoints import log_files
from logmark.offsets.spark_checkpoints.checkpoint import Checkpoint, read_checkpoint
from logmark.offsets.spark_checkpoints.folder import Folder, open_folder
from logmark.offsets.spark_checkpoints.preconditions import (
    check_finished,
    check_movable,
    check_same_query,
    check_stopped,
)
from logmark.offsets.spark_checkpoints.rewind import (
    Rewind,
    added_batch,
    apply_rewind,
    build_rewind,
    check_writable,
    complete_rewind,
    is_last_batch,
    plan_moves,
)


def undo_rewind(
    client: Client,
    journal: Journal,
    change: Change,
    *,
    force: bool = False,
    reason: str = "",
    now_ms: int,
) -> tuple[Rewind, Change] | None:
    """Undo a change of a checkpoint; return None if it had changed nothing.

    The undo is a change of its own in the journal, and can be undone. It is refused if the query ran since, unless
    `force`; then what it did since is read again or skipped.
    """
    folder = open_folder(change.name)
    rewind = plan_rewind_undo(client, folder, change, force=force, now_ms=now_ms)
    if rewind is None:
        complete_rewind(folder, journal, change)
        return None
    return rewind, apply_rewind_undo(client, folder, journal, change, rewind, reason=reason, now_ms=now_ms)


def apply_rewind_undo(
    client: Client, folder: Folder, journal: Journal, change: Change, rewind: Rewind, *, reason: str = "", now_ms: int,
    details: Mapping[str, str] | None = None,
) -> Change:  # fmt: skip
    """Add the batch of a planned undo; an interrupted change is completed first, because nothing is removed."""
    check_writable(client)
    if change.state == "pending":
        complete_rewind(folder, journal, change)
    return apply_rewind(client, folder, journal, rewind, reason=reason, details=details, now_ms=now_ms)


def plan_rewind_undo(
    client: Client, folder: Folder, change: Change, *, force: bool = False, now_ms: int
) -> Rewind | None:
    """Plan to undo a change with one more batch that has the old offsets; None if it changed nothing.

    Raises QueryRanSince if the query ran since, unless `force`.
    """
    if change.state not in ("done", "pending"):
        raise ChangeClosed(change.id, change.state)
    checkpoint = read_checkpoint(folder, batches=3)
    check_same_query(checkpoint, change)
    addition = added_batch(change)
    if change.state == "pending" and folder.read(addition.files[0][0]) != addition.plan:
        return None
    is_last = is_last_batch(change, folder, checkpoint)
    if is_last and checkpoint.unfinished is not None:
        checkpoint = _as_finished(checkpoint, change)
    check_finished(checkpoint)
    check_movable(checkpoint)
    if not is_last:
        if not force:
            raise QueryRanSince(
                f"The query of {folder.url} ran since change {change.id}: its last batch is {checkpoint.last.id}, and "
                f"the change added batch {change.details['batch']}. Going back to the offsets of before would read "
                "again, or skip, what it has done since. Nothing was changed",
                "pass force=True to do it all the same",
            )
        check_stopped(checkpoint, now_ms=now_ms)
    earlier = {partition: there for partition, there in change.before.items() if there is not None}
    gone = sorted(map(str, earlier.keys() - checkpoint.offsets.keys()))
    if gone:
        raise UserError(f"The query of {folder.url} no longer reads {', '.join(gone)}. Nothing was changed.")
    target = ToOffsets(earlier, f"before change {change.id}")
    plan = plan_moves(client, checkpoint, target, by_topic(sorted(earlier)), clamp=True)
    how = f"undo of {change.id} ({change.action} {change.how})"
    plan = replace(plan, action="undo", how=how, undoes=change.id)
    return build_rewind(checkpoint, plan, sink=change.details.get("sink", ""), now_ms=now_ms)


def _as_finished(checkpoint: Checkpoint, change: Change) -> Checkpoint:
    """Return the checkpoint as it will be when the interrupted change is complete."""
    commit = log_files.read_commit_log_entry(added_batch(change).commit, change.id)
    last = replace(checkpoint.last, commit=commit)
    batches = [*checkpoint.batches[:-1], last]
    return replace(checkpoint, batches=batches, last_committed=last, committed_id=last.id)
