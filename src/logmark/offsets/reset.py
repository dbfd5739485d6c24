"""Moves a group's committed offsets on any Kafka: look, plan, check that it may be done, apply, read back."""

import difflib
from collections.abc import Mapping, Sequence

from logmark.client.answers import Committed, GroupDescription
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.inspect import Bounds
from logmark.offsets.plan import ResetPlan, Target, ToTime, make_plan


def parse_topics(texts: Sequence[str]) -> dict[str, list[int] | None]:
    """Topics as they are written after --topic: `orders` is all partitions, `orders:0,2` these two."""
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
    topics: Mapping[str, Sequence[int] | None],
    target: Target,
    *,
    create_group: bool = False,
    clamp: bool = False,
) -> ResetPlan:
    """What a reset would do now; refuses an unknown topic, an active group, and an unknown group unless wanted."""
    partitions = _partitions(client, topics)
    description = client.describe_groups([group])[group]
    committed = client.committed(group)
    is_new = description.is_unknown and not committed
    if is_new and not create_group:
        raise UserError(_unknown_group(client, group))
    _refuse_active(description)
    bounds = Bounds.of(client, partitions)
    places = [bounds.place(group, one, committed.get(one)) for one in partitions]
    found = None
    if isinstance(target, ToTime):
        answers = client.list_offsets(dict.fromkeys(partitions, target.timestamp_ms))
        found = {one: answer.offset for one, answer in answers.items()}
    return make_plan(group, places, target, found=found, clamp=clamp, creates_group=is_new)


def apply_reset(client: Client, plan: ResetPlan) -> None:
    """Commits the plan's offsets and reads them back; refuses if the group moved or woke up since it was made.

    What was stored beside an offset stays; the leader epoch goes, for it belonged to the old offset.
    """
    _refuse_active(client.describe_groups([plan.group])[plan.group])
    partitions = [move.partition for move in plan.moves]
    now = client.committed(plan.group, partitions)
    for move in plan.moves:
        if now.get(move.partition) != move.committed:
            raise UserError(
                f"Group {plan.group} has moved in {move.partition} since the plan was made. Nothing was changed; "
                "stop its consumers and plan again."
            )
    client.commit(
        plan.group,
        {
            move.partition: Committed(offset=move.to, metadata=move.committed.metadata if move.committed else "")
            for move in plan.moves
        },
    )
    after = client.committed(plan.group, partitions)
    for move in plan.moves:
        stored = after.get(move.partition)
        if stored is None or stored.offset != move.to:
            raise UserError(
                f"Group {plan.group} was set to {move.to} in {move.partition}, but stands at "
                f"{stored.offset if stored else 'nothing'} now: somebody else commits to this group. Stop it and "
                "reset again."
            )


def _partitions(client: Client, topics: Mapping[str, Sequence[int] | None]) -> list[TopicPartition]:
    cluster = client.metadata(list(topics))
    found: list[TopicPartition] = []
    for topic, numbers in topics.items():
        existing = cluster.partitions(topic)
        if not existing:
            raise UserError(_unknown_topic(client, topic))
        for number in numbers or ():
            if TopicPartition(topic, number) not in existing:
                raise UserError(
                    f"Topic {topic} has no partition {number}: it has {len(existing)}, numbered from 0. "
                    "Nothing was changed."
                )
        found += existing if numbers is None else [TopicPartition(topic, number) for number in numbers]
    return found


def _refuse_active(description: GroupDescription) -> None:
    if not description.is_active:
        return
    members = ", ".join(
        f"{member.client_id or member.member_id} on {member.host.lstrip('/')}" for member in description.members
    )
    raise UserError(
        f"Group {description.group} is active (state {description.state}"
        f"{f'; its members: {members}' if members else ''}), and its members would overwrite what is set. "
        "Nothing was changed; stop them and try again."
    )


def _unknown_group(client: Client, group: str) -> str:
    known = [listing.group for listing in client.list_groups()]
    return (
        f"Group {group} does not exist.{_close(group, known)} Nothing was changed; "
        "to create it with these offsets, add --create-group."
    )


def _unknown_topic(client: Client, topic: str) -> str:
    known = list(client.metadata().topics)
    return (
        f"Topic {topic} does not exist.{_close(topic, known)} Nothing was changed; "
        "`logmark topics list` shows those that do."
    )


def _close(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""
