"""Prepares replays on any Kafka: finds what is asked for, counts it, begins a run and takes one up again.

Nothing here is a member of a group or commits an offset, so no live group notices.
"""

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from logmark.client.client import Client
from logmark.client.errors import ClientError
from logmark.client.metadata import TopicMetadata
from logmark.errors import ErrorCode, UserError
from logmark.names import INTERNAL_TOPICS, TopicPartition
from logmark.offsets.bounded_replay.ranges import (
    OffsetRange,
    OffsetSpecs,
    PartitionLog,
    parse_offset_specs,
    plan_ranges,
    spec_for_partition,
)
from logmark.offsets.bounded_replay.runs import (
    ReplayRequest,
    ReplayRun,
    SourceProgress,
    TargetProgress,
    TargetTopic,
)
from logmark.offsets.errors import SameTopic, TargetTopicMissing, TargetTopicReplaced
from logmark.offsets.offset_spec import OffsetSpec
from logmark.offsets.suggestions import unknown_topic
from logmark.offsets.times import format_duration

# What decides which records a topic takes and how long it keeps them: a new topic gets these from the old one.
_CARRIED_SETTINGS = frozenset(
    {
        "cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "message.timestamp.type",
        "message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "compression.type",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRanges:
    """The ranges that a request means now."""

    cluster_id: str
    topic_id: str
    partitions: int
    replication_factor: int
    spans: Sequence[OffsetRange]

    @property
    def offsets(self) -> int:
        return sum(span.offsets for span in self.spans)


def resolve_ranges(client: Client, request: ReplayRequest, *, now_ms: int) -> ReplayRanges:
    """Return the ranges that a request means now, bounded by the last stable offsets."""
    cluster = client.metadata([request.topic])
    if cluster.errors.get(request.topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise UserError(f"You are not allowed to see topic {request.topic}. Nothing was copied.")
    topic = cluster.topics.get(request.topic)
    if topic is None:
        raise UserError(f"{unknown_topic(client, request.topic)} Nothing was copied.")
    begin, end = parse_offset_specs(request.begin, now_ms=now_ms), parse_offset_specs(request.end, now_ms=now_ms)
    _refuse_unknown_partitions(topic, request, begin, end)
    partitions = [
        one
        for one in cluster.partitions(request.topic)
        if (not request.partitions or one.partition in request.partitions) and spec_for_partition(begin, one.partition)
    ]
    return ReplayRanges(
        cluster_id=cluster.cluster_id,
        topic_id=topic.topic_id.hex(),
        partitions=len(topic.partitions),
        replication_factor=_replication_of(topic),
        spans=_spans(client, partitions, begin, end),
    )


def _refuse_unknown_partitions(topic: TopicMetadata, request: ReplayRequest, *specs: OffsetSpecs) -> None:
    named = {*request.partitions, *(number for one in specs if not isinstance(one, OffsetSpec) for number in one)}
    for number in sorted(named - set(topic.partitions)):
        raise UserError(
            f"Topic {topic.name} has no partition {number}: it has {len(topic.partitions)}, numbered from 0. "
            "Nothing was copied."
        )


def _replication_of(topic: TopicMetadata) -> int:
    return max((len(one.replicas) for one in topic.partitions.values()), default=1)


def _spans(
    client: Client, partitions: Sequence[TopicPartition], begin: OffsetSpecs, end: OffsetSpecs
) -> list[OffsetRange]:
    if not partitions:
        return []
    # The starts first: they are then never behind the ends.
    starts = client.earliest(partitions)
    ends = client.latest(partitions, read_committed=True)
    visible = client.latest(partitions)
    at_from, at_to = (_at_times(client, partitions, specs) for specs in (begin, end))
    logs = {
        one.partition: PartitionLog(
            start=starts[one],
            end=ends[one],
            at_from_time=at_from.get(one, -1),
            at_to_time=at_to.get(one, -1),
        )
        for one in partitions
    }
    undecided = {one.partition for one in partitions if ends[one] < visible[one]}
    return [
        OffsetRange(
            partition=span.partition,
            start=span.start,
            stop=span.stop,
            note="; ".join(filter(None, (span.note, "ends where an open transaction begins"))),
        )
        if span.partition in undecided and span.stop == logs[span.partition].end
        else span
        for span in plan_ranges(partitions[0].topic, logs, begin, end)
    ]


def _at_times(client: Client, partitions: Sequence[TopicPartition], specs: OffsetSpecs) -> dict[TopicPartition, int]:
    wanted = {
        one: spec.timestamp_ms
        for one in partitions
        if (spec := spec_for_partition(specs, one.partition)) is not None and spec.timestamp_ms is not None
    }
    return {one: found.offset for one, found in client.list_offsets(wanted).items()} if wanted else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """The topic that is to be written to; `is_missing` when it has to be created first."""

    cluster_id: str
    topic: str
    partitions: int
    replication_factor: int
    is_missing: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = field(default_factory=list)


def plan_target(
    source: Client,
    target: Client,
    request: ReplayRequest,
    sought: ReplayRanges,
    *,
    create: bool = False,
    allow_same_topic: bool = False,
    oldest_ms: int | None = None,
    now_ms: int,
) -> TargetPlan:
    """Where the copies go; refuses a topic that is not there, the topic itself, and a partition that it has not."""
    name = request.to_topic
    if name in INTERNAL_TOPICS:
        raise UserError(f"{name} is the cluster's own topic; nothing is copied to it.")
    cluster = target.metadata([name])
    if cluster.cluster_id == sought.cluster_id and name == request.topic and not allow_same_topic:
        raise SameTopic(
            f"Topic {name} would be copied to itself, and its readers would read everything twice. Nothing was copied",
            "choose another topic, or pass allow_same_topic=True if this is what you want",
        )
    if cluster.errors.get(name) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise UserError(f"You are not allowed to see topic {name}. Nothing was copied.")
    topic = cluster.topics.get(name)
    if topic is None and not create:
        raise TargetTopicMissing(f"{unknown_topic(target, name)} Nothing was copied", sought.partitions)
    partitions = sought.partitions if topic is None else len(topic.partitions)
    if request.to_partition is not None and request.to_partition >= partitions:
        raise UserError(
            f"Topic {name} has no partition {request.to_partition}: it has {partitions}, numbered from 0. "
            "Nothing was copied."
        )
    return TargetPlan(
        cluster_id=cluster.cluster_id,
        topic=name,
        partitions=partitions,
        replication_factor=min(sought.replication_factor, len(cluster.brokers)) if topic is None
        else _replication_of(topic),
        is_missing=topic is None,
        settings=_settings_of(source, request.topic) if topic is None else {},
        warnings=[] if topic is None else retention_warnings(target, request, oldest_ms=oldest_ms, now_ms=now_ms),
    )  # fmt: skip


def _settings_of(client: Client, topic: str) -> dict[str, str]:
    """Return the changed settings of a topic that its copy needs too; empty if the broker does not show them."""
    with contextlib.suppress(ClientError):
        return {
            entry.name: entry.value
            for entry in client.describe_configs([topic])[topic]
            if entry.name in _CARRIED_SETTINGS and not entry.is_default and entry.value is not None
        }
    return {}


def retention_warnings(target: Client, request: ReplayRequest, *, oldest_ms: int | None, now_ms: int) -> list[str]:
    """Says when old times are kept in a topic that deletes what is that old; nothing where settings are not shown."""
    if request.timestamp != "keep" or oldest_ms is None or oldest_ms < 0:
        return []
    with contextlib.suppress(ClientError):
        described = target.describe_configs([request.to_topic])[request.to_topic]
        entries = {entry.name: entry.value or "" for entry in described}
        kept = entries.get("retention.ms", "-1")
        if "delete" not in entries.get("cleanup.policy", "delete") or not kept.isdigit():
            return []
        if now_ms - oldest_ms > int(kept):
            return [
                f"The oldest of these records is {format_duration(now_ms - oldest_ms)} old and keeps its timestamp. "
                f"Topic {request.to_topic} deletes records after {format_duration(int(kept))} (retention.ms), so the "
                "copies may be deleted soon."
            ]
    return []


def start_run(
    target: Client,
    request: ReplayRequest,
    sought: ReplayRanges,
    goal: TargetPlan | None,
    *,
    target_cluster: str,
    now_ms: int,
    run_id: str | None = None,
) -> ReplayRun:
    """Return a run that has written nothing yet; save it before it writes."""
    producer_id, producer_epoch = target.init_producer_id()
    run = ReplayRun(
        id=run_id or f"r-{uuid.uuid4().hex[:12]}",
        request=request,
        source_cluster=sought.cluster_id,
        target_cluster=target_cluster,
        source_topic_id=sought.topic_id,
        source_partitions=sought.partitions,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        started_ms=now_ms,
        updated_ms=now_ms,
        sources={
            span.partition: SourceProgress(start=span.start, stop=span.stop, next=span.start) for span in sought.spans
        },
    )
    return run if goal is None else add_target_topic(target, run, goal.topic)


def add_target_topic(target: Client, run: ReplayRun, name: str) -> ReplayRun:
    """Return the run with one more target topic: its partition count, and the log ends before the first copy."""
    cluster = target.metadata([name])
    topic = cluster.topics.get(name)
    if topic is None:
        raise UserError(f"{unknown_topic(target, name)}")
    ends = target.latest(cluster.partitions(name))
    return replace(
        run,
        topics={**run.topics, name: TargetTopic(topic_id=topic.topic_id.hex(), partitions=len(topic.partitions))},
        targets={**run.targets, **{one: TargetProgress(end=end) for one, end in ends.items()}},
    )


def check_unchanged(source: Client, target: Client, run: ReplayRun) -> None:
    """Refuse to resume a run on other clusters, or after one of its topics was deleted and created again."""
    seen = source.metadata([run.request.topic])
    _refuse_other_cluster(run, seen.cluster_id, run.source_cluster, "copies from")
    _refuse_other_topic(run, run.request.topic, seen.topics.get(run.request.topic), run.source_topic_id)
    written = target.metadata(sorted(run.topics))
    _refuse_other_cluster(run, written.cluster_id, run.target_cluster, "copies to")
    for name, known in run.topics.items():
        _refuse_other_topic(run, name, written.topics.get(name), known.topic_id)


def _refuse_other_cluster(run: ReplayRun, found: str, known: str, what: str) -> None:
    if found != known:
        raise UserError(
            f"Replay {run.id} {what} cluster {known}, and this is cluster {found}. Nothing was changed; name the "
            "cluster that it was begun with."
        )


def _refuse_other_topic(run: ReplayRun, name: str, found: TopicMetadata | None, known: str) -> None:
    if found is None or found.topic_id.hex() != known:
        raise TargetTopicReplaced(
            f"Topic {name} was {'deleted' if found is None else 'deleted and created again'} since replay {run.id} "
            "started, so the replay cannot be resumed. Nothing was changed",
            "forget the run and start a new one",
        )
