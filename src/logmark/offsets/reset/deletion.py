"""Plans that a group's committed offsets are forgotten, and deletes groups whose offsets the journal keeps."""

from dataclasses import dataclass, replace

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import ReadOnly, RefusedByBroker
from logmark.clock import SystemClock
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Change, current_author
from logmark.offsets.journal.journal import Journal, open_journal
from logmark.offsets.partitions import LogBounds
from logmark.offsets.reset.executor import change_from_plan
from logmark.offsets.reset.plan import PartitionMove, ResetPlan
from logmark.offsets.reset.planner import TopicSelection, existing_partitions, fetch_topic_ids, warn_if_moving
from logmark.offsets.suggestions import unknown_group


def plan_deletion(client: Client, group: str, topics: TopicSelection | None) -> ResetPlan:
    """Plan the deletion of a group's offsets in these topics, or with None in all; nothing is changed.

    A group with members may lose its offsets only in topics that they have not subscribed to; the broker checks that.
    """
    committed = client.committed(group)
    if not committed and client.describe_groups([group])[group].is_unknown:
        raise UserError(f"{unknown_group(client, group)} Nothing was changed.")
    partitions = sorted(committed) if topics is None else existing_partitions(client, topics)
    bounds = LogBounds.fetch(client, partitions)
    plan = ResetPlan(
        group=group,
        moves=[_move(bounds, one, committed.get(one)) for one in partitions],
        action="delete-offsets",
        how=f"forget what is committed in {', '.join(sorted({one.topic for one in partitions}))}",
        topic_ids=fetch_topic_ids(client, partitions),
    )
    return warn_if_moving(client, plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeletion:
    """What became of a group that was to be deleted.

    `change` is the journal's entry, None for a group that had committed nothing; `refusal` says why it is still there.
    """

    group: str
    change: Change | None
    refusal: RefusedByBroker | None


def delete_group(client: Client, group: str, *, journal: Journal | None = None) -> GroupDeletion:
    """Delete a group; its offsets are journaled first, so that an undo restores them."""
    if client.is_read_only:
        raise ReadOnly("This client may only look. Nothing was changed.")
    plan = replace(plan_deletion(client, group, None), action="delete", how="the whole group")
    change = None
    if plan.changes:
        journal = journal or open_journal(client)
        change = change_from_plan(client, plan, reason="", who=current_author(), clock=SystemClock())
        journal.add(change)
    refusal = client.delete_groups([group]).get(group)
    if journal is not None and change is not None:
        journal.set_state(change.id, "done" if refusal is None else "refused")
    return GroupDeletion(group=group, change=change, refusal=refusal)


def _move(bounds: LogBounds, partition: TopicPartition, committed: Committed | None) -> PartitionMove:
    return PartitionMove(
        partition=partition,
        committed=committed,
        after=None,
        start=bounds.starts.get(partition, 0),
        end=bounds.ends.get(partition, 0),
        note="nothing committed" if committed is None else "a reader will begin where auto.offset.reset says",
    )
