"""Follows a consumer group: reads where it stands, commits where the query stands, and plans the next batch.

The query is no member of its group: it commits as a tool does, which brokers allow while a group has no members. That
is what lets anybody reset the group while the query runs; and it is why `describe` shows no active members.

Kafka has no conditional commit. A reset that lands between our look and our commit, milliseconds once per batch, is
overwritten: so the two calls stand next to each other, and nothing is committed that stands there already. A tool that
reads back what it has set notices, and sets it again.
"""

import logging
import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from logmark.client.answers import LATEST
from logmark.client.errors import ClientError, CommitRefused, RefusedByBroker
from logmark.clock import Clock
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.spark.errors import Superseded
from logmark.spark.source.cluster import Cluster, bounds_of, look_up, names, partitions_of
from logmark.spark.source.data_loss import Grace, Loss, losses, refusal, shown_edge, told
from logmark.spark.source.ending_offsets import Stops
from logmark.spark.source.limits import share
from logmark.spark.source.offset_maps import format_offsets
from logmark.spark.source.offset_specs import Edge, check_covers, start_offsets
from logmark.spark.source.options import Options
from logmark.spark.source.position import Found, Held, Moved, Offsets, Position, TakenOver, begin, judge
from logmark.spark.source.range_reader import is_passing
from logmark.spark.source.ranges import Bounds
from logmark.spark.source.record_sizes import Sizes

log = logging.getLogger(__name__)

RENEW_AFTER_MS = 24 * 3600 * 1000  # Kafka forgets the offsets of a group without members after 7 days


class GroupFollower:
    """One query's hold on its group; lives as long as the query runs."""

    def __init__(self, options: Options, cluster: Cluster, clock: Clock) -> None:
        self._options = options
        self._group = options.group or ""  # empty: made at the beginning, and kept in the checkpoint
        self._cluster = cluster
        self._clock = clock
        # What the group may hold if nobody else has moved it; None: as the checkpoint says.
        self._held: dict[TopicPartition, set[Found]] | None = None
        self._begun: Position | None = None
        self._is_first_query_known = False
        self._renewed_ms: int | None = None
        self._places: list[TopicPartition] = []
        self._ids: dict[str, str] = {}
        self._looked_ms: int | None = None
        self._planned_ms: int | None = None
        self._until: Offsets | None = None
        self._ends: Offsets = {}
        self._stops = Stops(options)
        self._sizes = Sizes(cluster)
        self._beyond, self._gone = Grace(), Grace()

    def begin(self) -> Position:
        """Where a query with a new checkpoint starts: at the group's offsets; others are the group's at once.

        Offsets that are there already become the query's own when it plans its first batch, and not before: Spark asks
        a query that died in its first batch where it begins once more, and then goes on with what was planned. A mark
        of this second beginning would be a stranger's to a third.
        """
        options = self._options
        self._looked_ms = None
        places = self._partitions(is_new=True)
        check_covers(options.starting, places, name=options.starting_name)
        check_covers(options.ending, places, name=options.ending_name)
        if not places:
            log.warning("no topic fits the pattern yet; group %s waits for the first one", self._group)
        bounds = self._bounds(places)
        found: dict[TopicPartition, Found] = {}
        if self._group:
            found = self._found(places)
        else:
            self._group = f"{options.group_prefix}-{uuid.uuid4()}"
        starts = {place: commit.offset for place, commit in found.items()}
        starts |= self._first_starts([place for place in places if place not in starts], found, bounds)
        starts |= self._found_again(starts, bounds)
        query = f"{socket.gethostname().replace(' ', '-')}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        now_ms = self._clock.now_ms()
        position = begin(group=self._group, query=query, now_ms=now_ms, found=found, starts=starts, ids=self._ids)
        self._held = {place: {one} for place, one in found.items()}
        self._begun = position
        is_there = {place for place, offset in starts.items() if place in found and found[place].offset == offset}
        self._commit(position, {place: offset for place, offset in starts.items() if place not in is_there})
        return position

    def fix_end(self) -> None:
        """From now on nothing beyond the present ends is read."""
        places = self._partitions()
        self._until = {place: bound.end for place, bound in self._bounds(places).items()}

    @property
    def reads_to_a_fixed_end(self) -> bool:
        """Whether a batch that reads nothing would end the query."""
        return self._until is not None

    def advance(self, start: Position, *, records_max: int | None) -> Position:
        """Commits `start` to the group and says where the next batch ends: at `start` if there is nothing to read."""
        self._check_group(start)
        places = self._partitions()
        if start.group != self._group:
            return self._adopt(start)
        found = self._try_found(start)
        if found is not None:
            found = self._as_begun(start, found)
            moved = self._settle(start, found)
            if moved is not None:
                return moved
        kept = self._not_gone_yet(start, places)
        bounds = self._bounds(places)
        here = {place: offset for place, offset in start.next.items() if place in bounds}
        lost = self._made_anew(start, here, bounds) or self._settled_losses(here, bounds)
        if lost and found is None and self._until is None:
            return start  # somebody may have moved the group to where there is something to read
        if self._until is not None and (kept or self._beyond.places) and not lost:
            # A run that ends has no next time: it waits until it is known what is lost.
            raise RefusedByBroker(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{names([*kept, *self._beyond.places])} is missing, or shorter than what was read of it.",
            )
        if lost:
            return self._seek(start, self._back_in_range(lost, bounds))
        # Where the group stands in a new partition must be known before anything of it is read.
        first = here if found is None else here | self._new(places, here, bounds, found)
        ends = {place: bounds[place].end for place in first}
        if self._until is not None:
            ends = {place: min(end, self._until.get(place, first[place])) for place, end in ends.items()}
        ends = self._stops.bounded(ends, bounds, look_up=self._look_up, now_ms=self._clock.now_ms())
        ends = {place: max(end, first[place]) for place, end in ends.items()}
        waiting = {place: ends[place] - first[place] for place in first if ends[place] > first[place]}
        if waiting and not self._is_worth_it(sum(waiting.values())):
            return start
        following = self._shared(first, ends, waiting, records_max)
        if {**following, **kept} == start.next:
            return start
        self._planned_ms = self._clock.now_ms()
        ids = {**start.ids, **self._ids}
        held = self._may_hold(start)
        return start.batch(first={**first, **kept}, next={**following, **kept}, held=held, ids=ids)

    def ends(self) -> Offsets:
        """The ends of the partitions as they were seen last."""
        return self._ends

    def _check_group(self, start: Position) -> None:
        self._group = self._group or start.group
        if start.group not in (self._group, self._options.group_before):
            raise UserError(
                f"The checkpoint belongs to group {start.group}, but group.id is {self._group}. Nothing was read or "
                "committed. Give the new group a checkpoint of its own."
            )

    def _adopt(self, start: Position) -> Position:
        """The query goes on in its new group, which is its own from now on.

        Without a commit there is no such position: the group still has what others committed, and would be taken to
        have been moved there.
        """
        ids = {**start.ids, **self._ids}
        position = start.adopted(self._group, self._found(start.next), now_ms=self._clock.now_ms(), ids=ids)
        self._cluster.commit(self._group, position.commits())
        offsets = format_offsets(position.next)
        log.warning("group %s is taken over from group %s at %s", self._group, start.group, offsets)
        self._held = {place: {position.own(offset)} for place, offset in position.next.items()}
        self._renewed_ms = self._clock.now_ms()
        return position

    def _is_worth_it(self, waiting: int) -> bool:
        if self._until is not None:
            return True  # all there is is read, and then the query ends
        since_ms = None if self._planned_ms is None else self._clock.now_ms() - self._planned_ms
        return self._options.limits.are_met(waiting, since_batch_ms=since_ms)

    def _shared(self, first: Offsets, ends: Offsets, waiting: Offsets, records_max: int | None) -> Offsets:
        bytes_max = self._options.limits.bytes_max
        if bytes_max is None:
            return share(first, ends, records_max=records_max)
        sizes = self._sizes.of({place: first[place] for place in waiting}, waiting)
        return share(first, ends, records_max=records_max, bytes_max=bytes_max, record_bytes=sizes)

    def _as_begun(self, start: Position, found: dict[TopicPartition, Found]) -> dict[TopicPartition, Found]:
        """The commits of the query that goes on, where this process has made them under another token.

        A driver that died in the first batch of a query begins anew, because Spark asks where it starts once more; but
        then Spark repeats the batch as it was planned, under the first token, and the query goes on from there.
        """
        if self._begun is None or self._begun.query == start.query:
            return found
        if not self._is_first_query_known:
            self._is_first_query_known = True
            self._held = None
        held = self._may_hold(start)
        for place, one in found.items():
            if one.mark and one.mark.query == self._begun.query:
                same = (other for other in held.get(place, ()) if other.offset == one.offset)
                # Begun elsewhere than the first time: somebody has moved the group meanwhile.
                found[place] = next(same, Found(offset=one.offset, mark=None))
        return found

    def _may_hold(self, start: Position) -> Held:
        """What the group may hold if nobody else has moved it."""
        return start.committed_before() if self._held is None else self._held

    def _settle(self, start: Position, found: Mapping[TopicPartition, Found]) -> Position | None:
        """Commits what is to be committed; the position to seek to if somebody moved the group."""
        verdict = judge(start, found, held=self._may_hold(start))
        if isinstance(verdict, TakenOver):
            raise Superseded(_taken_over(self._group, verdict.owner))
        self._held = {place: {one} for place, one in found.items()}
        is_due = self._renewed_ms is None or self._clock.now_ms() - self._renewed_ms >= RENEW_AFTER_MS
        offsets = start.next if is_due and not isinstance(verdict, Moved) else verdict.commit
        anew = self._topics_made_anew(start)
        # An offset of a topic that was deleted says nothing in the one that has its name now.
        self._commit(start, {place: offset for place, offset in offsets.items() if place.topic not in anew})
        if isinstance(verdict, Moved):
            log.warning("group %s was moved to %s: reading goes on there", self._group, format_offsets(verdict.to))
            return self._seek(start, verdict.to)
        return None

    def _seek(self, start: Position, to: Offsets) -> Position:
        ids = {**start.ids, **self._ids}
        return start.seek(to, now_ms=self._clock.now_ms(), held=self._may_hold(start), ids=ids)

    def _commit(self, position: Position, offsets: Offsets) -> None:
        """Tries to commit; a failure is remembered, and mended at the next trigger."""
        if not offsets:
            return
        held = self._held = {place: set(commits) for place, commits in self._may_hold(position).items()}
        refused: set[TopicPartition] = set()
        try:
            self._cluster.commit(self._group, position.commits(offsets))
        except CommitRefused as error:
            refused = set(error.errors)
            log.warning("%s The query goes on and tries again.", error)
        except ClientError as error:
            # Nobody knows whether it was done: the group may hold the old and the new.
            log.warning("%s The query goes on and commits later.", error)
            for place, offset in offsets.items():
                held.setdefault(place, set()).add(position.own(offset))
            return
        held |= {place: {position.own(offset)} for place, offset in offsets.items() if place not in refused}
        if not refused and len(offsets) == len(position.next):
            self._renewed_ms = self._clock.now_ms()

    def _try_found(self, start: Position) -> dict[TopicPartition, Found] | None:
        """The committed offsets, or None if nobody can tell at the moment: then nothing is committed either."""
        try:
            return self._found([*start.next, *(place for place in self._places if place not in start.next)])
        except ClientError as error:
            if self._until is not None and is_passing(error):
                raise  # a run that ends has no next time: it waits
            log.warning("%s The query goes on and looks again.", error)
            return None

    def _found(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Found]:
        committed = self._cluster.committed(self._group, list(places))
        return {
            place: Found(offset=one.offset, mark=CommitMetadata.parse(one.metadata)) for place, one in committed.items()
        }

    def _partitions(self, *, is_new: bool = False) -> list[TopicPartition]:
        """The partitions to read; new ones are noticed within seconds."""
        now_ms = self._clock.now_ms()
        if self._looked_ms is None or now_ms - self._looked_ms >= self._options.new_partitions_after_ms:
            # Once it runs, a query does not end because one answer misses a topic.
            is_strict = is_new or (self._looked_ms is None and not self._options.skips_deleted_topics)
            self._places, self._ids = partitions_of(self._cluster, self._options, is_strict=is_strict)
            self._looked_ms = now_ms
        return self._places

    def _not_gone_yet(self, start: Position, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions of partitions that were missed only a moment ago; raises a sentence once they stay away."""
        missed = {place for place in start.next if place not in places and self._options.wants(place)}
        gone = self._gone.outlasted(missed, now_ms=self._clock.now_ms())
        if gone and not self._options.skips_deleted_topics:
            raise UserError(
                f"{names(gone)} is not there any more, though this query has read from it. Nothing was committed. If "
                "the topic was deleted on purpose, set failOnDataLoss to false, or start again with a new checkpoint."
            )
        if gone:
            log.warning("%s is not there any more and is left out, as failOnDataLoss=false says.", names(gone))
        return {place: start.next[place] for place in missed - gone}

    def _bounds(self, places: list[TopicPartition]) -> dict[TopicPartition, Bounds]:
        bounds = bounds_of(self._cluster, places, read_committed=self._options.read_committed)
        self._ends = {place: bound.end for place, bound in bounds.items()}
        return bounds

    def _look_up(self, times: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        return look_up(self._cluster, times, read_committed=self._options.read_committed)

    def _first_starts(
        self,
        missing: list[TopicPartition],
        found: Mapping[TopicPartition, Found],
        bounds: Mapping[TopicPartition, Bounds],
    ) -> dict[TopicPartition, int]:
        """Where partitions start that the group has no committed offset for."""
        options = self._options
        if found and options.starting_name.startswith("starting"):
            log.warning(
                "group %s has committed offsets and goes on there; %s counts only for partitions that it has none for",
                self._group, options.starting_name,
            )  # fmt: skip
        if missing and options.starting is None:
            raise UserError(
                f"Group {self._group} has no committed offset for {names(missing)}, and auto.offset.reset is none. "
                "Nothing was read. Commit one (logmark offsets reset), or set auto.offset.reset to earliest or latest."
            )
        known = {place.topic for place in found}
        young = [place for place in missing if not options.starting_name and place.topic in known]
        old = [place for place in missing if place not in young]
        starts = {place: bounds[place].start for place in young}  # younger than the group: nothing of it was read
        if options.starting is not None:
            starts |= self._resolved(options.starting, old, bounds)
        return starts

    def _resolved(
        self, edge: Edge, places: Iterable[TopicPartition], bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, int]:
        some = {place: bounds[place] for place in places}
        now_ms = self._clock.now_ms()
        return start_offsets(edge, some, look_up=self._look_up, now_ms=now_ms, name=self._options.starting_name)

    def _new(
        self,
        places: list[TopicPartition],
        here: Offsets,
        bounds: Mapping[TopicPartition, Bounds],
        found: Mapping[TopicPartition, Found],
    ) -> dict[TopicPartition, int]:
        """Where partitions start that are younger than the query: at the group's offset, else at their first record."""
        new = [place for place in places if place not in here]
        starts = {place: found[place].offset if place in found else bounds[place].start for place in new}
        return starts | self._found_again(starts, bounds)

    def _found_again(self, starts: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
        """Where to begin instead of at starts that the logs do not hold.

        One beyond the end is a sentence at once where that may be, but is no reason to begin elsewhere: the end may be
        that of a new leader which knows less for a moment.
        """
        lost = self._losses(starts, bounds)
        return self._back_in_range([one for one in lost if one.count or self._options.lost is None], bounds)

    def _losses(self, offsets: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> list[Loss]:
        lost = losses(offsets, bounds)
        beyond = [one.place for one in lost if not one.count]
        if not beyond or not self._options.read_committed:
            return lost
        # What lies behind the oldest open transaction is there, though not to be read yet.
        ends = self._cluster.list_offsets(dict.fromkeys(beyond, LATEST))
        return [one for one in lost if one.count or one.offset > ends[one.place].offset]

    def _settled_losses(self, here: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> list[Loss]:
        """The losses, without positions that lie beyond the end only for a moment."""
        lost = self._losses(here, bounds)
        beyond = {one.place for one in lost if not one.count}
        settled = self._beyond.outlasted(beyond, now_ms=self._clock.now_ms())
        return [one for one in lost if one.count or one.place in settled]

    def _made_anew(self, start: Position, here: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> list[Loss]:
        """The positions in topics that were deleted and made again: the same numbers, other records."""
        anew = self._topics_made_anew(start)
        return [
            Loss(place=place, offset=offset, bounds=bounds[place], is_anew=True)
            for place, offset in sorted(here.items())
            if place.topic in anew
        ]

    def _topics_made_anew(self, start: Position) -> set[str]:
        return {topic for topic, known in start.ids.items() if self._ids.get(topic, known) != known}

    def _back_in_range(self, lost: list[Loss], bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
        """Where to go on from positions that the logs no longer have, as the options say; never without a word."""
        edge = self._options.lost
        if not lost:
            return {}
        if edge is None:
            raise UserError(refusal(lost, self._group))
        log.warning("%s. Group %s goes on at %s, as the options say.", told(lost), self._group, shown_edge(edge))
        return self._resolved(edge, [one.place for one in lost], bounds)


def _taken_over(group: str, owner: CommitMetadata) -> str:
    since = datetime.fromtimestamp(owner.generation / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"Group {group} was taken over by the query {owner.query} (since {since}), which has a checkpoint of its own. "
        "This query stops here and has committed nothing since; what it wrote stays. To let it have the group back, "
        "stop the other query, reset the group's offsets to where it shall go on, and start it again."
    )
