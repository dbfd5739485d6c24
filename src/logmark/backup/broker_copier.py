"""A backup through the brokers of any Kafka: batches byte for byte at their own offsets, and committed offsets.

Committed offsets are read before the ends of the logs, so that none points behind the records that are copied. One
thing is changed in a batch, outside of its checksum: the leader epoch becomes 0, which is the epoch of every log of
Logmark, because clients do not read on where a batch is of a newer epoch than its leader.
"""

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from logmark.backup.manifest import BROKERS, Manifest
from logmark.backup.manifest_draft import Draft, PartitionDraft, SegmentDraft
from logmark.backup.segment_walk import batch_sizes
from logmark.backup.store import SegmentWriter, Store
from logmark.client.answers import Committed, GroupListing
from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, OffsetOutOfRange, RefusedByBroker, UnknownTopic
from logmark.client.metadata import ClusterMetadata, TopicMetadata
from logmark.clock import Clock
from logmark.coordination import group_records
from logmark.coordination.facts import GroupRecorded, OffsetCommitted
from logmark.coordination.group_partition import partition_of_group
from logmark.errors import Refused, UserError
from logmark.log import settings
from logmark.log.catalog import PARTITIONS_MAX, PRODUCER_ID_BASE, Entry, new_id
from logmark.names import INTERNAL_TOPICS, OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, TopicPartition
from logmark.wire import batches

ROUNDS_MAX = 100
TRIES_MAX = 20
PAUSE_S = 0.1
FETCH_BYTES = 8 << 20
RECORDS_PER_BATCH = 500
RELATIVE_OFFSET_MAX = 2**31 - 1
_OFFSETS_OVERRIDES = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_AT = 12

GroupOffsets = Mapping[str, Mapping[TopicPartition, Committed]]


class _Diverged(Exception):
    """What is stored of a partition is not the beginning of what its leader has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """One partition to be copied, between the offsets that were seen."""

    key: TopicPartition
    topic_id: bytes
    start: int
    end: int
    segment_bytes: int
    is_compacted: bool


class BrokerCopier:
    """Copies one cluster into a store."""

    # A broker answers with what it has, and an error is no backup.
    lost: Sequence[str] = ()

    def __init__(self, client: Client, clock: Clock) -> None:
        """Ask the cluster for its identity."""
        self._client = client
        self._clock = clock
        self._notes: list[str] = []
        self._bytes = self._offsets = self._offsets_left = 0
        self._expect: Callable[[int], None] = lambda size: None
        self._draft = Draft(
            kind=BROKERS, source=client.bootstrap_servers, cluster_id=client.metadata([]).cluster_id
        )  # fmt: skip

    def copy(self, store: Store, *, expect: Callable[[int], None]) -> Manifest:
        """Take a complete backup of the cluster; `expect` is called with the number of bytes to come."""
        self._store, self._expect = store, expect
        store.begin(self._draft, expect=expect)
        try:
            return self._copy_rounds()
        except BrokerUnreachable as error:
            raise BrokerUnreachable(f"{error} What was copied is kept; run the same command again.") from None

    def _copy_rounds(self) -> Manifest:
        for _ in range(ROUNDS_MAX):
            self._notes = []
            try:
                self._await_coordinators()
                listings = self._client.list_groups()
                group_offsets = self._committed_offsets(listings)
                cluster = self._client.metadata()
                entries = self._entries(cluster, has_groups=bool(group_offsets))
                logs = self._logs(cluster, entries)
                self._copy_logs(logs)
                is_same = _shape(self._client.metadata()) == _shape(cluster)
            except UnknownTopic:
                is_same = False
            if is_same:
                return self._finish(entries, logs, listings, group_offsets)
            time.sleep(PAUSE_S)
        raise UserError(
            f"Topics came and went during each of {ROUNDS_MAX} rounds. What was copied is kept; run the same command "
            "again when fewer topics are created and deleted."
        )

    def _finish(
        self,
        entries: Sequence[Entry],
        logs: Sequence[_Log],
        listings: Sequence[GroupListing],
        group_offsets: GroupOffsets,
    ) -> Manifest:
        draft = self._draft
        wanted = {log.key for log in logs}
        draft.partitions = {key: draft.partitions[key] for key in sorted(draft.partitions) if key in wanted}
        self._note_groups(listings, group_offsets)
        self._note_transactions()
        offsets_id = next((entry.id for entry in entries if entry.name == OFFSETS_TOPIC), b"")
        self._write_groups(listings, group_offsets, offsets_id)
        copied = [segment for partition in draft.partitions.values() for segment in partition.segments]
        newest = max((segment.producer_id_max for segment in copied), default=-1)
        draft.next_producer_id = max(PRODUCER_ID_BASE, newest + 1)
        draft.topics = list(entries)
        draft.notes = self._notes
        draft.ended_ms = self._clock.now_ms()
        return self._store.complete()

    # Topics

    def _entries(self, cluster: ClusterMetadata, *, has_groups: bool) -> list[Entry]:
        """Return the topics with their ids and overrides; report and leave out what only the source can use."""
        carried = _carried(cluster)
        described = self._client.describe_configs([topic.name for topic in carried]) if carried else {}
        entries = []
        for topic in carried:
            if len(topic.partitions) > PARTITIONS_MAX:
                raise UserError(
                    f"Topic {topic.name} has {len(topic.partitions)} partitions, and one node keeps at most "
                    f"{PARTITIONS_MAX} of a topic. Nothing more was copied."
                )
            overrides = {}
            for one in described.get(topic.name, []):
                if one.is_default or one.value is None:
                    continue
                try:
                    settings.check(one.name, one.value)
                    overrides[one.name] = one.value
                except Refused as refused:
                    self._notes.append(f"{one.name}={one.value} of topic {topic.name} is left out: {refused.message}.")
            entries.append(
                Entry(name=topic.name, id=self._id_of(topic), partitions=len(topic.partitions), overrides=overrides)
            )
        self._segment_bytes = {
            name: int(one.value) for name, found in described.items() for one in found
            if one.name == "segment.bytes" and one.value and one.value.isdigit()
        }  # fmt: skip
        self._compacted = {
            name for name, found in described.items() for one in found
            if one.name == "cleanup.policy" and "compact" in (one.value or "")
        }  # fmt: skip
        internal = cluster.topics.get(OFFSETS_TOPIC)
        if internal is not None or has_groups:
            kept = self._id_of(internal) if internal is not None else self._kept_id(OFFSETS_TOPIC)
            entries.append(
                Entry(name=OFFSETS_TOPIC, id=kept, partitions=OFFSETS_TOPIC_PARTITIONS, overrides=_OFFSETS_OVERRIDES)
            )
        return entries

    def _id_of(self, topic: TopicMetadata) -> bytes:
        return topic.topic_id if any(topic.topic_id) else self._kept_id(topic.name)

    def _kept_id(self, name: str) -> bytes:
        """Return the id that an earlier run gave to a topic whose brokers know no ids, or a new one."""
        known = next((entry for entry in self._draft.topics if entry.name == name), None)
        if known is None:
            known = Entry(name=name, id=new_id(), partitions=0)
            self._draft.topics.append(known)
        return known.id

    def _logs(self, cluster: ClusterMetadata, entries: Sequence[Entry]) -> list[_Log]:
        wanted = [
            key for entry in entries if entry.name not in INTERNAL_TOPICS for key in cluster.partitions(entry.name)
        ]  # fmt: skip
        ids = {entry.name: entry.id for entry in entries}
        # The starts first: they are then never behind the ends.
        starts, ends = self._client.earliest(wanted), self._client.latest(wanted)
        return [
            _Log(
                key=key,
                topic_id=ids[key.topic],
                start=starts[key],
                end=ends[key],
                segment_bytes=self._segment_bytes.get(key.topic, 1 << 30),
                is_compacted=key.topic in self._compacted,
            )
            for key in wanted
        ]

    # Records

    def _copy_logs(self, logs: Sequence[_Log]) -> None:
        self._offsets_left = sum(
            max(log.end - max(log.start, self._store.known(log.key, log.topic_id).log_end_offset), 0) for log in logs
        )
        for log in logs:
            self._store.keep(log.key, self._copy_log(log))

    def _copy_log(self, log: _Log) -> PartitionDraft:
        # Compaction may have taken a tombstone that was never copied: what it deleted would come back.
        is_fresh = log.is_compacted
        for _ in range(TRIES_MAX):
            try:
                return self._copy_from(log, is_fresh=is_fresh)
            except _Diverged:
                is_fresh = True
            except OffsetOutOfRange:
                # Retention has taken what was about to be read.
                start = self._client.earliest([log.key])[log.key]
                end = max(self._client.latest([log.key])[log.key], start)
                log = _Log(
                    key=log.key, topic_id=log.topic_id, start=start, end=end, segment_bytes=log.segment_bytes,
                    is_compacted=log.is_compacted,
                )  # fmt: skip
        raise UserError(
            f"The records of {log.key} expired faster than they could be read. What was copied is kept; "
            "run the same command again."
        )

    def _copy_from(self, log: _Log, *, is_fresh: bool) -> PartitionDraft:
        known = self._store.known(log.key, log.topic_id)
        segments = [] if is_fresh else [one.copy() for one in known.segments if one.next_offset > log.start]
        if segments and (
            segments[-1].next_offset > log.end or not all(self._store.is_sound(one) for one in segments)
        ):  # fmt: skip
            segments = []
        position = segments[-1].next_offset if segments else log.start
        partition = PartitionDraft(
            topic_id=log.topic_id,
            log_start_offset=log.start,
            cleaned_to=known.cleaned_to if segments else None,
            segments=segments,
        )
        if position < log.end:
            with _Appender(self._store, log, partition, position) as appender:
                for data in self._fetched(log, segments[-1] if segments else None):
                    appender.append(data)
        if not segments and log.end:
            # Everything has expired: the next record gets the next offset all the same.
            segments.append(self._store.new_segment(log.key, log.end))
        if segments:
            # Compaction may have left nothing between the log start and the first batch.
            partition.log_start_offset = max(log.start, segments[0].base_offset)
        return partition

    def _fetched(self, log: _Log, last: SegmentDraft | None) -> Iterator[memoryview]:
        """Yield the sound batches behind those that are stored, whose last one must still be there."""
        begin, overlap = log.start, b""
        if last is not None:
            begin = last.next_offset
            if last.size_bytes:
                overlap = self._store.read(last, last.last_position, last.size_bytes - last.last_position)
                if batches.sound_prefix(overlap, base=last.base_offset)[:2] != (len(overlap), last.next_offset):
                    # The manifest names another position than that of the last batch.
                    raise _Diverged
                # Records may have been deleted up to the middle of it: a broker still returns the whole batch.
                begin = max(batches.read_header(overlap).base_offset, log.start)
        expected = 0
        with self._client.fetcher(log.key, bytes_max=FETCH_BYTES) as fetcher:
            for answer in fetcher.read(begin, log.end):
                data = bytearray(answer.records)
                sound, next_offset, problem = batches.sound_prefix(data, base=expected)
                if problem is not None:
                    raise UserError(
                        f"A batch of {log.key} behind offset {max(begin, expected) - 1} cannot be copied: {problem}. "
                        "What was copied is kept."
                    )
                view = memoryview(data)[:sound]
                _set_leader_epoch(view)
                if overlap:
                    if view[: len(overlap)] != overlap:
                        raise _Diverged
                    view, overlap = view[len(overlap) :], b""
                self._count(len(view), next_offset - max(begin, expected))
                expected = next_offset
                if view:
                    yield view

    def _count(self, size: int, offsets: int) -> None:
        """Estimate what is left from what came: no broker says how large a log is."""
        self._bytes, self._offsets = self._bytes + size, self._offsets + offsets
        self._offsets_left = max(self._offsets_left - offsets, 0)
        if self._offsets:
            self._expect(self._bytes * self._offsets_left // self._offsets)

    # Groups

    def _await_coordinators(self) -> None:
        """Wait until every group can be seen: Apache Kafka's list leaves out those that are still being loaded."""
        internal = self._client.metadata([OFFSETS_TOPIC]).topics.get(OFFSETS_TOPIC)
        count = len(internal.partitions) if internal is not None else 0
        probes: dict[int, str] = {}
        number = 0
        while len(probes) < count:
            # A group that nobody has, for each internal partition: its coordinator answers when it has loaded.
            name = f"logmark-backup-{number}"
            probes.setdefault(partition_of_group(name, count), name)
            number += 1
        try:
            self._client.committed_of(list(probes.values()))
        except RefusedByBroker as refused:
            raise UserError(
                f"The committed offsets cannot be read yet: a coordinator answered {refused.code.name}. What was "
                "copied is kept; run the same command again in a while."
            ) from None

    def _committed_offsets(self, listings: Iterable[GroupListing]) -> GroupOffsets:
        groups = [one.group for one in listings if one.type.lower() in ("", "classic", "consumer")]
        return {group: found for group, found in self._client.committed_of(groups).items() if found} if groups else {}

    def _note_groups(self, listings: Iterable[GroupListing], group_offsets: GroupOffsets) -> None:
        listings = list(listings)
        in_use = [one.group for one in listings if one.state not in ("", "Empty", "Dead")]
        if in_use:
            self._notes.append(f"Groups with members, who join again after a restore: {', '.join(in_use)}.")
        other = [one.group for one in listings if one.type.lower() not in ("", "classic", "consumer")]
        if other:
            self._notes.append(f"Share and streams groups are left out: {', '.join(other)}.")
        for group, committed in group_offsets.items():
            for key, commit in committed.items():
                partition = self._draft.partitions.get(key)
                if partition is None:
                    self._notes.append(f"Group {group} has committed an offset in {key}, which is gone: left out.")
                elif commit.offset > partition.log_end_offset:
                    self._notes.append(
                        f"Group {group} is at {commit.offset} in {key}, which ended at {partition.log_end_offset}: "
                        "so it was at the source."
                    )

    def _note_transactions(self) -> None:
        for key, partition in self._draft.partitions.items():
            if partition.open_transactions:
                self._notes.append(
                    f"Partition {key} has {len(partition.open_transactions)} open transaction(s), the first from "
                    f"offset {min(partition.open_transactions.values())} on; what ends them is not in the backup."
                )

    def _write_groups(self, listings: Iterable[GroupListing], group_offsets: GroupOffsets, topic_id: bytes) -> None:
        """Write the committed offsets of every group as the records in which a coordinator keeps them."""
        now_ms = self._clock.now_ms()
        protocols = {one.group: one.protocol_type for one in listings}
        entries: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
        for group, committed in group_offsets.items():
            records = entries.setdefault(partition_of_group(group), [])
            if protocols.get(group):
                recorded = GroupRecorded(
                    group=group, generation=0, protocol_type=protocols[group], protocol=None, leader=None,
                    state_changed_at_ms=now_ms,
                )  # fmt: skip
                records.append(group_records.encode(recorded))
            for key, commit in committed.items():
                if key in self._draft.partitions:
                    records.append(group_records.encode(_fact(group, key, commit, now_ms)))
        for index, records in entries.items():
            key = TopicPartition(OFFSETS_TOPIC, index)
            segment = self._store.new_segment(key, 0)
            with self._store.writer(segment) as writer:
                for at in range(0, len(records), RECORDS_PER_BATCH):
                    part = records[at : at + RECORDS_PER_BATCH]
                    batch = batches.build(part, timestamp_ms=now_ms, base_offset=at)
                    writer.append(memoryview(batch), at + len(part))
            self._store.keep(key, PartitionDraft(topic_id=topic_id, segments=[segment]))


class _Appender:
    """Puts batches behind a stored log, in segments of the topic's size."""

    def __init__(self, store: Store, log: _Log, partition: PartitionDraft, position: int) -> None:
        self._store = store
        self._position = position
        self._log = log
        self._partition = partition
        self._writer: SegmentWriter | None = None

    def __enter__(self) -> "_Appender":
        if self._partition.segments:
            self._writer = self._store.writer(self._partition.segments[-1])
        # From here on, so that an interrupted run knows what it has.
        self._store.keep(self._log.key, self._partition)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if self._writer is not None:
            self._writer.leave(error)

    def append(self, data: memoryview) -> None:
        """Add whole batches."""
        begin, behind = 0, 0
        for at, size, base_offset, next_offset in batch_sizes(data):
            if base_offset > self._position:
                # Only compaction makes holes.
                self._partition.cleaned_to = base_offset
            self._position = next_offset
            if self._is_full(at + size - begin, next_offset):
                self._flush(data[begin:at], behind)
                self._roll(base_offset)
                begin = at
            behind = next_offset
        self._flush(data[begin:], behind)

    def _is_full(self, size: int, next_offset: int) -> bool:
        if self._writer is None:
            return True
        segment = self._writer.segment
        if not segment.size_bytes and size <= self._log.segment_bytes:
            return False
        is_large = segment.size_bytes + size > self._log.segment_bytes
        return is_large or next_offset - 1 - segment.base_offset > RELATIVE_OFFSET_MAX

    def _flush(self, data: memoryview, next_offset: int) -> None:
        if data:
            assert self._writer is not None
            self._writer.append(data, next_offset)

    def _roll(self, base_offset: int) -> None:
        if self._writer is not None:
            self._writer.close()
        else:
            # The first one begins at the log start, or before it with the batch that holds it.
            base_offset = min(base_offset, self._log.start)
        segment = self._store.new_segment(self._log.key, base_offset)
        self._partition.segments.append(segment)
        self._writer = self._store.writer(segment)


def _carried(cluster: ClusterMetadata) -> list[TopicMetadata]:
    topics = (cluster.topics[name] for name in sorted(cluster.topics))
    return [topic for topic in topics if not topic.is_internal and topic.name not in INTERNAL_TOPICS]


def _shape(cluster: ClusterMetadata) -> list[tuple[str, bytes, int]]:
    return [(topic.name, topic.topic_id, len(topic.partitions)) for topic in _carried(cluster)]


def _fact(group: str, key: TopicPartition, commit: Committed, now_ms: int) -> OffsetCommitted:
    return OffsetCommitted(
        group=group, topic=key.topic, partition=key.partition, offset=commit.offset,
        leader_epoch=min(commit.leader_epoch, batches.LEADER_EPOCH), metadata=commit.metadata, committed_at_ms=now_ms,
    )  # fmt: skip


def _set_leader_epoch(data: memoryview) -> None:
    for at, _, _, _ in batch_sizes(data):
        if _LEADER_EPOCH.unpack_from(data, at + _LEADER_EPOCH_AT)[0] != batches.LEADER_EPOCH:
            _LEADER_EPOCH.pack_into(data, at + _LEADER_EPOCH_AT, batches.LEADER_EPOCH)
