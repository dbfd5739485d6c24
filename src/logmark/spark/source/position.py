"""The position of a query, and whether its group was moved: pure decisions, no input or output.

Spark keeps the position of a query in its checkpoint; the group keeps a committed offset. The group owns the position,
so at every trigger the two are compared. Spark gives a reader neither the checkpoint's path nor the query's id: all it
knows is the offset that it once returned to Spark, handed back as `start`. People read that offset too, in the
checkpoint and in the progress of a query: so it begins as that of Spark's own connector, with the next offset after the
batch by topic and partition, and what a restarted query must know lies under one key, which no topic can have:

    {"clicks": {"0": 200}, "~logmark": {...}}

    group       the consumer group
    query       the query's token, made when its checkpoint was new
    generation  it grows with every seek, and a new query starts above all earlier ones
    first       the first offset of the batch, per partition
    held        what else the group may hold though nobody has moved it: commits of this query that failed have left
                there what it had before, or are not known to have arrived
    topic_ids   the ids of the topics, where brokers give them: a topic that was deleted and created again has another

and the metadata of each committed offset carries token, generation and the offset itself. Earlier versions of Logmark
wrote group, q, g, f, c, i and, for the next offsets, t into one object; checkpoints of that form are still read.

What "this query last committed" means. While the query runs it is remembered. After a restart it follows from `start`,
the last batch that Spark finished. The batch was planned by a call that first committed its beginning, so the group has
`first` (or `held`, where that commit failed) if the driver died before the next call, and the next offset if it died
after it. A commit of this token and generation, whose offset is the one in its own metadata and is one of these, is
ours: the group is rightly one batch behind, and going back to it would read that batch twice. So is what somebody else
committed and this query has followed already, as long as it could not commit over it. Any other commit is a move by
somebody, also under a token that a tool kept (the metadata names another offset) or restored (another generation, or
an offset that this query left behind batches ago). The one move that cannot be seen is one to exactly where the group
already was.

Generations are times: a seek makes max(generation + 1, now in milliseconds), and so does a new query. So a query that
takes a group over is above its predecessor even where a reset has wiped the metadata that named it, and the tables can
refuse the rows of a query that has lost its group.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from logmark.client.answers import Committed
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata, Heartbeat
from logmark.spark.source.offset_maps import flatten_by_partition, nest_by_topic

Offsets = Mapping[TopicPartition, int]

OUR_KEY = "~logmark"  # no topic can have a tilde in its name, and all topics sort before it
_NAMES_BEFORE = {"q": "query", "g": "generation", "f": "first", "t": "next", "c": "held", "i": "topic_ids"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """A committed offset as the group has it now."""

    offset: int
    mark: CommitMetadata | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """An offset in Spark's sense: the batch [first, next) of one generation of one query."""

    group: str
    query: str
    generation: int
    first: Offsets
    next: Offsets
    held: Mapping[TopicPartition, frozenset[GroupCommit]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what Spark keeps; the keys are sorted, because Spark compares offsets as text."""
        fields: dict[str, Any] = {"first": nest_by_topic(self.first)}
        fields |= {"generation": self.generation, "group": self.group}
        if self.held:
            held = {partition: self._packed(commits) for partition, commits in self.held.items()}
            fields["held"] = nest_by_topic(held)
        fields["query"] = self.query
        if self.ids:
            fields["topic_ids"] = dict(sorted(self.ids.items()))
        return {**nest_by_topic(self.next), OUR_KEY: fields}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Position":
        """Return the position that `to_json` wrote, or an earlier version of it."""
        try:
            known = _name_fields(fields)
            position = cls(
                group=known["group"],
                query=known["query"],
                generation=known["generation"],
                first=_offsets(known["first"]),
                next=_offsets(known["next"]),
                ids=dict(known.get("topic_ids", {})),
            )
            packed = flatten_by_partition(known.get("held", {}))
            return replace(
                position, held={partition: position._unpacked(commits) for partition, commits in packed.items()}
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise UserError(
                'The checkpoint was not written by format("logmark"), so it holds no position of this query. '
                "Nothing was read. Give the query a checkpoint directory of its own."
            ) from None

    @property
    def sources(self) -> tuple["Position"]:
        """The position itself: a query of one source has one, and `Positions` are those of a query with several."""
        return (self,)

    @property
    def ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets that the batch reads, [first, next), without partitions where it reads none."""
        both = (
            (partition, (first, self.next[partition]))
            for partition, first in self.first.items()
            if partition in self.next
        )
        return {partition: (first, end) for partition, (first, end) in both if first < end}

    def mark(self, partition: TopicPartition) -> CommitMetadata:
        """Return what the commit of this position carries."""
        return CommitMetadata(query=self.query, generation=self.generation, offset=self.next[partition])

    def commits(
        self,
        offsets: Offsets | None = None,
        *,
        heartbeat: Heartbeat | None = None,
        is_stateful: bool | None = None,
        restored_ms: int | None = None,
    ) -> dict[TopicPartition, Committed]:
        """Return the commits of these offsets of the position, or of all, with the marks of its query.

        `heartbeat`, `is_stateful` and `restored_ms` are what the marks tell of the query besides.
        """
        marks = {
            partition: replace(
                self.mark(partition), heartbeat=heartbeat, is_stateful=is_stateful, restored_ms=restored_ms
            )
            for partition in (self.next if offsets is None else offsets)
        }
        return {
            partition: Committed(offset=offset, metadata=marks[partition].to_text())
            for partition, offset in (self.next if offsets is None else offsets).items()
        }

    def own_commit(self, offset: int) -> GroupCommit:
        """Return a commit of this offset by this query in this generation, as the group shows it."""
        return GroupCommit(
            offset=offset, mark=CommitMetadata(query=self.query, generation=self.generation, offset=offset)
        )

    def seek(
        self, to: Offsets, *, now_ms: int, held: "HeldCommits | None" = None, ids: Mapping[str, str] | None = None
    ) -> "Position":
        """Return the position after a seek, while the group held `held`: a new generation in which nothing is read."""
        offsets = {**self.next, **to}
        generation = max(self.generation + 1, now_ms)
        known = self.ids if ids is None else ids
        sought = replace(self, generation=generation, first=offsets, next=offsets, held={}, ids=known)
        return replace(sought, held=sought._besides(held or {}))

    def adopt_into(
        self,
        group: str,
        found: Mapping[TopicPartition, GroupCommit],
        *,
        now_ms: int,
        ids: Mapping[str, str] | None = None,
        follows_resets: bool = True,
    ) -> "Position":
        """Return the position of the same query in another group, above every generation found there.

        It keeps its offsets, whoever has committed there, except in partitions that were reset: a commit that
        is not the one its mark tells of is no query's. A query with state keeps them there too.
        """
        reset = {
            partition: one.offset
            for partition, one in found.items()
            if follows_resets and (not one.mark or one.mark.offset != one.offset)
        }
        above = max([now_ms, *(one.mark.generation + 1 for one in found.values() if one.mark)])
        there = {partition: reset.get(partition, offset) for partition, offset in self.next.items()}
        return replace(self.seek(there, now_ms=above, ids=ids), group=group)

    def batch(
        self, *, first: Offsets, next: Offsets, held: "HeldCommits", ids: Mapping[str, str] | None = None
    ) -> "Position":
        """Return the position after a batch that was planned while the group held this."""
        planned = replace(self, first=first, next=next, held={}, ids=self.ids if ids is None else ids)
        return replace(planned, held=planned._besides(held))

    def possible_commits(self) -> dict[TopicPartition, frozenset[GroupCommit]]:
        """Return what the group may hold if nobody else moved it, as far as a restarted query can know."""
        return {
            partition: self.held.get(partition, frozenset())
            | {self.own_commit(end), self.own_commit(self.first.get(partition, end))}
            for partition, end in self.next.items()
        }

    def _besides(self, held: "HeldCommits") -> dict[TopicPartition, frozenset[GroupCommit]]:
        """Return the held commits except those that follow from the position itself."""
        others = {
            partition: frozenset(held.get(partition, ())) - {self.own_commit(at)}
            for partition, at in self.first.items()
        }
        return {partition: commits for partition, commits in others.items() if commits}

    def _packed(self, commits: Iterable[GroupCommit]) -> list[Any]:
        """Return commits as JSON: our own offset; or a list of an offset and who committed it, if that is known."""
        ordered = sorted(commits, key=lambda one: (one.offset, one.mark.identity() if one.mark else ""))
        return [one.offset if one == self.own_commit(one.offset) else [one.offset, *self._who(one)] for one in ordered]

    def _who(self, one: GroupCommit) -> list[int | str]:
        """Return the generation if this query committed it, else the whole metadata."""
        if one.mark is None:
            return []
        earlier = replace(self, generation=one.mark.generation).own_commit(one.offset)
        return [one.mark.generation if one == earlier else one.mark.identity()]

    def _unpacked(self, packed: Any) -> frozenset[GroupCommit]:
        """Return the commits that `_packed` wrote; a bare number is what earlier versions wrote."""
        commits = packed if isinstance(packed, list) else [packed]
        return frozenset(self.own_commit(one) if isinstance(one, int) else self._of(*one) for one in commits)

    def _of(self, offset: int, who: int | str = "") -> GroupCommit:
        if isinstance(who, int):
            return replace(self, generation=who).own_commit(offset)
        return GroupCommit(offset=offset, mark=CommitMetadata.parse(who))


HeldCommits = Mapping[TopicPartition, Collection[GroupCommit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUnmoved:
    """Nobody moved the group; these offsets are to be committed."""

    commit: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMoved:
    """Somebody moved the group: seek there; the partitions that nobody moved are to be committed first."""

    to: Offsets
    commit: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTakenOver:
    """A newer query owns the group."""

    owner: CommitMetadata


def compare_with_group(
    start: Position, found: Mapping[TopicPartition, GroupCommit], *, held: HeldCommits
) -> GroupUnmoved | GroupMoved | GroupTakenOver:
    """Return who moved the group since this query last looked; `held` is what it may hold if no one did.

    A newer query owns the group where it committed last; in partitions that this query has never read there may be a
    commit of another beginning of its own, which is none. Where a tool has moved the group since and kept its token,
    the move counts and not the token, so that a reset gives the group back to a query that had lost it; whoever commits
    first then has it, in a generation above the other's. A commit that is missing was expired or deleted, which is no
    move. A foreign commit of the query's own offset is no move either; the query commits it with its own metadata.
    """
    there_now = {partition: found[partition] for partition in start.next if partition in found}
    newer = [one.mark for one in there_now.values() if one.mark and _is_newer(one.mark, one.offset, start)]
    if newer:
        return GroupTakenOver(owner=max(newer, key=lambda mark: mark.generation))
    moved: dict[TopicPartition, int] = {}
    commit: dict[TopicPartition, int] = {}
    for partition, end in start.next.items():
        there = there_now.get(partition)
        if there is None:
            commit[partition] = end
        elif there.offset != end and there not in held.get(partition, ()):
            moved[partition] = there.offset
        elif there.offset != end or there.mark != start.mark(partition):
            commit[partition] = end
    return GroupMoved(to=moved, commit=commit) if moved else GroupUnmoved(commit=commit)


def _is_newer(mark: CommitMetadata, offset: int, start: Position) -> bool:
    return mark.query != start.query and mark.generation > start.generation and mark.offset == offset


def first_position(
    *,
    group: str,
    query: str,
    now_ms: int,
    found: Mapping[TopicPartition, GroupCommit],
    starts: Offsets,
    ids: Mapping[str, str] | None = None,
) -> Position:
    """Return the first position of a query with a new checkpoint, above every generation that the group shows."""
    seen = [commit.mark.generation + 1 for commit in found.values() if commit.mark]
    generation = max([now_ms, *seen])
    return Position(group=group, query=query, generation=generation, first=starts, next=starts, ids=ids or {})


def is_of_first_form(fields: Mapping[str, Any]) -> bool:
    """Return whether an earlier version of Logmark wrote this offset, with its fields beside each other."""
    return OUR_KEY not in fields


def _name_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a position by their names, whichever version of Logmark wrote them."""
    if is_of_first_form(fields):
        return {_NAMES_BEFORE.get(name, name): value for name, value in fields.items()}
    return {**fields[OUR_KEY], "next": {topic: offsets for topic, offsets in fields.items() if topic != OUR_KEY}}


def _offsets(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {partition: int(offset) for partition, offset in flatten_by_partition(nested).items()}
