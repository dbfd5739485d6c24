"""Plans that a group's committed offsets are forgotten."""

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.lags.inspect import Bounds
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


def _move(bounds: Bounds, partition: TopicPartition, committed: Committed | None) -> Move:
    return Move(
        partition=partition,
        committed=committed,
        after=None,
        start=bounds.starts.get(partition, 0),
        end=bounds.ends.get(partition, 0),
        note="nothing committed" if committed is None else "a reader will begin where auto.offset.reset says",
    )
