"""Plans a move of a group's committed offsets on any Kafka: looks at the group and its logs, and changes nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.logs import by_topic
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.errors import GroupNotFound, NothingCommitted, StatefulGroup, TopicNotFound, TopicsNotRead
from logmark.offsets.partitions import LogBounds
from logmark.offsets.reset.members import check_inactive
from logmark.offsets.reset.plan import ResetPlan, build_plan
from logmark.offsets.reset.preview import add_preview
from logmark.offsets.reset.target_offsets import look_up_times
from logmark.offsets.reset.targets import Target, ToCurrent, ToOffsets
from logmark.offsets.suggestions import did_you_mean, unknown_group, unknown_topic

TopicSelection = Mapping[str, Sequence[int] | None]


def parse_topic_selection(texts: Sequence[str]) -> dict[str, list[int] | None]:
    """Parse topics such as `orders` (all partitions) and `orders:0,2` (these two)."""
    found: dict[str, list[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not topic:
            raise UserError(f"{text!r} names no topic: write NAME or NAME:0,1.")
        if not colon:
            found[topic] = None
            continue
        parts = [part.strip() for part in numbers.split(",")]
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise UserError(f"{text!r} does not name partitions: write {topic}:0,1 with numbers from 0 on.")
        known = found.get(topic, [])
        if known is not None:
            found[topic] = sorted({*known, *(int(part) for part in parts)})
    return found


def plan_reset(
    client: Client,
    group: str,
    topics: TopicSelection | None,
    target: Target,
    *,
    create_group: bool = False,
    allow_new_topics: bool = False,
    clamp: bool = False,
    allow_stateful: bool = False,
    with_preview: bool = False,
    looked: Callable[[int, int], None] = lambda *_: None,
    action: str = "reset",
) -> ResetPlan:
    """Plan a reset as of now; nothing is changed, and the group is not joined.

    `topics` names topics, each with its partitions or None for all; None instead of a mapping stands for everything
    that the group has committed, or for everything that the target itself names. Raises UserError for an unknown
    topic, an active group, an unknown group unless `create_group`, a topic that nobody named and in which the group
    has committed nothing unless `allow_new_topics`, a group whose query keeps state unless `allow_stateful`, and an
    offset out of range unless `clamp`. `with_preview` looks
    at the records that are touched: when they were written, and how large they are.
    """
    description = client.describe_groups([group])[group]
    committed = client.committed(group)
    is_new = description.is_unknown and not committed
    if is_new and not create_group:
        raise GroupNotFound(
            f"{unknown_group(client, group)} Nothing was changed",
            "pass create_group=True to create it with these offsets",
        )
    partitions = select_partitions(client, group, committed, topics, target)
    if not (allow_new_topics or is_new):
        _refuse_new_topics(group, committed, partitions, topics)
    check_inactive(description)
    if not allow_stateful and not isinstance(target, ToCurrent):
        _refuse_stateful(group, committed.values())
    bounds = LogBounds.fetch(client, partitions)
    selected = [bounds.group_partition(group, one, committed.get(one)) for one in partitions]
    found = look_up_times(client, partitions, target)
    plan = build_plan(group, selected, target, found=found, clamp=clamp, creates_group=is_new, action=action)
    plan = replace(plan, topic_ids=fetch_topic_ids(client, partitions), cautions=_cautions(plan))
    if with_preview:
        plan = add_preview(client, plan, looked=looked)
    return warn_if_moving(client, plan)


def warn_if_moving(client: Client, plan: ResetPlan) -> ResetPlan:
    """Return the plan with a warning if the group moved meanwhile: an Empty group that moves is in use."""
    now = client.committed(plan.group, [move.partition for move in plan.moves])
    # A heartbeat of a query renews the commit where it is.
    moved = [move.partition for move in plan.moves if _offset(now.get(move.partition)) != _offset(move.committed)]
    if not moved:
        return plan
    sentence = (
        f"Group {plan.group} is in use although it has no members: it moved in {', '.join(map(str, moved[:3]))}"
        f"{' and elsewhere' if len(moved) > 3 else ''} while this was planned, by {describe_committer(now.values())}."
    )
    return replace(plan, warnings=[*plan.warnings, sentence])


def _offset(commit: Committed | None) -> int | None:
    return commit.offset if commit is not None else None
def _refuse_stateful(group: str, commits: Iterable[Committed]) -> None:
    mark = _newest_mark(commits)
    if mark is not None and mark.is_stateful:
        raise StatefulGroup(group, mark.query)


def _cautions(plan: ResetPlan) -> list[str]:
    """Return what to know about a query of Logmark of which nobody knows whether it keeps state."""
    mark = _newest_mark(move.committed for move in plan.changes if move.committed is not None)
    if mark is None or mark.is_stateful is not None or isinstance(plan.target, ToCurrent):
        return []
    return [
        f"It is unknown whether the query {mark.query} keeps state (aggregations, joins, duplicates that it drops). If "
        "it does, it would count the records that it reads again twice: start it with a new checkpoint instead."
    ]


def _newest_mark(commits: Iterable[Committed]) -> CommitMetadata | None:
    """Return the mark of the query that committed last in the group."""
    marks = [mark for one in commits if (mark := CommitMetadata.parse(one.metadata)) is not None]
    return max(marks, key=lambda mark: mark.generation, default=None)


def describe_committer(commits: Iterable[Committed | None]) -> str:
    """Return who committed these offsets, as far as their metadata tells."""
    marks = [mark for one in commits if one is not None and (mark := CommitMetadata.parse(one.metadata)) is not None]
    return f"the query {max(marks, key=lambda mark: mark.generation).query}" if marks else "somebody"


def offsets_of_group(client: Client, other: str) -> ToOffsets:
    """Return the committed offsets of another group as a target, without that group's metadata."""
    committed = client.committed(other)
    if not committed:
        if client.describe_groups([other])[other].is_unknown:
            raise UserError(f"{unknown_group(client, other)} Nothing was changed.")
        raise UserError(f"Group {other} has committed nothing that could be copied. Nothing was changed.")
    return ToOffsets(committed, f"group {other}")


def select_partitions(
    client: Client,
    group: str,
    committed: Mapping[TopicPartition, Committed],
    topics: TopicSelection | None,
    target: Target,
) -> list[TopicPartition]:
    """Return the selected partitions; raises UserError if one does not exist."""
    named = list(target.offsets) if isinstance(target, ToOffsets) else None
    if topics is None:
        chosen = sorted(committed if named is None else named)
        if not chosen:
            raise NothingCommitted(f"Group {group} has committed nothing. Nothing was changed", "name topics")
        return existing_partitions(client, by_topic(chosen))
    partitions = existing_partitions(client, topics)
    if named is None:
        return partitions
    both = [one for one in partitions if one in named]
    if not both:
        raise UserError(
            f"There is no offset for {', '.join(sorted(topics))} in {getattr(target, 'source', 'the target')}. "
            "Nothing was changed."
        )
    return both


def existing_partitions(client: Client, topics: TopicSelection) -> list[TopicPartition]:
    """Return these partitions of these topics; raises UserError for a topic or a partition that does not exist."""
    cluster = client.metadata(list(topics))
    found: list[TopicPartition] = []
    for topic, numbers in topics.items():
        if cluster.errors.get(topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise UserError(f"You are not allowed to see topic {topic}, if there is one. Nothing was changed.")
        existing = cluster.partitions(topic)
        if not existing:
            raise TopicNotFound(
                f"{unknown_topic(client, topic)} Nothing was changed", "client.metadata().topics has those that do"
            )
        for number in numbers or ():
            if TopicPartition(topic, number) not in existing:
                raise UserError(
                    f"Topic {topic} has no partition {number}: it has {len(existing)}, numbered from 0. "
                    "Nothing was changed."
                )
        found += existing if numbers is None else [TopicPartition(topic, number) for number in numbers]
    return found


def fetch_topic_ids(client: Client, partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """Return topic ids, which tell a topic from a later one of the same name; empty if the broker has none."""
    topics = client.metadata(sorted({one.topic for one in partitions})).topics
    return {name: one.topic_id.hex() for name, one in topics.items() if any(one.topic_id)}


def _refuse_new_topics(
    group: str,
    committed: Mapping[TopicPartition, Committed],
    partitions: Sequence[TopicPartition],
    named: TopicSelection | None,
) -> None:
    known = {one.topic for one in committed}
    new = sorted({one.topic for one in partitions} - known - set(named or ()))
    if new:
        raise TopicsNotRead(
            f"Group {group} has committed nothing in {', '.join(new)}.{did_you_mean(new[0], known)} "
            "Nothing was changed",
            "name these topics, or pass allow_new_topics=True",
        )
