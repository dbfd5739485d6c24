"""Follows a consumer group: reads its committed offsets, commits the query's position, and plans the next batch.

The query is no member of its group: it commits as a tool does, which brokers allow while a group has no members. That
is what lets anybody reset the group while the query runs; and it is why `describe` shows no active members.

Kafka has no conditional commit. A reset that lands between our look and our commit, milliseconds once per batch, is
overwritten: so the two calls come right after each other, and nothing is committed that is committed already. A tool
that reads back what it has set notices, and sets it again.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping

from logmark.client.answers import LATEST, Committed
from logmark.client.client import Client
from logmark.client.errors import ClientError, CommitRefused, RefusedByBroker
from logmark.clock import Clock
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata, Heartbeat, QueryState
from logmark.spark.errors import GroupInUse, Superseded, is_transient
from logmark.spark.source.cluster import find_partitions, format_partitions, look_up_times, read_bounds
from logmark.spark.source.data_loss import GracePeriod, Loss, describe_losses, describe_spec, find_losses, refuse_losses
from logmark.spark.source.ending_offsets import EndingOffsets
from logmark.spark.source.heartbeat import repeat_commit
from logmark.spark.source.limits import share_records
from logmark.spark.source.offset_maps import format_offsets
from logmark.spark.source.offset_specs import OffsetSpec, check_spec_covers, resolve_starts
from logmark.spark.source.options import SourceOptions
from logmark.spark.source.ownership import (
    HEARTBEAT_EVERY_MS,
    describe_owner,
    find_owner,
    format_moment,
    is_late,
    name_process,
)
from logmark.spark.source.position import (
    GroupCommit,
    GroupMoved,
    GroupTakenOver,
    HeldCommits,
    Offsets,
    Position,
    compare_with_group,
    first_position,
)
from logmark.spark.source.query_tokens import check_only_reader, make_query_token
from logmark.spark.source.ranges import Bounds
from logmark.spark.source.record_sizes import RecordSizes
from logmark.spark.source.starting_offsets import choose_offsets_of_new_partitions, choose_starting_offsets

log = logging.getLogger(__name__)

RENEW_AFTER_MS = 24 * 3600 * 1000  # Kafka forgets the offsets of a group without members after 7 days


class GroupFollower:
    """One query's hold on its group; lives as long as the query runs."""

    def __init__(self, options: SourceOptions, cluster: Client, clock: Clock, *, load: str = "") -> None:
        self._options = options
        self._load = load
        self._group = options.group or ""  # empty: made at the beginning, and kept in the checkpoint
        self._cluster = cluster
        self._clock = clock
        # What the group may hold if nobody else has moved it; None: as the checkpoint says.
        self._held: dict[TopicPartition, set[GroupCommit]] | None = None
        self._started: Position | None = None
        self._is_first_query_known = False
        self._renewed_ms: int | None = None
        self._restored_ms: int | None = None
        self._known_partitions: list[TopicPartition] = []
        self._ids: dict[str, str] = {}
        self._refreshed_ms: int | None = None
        self._planned_ms: int | None = None
        self._until: Offsets | None = None
        self._ends: Offsets = {}
        self._ending_offsets = EndingOffsets(options)
        self._sizes = RecordSizes(cluster)
        self._beyond_grace, self._missing_grace = GracePeriod(), GracePeriod()
        self._process = name_process()
        self._at: Position | None = None
        self._is_in_use = False  # by another query, as it seemed when this one started
        # The group as this process saw it first; None: not yet.
        self._first_seen: Mapping[TopicPartition, GroupCommit] | None = None
        self._beaten_ms: int | None = None  # by the monotonic clock
        self._heartbeat_ms = 0
        self._is_marked_stopped = False  # and nothing was committed since
        self._may_take_over = options.takeover

    def start(self) -> Position:
        """Return where a query with a new checkpoint starts: at the group's offsets; it commits missing ones at once.

        Offsets that are there already become the query's own when it plans its first batch, and not before: Spark asks
        a query that died in its first batch where it starts once more, and then resumes what was planned. Metadata
        of this second beginning would be a stranger's to a third. For the same reason a group that is in use is refused
        when the first batch is to be planned; until then nothing is committed.
        """
        options = self._options
        self._refreshed_ms = None
        partitions = self._partitions(is_new=True)
        check_spec_covers(options.starting, partitions, name=options.starting_name)
        check_spec_covers(options.ending, partitions, name=options.ending_name)
        if not partitions:
            log.warning("no topic fits the pattern yet; group %s waits for the first one", self._group)
        bounds = self._bounds(partitions)
        found: dict[TopicPartition, GroupCommit] = {}
        if self._group:
            found = self._read_commits(partitions)
            self._is_in_use = self._find_owner(found) is not None
            tokens = [one.mark.query for one in found.values() if one.mark]
            check_only_reader(tokens, self._load, group=self._group)
        else:
            self._group = f"{options.group_prefix}-{uuid.uuid4()}"
        if found and options.starting_name.startswith("starting"):
            log.warning(
                "group %s has committed offsets and resumes there; %s counts only for partitions that it has none for",
                self._group, options.starting_name,
            )  # fmt: skip
        starts = choose_starting_offsets(
            options, self._group, partitions, found, bounds, look_up=self._look_up, now_ms=self._clock.now_ms()
        )
        starts |= self._replace_lost_starts(starts, bounds)
        query = make_query_token(self._load)
        now_ms = self._clock.now_ms()
        position = first_position(
            group=self._group, query=query, now_ms=now_ms, found=found, starts=starts, ids=self._ids
        )
        self._held = {partition: {one} for partition, one in found.items()}
        self._started = self._at = position
        is_there = {
            partition
            for partition, offset in starts.items()
            if partition in found and found[partition].offset == offset
        }
        if not self._is_in_use:
            missing = {partition: offset for partition, offset in starts.items() if partition not in is_there}
            self._commit(position, missing)
        return position

    def fix_end(self) -> None:
        """Read nothing beyond the present log ends from now on."""
        partitions = self._partitions()
        self._until = {partition: bound.end for partition, bound in self._bounds(partitions).items()}

    @property
    def reads_to_a_fixed_end(self) -> bool:
        """Whether a batch that reads nothing would end the query."""
        return self._until is not None

    def advance(self, start: Position, *, records_max: int | None) -> Position:
        """Commit `start` to the group and return where the next batch ends: at `start` if there is nothing to read.

        Raises GroupInUse if the query is new and a running one owns the group, unless the options take it over, and
        Superseded if a newer query has taken the group over.
        """
        self._check_group(start)
        partitions = self._partitions()
        self._at = start
        if start.group != self._group:
            return self._adopt(start)
        found = self._try_read_commits(start)
        if self._is_in_use and found is None:
            found = self._read_commits(start.next)  # nothing is read before it is known whether the group is in use
        self._check_owner(start, found or {})
        if found is not None:
            found = self._as_started(start, found)
            moved = self._commit_or_follow(start, found)
            if moved is not None:
                return moved
        kept = self._missing_for_a_moment(start, partitions)
        bounds = self._bounds(partitions)
        here = {partition: offset for partition, offset in start.next.items() if partition in bounds}
        lost = self._find_recreated(start, here, bounds) or self._lasting_losses(here, bounds)
        if lost and found is None and self._until is None:
            return start  # the group may have been moved to where there is something to read
        if self._until is not None and (kept or self._beyond_grace.partitions) and not lost:
            # A run that ends has no next time: it waits until it is known what is lost.
            raise RefusedByBroker(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{format_partitions([*kept, *self._beyond_grace.partitions])} is missing, or shorter than what was "
                "read of it.",
            )
        if lost:
            return self._seek(start, self._replace_lost(lost, bounds))
        # The group's offset in a new partition must be known before anything of it is read.
        first = here if found is None else here | self._start_new_partitions(partitions, here, bounds, found)
        ends = {partition: bounds[partition].end for partition in first}
        if self._until is not None:
            ends = {
                partition: min(end, self._until.get(partition, first[partition])) for partition, end in ends.items()
            }
        ends = self._ending_offsets.limit(ends, bounds, look_up=self._look_up, now_ms=self._clock.now_ms())
        ends = {partition: max(end, first[partition]) for partition, end in ends.items()}
        waiting = {
            partition: ends[partition] - first[partition] for partition in first if ends[partition] > first[partition]
        }
        if waiting and not self._is_batch_due(sum(waiting.values())):
            return start
        following = self._share(first, ends, waiting, records_max)
        if {**following, **kept} == start.next:
            return start
        self._planned_ms = self._clock.now_ms()
        ids = {**start.ids, **self._ids}
        held = self._held_commits(start)
        return start.batch(first={**first, **kept}, next={**following, **kept}, held=held, ids=ids)

    def ends(self) -> Offsets:
        """Return the ends of the partitions as they were seen last."""
        return self._ends

    def renew_heartbeat(self) -> None:
        """Write the time into the group, unless a commit has done so within the last half minute."""
        is_fresh = (
            self._beaten_ms is not None and self._clock.monotonic_ms() - self._beaten_ms < HEARTBEAT_EVERY_MS
        )  # fmt: skip
        if not is_fresh and not self._is_marked_stopped and self._repeat_commit(self._cluster, QueryState.RUNNING):
            self._beaten_ms = self._clock.monotonic_ms()

    def mark_stopped(self, cluster: Client) -> None:
        """Write into the group that the query has stopped, with a client of the caller's."""
        if not self._is_marked_stopped:
            self._is_marked_stopped = self._repeat_commit(cluster, QueryState.STOPPED)

    def _repeat_commit(self, cluster: Client, state: QueryState) -> bool:
        if self._at is None:
            return False
        held = self._held_commits(self._at)
        return repeat_commit(cluster, self._group, self._at.query, held, self._heartbeat(state))

    def _heartbeat(self, state: QueryState = QueryState.RUNNING) -> Heartbeat:
        # The newest one counts, also after a clock was set back.
        query = self._at.query if self._at is not None else ""
        earlier = [one.mark for one in (self._first_seen or {}).values() if one.mark is not None]
        seen_ms = [mark.heartbeat.at_ms for mark in earlier if mark.heartbeat and mark.query == query]
        self._heartbeat_ms = max([self._clock.now_ms(), *(at_ms + 1 for at_ms in (self._heartbeat_ms, *seen_ms))])
        return Heartbeat(at_ms=self._heartbeat_ms, state=state, process=self._process, owner=self._options.owner)

    def _find_owner(self, found: Mapping[TopicPartition, GroupCommit]) -> CommitMetadata | None:
        """Return the mark of the running query that owns the group, None if there is none or it may be taken over."""
        if self._options.takeover or not any(one.mark and one.mark.heartbeat for one in found.values()):
            return None
        in_group = self._parse_commits(self._cluster.committed(self._group))
        return find_owner(found, in_group, now_ms=self._clock.now_ms(), owner=self._options.owner)

    def _check_owner(self, start: Position, found: Mapping[TopicPartition, GroupCommit]) -> None:
        """Raise GroupInUse if the query is new and a running one owns the group; one that is resumed has it already."""
        is_new = self._started is not None and self._started.query == start.query
        mark = self._find_owner(found) if self._is_in_use and is_new else None
        if mark is not None and mark.heartbeat is not None:
            message = describe_owner(self._group, mark, now_ms=self._clock.now_ms())
            raise GroupInUse(message, process=mark.heartbeat.process)
        self._is_in_use = False

    def _check_group(self, start: Position) -> None:
        self._group = self._group or start.group
        if start.group not in (self._group, self._options.group_before):
            raise UserError(
                f"The checkpoint belongs to group {start.group}, but group.id is {self._group}. Nothing was read or "
                "committed. Give the new group a checkpoint of its own."
            )

    def _adopt(self, start: Position) -> Position:
        """Continue the query in its new group, which it owns from now on.

        Without a commit there is no such position: the group still has what others committed, and would be taken to
        have been moved there.
        """
        ids = {**start.ids, **self._ids}
        position = start.adopt_into(
            self._group,
            self._read_commits(start.next),
            now_ms=self._clock.now_ms(),
            ids=ids,
            follows_resets=not self._options.is_stateful,
        )
        self._cluster.commit(self._group, self._marked_commits(position))
        offsets = format_offsets(position.next)
        log.warning("group %s is taken over, from the checkpoint of group %s, at %s", self._group, start.group, offsets)
        self._held = {partition: {position.own_commit(offset)} for partition, offset in position.next.items()}
        self._renewed_ms, self._beaten_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        self._may_take_over = False
        return position

    def _is_batch_due(self, waiting: int) -> bool:
        if self._until is not None:
            return True  # all there is is read, and then the query ends
        since_ms = None if self._planned_ms is None else self._clock.now_ms() - self._planned_ms
        return self._options.limits.are_met(waiting, since_batch_ms=since_ms)

    def _share(self, first: Offsets, ends: Offsets, waiting: Offsets, records_max: int | None) -> Offsets:
        bytes_max = self._options.limits.bytes_max
        if bytes_max is None:
            return share_records(first, ends, records_max=records_max)
        sizes = self._sizes.measure({partition: first[partition] for partition in waiting}, waiting)
        return share_records(first, ends, records_max=records_max, bytes_max=bytes_max, record_bytes=sizes)

    def _as_started(
        self, start: Position, found: dict[TopicPartition, GroupCommit]
    ) -> dict[TopicPartition, GroupCommit]:
        """Return the commits as those of the resumed query, where this process made them under another token.

        A driver that died in the first batch of a query begins again, because Spark asks once more where it starts; but
        then Spark repeats the batch as it was planned, under the first token, and the query resumes from there.
        """
        if self._started is None or self._started.query == start.query:
            return found
        if not self._is_first_query_known:
            self._is_first_query_known = True
            self._held = None
        held = self._held_commits(start)
        for partition, one in found.items():
            if one.mark and one.mark.query == self._started.query:
                same = (other for other in held.get(partition, ()) if other.offset == one.offset)
                # Started elsewhere than the first time: the group was moved meanwhile.
                found[partition] = next(same, GroupCommit(offset=one.offset, mark=None))
        return found

    def _held_commits(self, start: Position) -> HeldCommits:
        """Return the commits that the group may hold if no one else has moved it."""
        return start.possible_commits() if self._held is None else self._held

    def _commit_or_follow(self, start: Position, found: Mapping[TopicPartition, GroupCommit]) -> Position | None:
        """Commit what is due; return the position to seek to if the group was moved."""
        verdict = compare_with_group(start, found, held=self._with_late_commits(start, found))
        if isinstance(verdict, GroupTakenOver):
            if self._may_take_over:
                return self._adopt(start)
            raise Superseded(_describe_takeover(self._group, verdict.owner))
        self._may_take_over = False
        if isinstance(verdict, GroupMoved) and self._options.is_stateful:
            self._restore(start, verdict)
            return None
        self._held = {partition: {one} for partition, one in found.items()}
        is_due = self._renewed_ms is None or self._clock.now_ms() - self._renewed_ms >= RENEW_AFTER_MS
        offsets = start.next if is_due and not isinstance(verdict, GroupMoved) else verdict.commit
        recreated = self._recreated_topics(start)
        # An offset of a topic that was deleted says nothing in the one that has its name now.
        self._commit(start, {one: offset for one, offset in offsets.items() if one.topic not in recreated})
        if isinstance(verdict, GroupMoved):
            log.warning("group %s was moved to %s: reading continues there", self._group, format_offsets(verdict.to))
            return self._seek(start, verdict.to)
        return None

    def _with_late_commits(self, start: Position, found: Mapping[TopicPartition, GroupCommit]) -> HeldCommits:
        """Return what the group may hold, with commits that an earlier process made too late: they are no move."""
        first_seen = self._first_seen or {}
        late = {
            partition: one
            for partition, one in found.items()
            if one.offset < start.next.get(partition, 0)
            and is_late(one, first_seen.get(partition), process=self._process)
        }
        held = self._held_commits(start)
        return {**held, **{partition: {*held.get(partition, ()), one} for partition, one in late.items()}}

    def _restore(self, start: Position, verdict: GroupMoved) -> None:
        """Commit the query's own offsets over those that somebody has set: its state cannot be moved with them.

        What was found there is not held: if this commit fails, the next trigger restores the offsets again.
        """
        now_ms = self._restored_ms = self._clock.now_ms()
        log.warning(
            "group %s was moved to %s at %s. This query keeps state, which would count records twice or miss some: it "
            "commits its own offsets again and reads on at %s. To read records again, replay it as a new version.",
            self._group, format_offsets(verdict.to), format_moment(now_ms),
            format_offsets({one: start.next[one] for one in verdict.to}),
        )  # fmt: skip
        recreated = self._recreated_topics(start)
        offsets = {one: start.next[one] for one in (*verdict.to, *verdict.commit) if one.topic not in recreated}
        self._commit(start, offsets)

    def _marked_commits(self, position: Position, offsets: Offsets | None = None) -> dict[TopicPartition, Committed]:
        return position.commits(
            offsets,
            heartbeat=self._heartbeat(),
            is_stateful=self._options.is_stateful,
            restored_ms=self._restored_ms,
        )

    def _seek(self, start: Position, to: Offsets) -> Position:
        ids = {**start.ids, **self._ids}
        return start.seek(to, now_ms=self._clock.now_ms(), held=self._held_commits(start), ids=ids)

    def _commit(self, position: Position, offsets: Offsets) -> None:
        """Try to commit; after a failure the next trigger commits again."""
        if not offsets:
            return
        self._is_marked_stopped = False
        held = self._held = {partition: set(commits) for partition, commits in self._held_commits(position).items()}
        refused: set[TopicPartition] = set()
        commits = self._marked_commits(position, offsets)
        try:
            self._cluster.commit(self._group, commits)
        except CommitRefused as error:
            refused = set(error.errors)
            log.warning("%s The query continues and tries again.", error)
        except ClientError as error:
            # Nobody knows whether it was done: the group may hold the old and the new.
            log.warning("%s The query continues and commits later.", error)
            for partition, offset in offsets.items():
                held.setdefault(partition, set()).add(position.own_commit(offset))
            return
        held |= {
            partition: {position.own_commit(offset)}
            for partition, offset in offsets.items()
            if partition not in refused
        }
        if len(refused) < len(offsets):
            self._beaten_ms = self._clock.monotonic_ms()
        # Where the group had nothing, what is written after this commit is as late.
        self._first_seen = {**self._parse_commits(commits), **(self._first_seen or {})}
        if not refused and len(offsets) == len(position.next):
            self._renewed_ms = self._clock.now_ms()

    def _try_read_commits(self, start: Position) -> dict[TopicPartition, GroupCommit] | None:
        """Return the committed offsets, or None if they cannot be read now: then nothing is committed either."""
        try:
            return self._read_commits(
                [*start.next, *(partition for partition in self._known_partitions if partition not in start.next)]
            )
        except ClientError as error:
            if self._until is not None and is_transient(error):
                raise  # a run that ends has no next time: it waits
            log.warning("%s The query continues and looks again.", error)
            return None

    def _read_commits(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, GroupCommit]:
        found = self._parse_commits(self._cluster.committed(self._group, list(partitions)))
        if self._first_seen is None:
            self._first_seen = found
        restored = [one.mark.restored_ms for one in found.values() if one.mark and one.mark.restored_ms is not None]
        if self._restored_ms is None and restored:
            self._restored_ms = max(restored)  # by the process before this one
        return dict(found)

    def _parse_commits(self, committed: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, GroupCommit]:
        return {
            partition: GroupCommit(offset=one.offset, mark=CommitMetadata.parse(one.metadata))
            for partition, one in committed.items()
        }

    def _partitions(self, *, is_new: bool = False) -> list[TopicPartition]:
        """Return the partitions to read; new ones are noticed within seconds."""
        now_ms = self._clock.now_ms()
        if self._refreshed_ms is None or now_ms - self._refreshed_ms >= self._options.new_partitions_after_ms:
            # Once it runs, a query does not end because one answer misses a topic.
            is_strict = is_new or (self._refreshed_ms is None and not self._options.skips_deleted_topics)
            self._known_partitions, self._ids = find_partitions(self._cluster, self._options, is_strict=is_strict)
            self._refreshed_ms = now_ms
        return self._known_partitions

    def _missing_for_a_moment(self, start: Position, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the positions of partitions that are missing only briefly; raises UserError once they stay missing."""
        missed = {
            partition for partition in start.next if partition not in partitions and self._options.wants(partition)
        }
        gone = self._missing_grace.select_expired(missed, now_ms=self._clock.now_ms())
        if gone and not self._options.skips_deleted_topics:
            raise UserError(
                f"{format_partitions(gone)} is not there any more, though this query has read from it. Nothing was "
                "committed. If the topic was deleted on purpose, set failOnDataLoss to false, or start again with a "
                "new checkpoint."
            )
        if gone:
            log.warning(
                "%s is not there any more and is left out, as failOnDataLoss=false says.", format_partitions(gone)
            )
        return {partition: start.next[partition] for partition in missed - gone}

    def _bounds(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Bounds]:
        bounds = read_bounds(self._cluster, partitions, read_committed=self._options.read_committed)
        self._ends = {partition: bound.end for partition, bound in bounds.items()}
        return bounds

    def _look_up(self, times: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        return look_up_times(self._cluster, times, read_committed=self._options.read_committed)

    def _resolve(
        self, edge: OffsetSpec, partitions: Iterable[TopicPartition], bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, int]:
        some = {partition: bounds[partition] for partition in partitions}
        now_ms = self._clock.now_ms()
        return resolve_starts(edge, some, look_up=self._look_up, now_ms=now_ms, name=self._options.starting_name)

    def _start_new_partitions(
        self,
        partitions: list[TopicPartition],
        here: Offsets,
        bounds: Mapping[TopicPartition, Bounds],
        found: Mapping[TopicPartition, GroupCommit],
    ) -> dict[TopicPartition, int]:
        """Return where partitions younger than the query start."""
        new = [partition for partition in partitions if partition not in here]
        starts = choose_offsets_of_new_partitions(new, found, bounds)
        return starts | self._replace_lost_starts(starts, bounds)

    def _replace_lost_starts(
        self, starts: Offsets, bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, int]:
        """Return where to start instead of at offsets that the logs do not hold.

        An offset beyond the end may raise UserError at once, but is no reason to start elsewhere: the end may be
        that of a new leader which knows less for a moment.
        """
        lost = self._losses(starts, bounds)
        return self._replace_lost([one for one in lost if one.count or self._options.lost is None], bounds)

    def _losses(self, offsets: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> list[Loss]:
        lost = find_losses(offsets, bounds)
        beyond = [one.partition for one in lost if not one.count]
        if not beyond or not self._options.read_committed:
            return lost
        # What lies behind the oldest open transaction is there, though not to be read yet.
        ends = self._cluster.list_offsets(dict.fromkeys(beyond, LATEST))
        return [one for one in lost if one.count or one.offset > ends[one.partition].offset]

    def _lasting_losses(self, here: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> list[Loss]:
        """Return the losses, without positions that lie beyond the end only for a moment."""
        lost = self._losses(here, bounds)
        beyond = {one.partition for one in lost if not one.count}
        settled = self._beyond_grace.select_expired(beyond, now_ms=self._clock.now_ms())
        return [one for one in lost if one.count or one.partition in settled]

    def _find_recreated(self, start: Position, here: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> list[Loss]:
        """Return the positions in topics that were deleted and created again: the same numbers, other records."""
        recreated = self._recreated_topics(start)
        return [
            Loss(partition=partition, offset=offset, bounds=bounds[partition], is_recreated=True)
            for partition, offset in sorted(here.items())
            if partition.topic in recreated
        ]

    def _recreated_topics(self, start: Position) -> set[str]:
        return {topic for topic, known in start.ids.items() if self._ids.get(topic, known) != known}

    def _replace_lost(self, lost: list[Loss], bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
        """Return where to continue from positions that the logs no longer have, as the options say, and log it."""
        edge = self._options.lost
        if not lost:
            return {}
        if edge is None:
            raise refuse_losses(lost, self._group)
        log.warning(
            "%s. Group %s continues at %s, as the options say.", describe_losses(lost), self._group, describe_spec(edge)
        )
        return self._resolve(edge, [one.partition for one in lost], bounds)


def _describe_takeover(group: str, owner: CommitMetadata) -> str:
    return (
        f"Group {group} was taken over by the query {owner.query} (since {format_moment(owner.generation)}), which has "
        "a checkpoint of its own. This query stops here and has committed nothing since; what it wrote stays. To let "
        "it have the group back, stop the other query and start this one with the option takeover=true: it resumes "
        "from its own checkpoint."
    )
