"""Dialogues about groups: their members, their assignments and their committed offsets."""

import struct
from collections.abc import Mapping
from typing import Any

from logmark.wire.schema import (
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
    sync_group,
)
from tests.oracle.dialogue import Talk, dialogue

SESSION_MS = 60_000
UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND, MEMBER_ID_REQUIRED = 25, 69, 79


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def joining(group: str, member_id: str = "", **options: Any) -> join_group.Request:
    protocols = options.pop("protocols", {"range": subscription("some-topic")})
    return join_group.Request(
        group_id=group,
        member_id=member_id,
        session_timeout_ms=options.pop("session_timeout_ms", SESSION_MS),
        rebalance_timeout_ms=options.pop("rebalance_timeout_ms", SESSION_MS),
        protocol_type=options.pop("protocol_type", "consumer"),
        protocols=[join_group.RequestProtocol(name=name, metadata=data) for name, data in protocols.items()],
        group_instance_id=options.pop("instance", None),
        **options,
    )


def syncing(
    group: str, generation: int, member_id: str, assignments: Mapping[str, bytes] | None = None, **options: Any
) -> sync_group.Request:
    return sync_group.Request(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=options.pop("instance", None),
        protocol_type=options.pop("protocol_type", "consumer"),
        protocol_name=options.pop("protocol_name", "range"),
        assignments=[
            sync_group.RequestAssignment(member_id=member, assignment=data)
            for member, data in (assignments or {}).items()
        ],
    )


def beating(group: str, generation: int, member_id: str, instance: str | None = None) -> heartbeat.Request:
    return heartbeat.Request(group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance)


def leaving(group: str, *members: tuple[str, str | None]) -> leave_group.Request:
    return leave_group.Request(
        group_id=group,
        member_id=members[0][0] if members else "",
        members=[
            leave_group.RequestMember(member_id=member, group_instance_id=instance) for member, instance in members
        ],
    )


def committing(group: str, offsets: Mapping[tuple[str, int], Any], **options: Any) -> offset_commit.Request:
    topics: dict[str, list[offset_commit.RequestPartition]] = {}
    for (topic, partition), given in offsets.items():
        offset, metadata, leader_epoch = (*given, -1)[:3] if isinstance(given, tuple) else (given, "", -1)
        topics.setdefault(topic, []).append(
            offset_commit.RequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_metadata=metadata,
                committed_leader_epoch=leader_epoch,
            )
        )
    return offset_commit.Request(
        group_id=group,
        generation_id_or_member_epoch=options.pop("generation", -1),
        member_id=options.pop("member_id", ""),
        group_instance_id=options.pop("instance", None),
        topics=[offset_commit.RequestTopic(name=topic, partitions=parts) for topic, parts in topics.items()],
        **options,
    )


def committed(
    talk: Talk, *groups: str, topics: Mapping[str, list[int]] | None = None, **member: Any
) -> offset_fetch.Request:
    """Asks for one group by the old versions, for all of them by the new ones."""
    if talk.version(offset_fetch) < 8:
        wanted = None if topics is None else [
            offset_fetch.RequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()
        ]  # fmt: skip
        return offset_fetch.Request(group_id=groups[0], topics=wanted)
    several = None if topics is None else [
        offset_fetch.RequestGroupTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()
    ]  # fmt: skip
    return offset_fetch.Request(
        groups=[offset_fetch.RequestGroup(group_id=group, topics=several, **member) for group in groups]
    )


def described(*groups: str, **options: Any) -> describe_groups.Request:
    return describe_groups.Request(groups=list(groups), **options)


def keep(talk: Talk, *groups: str) -> str:
    """Commits an offset and returns its topic: an empty group without one is swept away at any moment."""
    topic = talk.topic("kept")
    for group in groups:
        talk.do(committing(group, {(topic, 0): 1}))
    return topic


def join(talk: Talk, group: str, *, line: str = "quiet", **options: Any) -> str:
    """Joins an empty group by however many requests it takes; returns the member id."""
    member_id = ""
    while (answer := talk.do(joining(group, member_id, **options), line=line)).error_code:
        # An empty group may be swept away with the id that it has just given.
        assert answer.error_code in (MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID), answer
        member_id = answer.member_id if answer.error_code == MEMBER_ID_REQUIRED else ""
    return str(answer.member_id)


def stable(talk: Talk, group: str, **options: Any) -> str:
    """A group of one member with an assignment; returns the member's id."""
    instance = options.get("instance")
    kind = {name: options[name] for name in ("protocol_type",) if name in options}
    while True:
        member = join(talk, group, **options)
        answer = talk.do(syncing(group, 1, member, {member: b"assigned"}, instance=instance, **kind))
        if answer.error_code != UNKNOWN_MEMBER_ID:
            assert 0 == answer.error_code, answer
            return member
        begin_anew(talk, group)  # a short time for the assignment was over before it came


def begin_anew(talk: Talk, group: str) -> None:
    """Takes away a group whose members are about to be thrown out; the offsets that `keep` gave it stay."""
    kept = talk.do(committed(talk, group))
    talk.until(
        delete_groups.Request(groups_names=[group]),
        lambda answer: answer.results[0].error_code in (0, GROUP_ID_NOT_FOUND),
    )
    offsets = {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in kept.groups[0].topics
        for partition in topic.partitions
    }
    if offsets:
        talk.do(committing(group, offsets))


# -- who keeps a group -------------------------------------------------------------------------


@dialogue(find_coordinator)
def coordinators_are_found(talk: Talk) -> None:
    def of(*keys: str, kind: int = 0) -> find_coordinator.Request:
        return find_coordinator.Request(key=keys[0] if keys else "", key_type=kind, coordinator_keys=list(keys))

    talk.ask("of a group", of(talk.name("group")))
    talk.ask("of a group without a name", of(""))
    talk.ask("of a transactional id", of(talk.name("transactions"), kind=1))
    talk.ask("of a key without a type", of("key", kind=9))
    if talk.version(find_coordinator) >= 4:
        talk.ask("of several groups", of(talk.name("a"), talk.name("b"), ""))
        talk.ask("of the same group twice", of(talk.name("a"), talk.name("a")))
        talk.ask("of none", of())
    talk.ask("of a share group", of("group:AAAAAAAAAAAAAAAAAAAAAQ:0", kind=2))


# -- the life of a group -----------------------------------------------------------------------


@dialogue(join_group, sync_group, heartbeat, leave_group, describe_groups, list_groups)
def the_life_of_a_group(talk: Talk) -> None:
    group = talk.name("group")
    talk.ask("described before", described(group))
    keep(talk, group)
    first = talk.ask("the first joins", joining(group), line="a")
    if first.error_code:
        talk.ask("a pending group", described(group))
        talk.ask("a pending group listed", list_groups.Request(), mine_only=True)
        talk.ask("pending, it beats", beating(group, 0, first.member_id))
        first = talk.ask("the first joins with its id", joining(group, first.member_id), line="a")
    one = first.member_id
    talk.ask("before the sync", described(group, include_authorized_operations=True))
    talk.ask("listed before the sync", list_groups.Request(), mine_only=True)
    talk.ask("a heartbeat before the sync", beating(group, 1, one))
    talk.ask("the leader joins again", joining(group, one), line="a")
    talk.ask("a wrong generation", syncing(group, 7, one))
    talk.ask("the leader assigns", syncing(group, 1, one, {one: b"everything"}))
    talk.ask("stable", described(group))
    talk.ask("listed", list_groups.Request(), mine_only=True)
    talk.ask("a heartbeat", beating(group, 1, one))
    talk.ask("the assignment again", syncing(group, 1, one))
    second = talk.do(joining(group), line="b") if talk.version(join_group) >= 4 else None
    talk.send(joining(group, second.member_id if second else ""), line="b")
    talk.until(beating(group, 1, one), lambda answer: answer.error_code == 27)
    talk.ask("the heartbeat while a second joins", beating(group, 1, one))
    talk.ask("a sync while a second joins", syncing(group, 1, one))
    # The second member's id of the old versions is not known yet, and Apache Kafka shows members in any order.
    talk.note("the state while a second joins", talk.do(described(group)).groups[0].group_state)
    talk.ask("the first joins again", joining(group, one), line="a")
    two = talk.hear("the second has joined", line="b").member_id
    talk.send(syncing(group, 2, two), line="b")
    talk.ask("the leader assigns to both", syncing(group, 2, one, {one: b"half", two: b"other half"}), line="a")
    talk.hear("the second has its half", line="b")
    talk.ask("two members", described(group))
    talk.ask("the old generation", beating(group, 1, one))
    talk.ask("a follower joins again", joining(group, two), line="b")
    talk.ask("the second leaves", leaving(group, (two, None)))
    talk.ask("it is gone", beating(group, 2, two))
    talk.ask("it leaves again", leaving(group, (two, None)))
    talk.ask("the first is told", beating(group, 2, one))
    talk.ask("alone again", joining(group, one), line="a")
    talk.ask("alone again, assigned", syncing(group, 3, one, {one: b"everything"}))
    talk.ask("the last leaves", leaving(group, (one, None)))
    talk.ask("empty", described(group))
    talk.ask("empty, listed", list_groups.Request(), mine_only=True)
    talk.ask("a heartbeat to nobody", beating(group, 3, one))
    talk.ask("a sync with nobody", syncing(group, 3, one))
    talk.ask("who left joins again", joining(group, one), line="a")


@dialogue(join_group)
def joins_that_are_refused(talk: Talk) -> None:
    group = talk.name("group")
    talk.ask("no group id", joining(""))
    for timeout in (0, 99, 1_800_001, -1):
        talk.ask(f"a session of {timeout} ms", joining(group, session_timeout_ms=timeout))
    talk.ask("an unknown member of no group", joining(group, "nobody"))
    talk.ask("no protocols", joining(group, protocols={}))
    talk.ask("no protocol type", joining(group, protocol_type=""))
    if talk.version(join_group) >= 5:
        for number, instance in enumerate(("", "not a name!", "x" * 250, ".")):
            talk.ask(f"a static member {instance[:20]!r}", joining(talk.name(f"group.{number}"), instance=instance))
    stable(talk, group)
    talk.ask("an unknown member", joining(group, "nobody"))
    talk.ask("another protocol type", joining(group, protocol_type="connect"))
    talk.ask("no protocol in common", joining(group, protocols={"sticky": b""}))
    talk.ask("an unknown static member", joining(group, "nobody", instance="static"))
    talk.ask("no protocols for a group with members", joining(group, protocols={}))
    talk.ask("an unknown member with another protocol type", joining(group, "nobody", protocol_type="connect"))


@dialogue(join_group)
def the_protocol_is_voted_for(talk: Talk) -> None:
    group = talk.name("group")
    protocols = {"a": b"first", "b": b"second"}
    member = join(talk, group, protocols=protocols)
    talk.do(syncing(group, 1, member, {member: b""}, protocol_name="a"))
    talk.ask("as it was", described(group))
    talk.ask("the other first", joining(group, member, protocols={"b": b"2", "a": b"1"}))
    talk.ask("only one", joining(group, member, protocols={"b": b"2"}))
    talk.ask("another one", joining(group, member, protocols={"c": b"3"}))
    talk.ask("another protocol type", joining(group, member, protocol_type="connect", protocols={"c": b"3"}))


@dialogue(sync_group)
def syncs_that_are_refused(talk: Talk) -> None:
    group, empty = talk.name("group"), talk.name("empty")
    talk.ask("no group id", syncing("", 1, "nobody"))
    talk.ask("an unknown group", syncing(talk.name("unknown"), 1, "nobody"))
    member = join(talk, group)
    talk.ask("an unknown member", syncing(group, 1, "nobody"))
    talk.ask("no member id", syncing(group, 1, ""))
    talk.ask("another generation", syncing(group, 2, member))
    talk.ask("a generation of -1", syncing(group, -1, member))
    talk.ask("another protocol", syncing(group, 1, member, protocol_name="sticky"))
    talk.ask("another protocol type", syncing(group, 1, member, protocol_type="connect"))
    talk.ask("no protocol", syncing(group, 1, member, protocol_name=None))
    talk.ask("no protocol type", syncing(group, 1, member, protocol_type=None))
    talk.ask("an unknown instance", syncing(group, 1, member, instance="static"))
    talk.ask("an assignment to a stranger", syncing(group, 1, member, {"stranger": b"x"}))
    talk.ask("now stable", described(group))
    left = stable(talk, empty)
    talk.do(leaving(empty, (left, None)))
    talk.ask("a group that is empty", syncing(empty, 1, left))


@dialogue(heartbeat)
def heartbeats_that_are_refused(talk: Talk) -> None:
    group = talk.name("group")
    talk.ask("no group id", beating("", 1, "nobody"))
    talk.ask("an unknown group", beating(group, 1, "nobody"))
    member = stable(talk, group)
    talk.ask("a heartbeat", beating(group, 1, member))
    talk.ask("an unknown member", beating(group, 1, "nobody"))
    talk.ask("no member id", beating(group, 1, ""))
    talk.ask("an old generation", beating(group, 0, member))
    talk.ask("a new generation", beating(group, 2, member))
    talk.ask("an unknown instance", beating(group, 1, member, "static"))
    standalone = talk.name("standalone")
    talk.do(committing(standalone, {(talk.topic(), 0): 5}))
    talk.ask("a group without members", beating(standalone, 0, "nobody"))


@dialogue(leave_group)
def leaves_that_are_refused(talk: Talk) -> None:
    group = talk.name("group")
    talk.ask("no group id", leaving("", ("nobody", None)))
    talk.ask("an unknown group", leaving(group, ("nobody", None)))
    pending = talk.name("pending")
    keep(talk, group, pending)
    member = stable(talk, group)
    talk.ask("an unknown member", leaving(group, ("nobody", None)))
    talk.ask("no member id", leaving(group, ("", None)))
    if talk.version(leave_group) >= 3:
        talk.ask("nobody", leaving(group))
        talk.ask("an unknown instance", leaving(group, ("", "static")))
        talk.ask("a member with an unknown instance", leaving(group, (member, "static")))
        talk.ask("one of two", leaving(group, ("nobody", None), (member, None)))
        talk.ask("nobody is left", described(group))
    waiting = talk.do(joining(pending)).member_id
    talk.ask("who only has an id", leaving(pending, (waiting, None)))
    talk.ask("who only had an id", leaving(pending, (waiting, None)))
    talk.ask("joins with it", joining(pending, waiting))


@dialogue(consumer_group_heartbeat)
def a_member_of_the_newer_protocol(talk: Talk) -> None:
    talk.ask(
        "it joins",
        consumer_group_heartbeat.Request(
            group_id=talk.name("group"),
            member_id="member",
            rebalance_timeout_ms=SESSION_MS,
            subscribed_topic_names=[talk.topic()],
            topic_partitions=[],
        ),
    )


@dialogue(join_group, since=9)
def members_that_fall_silent(talk: Talk) -> None:
    silent, group, leaderless = talk.name("silent"), talk.name("group"), talk.name("leaderless")
    topic = keep(talk, silent, group, leaderless)
    member = stable(talk, silent, session_timeout_ms=100)
    talk.until(described(silent), lambda answer: answer.groups[0].group_state == "Empty")
    talk.ask("a session has ended", described(silent))
    talk.ask("its heartbeat", beating(silent, 1, member))
    talk.ask("its sync", syncing(silent, 1, member))
    talk.ask("its commit", committing(silent, {(topic, 0): 5}, generation=1, member_id=member))
    before = len(talk.steps)
    while True:
        first = stable(talk, group, rebalance_timeout_ms=150)
        second = talk.do(joining(group, rebalance_timeout_ms=150), line="b").member_id
        talk.ask("the second waits for the first in vain", joining(group, second, rebalance_timeout_ms=150), line="b")
        talk.ask("the first is out", beating(group, 1, first))
        talk.ask("described", described(group))
        if talk.do(beating(group, 2, second)).error_code != UNKNOWN_MEMBER_ID:
            break
        # The second did not assign anything in time either: what was described may be the group without it.
        del talk.steps[before:]
        begin_anew(talk, group)
    leader = join(talk, leaderless, rebalance_timeout_ms=150)
    talk.until(described(leaderless), lambda answer: answer.groups[0].group_state == "Empty")
    talk.ask("the leader never assigned", syncing(leaderless, 1, leader, {leader: b""}))
    talk.ask("it is empty", described(leaderless))
    static = stable(talk, talk.name("static"), instance="static", session_timeout_ms=100)
    talk.until(described(talk.name("static")), lambda answer: answer.groups[0].group_state != "Stable")
    talk.ask("a static member's heartbeat", beating(talk.name("static"), 1, static, "static"))


STATIC_SINCE = {join_group: 5, sync_group: 3, heartbeat: 3, leave_group: 3, describe_groups: 4}


@dialogue(*STATIC_SINCE, since=STATIC_SINCE)
def a_static_member_comes_back(talk: Talk) -> None:
    group = talk.name("group")
    keep(talk, group)
    first = talk.ask("it joins", joining(group, instance="static"))
    old = first.member_id
    talk.ask("it syncs", syncing(group, 1, old, {old: b"everything"}, instance="static"))
    talk.ask("described", described(group))
    second = talk.ask("it comes back without its id", joining(group, instance="static"))
    new = second.member_id
    talk.ask("it syncs again", syncing(group, 1, new, instance="static"))
    talk.ask("described again", described(group))
    talk.ask("the old one beats", beating(group, 1, old, "static"))
    talk.ask("the old one beats without its name", beating(group, 1, old))
    talk.ask("the old one syncs", syncing(group, 1, old, instance="static"))
    talk.ask("the old one joins", joining(group, old, instance="static"))
    talk.ask("the old one leaves", leaving(group, (old, "static")))
    talk.ask(
        "the old one commits", committing(group, {(talk.topic(), 0): 1}, generation=1, member_id=old, instance="static")
    )
    talk.ask("the new one beats", beating(group, 1, new, "static"))
    talk.ask("the new one beats without its name", beating(group, 1, new))
    talk.ask("another name with its id", beating(group, 1, new, "other"))
    talk.ask("an unknown name", joining(group, "nobody", instance="other"))
    talk.ask("it comes back with other topics", joining(group, instance="static", protocols={"range": b"other"}))
    talk.ask("it comes back with another protocol", joining(group, instance="static", protocols={"sticky": b""}))
    talk.ask("it leaves by its name", leaving(group, ("", "static")))
    talk.ask("empty", described(group))
