"""Plans that a group's committed offsets are forgotten, and deletes groups whose offsets the journal keeps."""

from dataclasses import dataclass, replace

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import ReadOnly, RefusedByBroker
from logmark.clock import SystemClock
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.lags.inspect import Bounds
from logmark.offsets.moves.applying import change_of
from logmark.offsets.moves.changes import Change, who_am_i
from logmark.offsets.moves.journal import Journal, open_journal
from logmark.offsets.moves.plan import Move, ResetPlan
from logmark.offsets.moves.reset import Topics, existing_partitions, topic_ids, watched
from logmark.offsets.spelling import unknown_group


def plan_delete(client: Client, group: str, topics: Topics | None) -> ResetPlan:
    """What forgetting a group's offsets in these topics, or with None in all, would do now; nothing is changed.

    A group with members may lose its offsets in topics that they have not subscribed to; the broker sees to it.
    """
    committed = client.committed(group)
    if not committed and client.describe_groups([group])[group].is_unknown:
        raise UserError(f"{unknown_group(client, group)} Nothing was changed.")
    partitions = sorted(committed) if topics is None else existing_partitions(client, topics)
    bounds = Bounds.of(client, partitions)
    plan = ResetPlan(
        group=group,
        moves=[_move(bounds, one, committed.get(one)) for one in partitions],
        action="delete-offsets",
        how=f"forget what is committed in {', '.join(sorted({one.topic for one in partitions}))}",
        topic_ids=topic_ids(client, partitions),
    )
    return watched(client, plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What became of a group that was to be deleted.

    `change` is the journal's entry, None for a group that had committed nothing; `refusal` says why it is still there.
    """

    group: str
    change: Change | None
    refusal: RefusedByBroker | None


def delete_group(client: Client, group: str, *, journal: Journal | None = None) -> Deletion:
    """Deletes a group; what it had committed is in the journal before, so that an undo brings it back."""
    if client.is_read_only:
        raise ReadOnly("This client may only look. Nothing was changed.")
    plan = replace(plan_delete(client, group, None), action="delete", how="the whole group")
    change = None
    if plan.changes:
        journal = journal or open_journal(client)
        change = change_of(client, plan, reason="", who=who_am_i(), clock=SystemClock())
        journal.begin(change)
    refusal = client.delete_groups([group]).get(group)
    if journal is not None and change is not None:
        journal.finish(change.id, "done" if refusal is None else "refused")
    return Deletion(group=group, change=change, refusal=refusal)


def _move(bounds: Bounds, partition: TopicPartition, committed: Committed | None) -> Move:
    return Move(
        partition=partition,
        committed=committed,
        after=None,
        start=bounds.starts.get(partition, 0),
        end=bounds.ends.get(partition, 0),
        note="nothing committed" if committed is None else "a reader will begin where auto.offset.reset says",
    )
