"""A checkpoint beside its logs: how far its query is behind, in records and in seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.metadata import ClusterMetadata
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Change
from logmark.offsets.lag.ages import CAUGHT_UP, UNKNOWN, Age, compute_ages
from logmark.offsets.lag.sample import GroupSample, Sample
from logmark.offsets.partitions import GroupPartition, LogBounds
from logmark.offsets.spark_checkpoints.checkpoint import Checkpoint, MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """A batch, how many records it read where the one before is known, and the change that added it, if one did."""

    batch: MicroBatch
    records: int | None = None
    change: Change | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """A checkpoint beside the logs; without a cluster there are no bounds, and no lag is known."""

    checkpoint: Checkpoint
    partitions: Sequence[GroupPartition]
    batches: Sequence[BatchView]
    ages: Mapping[TopicPartition, Age] = field(default_factory=dict)
    new_partitions: Sequence[TopicPartition] = ()

    @property
    def lag(self) -> int:
        """The records that are still to be read in all partitions that could be asked."""
        return sum(one.lag.records for one in self.partitions if one.lag)

    @property
    def lost(self) -> int:
        """The records that expired before the query read them."""
        return sum(one.lag.lost for one in self.partitions if one.lag)

    @property
    def oldest(self) -> Age:
        """The age of the oldest unread record; unknown while it is not known of all partitions."""
        known = [age for age in self.ages.values() if age.ms is not None]
        if not known or (len(known) < len(self.partitions) and all(age == CAUGHT_UP for age in known)):
            return UNKNOWN
        return max(known, key=lambda age: age.ms or 0)


def view_without_cluster(checkpoint: Checkpoint, changes: Sequence[Change] = ()) -> CheckpointView:
    """Return a view of the checkpoint without the cluster."""
    partitions = [
        GroupPartition(group=checkpoint.url, partition=one, committed=Committed(offset=offset), start=None, end=None)
        for one, offset in sorted(checkpoint.offsets.items())
    ]
    return CheckpointView(checkpoint=checkpoint, partitions=partitions, batches=_batches(checkpoint, changes))


def view_checkpoint(
    client: Client, checkpoint: Checkpoint, changes: Sequence[Change] = (), *, now_ms: int
) -> CheckpointView:
    """Return a view of the checkpoint beside the present log bounds; an unreachable partition has its reason."""
    existing = client.metadata(sorted({one.topic for one in checkpoint.offsets}))
    there = [one for one in sorted(checkpoint.offsets) if one in existing.partitions(one.topic)]
    bounds = LogBounds.fetch(client, there)
    missing = {one: _why_missing(existing, one) for one in checkpoint.offsets if one not in there}
    bounds = LogBounds(bounds.starts, bounds.ends, {**bounds.problems, **missing})
    committed = {one: Committed(offset=offset) for one, offset in checkpoint.offsets.items()}
    group = GroupSample(group=checkpoint.url, state="Empty", committed=committed)
    sample = Sample(
        at_ms=now_ms,
        cluster_id=existing.cluster_id,
        groups={checkpoint.url: group},
        starts=bounds.starts,
        ends=bounds.ends,
        problems=bounds.problems,
    )
    ages = compute_ages(sample, client=client)
    return CheckpointView(
        checkpoint=checkpoint,
        partitions=[bounds.group_partition(checkpoint.url, one, committed[one]) for one in sorted(committed)],
        batches=_batches(checkpoint, changes),
        ages={one: ages.of(checkpoint.url, one) for one in sorted(committed)},
        new_partitions=[
            one
            for topic in sorted({one.topic for one in there})
            for one in existing.partitions(topic)
            if one not in committed
        ],
    )


def _why_missing(existing: ClusterMetadata, one: TopicPartition) -> str:
    if existing.errors.get(one.topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"You are not allowed to see topic {one.topic}, if there is one."
    return f"This cluster has no {f'partition {one}' if existing.partitions(one.topic) else f'topic {one.topic}'}."


def _batches(checkpoint: Checkpoint, changes: Sequence[Change]) -> list[BatchView]:
    added = {one.details.get("batch"): one for one in changes if one.state not in ("refused", "taken back")}
    first = checkpoint.initial if checkpoint.batches[0].id == 0 else None
    befores = [first, *(one.offsets for one, _ in pairwise(checkpoint.batches))]
    views = []
    for before, batch in zip(befores, checkpoint.batches, strict=True):
        change = added.get(str(batch.id))
        if change is not None and change.details.get("offsets", "").encode() != batch.plan.to_bytes():
            change = None
        records = None
        if change is not None:
            records = 0
        elif before is not None:
            # A partition that is new to the query is read from its start, which is 0 unless records have expired.
            records = sum(offset - before.get(one, 0) for one, offset in batch.offsets.items())
        views.append(BatchView(batch=batch, records=records, change=change))
    return views
