"""Dialogues about reading: records fetched, found by time and epoch, and deleted."""

from typing import Any

from logmark.names import OFFSETS_TOPIC
from logmark.wire import batches, fetch
from logmark.wire.schema import delete_records, find_coordinator, list_offsets, offset_for_leader_epoch
from tests.oracle.dialogue import Talk, dialogue
from tests.oracle.dialogues_of_records import batch_of, deleting, fetching, offsets_at, producing


@dialogue(fetch)
def records_are_fetched(talk: Talk) -> None:
    topic, empty = talk.topic("topic", 2), talk.topic("empty")
    for values in ((b"a",), (b"b", b"c", b"d"), (b"e",)):
        talk.do(producing(topic, batch_of(talk, *values)))
    talk.do(producing(topic, batch_of(talk, b"f" * 2000), partition=1))
    for offset in (0, 1, 2, 3, 4, 5):
        talk.ask(f"from {offset}", fetching((topic, 0, offset)))
    for offset in (6, -1, 2**62):
        talk.ask(f"from {offset}", fetching((topic, 0, offset)))
    talk.ask("from an empty log", fetching((empty, 0, 0)))
    talk.ask("beyond an empty log", fetching((empty, 0, 1)))
    talk.ask("an unknown topic", fetching((talk.name("unknown"), 0, 0)))
    talk.ask("an unknown partition", fetching((topic, 2, 0)))
    talk.ask("a negative partition", fetching((topic, -1, 0)))
    talk.ask("nothing", fetching())
    talk.ask("several", fetching((topic, 0, 0), (topic, 1, 0), (empty, 0, 0), (talk.name("unknown"), 0, 0)))
    talk.ask("the same twice", fetching((topic, 0, 0), (topic, 0, 4)))
    talk.ask("a first batch above the limits", fetching((topic, 1, 0), max_bytes=10, bytes_max=10))
    talk.ask("a batch above the limits behind another", fetching((topic, 0, 0), (topic, 1, 0), max_bytes=100))
    talk.ask("a batch above its own limit", fetching((topic, 1, 0), bytes_max=100))
    talk.ask("a batch above its own limit behind another", fetching((topic, 0, 0), (topic, 1, 0), bytes_max=100))
    for limit in (0, 1, 70, 71, 150, 161, 300):
        talk.ask(f"{limit} bytes of a partition", fetching((topic, 0, 0), bytes_max=limit))
        talk.ask(f"{limit} bytes of all", fetching((topic, 0, 0), (topic, 1, 0), max_bytes=limit))
    talk.ask("committed records only", fetching((topic, 0, 0), isolation_level=1))
    talk.ask("as a debugging consumer", fetching((topic, 0, 0), replica_id=-2))
    talk.ask("as a replica", fetching((topic, 0, 0), replica_id=5))
    talk.ask("after a wait", fetching((topic, 0, 5), wait_ms=20))
    talk.ask("too few after a wait", fetching((topic, 0, 0), wait_ms=20, min_bytes=100_000))
    talk.ask("no bytes are enough", fetching((topic, 0, 5), wait_ms=10_000, min_bytes=0))
    talk.ask("an unknown partition waits with the others", fetching((topic, 0, 5), (topic, 7, 0), wait_ms=20))
    talk.ask("an unknown partition alone does not wait", fetching((topic, 7, 0), wait_ms=10_000))
    talk.ask("out of range does not wait", fetching((topic, 0, 5), (topic, 1, 99), wait_ms=10_000))


@dialogue(fetch)
def a_fetch_waits_for_records(talk: Talk) -> None:
    topic = talk.topic()
    talk.send(fetching((topic, 0, 0), wait_ms=60_000), line="waiting")
    talk.do(producing(topic, batch_of(talk, b"a")))
    talk.hear("woken", line="waiting")
    talk.send(fetching((topic, 0, 1), wait_ms=60_000, min_bytes=150), line="waiting")
    talk.do(producing(topic, batch_of(talk, b"b" * 50)))
    talk.do(producing(topic, batch_of(talk, b"c" * 50)))
    talk.hear("woken by the second", line="waiting")


@dialogue(fetch, since=9)
def a_fetch_names_the_leader_epoch(talk: Talk) -> None:
    topic = talk.topic()
    talk.do(producing(topic, batch_of(talk, b"a")))
    for leader_epoch in (-1, 0, 1, 5, -2):
        talk.ask(f"epoch {leader_epoch}", fetching((topic, 0, 0), leader_epoch=leader_epoch))
    for epoch in (0, 1, 5):
        talk.ask(f"last fetched epoch {epoch}", fetching((topic, 0, 1), last_fetched_epoch=epoch, leader_epoch=0))


@dialogue(fetch)
def a_log_start_has_moved(talk: Talk) -> None:
    topic = talk.topic()
    for values in ((b"a",), (b"b", b"c", b"d"), (b"e",)):
        talk.do(producing(topic, batch_of(talk, *values)))
    talk.do(deleting(topic, 2))
    for offset in (0, 1, 2, 3, 5):
        talk.ask(f"from {offset}", fetching((topic, 0, offset)))
    talk.do(deleting(topic, -1))
    for offset in (4, 5, 6):
        talk.ask(f"from {offset} of nothing", fetching((topic, 0, offset)))


@dialogue(fetch, since=7)
def fetch_sessions(talk: Talk) -> None:
    topic, other = talk.topic("topic", 3), talk.topic("other")
    for index in (0, 1):
        talk.do(producing(topic, batch_of(talk, b"a"), partition=index))
    first = talk.ask("a session begins", fetching((topic, 0, 0), (topic, 1, 1), (topic, 2, 0), session=(0, 0)))
    session = first.session_id
    talk.note("it has an id", session > 0)
    talk.ask("nothing is new", fetching(session=(session, 1), bytes_max=100))
    talk.ask("a position moves", fetching((topic, 0, 1), session=(session, 2)))
    talk.do(producing(topic, batch_of(talk, b"b"), partition=1))
    talk.ask("records are new", fetching(session=(session, 3)))
    talk.ask("and again, as the position stands", fetching(session=(session, 4)))
    talk.ask("a partition is added", fetching((topic, 1, 2), (other, 0, 0), session=(session, 5)))
    talk.ask("it is known now", fetching(session=(session, 6)))
    talk.do(producing(other, batch_of(talk, b"c")))
    talk.ask("a partition is forgotten", fetching(session=(session, 7), forgotten=[(other, [0])]))
    talk.ask("one is forgotten that never was there", fetching(session=(session, 8), forgotten=[(other, [0, 5])]))
    talk.do(deleting(topic, 1))
    talk.ask("a log start is new", fetching(session=(session, 9)))
    talk.ask("an error", fetching((topic, 0, 99), session=(session, 10)))
    talk.ask("the error again", fetching(session=(session, 11)))
    talk.ask("the error is gone", fetching((topic, 0, 1), session=(session, 12)))
    talk.ask("an unknown partition", fetching((talk.name("unknown"), 0, 0), session=(session, 13)))
    talk.ask("still unknown", fetching(session=(session, 14)))
    talk.ask("a wrong epoch", fetching(session=(session, 14)))
    talk.ask("an epoch from the future", fetching((topic, 0, 0), session=(session, 99)))
    talk.ask("the right epoch", fetching(session=(session, 15)))
    talk.ask("another session", fetching(session=(session % 1000 + 12_345, 1)))
    talk.ask("no session", fetching((topic, 0, 0), session=(0, 1)))
    talk.ask("closed", fetching(session=(session, -1)))
    talk.ask("closed already", fetching(session=(session, 16)))
    talk.ask("an empty session", fetching(session=(0, 0)))
    renewed = talk.do(fetching((topic, 0, 0), session=(0, 0)), line="main").session_id
    talk.ask("closed with a last fetch", fetching((topic, 0, 0), session=(renewed, -1)))
    again = talk.do(fetching((topic, 0, 0), session=(0, 0)), line="main").session_id
    anew = talk.ask("begun anew", fetching((topic, 1, 0), session=(again, 0)))
    talk.note("with another id", again != anew.session_id)
    talk.ask("the old one is gone", fetching(session=(again, 1)))


@dialogue(fetch, since=7)
def a_session_gives_every_partition_its_turn(talk: Talk) -> None:
    topic = talk.topic("topic", 4)
    for index in range(4):
        talk.do(producing(topic, batch_of(talk, b"x" * 1000), partition=index))
    everything = [(topic, index, 0) for index in range(4)]
    session = talk.ask("the first", fetching(*everything, session=(0, 0), max_bytes=100)).session_id
    for epoch in range(1, 7):
        talk.ask(f"turn {epoch}", fetching(session=(session, epoch), max_bytes=100))
    talk.ask("a position moves", fetching((topic, 0, 1), session=(session, 7), max_bytes=100))
    for epoch in range(8, 12):
        talk.ask(f"turn {epoch}", fetching(session=(session, epoch), max_bytes=1100))


# -- looking up --------------------------------------------------------------------------------


@dialogue(list_offsets)
def offsets_are_looked_up(talk: Talk) -> None:
    topic, empty = talk.topic("topic"), talk.topic("empty")
    base = talk.now_ms - 10_000
    for times in ((base, base + 10), (base + 30, base + 20, base + 30), (base + 5,)):
        records = [(b"k", str(time - base).encode()) for time in times]
        talk.do(producing(topic, bytes(batches.build(records, timestamp_ms=[*times]))))

    def relative(answer: Any) -> list[tuple[int, int, int, int]]:
        return [
            (
                each.error_code,
                each.offset,
                each.timestamp - base if each.timestamp > 0 else each.timestamp,
                each.leader_epoch,
            )
            for each in answer.topics[0].partitions
        ]

    for name in (topic, empty):
        for timestamp in range(-1, -9, -1):
            answer = talk.do(offsets_at(name, timestamp))
            talk.note(f"{timestamp} of {name.partition('-')[0]}", relative(answer))
    for after in (-10_000_000, -1, 0, 1, 5, 10, 11, 20, 25, 30, 31):
        talk.note(f"from time {after}", relative(talk.do(offsets_at(topic, base + after))))
    talk.note("from time 0", relative(talk.do(offsets_at(topic, 0))))
    talk.ask("by time, of an empty log", offsets_at(empty, 0))
    talk.do(deleting(topic, 3))
    for timestamp in (-2, -4, -3):
        talk.note(f"{timestamp} of a shorter log", relative(talk.do(offsets_at(topic, timestamp))))
    for after in (0, 10, 20, 30, 31):
        talk.note(f"from time {after} of a shorter log", relative(talk.do(offsets_at(topic, base + after))))
    talk.do(deleting(topic, -1))
    for timestamp in (-1, -2, -3, -4, 0):
        talk.note(f"{timestamp} of a log without records", relative(talk.do(offsets_at(topic, timestamp))))


@dialogue(list_offsets)
def offsets_that_cannot_be_looked_up(talk: Talk) -> None:
    topic = talk.topic("topic", 2)
    talk.do(producing(topic, batch_of(talk, b"a")))
    talk.ask("an unknown topic", offsets_at(talk.name("unknown"), -1))
    talk.ask("an illegal name", offsets_at("not a name!", -1))
    talk.ask("an unknown partition", offsets_at(topic, -1, partition=2))
    talk.ask("a negative partition", offsets_at(topic, -1, partition=-1))
    talk.ask("a partition twice", offsets_at(topic, -1, -2))
    talk.ask("nothing", list_offsets.Request(replica_id=-1))
    talk.ask("committed records only", offsets_at(topic, -1, isolation_level=1))
    talk.ask("as a debugging consumer", offsets_at(topic, -1, replica_id=-2))
    talk.ask("as a replica", offsets_at(topic, -1, replica_id=5))
    for leader_epoch in (0, 1, -2):
        talk.ask(f"with epoch {leader_epoch}", offsets_at(topic, -1, leader_epoch=leader_epoch))
    talk.ask("an unknown topic with epoch 1", offsets_at(talk.name("unknown"), -1, leader_epoch=1))


@dialogue(offset_for_leader_epoch)
def the_end_of_a_leader_epoch(talk: Talk) -> None:
    topic, empty = talk.topic("topic"), talk.topic("empty")
    talk.do(producing(topic, batch_of(talk, b"a", b"b")))

    def end_of(
        name: str, epoch: int, current: int = -1, partition: int = 0, replica_id: int = -1
    ) -> offset_for_leader_epoch.Request:
        asked = offset_for_leader_epoch.RequestPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        topics = [offset_for_leader_epoch.RequestTopic(topic=name, partitions=[asked])]
        return offset_for_leader_epoch.Request(replica_id=replica_id, topics=topics)

    for epoch in (0, 1, 5, -1, -2):
        talk.ask(f"epoch {epoch}", end_of(topic, epoch))
        talk.ask(f"epoch {epoch} of an empty log", end_of(empty, epoch))
    for current in (0, 1, -2):
        talk.ask(f"epoch 0 while at {current}", end_of(topic, 0, current))
    talk.ask("an unknown topic", end_of(talk.name("unknown"), 0))
    talk.ask("an unknown partition", end_of(topic, 0, partition=1))
    talk.ask("as a debugging consumer", end_of(topic, 0, replica_id=-2))
    talk.ask("as a replica", end_of(topic, 0, replica_id=5))
    talk.do(deleting(topic, 1))
    talk.ask("of a shorter log", end_of(topic, 0))
    talk.ask("nothing", offset_for_leader_epoch.Request(replica_id=-1))


# -- deleting ----------------------------------------------------------------------------------


@dialogue(delete_records)
def records_are_deleted(talk: Talk) -> None:
    topic = talk.topic("topic", 2)
    for values in ((b"a",), (b"b", b"c", b"d"), (b"e",)):
        talk.do(producing(topic, batch_of(talk, *values)))
    for before in (0, 2, 1, 2, 6, -2, 5, -1):
        talk.ask(f"before {before}", deleting(topic, before))
    talk.ask("of an empty log", deleting(topic, -1, partition=1))
    talk.ask("beyond an empty log", deleting(topic, 1, partition=1))
    talk.do(producing(topic, batch_of(talk, b"f")))
    talk.ask("up to the end", deleting(topic, -1))
    talk.ask("an unknown topic", deleting(talk.name("unknown"), 0))
    talk.ask("an illegal name", deleting("not a name!", 0))
    talk.ask("an unknown partition", deleting(topic, 0, partition=2))
    talk.ask("a negative partition", deleting(topic, 0, partition=-1))
    for policy in ("compact", "compact,delete"):
        kept = talk.topic(policy.replace(",", "."), config={"cleanup.policy": policy})
        talk.do(producing(kept, batch_of(talk, b"a")))
        talk.ask(f"of a topic with {policy}", deleting(kept, -1))
        talk.ask(f"beyond the end of a topic with {policy}", deleting(kept, 9))
    talk.do(find_coordinator.Request(coordinator_keys=["any"]))
    talk.ask("of the offsets topic", deleting(OFFSETS_TOPIC, 0))
    talk.ask("of nothing", delete_records.Request(topics=[], timeout_ms=60_000))
    twice = [deleting(topic, before).topics[0] for before in (0, 1)]
    talk.ask("a topic twice", delete_records.Request(topics=twice, timeout_ms=60_000))
