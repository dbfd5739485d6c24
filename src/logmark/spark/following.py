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
from typing import Protocol

from logmark.client.answers import EARLIEST, LATEST, Committed, OffsetAndTimestamp
from logmark.client.errors import ClientError, CommitRefused
from logmark.client.metadata import ClusterMetadata
from logmark.clock import Clock
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.marks import Mark
from logmark.spark.options import Options
from logmark.spark.position import Found, Moved, Offsets, Position, TakenOver, begin, judge
from logmark.spark.ranges import Bounds, out_of_range, share

log = logging.getLogger(__name__)

RENEW_AFTER_MS = 24 * 3600 * 1000  # Kafka forgets the offsets of a group without members after 7 days
NEW_PARTITIONS_AFTER_MS = 10_000


class Cluster(Protocol):
    """The calls of a client that following a group takes."""

    def metadata(self, topics: list[str] | None = None) -> ClusterMetadata: ...
    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]: ...
    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed]: ...
    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed | int]) -> None: ...


class GroupFollower:
    """One query's hold on its group; lives as long as the query runs."""

    def __init__(self, options: Options, cluster: Cluster, clock: Clock) -> None:
        assert options.group is not None
        self._options = options
        self._group = options.group
        self._cluster = cluster
        self._clock = clock
        self._ours: dict[TopicPartition, set[int]] | None = None  # None: this process has not committed yet
        self._known: dict[TopicPartition, int] = {}
        self._renewed_ms: int | None = None
        self._places: list[TopicPartition] = []
        self._looked_ms: int | None = None
        self._until: Offsets | None = None
        self._ends: Offsets = {}

    def begin(self) -> Position:
        """Where a query with a new checkpoint starts: at the group's offsets, which it takes over at once."""
        places = self._partitions()
        bounds = self._bounds(places)
        found = self._found(places)
        starts = {place: commit.offset for place, commit in found.items()}
        missing = [place for place in places if place not in starts]
        if missing and self._options.reset == "none":
            raise UserError(
                f"Group {self._group} has no committed offset for {_names(missing)}, and auto.offset.reset is none. "
                "Nothing was read. Commit one (logmark offsets reset), or set auto.offset.reset to earliest or latest."
            )
        starts |= {place: self._reset_to(bounds[place], self._options.reset or "latest") for place in missing}
        starts |= self._back_in_range(starts, bounds)
        query = f"{socket.gethostname().replace(' ', '-')}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        position = begin(group=self._group, query=query, now_ms=self._clock.now_ms(), found=found, starts=starts)
        self._ours = {}
        self._commit(position, starts)
        return position

    def fix_end(self) -> None:
        """From now on nothing beyond the present ends is read."""
        places = self._partitions()
        self._until = {place: bound.end for place, bound in self._bounds(places).items()}

    def advance(self, start: Position, *, records_max: int | None) -> Position:
        """Commits `start` to the group and says where the next batch ends: at `start` if there is nothing to read."""
        if start.group != self._group:
            raise UserError(
                f"The checkpoint belongs to group {start.group}, but group.id is {self._group}. Nothing was read or "
                "committed. Give the new group a checkpoint of its own."
            )
        found = self._try_found(start)
        if found is not None:
            moved = self._settle(start, found)
            if moved is not None:
                return moved
        places = self._partitions(but=start)
        bounds = self._bounds(places)
        here = {place: offset for place, offset in start.next.items() if place in bounds}
        lost = self._back_in_range(here, bounds)
        if lost:
            return start.seek(lost, now_ms=self._clock.now_ms())
        first = here | self._new(places, here, bounds, found or {})
        ends = {place: bounds[place].end for place in first}
        if self._until is not None:
            ends = {place: min(end, self._until.get(place, first[place])) for place, end in ends.items()}
            ends = {place: max(end, first[place]) for place, end in ends.items()}
        following = share(first, ends, records_max=records_max)
        if following == start.next:
            return start
        return start.batch(first=first, next=following, known=self._known or {**start.first, **start.behind})

    def ends(self) -> Offsets:
        """The ends of the partitions as they were seen last."""
        return self._ends

    def _settle(self, start: Position, found: Mapping[TopicPartition, Found]) -> Position | None:
        """Commits what is to be committed; the position to seek to if somebody moved the group."""
        ours = start.committed_before() if self._ours is None else self._ours
        verdict = judge(start, found, ours=ours)
        if isinstance(verdict, TakenOver):
            raise UserError(_taken_over(self._group, verdict.owner))
        if self._ours is None:
            self._ours = {place: set(offsets) for place, offsets in ours.items()}
        self._known = {place: commit.offset for place, commit in found.items()}
        offsets = verdict.commit
        is_due = self._renewed_ms is None or self._clock.now_ms() - self._renewed_ms >= RENEW_AFTER_MS
        if is_due and not isinstance(verdict, Moved):
            offsets = start.next
        self._commit(start, offsets)
        if isinstance(verdict, Moved):
            log.warning("group %s was moved to %s: reading goes on there", self._group, _shown(verdict.to))
            return start.seek(verdict.to, now_ms=self._clock.now_ms())
        return None

    def _commit(self, position: Position, offsets: Offsets) -> None:
        """Tries to commit; a failure is remembered, and mended at the next trigger."""
        if not offsets:
            return
        assert self._ours is not None
        marked = {
            place: Committed(offset=offset, metadata=position.mark(place).to_metadata())
            for place, offset in offsets.items()
        }
        refused: set[TopicPartition] = set()
        try:
            self._cluster.commit(self._group, marked)
        except CommitRefused as error:
            refused = set(error.errors)
            log.warning("%s The query goes on and tries again.", error)
        except ClientError as error:
            # Nobody knows whether it was done: both the old and the new offset count as ours.
            log.warning("%s The query goes on and commits later.", error)
            for place, offset in offsets.items():
                self._ours.setdefault(place, set()).add(offset)
            return
        for place, offset in offsets.items():
            if place not in refused:
                self._ours[place] = {offset}
                self._known[place] = offset
        if not refused and len(offsets) == len(position.next):
            self._renewed_ms = self._clock.now_ms()

    def _try_found(self, start: Position) -> dict[TopicPartition, Found] | None:
        """The committed offsets, or None if nobody can tell at the moment: then nothing is committed either."""
        try:
            return self._found([*start.next, *(place for place in self._places if place not in start.next)])
        except ClientError as error:
            log.warning("%s The query goes on and looks again.", error)
            return None

    def _found(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Found]:
        committed = self._cluster.committed(self._group, list(places))
        return {place: Found(offset=one.offset, mark=Mark.of(one.metadata)) for place, one in committed.items()}

    def _partitions(self, but: Position | None = None) -> list[TopicPartition]:
        """The partitions to read; those of new ones are noticed within seconds."""
        now_ms = self._clock.now_ms()
        if self._looked_ms is None or now_ms - self._looked_ms >= NEW_PARTITIONS_AFTER_MS:
            self._places = partitions_of(self._cluster.metadata(list(self._options.topics)), self._options)
            self._looked_ms = now_ms
        if but is not None:
            gone = [place for place in but.next if place not in self._places and self._options.wants(place)]
            if gone:
                raise UserError(
                    f"{_names(gone)} is not there any more, though this query has read from it. Nothing was "
                    "committed. If the topic was deleted on purpose, start again with a new checkpoint."
                )
        return self._places

    def _bounds(self, places: list[TopicPartition]) -> dict[TopicPartition, Bounds]:
        bounds = bounds_of(self._cluster, places)
        self._ends = {place: bound.end for place, bound in bounds.items()}
        return bounds

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
        return starts | {place: bounds[place].start for place in out_of_range(starts, bounds)}

    def _back_in_range(self, offsets: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
        """Where to go on from positions that the logs no longer have, as auto.offset.reset says."""
        lost = out_of_range(offsets, bounds)
        if not lost:
            return {}
        place, offset = min(lost.items())
        bound = bounds[place]
        gone = f"Offset {offset} of {place} is not there any more: the log holds {bound.start} to {bound.end}"
        if self._options.reset in (None, "none"):
            raise UserError(
                f"{gone}, and auto.offset.reset does not say where to go on. Nothing was committed for group "
                f"{self._group}. Set it to earliest or latest, or reset the group's offsets."
            )
        log.warning("%s. Reading goes on at %s, as auto.offset.reset says.", gone, self._options.reset)
        return {place: self._reset_to(bounds[place], self._options.reset) for place in lost}

    def _reset_to(self, bound: Bounds, reset: str | None) -> int:
        return bound.start if reset == "earliest" else bound.end


def partitions_of(metadata: ClusterMetadata, options: Options) -> list[TopicPartition]:
    """The partitions that the options ask for; raises a sentence if one of them is not there."""
    places = [place for topic in options.topics for place in metadata.partitions(topic)]
    missing = [topic for topic in options.topics if not metadata.partitions(topic)]
    if missing:
        raise UserError(
            f"There is no topic {' and no topic '.join(missing)} at {options.bootstrap_servers}, or you may not see "
            "it. Nothing was read. `logmark topics list` shows the topics that are there."
        )
    absent = sorted(options.assigned - set(places))
    if absent:
        raise UserError(f"There is no partition {_names(absent)}. Nothing was read.")
    return [place for place in places if options.wants(place)]


def bounds_of(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
    """What each partition has to read."""
    wanted = list(places)
    # The end is asked last: a log start that moves in between then never lies beyond it.
    starts = cluster.list_offsets(dict.fromkeys(wanted, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(wanted, LATEST))
    return {place: Bounds(starts[place].offset, ends[place].offset) for place in wanted}


def _taken_over(group: str, owner: Mark) -> str:
    since = datetime.fromtimestamp(owner.generation / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"Group {group} was taken over by the query {owner.query} (since {since}), which has a checkpoint of its own. "
        "This query stops here and has committed nothing since; what it wrote stays. To let it have the group back, "
        "stop the other query, reset the group's offsets to where it shall go on, and start it again."
    )


def _names(places: Iterable[TopicPartition]) -> str:
    return ", ".join(str(place) for place in sorted(places))


def _shown(offsets: Offsets) -> str:
    return ", ".join(f"{place}: {offset}" for place, offset in sorted(offsets.items()))
