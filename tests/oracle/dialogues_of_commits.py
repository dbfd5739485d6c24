"""Dialogues about committed offsets, and about groups as tools see them."""

from collections.abc import Mapping

from logmark.wire.schema import (
    delete_groups,
    describe_groups,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from tests.oracle.dialogue import Talk, dialogue
from tests.oracle.dialogues_of_groups import (
    beating,
    committed,
    committing,
    described,
    join,
    joining,
    keep,
    leaving,
    stable,
    subscription,
    syncing,
)
from tests.oracle.dialogues_of_records import batch_of, producing


@dialogue(offset_commit, offset_fetch)
def offsets_are_committed_without_members(talk: Talk) -> None:
    topic, other, group = talk.topic("topic", 3), talk.topic("other"), talk.name("group")
    talk.do(producing(topic, batch_of(talk, b"a")))
    talk.ask("nothing yet", committed(talk, group, topics={topic: [0, 1]}))
    talk.ask("nothing yet at all", committed(talk, group, topics=None if talk.version(offset_fetch) >= 2 else {}))
    talk.ask("one", committing(group, {(topic, 0): (1, "metadata", 0)}))
    talk.ask("two", committing(group, {(topic, 1): 7, (other, 0): (9, None)}))
    wanted = {topic: [0, 1, 2, 9], other: [0], talk.name("unknown"): [0]}
    talk.ask("asked for", committed(talk, group, topics=wanted))
    if talk.version(offset_fetch) >= 2:
        talk.ask("all", committed(talk, group))
    talk.ask("no topic", committed(talk, group, topics={}))
    talk.ask("back", committing(group, {(topic, 0): 0}))
    talk.ask("beyond the end", committing(group, {(topic, 0): 2**60}))
    talk.ask("negative", committing(group, {(topic, 2): -1}))
    talk.ask("now", committed(talk, group, topics={topic: [0, 2]}))
    talk.ask("a leader epoch from the future", committing(group, {(topic, 0): (3, "", 99)}))
    talk.ask("a negative leader epoch", committing(group, {(topic, 1): (3, "", -5)}))
    talk.ask("then", committed(talk, group, topics={topic: [0, 1]}))
    talk.ask("the longest metadata", committing(group, {(topic, 0): (4, "x" * 4096)}))
    talk.ask("metadata too long", committing(group, {(topic, 0): (5, "x" * 4097), (topic, 1): 6}))
    talk.ask("many bytes of metadata", committing(group, {(topic, 2): (7, "ü" * 4096)}))
    talk.ask("after that", committed(talk, group, topics={topic: [0, 1, 2]}))
    talk.ask("nothing to commit", committing(group, {}))
    talk.ask("described", described(group))
    talk.ask("listed", list_groups.Request(), mine_only=True)


@dialogue(offset_commit)
def commits_that_are_refused(talk: Talk) -> None:
    topic, group = talk.topic(), talk.name("group")
    one = {(topic, 0): 1}
    talk.ask("no group id", committing("", one))
    talk.ask("no group id, of a member", committing("", one, generation=1, member_id="nobody"))
    talk.ask("an unknown topic", committing(group, {(talk.name("unknown"), 0): 1}))
    talk.ask("an unknown partition", committing(group, {(topic, 1): 1, (topic, 0): 1}))
    talk.ask("a negative partition", committing(group, {(topic, -1): 1}))
    talk.ask("a generation of no group", committing(talk.name("none"), one, generation=3, member_id="nobody"))
    talk.ask("a generation without a member of no group", committing(talk.name("none"), one, generation=3))
    talk.ask("a member of no group", committing(talk.name("none.2"), one, member_id="nobody"))
    talk.ask("a member of a group without members", committing(group, one, member_id="nobody"))
    talk.ask("a generation of a group without members", committing(group, one, generation=0, member_id="nobody"))
    talk.ask("an instance of a group without members", committing(group, one, instance="static"))
    members = talk.name("members")
    member = join(talk, members)
    own = {"generation": 1, "member_id": member}
    talk.ask("before the sync", committing(members, one, **own))
    talk.ask("without a member, before the sync", committing(members, one))
    talk.do(syncing(members, 1, member, {member: b""}))
    talk.ask("a member's", committing(members, one, **own))
    talk.ask("without a member", committing(members, one))
    talk.ask("an unknown member", committing(members, one, generation=1, member_id="nobody"))
    talk.ask("another generation", committing(members, one, generation=2, member_id=member))
    talk.ask("no generation", committing(members, one, member_id=member))
    talk.ask("a generation without a member", committing(members, one, generation=1))
    talk.ask("an unknown instance", committing(members, one, instance="static", **own))
    talk.ask("an unknown topic of a stranger", committing(members, {(talk.name("unknown"), 0): 1}))
    talk.do(leaving(members, (member, None)))
    talk.ask("when the last has left", committing(members, one, **own))
    talk.ask("without a member when the last has left", committing(members, one))


@dialogue(offset_commit)
def commits_with_a_retention_of_their_own(talk: Talk) -> None:
    topic, group = talk.topic("topic", 2), talk.name("group")
    talk.ask("for long", committing(group, {(topic, 0): 5}, retention_time_ms=3_600_000))
    talk.ask("for a moment", committing(group, {(topic, 1): 5}, retention_time_ms=0))
    if talk.version(offset_commit) <= 4:
        talk.until(
            committed(talk, group, topics={topic: [1]}),
            lambda answer: answer.groups[0].topics[0].partitions[0].committed_offset == -1,
        )
    talk.ask("what is left", committed(talk, group))


@dialogue(offset_commit)
def a_member_commits_while_another_joins(talk: Talk) -> None:
    topic, group = talk.topic(), talk.name("group")
    member = stable(talk, group)
    second = talk.do(joining(group), line="b").member_id
    talk.send(joining(group, second), line="b")
    talk.until(beating(group, 1, member), lambda answer: answer.error_code == 27)
    talk.ask("while a second joins", committing(group, {(topic, 0): 5}, generation=1, member_id=member))
    talk.do(leaving(group, (member, None)))
    talk.hear("the second is alone", line="b")


@dialogue(offset_fetch)
def offsets_of_groups_with_members(talk: Talk) -> None:
    topic, group = talk.topic(), talk.name("group")
    talk.do(committing(group, {(topic, 0): 5}))
    talk.ask("no group id", committed(talk, "", topics={topic: [0]}))
    talk.ask("a partition twice", committed(talk, group, topics={topic: [0, 0]}))
    if talk.version(offset_fetch) >= 8:
        several = (group, talk.name("unknown"), "")
        talk.ask("several groups", committed(talk, *several, topics={topic: [0]}))
        talk.ask("several groups, all topics", committed(talk, *several))
        talk.ask("the same group twice", committed(talk, group, group, topics={topic: [0]}))
        talk.ask("no group", offset_fetch.Request(groups=[]))
    if talk.version(offset_fetch) >= 9:
        for name, epoch in ((None, -1), ("", -1), ("nobody", -1), ("nobody", 1), (None, 1), ("", 0)):
            request = committed(talk, group, topics={topic: [0]}, member_id=name, member_epoch=epoch)
            talk.ask(f"as {name!r} in epoch {epoch}", request)
        unknown = committed(talk, talk.name("unknown"), topics={topic: [0]}, member_id="nobody", member_epoch=1)
        talk.ask("as a member of no group", unknown)
    member = stable(talk, group)
    talk.ask("with a member", committed(talk, group, topics={topic: [0]}))
    if talk.version(offset_fetch) >= 9:
        for name, epoch in ((member, 1), (member, 7), ("nobody", 1)):
            request = committed(talk, group, topics={topic: [0]}, member_id=name, member_epoch=epoch)
            talk.ask(f"as {'nobody' if name == 'nobody' else 'a member'} in epoch {epoch}, with a member", request)


# -- looking at groups and deleting them -------------------------------------------------------


@dialogue(describe_groups, list_groups)
def groups_are_looked_at(talk: Talk) -> None:
    topic = talk.topic()
    standalone, alive, other, unknown = (talk.name(name) for name in ("standalone", "alive", "other", "unknown"))
    talk.do(committing(standalone, {(topic, 0): 5}))
    stable(talk, alive)
    stable(talk, other, protocol_type="connect")
    talk.ask("all of them", described(standalone, alive, other, unknown))
    talk.ask("with what one may do", described(standalone, unknown, include_authorized_operations=True))
    talk.ask("no group id", described(""))
    talk.ask("the same twice", described(standalone, standalone))
    talk.ask("none", described())
    for states in ([], ["Stable"], ["stable"], ["Empty", "Stable"], ["Dead"], ["nonsense"], [""]):
        talk.ask(f"in states {states}", list_groups.Request(states_filter=states), mine_only=True)
    for types in (["classic"], ["Classic"], ["consumer"], ["classic", "consumer"], ["nonsense"], ["share"], [""]):
        talk.ask(f"of types {types}", list_groups.Request(types_filter=types), mine_only=True)
    both = list_groups.Request(states_filter=["Empty"], types_filter=["classic"])
    talk.ask("empty and classic", both, mine_only=True)


@dialogue(delete_groups)
def groups_are_deleted(talk: Talk) -> None:
    topic = talk.topic()
    one, two, alive, left, unknown = (talk.name(name) for name in ("one", "two", "alive", "left", "unknown"))
    for group in (one, two):
        talk.do(committing(group, {(topic, 0): 5}))
    stable(talk, alive)
    keep(talk, left)
    talk.do(leaving(left, (stable(talk, left), None)))

    def deleting(*groups: str) -> delete_groups.Request:
        return delete_groups.Request(groups_names=list(groups))

    talk.ask("one", deleting(one))
    talk.ask("again", deleting(one))
    talk.ask("several", deleting(two, alive, unknown, left))
    talk.ask("no group id", deleting(""))
    talk.ask("none", deleting())
    talk.ask("the same twice", deleting(alive, alive))
    talk.ask("its offsets are gone", committed(talk, one, topics={topic: [0]}))
    talk.ask("described", described(one, two, alive, left))


@dialogue(offset_delete)
def offsets_are_deleted(talk: Talk) -> None:
    topic, other = talk.topic("topic", 2), talk.topic("other")
    standalone, alive, foreign = (talk.name(name) for name in ("standalone", "alive", "foreign"))

    def deleting(group: str, topics: Mapping[str, list[int]]) -> offset_delete.Request:
        return offset_delete.Request(
            group_id=group,
            topics=[
                offset_delete.RequestTopic(
                    name=name, partitions=[offset_delete.RequestPartition(partition_index=each) for each in indexes]
                )
                for name, indexes in topics.items()
            ],
        )

    talk.ask("no group id", deleting("", {topic: [0]}))
    talk.ask("an unknown group", deleting(talk.name("unknown"), {topic: [0]}))
    talk.ask("an unknown group and topic", deleting(talk.name("unknown"), {talk.name("unknown"): [0]}))
    talk.do(committing(standalone, {(topic, 0): 5, (topic, 1): 6}))
    talk.ask("one", deleting(standalone, {topic: [0]}))
    talk.ask("again", deleting(standalone, {topic: [0]}))
    talk.ask("what was never there", deleting(standalone, {other: [0], topic: [7], talk.name("unknown"): [0]}))
    talk.ask("no topic", deleting(standalone, {}))
    talk.ask("what is left", committed(talk, standalone))
    talk.ask("the last", deleting(standalone, {topic: [1]}))
    talk.ask("the group after that", described(standalone))
    member = stable(talk, alive, protocols={"range": subscription(topic)})
    talk.do(committing(alive, {(topic, 0): 5, (other, 0): 6}, generation=1, member_id=member))
    talk.ask("of a topic that is read", deleting(alive, {topic: [0, 1]}))
    talk.ask("of a topic that is not read", deleting(alive, {other: [0]}))
    talk.ask("of both", deleting(alive, {topic: [0], other: [0], talk.name("unknown"): [0]}))
    # A subscription that cannot be read is not for a comparison: Apache Kafka never answers the join.
    stable(talk, foreign, protocol_type="connect")
    talk.ask("of members that are no consumers", deleting(foreign, {topic: [0]}))
