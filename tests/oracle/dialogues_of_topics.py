"""Dialogues about the cluster, its topics and their settings."""

import struct
from typing import Any

from logmark.log.settings import SETTINGS
from logmark.names import OFFSETS_TOPIC
from logmark.wire import fetch, produce
from logmark.wire.schema import (
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    find_coordinator,
    incremental_alter_configs,
    metadata,
)
from tests.oracle.dialogue import Talk, dialogue

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
UNKNOWN_ID = bytes(range(16))


def metadata_of(*names: str, **options: Any) -> metadata.Request:
    return metadata.Request(topics=[metadata.RequestTopic(name=name) for name in names], **options)


def new_topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> create_topics.Request:
    configs = [create_topics.RequestConfig(name=key, value=value) for key, value in more.pop("configs", ())]
    assignments = [
        create_topics.RequestAssignment(partition_index=index, broker_ids=brokers)
        for index, brokers in more.pop("assignments", ())
    ]
    topic = create_topics.RequestTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, assignments=assignments, configs=configs
    )
    return create_topics.Request(topics=[topic], **more)


def settings_of(
    name: str, keys: list[str] | None = None, kind: int = TOPIC, **options: Any
) -> describe_configs.Request:
    resource = describe_configs.RequestResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return describe_configs.Request(resources=[resource], **options)


def change(
    name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, **options: Any
) -> incremental_alter_configs.Request:
    configs = [
        incremental_alter_configs.RequestConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = incremental_alter_configs.RequestResource(resource_type=kind, resource_name=name, configs=configs)
    return incremental_alter_configs.Request(resources=[resource], **options)


# -- the cluster -------------------------------------------------------------------------------


@dialogue(api_versions)
def a_client_with_an_odd_name_asks_for_the_apis(talk: Talk) -> None:
    if talk.version(api_versions) < 3:
        # Before version 3 a client has no name, and the lists of APIs are compared by a test of their own.
        answer = talk.do(api_versions.Request())
        talk.note("asked without a name", answer.error_code)
        return
    for name, version in (("", "1"), ("good", ""), ("-bad", "1"), ("bad name", "1"), ("good", "1/2"), ("ü", "1")):
        answer = talk.do(api_versions.Request(client_software_name=name, client_software_version=version))
        talk.note(f"{name!r} {version!r}", (answer.error_code, [] if answer.error_code else "the APIs"))


@dialogue(api_versions, since=4)
def requests_that_nobody_understands(talk: Talk) -> None:
    def header(key: int, version: int) -> bytes:
        return struct.pack(">hhih", key, version, 7, 4) + b"hand"

    for version in (5, 99, -1):
        talk.ask_frame(f"version {version} of ApiVersions", header(api_versions.KEY, version))
    for key, version in ((metadata.KEY, 99), (metadata.KEY, -1), (999, 0), (-1, 0), (produce.KEY, 2), (fetch.KEY, 3)):
        talk.ask_frame(f"version {version} of API {key}", header(key, version) + bytes(20))
    talk.ask_frame("no body", header(metadata.KEY, 1))
    talk.ask_frame("half a header", header(metadata.KEY, 1)[:7])
    talk.ask_frame("one byte", b"x")
    talk.ask_frame("an array too long", header(metadata.KEY, 1) + struct.pack(">i", 1000))
    talk.ask_frame("an array of a negative length", header(metadata.KEY, 1) + struct.pack(">i", -2))
    talk.ask_frame("a name too long", header(metadata.KEY, 1) + struct.pack(">ih", 1, 1000))
    talk.ask_frame("a name that is null", header(metadata.KEY, 1) + struct.pack(">ih", 1, -1))
    talk.ask_frame("a name that is no text", header(metadata.KEY, 1) + struct.pack(">ih", 1, 2) + b"\xff\xfe")
    talk.ask_frame("a client without a name", struct.pack(">hhih", describe_groups.KEY, 0, 7, -1) + bytes(4))
    talk.ask_frame("a client with a negative name", struct.pack(">hhih", describe_groups.KEY, 0, 7, -2) + bytes(4))
    talk.ask_frame("more than was asked for", header(describe_groups.KEY, 0) + bytes(100))


@dialogue(describe_cluster)
def the_cluster_is_described(talk: Talk) -> None:
    talk.ask("plainly", describe_cluster.Request())
    talk.ask("with what one may do", describe_cluster.Request(include_cluster_authorized_operations=True))
    if talk.version(describe_cluster) >= 1:
        talk.ask("its controllers, from a broker", describe_cluster.Request(endpoint_type=2))
        talk.ask("an unknown kind of node", describe_cluster.Request(endpoint_type=9))


@dialogue(metadata)
def metadata_of_topics(talk: Talk) -> None:
    two, one = talk.topic("two", 2), talk.topic("one")
    talk.ask("one topic", metadata_of(one))
    talk.ask("two topics", metadata_of(one, two))
    talk.ask("a topic twice", metadata_of(one, one))
    talk.ask("all topics", metadata.Request(topics=[] if talk.version(metadata) == 0 else None), mine_only=True)
    talk.do(find_coordinator.Request(coordinator_keys=["any"]))
    talk.ask("the offsets topic", metadata_of(OFFSETS_TOPIC))
    talk.ask(
        "with what one may do",
        metadata_of(one, include_topic_authorized_operations=True, include_cluster_authorized_operations=True),
    )
    if talk.version(metadata) > 0:
        talk.ask("no topic", metadata.Request(topics=[]))


@dialogue(metadata)
def metadata_of_topics_that_are_not_there(talk: Talk) -> None:
    talk.ask("unknown, not to be created", metadata_of(talk.name("unknown"), allow_auto_topic_creation=False))
    talk.ask("unknown, not created by setting", metadata_of(talk.name("unknown"), allow_auto_topic_creation=True))
    talk.ask("an illegal name", metadata_of(talk.name("not a name!"), allow_auto_topic_creation=True))
    talk.ask(
        "an illegal name, not to be created", metadata_of(talk.name("not a name!"), allow_auto_topic_creation=False)
    )
    talk.ask("an empty name", metadata_of(""))
    talk.ask("a dot", metadata_of("."))
    talk.ask("a name that is too long", metadata_of("x" * 250))
    there = talk.topic()
    talk.ask("one that is there and one that is not", metadata_of(there, talk.name("unknown")))


@dialogue(metadata, since=10)
def metadata_by_topic_id(talk: Talk) -> None:
    topic = talk.topic()
    topic_id = talk.do(metadata_of(topic)).topics[0].topic_id if talk.version(metadata) >= 10 else bytes(16)

    def by(name: str | None, topic_id: bytes) -> metadata.Request:
        return metadata.Request(topics=[metadata.RequestTopic(name=name, topic_id=topic_id)])

    talk.ask("the name with the id", by(topic, topic_id))
    talk.ask("the name with another id", by(topic, UNKNOWN_ID))
    talk.ask("the id", by(None, topic_id))
    talk.ask("an unknown id", by(None, UNKNOWN_ID))
    talk.ask("neither", by(None, bytes(16)))


def topics_are_made_by_asking(talk: Talk) -> None:
    """For brokers that make topics when somebody asks for their metadata; Apache Kafka tells of them a little later."""
    forbidden = metadata_of(talk.name("forbidden"), allow_auto_topic_creation=False)
    if talk.version(metadata) >= 4:
        talk.ask("not to be made", forbidden)
    wanted = metadata_of(talk.name("wanted"), talk.name("also.wanted"))
    talk.until(wanted, lambda answer: all(each.error_code == 0 for each in answer.topics))
    talk.ask("made", wanted)
    talk.ask("an illegal name", metadata_of(talk.name("not a name!")))
    talk.ask("a name that collides", metadata_of(talk.name("also_wanted")))
    if talk.version(metadata) >= 4:
        talk.ask("still not made", forbidden)
    talk.await_partitions(talk.name("wanted"), 3)
    talk.ask("its settings", settings_of(talk.name("wanted"), ["cleanup.policy", "retention.ms"]))


# -- making and removing topics ----------------------------------------------------------------


@dialogue(create_topics)
def topics_are_created(talk: Talk) -> None:
    talk.ask("plainly", new_topic(talk.name("plain"), 3))
    talk.ask("with defaults", new_topic(talk.name("defaults"), -1, -1))
    talk.ask(
        "with settings",
        new_topic(talk.name("settings"), configs=[("retention.ms", "-1"), ("cleanup.policy", "compact,delete")]),
    )
    talk.ask("by assignment", new_topic(talk.name("assigned"), -1, -1, assignments=[(0, [1]), (1, [1])]))
    talk.ask("only to see", new_topic(talk.name("seen"), 2, validate_only=True))
    talk.ask(
        "only to see, with settings",
        new_topic(talk.name("seen"), configs=[("segment.bytes", "1048576")], validate_only=True),
    )
    talk.ask("none", create_topics.Request(topics=[]))
    talk.ask("a name with every kind of character", new_topic(talk.name("a.B_9-")))
    talk.ask("a setting with spaces", new_topic(talk.name("spaces"), configs=[("retention.ms", " 1000 ")]))
    talk.ask("a setting with capitals", new_topic(talk.name("capitals"), configs=[("preallocate", "TRUE")]))


@dialogue(create_topics)
def topics_that_cannot_be_created(talk: Talk) -> None:
    name = talk.name("refused")
    for partitions, replicas in ((0, 1), (-1, 1), (-2, 1), (1, -1), (1, 0), (1, -2), (1, 2), (0, 0)):
        request = new_topic(talk.name(f"t{partitions}.{replicas}"), partitions, replicas)
        talk.ask(f"{partitions} partitions, {replicas} replicas", request)
    for setting, value in (
        ("no.such.setting", "1"), ("", "1"), ("retention.ms", None), ("cleanup.policy", "burn"), ("cleanup.policy", ""),
        ("preallocate", "maybe"), ("message.timestamp.type", "never"), ("compression.gzip.level", "0"),
    ):  # fmt: skip
        request = new_topic(talk.name("with.setting"), configs=[(setting, value)], validate_only=True)
        talk.ask(f"{setting} = {value}", request)
    talk.ask(
        "a setting that needs another",
        new_topic(name, configs=[("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "1")]),
    )
    for illegal in ("", ".", "..", "not a name!", "x" * 250, "ü"):
        talk.ask(f"name {illegal[:20]!r}", new_topic(illegal))
    talk.ask("a broker that is not there", new_topic(name, -1, -1, assignments=[(0, [2])]))
    talk.ask("the same broker twice", new_topic(name, -1, -1, assignments=[(0, [1, 1])]))
    talk.ask("no broker", new_topic(name, -1, -1, assignments=[(0, [])]))
    talk.ask("a gap between partitions", new_topic(name, -1, -1, assignments=[(0, [1]), (2, [1])]))
    talk.ask("a partition twice", new_topic(name, -1, -1, assignments=[(0, [1]), (0, [1])]))
    talk.ask("an assignment with a count", new_topic(name, 1, -1, assignments=[(0, [1])]))
    talk.ask("an assignment with replicas", new_topic(name, -1, 1, assignments=[(0, [1])]))


@dialogue(create_topics, since=7)
def every_setting_with_values_of_every_kind(talk: Talk) -> None:
    for value in (
        "", " ", "x", "-3", "-2", "-1", "0", "1", "9", "10", "13", "14", "17", "18", "22", "23", "1048575", "1048576",
        "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "1_000", "+1", " 1 ", "1.0", "1e0",
        "0.5", "0x1", "٣", "true", "TRUE", " false ", "delete", "compact", "compact, delete", "delete,delete", "DELETE",
        "none", "uncompressed", "gzip", "zstd", "GZIP", "producer", "CreateTime", "LogAppendTime", "createtime", "*",
        "0:1", "0:1,1:1",
    ):  # fmt: skip
        topics = [
            create_topics.RequestTopic(
                name=talk.name(setting),
                num_partitions=1,
                replication_factor=1,
                configs=[create_topics.RequestConfig(name=setting, value=value)],
            )
            for setting in SETTINGS
        ]
        answer = talk.do(create_topics.Request(topics=topics, validate_only=True))
        codes = {each.name.removesuffix(talk.name("")): each.error_code for each in answer.topics}
        for setting, code in sorted(codes.items()):
            talk.note(f"{setting} = {value!r}", code)


@dialogue(create_topics)
def topics_that_are_there_already(talk: Talk) -> None:
    there = talk.topic("there.already")
    talk.ask("the same name", new_topic(there))
    talk.ask("the same name, only to see", new_topic(there, validate_only=True))
    talk.ask("the same name, with nonsense", new_topic(there, 0, 7, configs=[("no.such.setting", "1")]))
    talk.ask("a name that collides", new_topic(there.replace(".", "_")))
    talk.ask("the offsets topic", new_topic(OFFSETS_TOPIC, 50))
    twice = [create_topics.RequestTopic(name=talk.name("twice"), num_partitions=1, replication_factor=1)] * 2
    other = create_topics.RequestTopic(name=talk.name("other"), num_partitions=1, replication_factor=1)
    talk.ask("a name twice, and another", create_topics.Request(topics=[*twice, other]))
    talk.ask(
        "a good one and a bad one",
        create_topics.Request(
            topics=[
                create_topics.RequestTopic(name=talk.name("good"), num_partitions=1, replication_factor=1),
                create_topics.RequestTopic(name=talk.name("bad"), num_partitions=0, replication_factor=1),
            ]
        ),
    )
    talk.ask(
        "a setting twice", new_topic(talk.name("setting.twice"), configs=[("retention.ms", "1"), ("retention.ms", "2")])
    )


@dialogue(delete_topics)
def topics_are_deleted(talk: Talk) -> None:
    version = talk.version(delete_topics)

    def named(*names: str) -> delete_topics.Request:
        topics = [delete_topics.RequestTopic(name=name) for name in names]
        return delete_topics.Request(topics=topics, topic_names=list(names), timeout_ms=60_000)

    def by(name: str | None, topic_id: bytes) -> delete_topics.Request:
        topics = [delete_topics.RequestTopic(name=name, topic_id=topic_id)]
        return delete_topics.Request(topics=topics, timeout_ms=60_000)

    one, two, three = talk.topic("one"), talk.topic("two"), talk.topic("three")
    talk.ask("one", named(one))
    talk.until(metadata_of(one, allow_auto_topic_creation=False), lambda answer: answer.topics[0].error_code == 3)
    talk.ask("one that is gone", named(one))
    talk.ask("one that never was, and one that is", named(talk.name("never"), two))
    talk.ask("an illegal name", named("not a name!"))
    talk.ask("an empty name", named(""))
    talk.ask("none", named())
    talk.ask("the same twice", named(three, three))
    if version >= 6:
        four = talk.topic("four")
        topic_id = talk.do(metadata_of(four)).topics[0].topic_id
        talk.ask("name and id", by(four, topic_id))
        talk.ask("neither name nor id", by(None, bytes(16)))
        talk.ask("an unknown id", by(None, UNKNOWN_ID))
        talk.ask("by id", by(None, topic_id))


@dialogue(create_partitions)
def topics_get_more_partitions(talk: Talk) -> None:
    topic = talk.topic("growing", 2)

    def grow(
        name: str, count: int, brokers: list[list[int]] | None = None, **options: Any
    ) -> create_partitions.Request:
        assignments = (
            None if brokers is None else [create_partitions.RequestAssignment(broker_ids=each) for each in brokers]
        )
        wanted = create_partitions.RequestTopic(name=name, count=count, assignments=assignments)
        return create_partitions.Request(topics=[wanted], timeout_ms=60_000, **options)

    for count in (2, 1, 0, -1):
        talk.ask(f"to {count}", grow(topic, count))
    talk.ask("only to see", grow(topic, 3, validate_only=True))
    talk.ask("one that is not there", grow(talk.name("unknown"), 3))
    talk.ask("an illegal name", grow("not a name!", 3))
    talk.ask("a broker that is not there", grow(topic, 3, [[2]]))
    talk.ask("too few assignments", grow(topic, 4, [[1]]))
    talk.ask("too many assignments", grow(topic, 3, [[1], [1]]))
    talk.ask("no assignments in a list", grow(topic, 3, []))
    talk.ask("an assignment to nobody", grow(topic, 3, [[]]))
    talk.ask("too many replicas", grow(topic, 3, [[1, 1]]))
    talk.ask("to 3 by assignment", grow(topic, 3, [[1]]))
    talk.await_partitions(topic, 3)
    talk.ask("to 5", grow(topic, 5))
    talk.await_partitions(topic, 5)
    twice = [create_partitions.RequestTopic(name=topic, count=count, assignments=None) for count in (6, 7)]
    talk.ask("the same topic twice", create_partitions.Request(topics=twice, timeout_ms=60_000))
    talk.ask("none", create_partitions.Request(topics=[], timeout_ms=60_000))
    talk.do(find_coordinator.Request(coordinator_keys=["any"]))
    talk.ask("the offsets topic, only to see", grow(OFFSETS_TOPIC, 51, validate_only=True))
    talk.ask("as it is now", metadata_of(topic))


# -- settings ----------------------------------------------------------------------------------


@dialogue(describe_configs)
def settings_of_topics(talk: Talk) -> None:
    topic = talk.topic(config={"retention.ms": "123456", "cleanup.policy": "compact"})
    talk.ask("all", settings_of(topic))
    talk.ask("all with synonyms", settings_of(topic, include_synonyms=True, include_documentation=True))
    talk.ask("an empty list of names", settings_of(topic, []))
    talk.ask("some", settings_of(topic, ["retention.ms", "segment.bytes"], include_synonyms=True))
    talk.ask("one that is not there", settings_of(topic, ["no.such.setting"]))
    talk.ask("of an unknown topic", settings_of(talk.name("unknown")))
    talk.ask("of an illegal name", settings_of("not a name!"))
    talk.ask("of an empty name", settings_of(""))
    both = [settings_of(name, ["retention.ms"]).resources[0] for name in (topic, talk.name("unknown"))]
    talk.ask("of two", describe_configs.Request(resources=both))
    talk.ask("of none", describe_configs.Request(resources=[]))
    for kind in (0, 1, 3, 5, 7, 99):
        talk.ask(f"of resource type {kind}", settings_of(topic, kind=kind))
    talk.do(find_coordinator.Request(coordinator_keys=["any"]))
    talk.ask(
        "of the offsets topic", settings_of(OFFSETS_TOPIC, ["cleanup.policy", "segment.bytes", "compression.type"])
    )


@dialogue(describe_configs)
def settings_of_the_broker(talk: Talk) -> None:
    known = ["auto.create.topics.enable", "num.partitions", "log.retention.ms", "offsets.retention.minutes",
             "group.min.session.timeout.ms", "message.max.bytes", "group.max.size", "log.segment.bytes",
             "delete.topic.enable", "fetch.max.bytes", "log.cleanup.policy", "compression.type"]  # fmt: skip
    talk.ask("some", settings_of("1", known, kind=BROKER))
    talk.ask("some with synonyms", settings_of("1", known, kind=BROKER, include_synonyms=True))
    talk.ask("of another broker", settings_of("2", known, kind=BROKER))
    talk.ask("of a broker without a number", settings_of("one", known, kind=BROKER))
    talk.ask("of all brokers", settings_of("", known, kind=BROKER))
    talk.ask("one that is not there", settings_of("1", ["no.such.setting"], kind=BROKER))


@dialogue(incremental_alter_configs)
def settings_of_topics_are_changed(talk: Talk) -> None:
    topic = talk.topic(config={"retention.ms": "1000000"})
    values = {"retention.ms": "1000000", "cleanup.policy": "delete", "segment.bytes": "1073741824"}

    def step(
        label: str, *changes: tuple[str, int, str | None], then: dict[str, str] | None = None, **options: Any
    ) -> None:
        talk.ask(label, change(topic, *changes, **options))
        values.update(then or {})
        if then:
            talk.until(
                settings_of(topic, list(values)),
                lambda answer: values == {each.name: each.value for each in answer.results[0].configs},
            )
        talk.ask(f"{label}: now", settings_of(topic, list(values)))

    step("set", ("retention.ms", SET, "2000000"), then={"retention.ms": "2000000"})
    step("set two", ("retention.ms", SET, "3000000"), ("segment.bytes", SET, "1048576"),
         then={"retention.ms": "3000000", "segment.bytes": "1048576"})  # fmt: skip
    step("only to see", ("retention.ms", SET, "5"), validate_only=True)
    step("delete", ("retention.ms", DELETE, None), then={"retention.ms": "604800000"})
    step("delete what is not set", ("retention.bytes", DELETE, None))
    step("append", ("cleanup.policy", APPEND, "compact"), then={"cleanup.policy": "delete,compact"})
    step("append what is there", ("cleanup.policy", APPEND, "compact"))
    step("subtract", ("cleanup.policy", SUBTRACT, "delete"), then={"cleanup.policy": "compact"})
    step("subtract what is not there", ("cleanup.policy", SUBTRACT, "delete"))
    step("delete with a value", ("segment.bytes", DELETE, "12"), then={"segment.bytes": "1073741824"})
    step("nothing")


@dialogue(incremental_alter_configs)
def changes_of_settings_that_are_refused(talk: Talk) -> None:
    topic = talk.topic()
    for label, changes in {
        "an unknown setting": [("no.such.setting", SET, "1")],
        "an unknown setting deleted": [("no.such.setting", DELETE, None)],
        "no number": [("retention.ms", SET, "soon")],
        "out of bounds": [("retention.ms", SET, "-2")],
        "null": [("retention.ms", SET, None)],
        "empty": [("retention.ms", SET, "")],
        "append to a number": [("retention.ms", APPEND, "1")],
        "subtract from a number": [("retention.ms", SUBTRACT, "1")],
        "append to an unknown setting": [("no.such.setting", APPEND, "1")],
        "append null": [("cleanup.policy", APPEND, None)],
        "append nonsense": [("cleanup.policy", APPEND, "burn")],
        "subtract everything": [("cleanup.policy", SUBTRACT, "delete")],
        "an unknown operation": [("retention.ms", 9, "1")],
        "twice the same": [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
        "a good and a bad one": [("retention.ms", SET, "1"), ("segment.bytes", SET, "x")],
        "an empty name": [("", SET, "1")],
    }.items():
        talk.ask(label, change(topic, *changes))
    talk.ask("as it is now", settings_of(topic))
    talk.ask("of an unknown topic", change(talk.name("unknown"), ("retention.ms", SET, "1")))
    talk.ask("of an illegal name", change("not a name!", ("retention.ms", SET, "1")))
    talk.ask("of an empty name", change("", ("retention.ms", SET, "1")))
    for kind in (0, 1, 3, 99):
        talk.ask(f"of resource type {kind}", change(topic, ("retention.ms", SET, "1"), kind=kind))
    talk.ask("of another broker", change("2", ("log.retention.ms", SET, "1"), kind=BROKER))
    talk.ask("of a broker without a number", change("one", ("log.retention.ms", SET, "1"), kind=BROKER))
    talk.ask(
        "a setting of the broker that is fixed",
        change("1", ("num.partitions", SET, "1"), kind=BROKER, validate_only=True),
    )
    same = change(topic, ("retention.ms", SET, "1")).resources[0]
    talk.ask("the same topic twice", incremental_alter_configs.Request(resources=[same, same]))
    talk.ask("none", incremental_alter_configs.Request(resources=[]))
