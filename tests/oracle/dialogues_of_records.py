"""Dialogues about records: produced, fetched, found by time, deleted."""

import struct
from collections.abc import Sequence
from typing import Any

import google_crc32c

from logmark.names import OFFSETS_TOPIC
from logmark.wire import batches, codecs, fetch, log_dirs, produce
from logmark.wire.schema import (
    delete_records,
    find_coordinator,
    init_producer_id,
    list_offsets,
)
from tests.oracle.dialogue import Talk, dialogue

HOUR_MS = 3_600_000
PRODUCER_ID = 4711

# Where the fields of a batch's header lie, and how they are packed.
HEADER = {
    "base_offset": (0, ">q"), "length": (8, ">i"), "leader_epoch": (12, ">i"), "magic": (16, ">b"), "crc": (17, ">I"),
    "attributes": (21, ">h"), "last_offset_delta": (23, ">i"), "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"), "producer_id": (43, ">q"), "producer_epoch": (51, ">h"), "base_sequence": (53, ">i"),
    "count": (57, ">i"),
}  # fmt: skip


def forged(batch: bytes, **fields: int) -> bytes:
    """The batch with other values in its header, and a right CRC unless that is forged too."""
    data = bytearray(batch)
    for name, value in fields.items():
        at, layout = HEADER[name]
        struct.pack_into(layout, data, at, value)
    if "crc" not in fields:
        struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


def batch_of(talk: Talk, *values: bytes | None, key: bytes | None = b"key", age_ms: int = 0, **options: Any) -> bytes:
    return bytes(batches.build([(key, value) for value in values], timestamp_ms=talk.now_ms - age_ms, **options))


def producing(topic: str, records: bytes | None, partition: int = 0, acks: int = -1) -> produce.ProduceRequest:
    return produce.ProduceRequest(None, acks, 60_000, [(topic, [produce.PartitionData(partition, records)])])


def fetching(
    *wanted: tuple[str, int, int],
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    bytes_max: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
    leader_epoch: int = -1,
    isolation_level: int = 0,
    forgotten: Sequence[tuple[str, list[int]]] = (),
    last_fetched_epoch: int = -1,
    replica_id: int = -1,
) -> fetch.FetchRequest:
    topics: dict[str, list[fetch.FetchPartition]] = {}
    for topic, partition, offset in wanted:
        asked = fetch.FetchPartition(partition, leader_epoch, offset, last_fetched_epoch, -1, bytes_max)
        topics.setdefault(topic, []).append(asked)
    return fetch.FetchRequest(
        replica_id, wait_ms, min_bytes, max_bytes, isolation_level, *session, list(topics.items()), list(forgotten), ""
    )


def offsets_at(
    topic: str, *timestamps: int, partition: int = 0, leader_epoch: int = -1, **options: Any
) -> list_offsets.Request:
    asked = [
        list_offsets.RequestPartition(partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp)
        for timestamp in timestamps
    ]
    return list_offsets.Request(
        replica_id=options.pop("replica_id", -1),
        topics=[list_offsets.RequestTopic(name=topic, partitions=asked)],
        **options,
    )


def deleting(topic: str, before: int, partition: int = 0) -> delete_records.Request:
    asked = [delete_records.RequestPartition(partition_index=partition, offset=before)]
    return delete_records.Request(topics=[delete_records.RequestTopic(name=topic, partitions=asked)], timeout_ms=60_000)


# -- producing ---------------------------------------------------------------------------------


@dialogue(produce)
def batches_are_produced(talk: Talk) -> None:
    topic, other = talk.topic("topic", 2), talk.topic("other")
    talk.ask("one record", producing(topic, batch_of(talk, b"a")))
    talk.ask("three records, acks 1", producing(topic, batch_of(talk, b"b", b"c", b"d"), acks=1))
    talk.ask("without key and value", producing(topic, batch_of(talk, None, key=None)))
    headers = [[("name", b"value"), ("empty", None)]]
    talk.ask("with headers", producing(topic, batch_of(talk, b"e", headers=headers)))
    for codec in (codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD):
        talk.ask(f"codec {codec}", producing(topic, batch_of(talk, b"f" * 100, b"g" * 100, codec=codec)))
    several = [
        (topic, [produce.PartitionData(0, batch_of(talk, b"h")), produce.PartitionData(1, batch_of(talk, b"i"))]),
        (other, [produce.PartitionData(0, batch_of(talk, b"j")), produce.PartitionData(7, batch_of(talk, b"k"))]),
    ]
    talk.ask("to several partitions", produce.ProduceRequest(None, -1, 60_000, several))
    same = [(topic, [produce.PartitionData(1, batch_of(talk, value)) for value in (b"l", b"m")])]
    talk.ask("to the same partition twice", produce.ProduceRequest(None, -1, 60_000, same))
    talk.ask("to no partition", produce.ProduceRequest(None, -1, 60_000, []))
    talk.ask(
        "the wrong largest timestamp", producing(topic, forged(batch_of(talk, b"n"), max_timestamp=talk.now_ms + 5))
    )
    talk.ask("another leader epoch", producing(topic, forged(batch_of(talk, b"o"), leader_epoch=77)))
    for index in (0, 1):
        talk.ask(f"what partition {index} has", fetching((topic, index, 0)))


@dialogue(produce)
def batches_that_are_refused(talk: Talk) -> None:
    topic = talk.topic("topic")
    good = batch_of(talk, b"a", b"b")
    packed = batch_of(talk, b"a" * 50, b"b" * 50, codec=codecs.GZIP)
    # Null instead of bytes cannot be compared: Apache Kafka never answers it.
    for label, records in {
        "empty": b"",
        "a wrong CRC": forged(good, crc=1),
        "magic 0": forged(good, magic=0),
        "magic 1": forged(good, magic=1),
        "magic 3": forged(good, magic=3),
        "a base offset": forged(good, base_offset=1000),
        "a negative base offset": forged(good, base_offset=-1),
        "two batches": good + good,
        "a control batch": forged(good, attributes=0x20),
        "a control batch of a transaction": forged(good, attributes=0x30),
        "the broker's timestamps": forged(good, attributes=0x08),
        "a delete horizon": forged(good, attributes=0x40),
        "unknown attributes": forged(good, attributes=0x80),
        "codec 5": forged(good, attributes=5),
        "codec 7": forged(good, attributes=7),
        "gzip that is none": forged(good, attributes=1),
        "snappy that is none": forged(good, attributes=2),
        "lz4 that is none": forged(good, attributes=3),
        "zstd that is none": forged(good, attributes=4),
        "gzip that is cut off": forged(packed[:-12], length=len(packed) - 24),
        "a last offset too low": forged(good, last_offset_delta=0),
        "a last offset too high": forged(good, last_offset_delta=2),
        "a negative last offset": forged(good, last_offset_delta=-1),
        "no record by count": forged(good, count=0),
        "one record by count": forged(good, count=1, last_offset_delta=0),
        "three records by count": forged(good, count=3, last_offset_delta=2),
        "a negative count": forged(good, count=-1),
        "a producer without a sequence": forged(good, producer_id=5, producer_epoch=0, base_sequence=-1),
        "a producer without an epoch": forged(good, producer_id=5, producer_epoch=-1, base_sequence=0),
        "a sequence without a producer": forged(good, base_sequence=0),
        "bytes behind": good + b"\0",
        "many bytes behind": good + bytes(100),
        "cut off": good[:-1],
        "cut off in the header": good[:40],
        "twelve bytes": good[:12],
        "one byte": good[:1],
        "a length too long": forged(good, length=len(good)),
        "a length too short": forged(good, length=len(good) - 13),
        "a tiny length": forged(good, length=5),
        "a negative length": forged(good, length=-1),
        "a record too long": forged(good[:61] + b"\x7e" + good[62:]),
        "a record too short": forged(good[:61] + b"\x02" + good[62:]),
        "a negative record": forged(good[:61] + b"\x01" + good[62:]),
        "a record's attributes": forged(good[:62] + b"\x01" + good[63:]),
        "a key too long": forged(good[:65] + b"\x7e" + good[66:]),
        "a negative key": forged(good[:65] + b"\x03" + good[66:]),
        "too many headers": forged(good[:-1] + b"\x04"),
        "negative headers": forged(good[:-1] + b"\x01"),
        "bytes in the batch behind the records": forged(good + b"\0\0", length=len(good) - 10),
        "from the future": batch_of(talk, b"a", age_ms=-2 * HOUR_MS),
        "one of two from the future": bytes(
            batches.build([(b"k", b"a"), (b"k", b"b")], timestamp_ms=[talk.now_ms, talk.now_ms + 2 * HOUR_MS])
        ),
        "without a time": bytes(batches.build([(b"k", b"a")], timestamp_ms=-1)),
        "from before time": bytes(batches.build([(b"k", b"a")], timestamp_ms=-5)),
        "in a transaction": forged(good, attributes=0x10),
        "in a transaction of a producer": forged(
            good, attributes=0x10, producer_id=5, producer_epoch=0, base_sequence=0
        ),
    }.items():
        talk.ask(label, producing(topic, records))
    talk.ask("what is there", fetching((topic, 0, 0)))


@dialogue(produce)
def records_that_are_numbered_wrongly(talk: Talk) -> None:
    topic, good = talk.topic("topic"), batch_of(talk, b"a", b"b")
    # The length of the first record and the offset delta of the second are single bytes in so small a batch.
    delta_at = batches.HEADER_BYTES + 1 + good[batches.HEADER_BYTES] // 2 + 3
    for label, delta in (("the same number twice", b"\x00"), ("a number left out", b"\x04")):
        talk.ask(label, producing(topic, forged(good[:delta_at] + delta + good[delta_at + 1 :])))
        body = codecs.compress(codecs.GZIP, good[61:delta_at] + delta + good[delta_at + 1 :])
        packed = forged(good[:61] + body, length=49 + len(body), attributes=codecs.GZIP)
        talk.ask(f"{label}, compressed", producing(topic, packed))
    talk.ask("what is there", fetching((topic, 0, 0)))


@dialogue(produce)
def partitions_that_take_no_records(talk: Talk) -> None:
    topic, good = talk.topic("topic"), batch_of(talk, b"a")
    talk.do(find_coordinator.Request(coordinator_keys=["any"]))
    talk.ask("an unknown topic", producing(talk.name("unknown"), good))
    talk.ask("an unknown partition", producing(topic, good, partition=1))
    talk.ask("a negative partition", producing(topic, good, partition=-1))
    talk.ask("an illegal name", producing("not a name!", good))
    talk.ask("an empty name", producing("", good))
    talk.ask("the offsets topic", producing(OFFSETS_TOPIC, good))
    talk.ask("a good and a bad one", produce.ProduceRequest(None, -1, 60_000, [
        (topic, [produce.PartitionData(0, good)]), (talk.name("unknown"), [produce.PartitionData(0, good)]),
    ]))  # fmt: skip
    for acks in (2, 5, -2):
        talk.ask(f"acks {acks}", producing(topic, good, acks=acks))
    talk.ask("what is there", fetching((topic, 0, 0)))


@dialogue(produce)
def topics_with_rules_for_records(talk: Talk) -> None:
    small = talk.topic("small", config={"max.message.bytes": "200"})
    exact = batch_of(talk, b"x" * 118)
    talk.note("the largest batch", len(exact))
    talk.ask("the largest batch", producing(small, exact))
    talk.ask("one byte more", producing(small, batch_of(talk, b"x" * 119)))
    talk.ask("much more", producing(small, batch_of(talk, b"x" * 5000)))
    talk.ask("much more, packed small", producing(small, batch_of(talk, b"x" * 5000, codec=codecs.GZIP)))
    compacted = talk.topic("compacted", config={"cleanup.policy": "compact"})
    talk.ask("a record with a key", producing(compacted, batch_of(talk, b"a")))
    talk.ask("a record without a key", producing(compacted, batch_of(talk, b"a", key=None)))
    mixed = bytes(batches.build([(b"k", b"a"), (None, b"b"), (b"", b"c"), (None, b"d")], timestamp_ms=talk.now_ms))
    talk.ask("some without a key", producing(compacted, mixed))
    stamped = talk.topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    talk.ask("stamped by the broker", producing(stamped, batch_of(talk, b"a", b"b")))
    talk.ask("stamped by the broker, packed", producing(stamped, batch_of(talk, b"a", b"b", codec=codecs.LZ4)))
    talk.ask("stamped by the broker, from the future", producing(stamped, batch_of(talk, b"a", age_ms=-99 * HOUR_MS)))
    recent = talk.topic("recent", config={"message.timestamp.before.max.ms": "600000"})
    talk.ask("just in time", producing(recent, batch_of(talk, b"a", age_ms=300_000)))
    talk.ask("too old", producing(recent, batch_of(talk, b"a", age_ms=900_000)))
    two = bytes(batches.build([(b"k", b"a"), (b"k", b"b")], timestamp_ms=[talk.now_ms, talk.now_ms - 900_000]))
    talk.ask("one of two too old", producing(recent, two))
    talk.ask("without a time", producing(recent, bytes(batches.build([(b"k", b"a")], timestamp_ms=-1))))
    unpacked = talk.topic("unpacked", config={"compression.type": "uncompressed"})
    talk.ask("to be unpacked", producing(unpacked, batch_of(talk, b"a" * 50, b"b" * 50, codec=codecs.GZIP)))
    repacked = talk.topic("repacked", config={"compression.type": "zstd"})
    talk.ask("to be packed", producing(repacked, batch_of(talk, b"a" * 50, b"b" * 50)))
    tight = talk.topic("tight", config={"compression.type": "uncompressed", "max.message.bytes": "200"})
    talk.ask("too large when unpacked", producing(tight, batch_of(talk, b"x" * 5000, codec=codecs.GZIP)))
    for topic in (small, compacted, stamped, recent, unpacked, tight):
        talk.ask(f"what {topic.partition('-')[0]} has", fetching((topic, 0, 0)))
    found = talk.do(fetching((repacked, 0, 0))).topics[0][1][0].records
    talk.note("what repacked has", [(each.key, each.value) for each in batches.unpack(bytes(found))])
    talk.note("its codec", batches.read_header(bytes(found)).codec)


@dialogue(produce)
def producers_that_count_their_batches(talk: Talk) -> None:
    topic = talk.topic()

    def batch(sequence: int, count: int = 1, epoch: int = 0, producer_id: int = PRODUCER_ID) -> bytes:
        values = [f"{sequence + index}".encode() for index in range(count)]
        return batch_of(talk, *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)

    for label, sequence, count, epoch in (
        ("the first", 0, 1, 0), ("the second", 1, 2, 0), ("the second again", 1, 2, 0), ("the first again", 0, 1, 0),
        ("a part of the second", 2, 1, 0), ("more than the second", 1, 3, 0), ("a gap", 5, 1, 0),
        ("the third", 3, 1, 0), ("the fourth", 4, 1, 0), ("the fifth", 5, 1, 0), ("the sixth", 6, 1, 0),
        ("the first, long ago", 0, 1, 0), ("the second, the fifth last", 1, 2, 0), ("a new epoch, not from 0", 7, 1, 1),
        ("a new epoch", 0, 1, 1), ("the old epoch", 7, 1, 0), ("the old epoch again", 6, 1, 0),
        ("a new epoch by two", 0, 1, 3), ("its second", 1, 1, 3), ("its second again", 1, 1, 3),
    ):  # fmt: skip
        talk.ask(label, producing(topic, batch(sequence, count, epoch)))
    talk.ask("another producer, not from 0", producing(topic, batch(17, producer_id=PRODUCER_ID + 1)))
    talk.ask("another producer goes on", producing(topic, batch(18, producer_id=PRODUCER_ID + 1)))
    last = 2**31 - 1
    talk.ask("at the largest sequence", producing(topic, batch(last, producer_id=PRODUCER_ID + 2)))
    talk.ask("around the corner", producing(topic, batch(0, producer_id=PRODUCER_ID + 2)))
    talk.ask("across the corner", producing(topic, batch(last, count=3, producer_id=PRODUCER_ID + 3)))
    talk.ask("across the corner again", producing(topic, batch(last, count=3, producer_id=PRODUCER_ID + 3)))
    talk.ask("behind the corner", producing(topic, batch(2, producer_id=PRODUCER_ID + 3)))
    talk.ask("producer 0", producing(topic, batch(0, producer_id=0)))
    talk.ask("a high epoch first", producing(topic, batch(0, epoch=30_000, producer_id=PRODUCER_ID + 4)))
    talk.ask("what is there", fetching((topic, 0, 0)))


@dialogue(produce)
def a_producer_that_wants_no_answer(talk: Talk) -> None:
    topic = talk.topic()
    talk.send_for_nothing(producing(topic, batch_of(talk, b"a"), acks=0))
    talk.ask("the next with acks", producing(topic, batch_of(talk, b"b")))
    talk.send(producing(topic, forged(batch_of(talk, b"c"), crc=7), acks=0), line="broken")
    talk.hear("a wrong CRC", line="broken")
    talk.send(producing(talk.name("unknown"), batch_of(talk, b"c"), acks=0), line="lost")
    talk.hear("an unknown topic", line="lost")
    talk.ask("what is there", fetching((topic, 0, 0)))


@dialogue(init_producer_id)
def producers_get_their_ids(talk: Talk) -> None:
    def wanting(transactional_id: str | None = None, **named: int) -> init_producer_id.Request:
        return init_producer_id.Request(transactional_id=transactional_id, transaction_timeout_ms=60_000, **named)

    talk.until(wanting(), lambda answer: answer.error_code == 0)
    talk.ask("plainly", wanting())
    talk.ask("without a timeout", init_producer_id.Request(transactional_id=None, transaction_timeout_ms=-1))
    talk.ask("with an empty transactional id", wanting(""))
    talk.ask("with the id it had", wanting(producer_id=5, producer_epoch=3))
    talk.ask("with an id alone", wanting(producer_id=5))
    talk.ask("with an epoch alone", wanting(producer_epoch=3))
    talk.ask("for transactions", wanting(talk.name("transactions")))


# -- where they are ----------------------------------------------------------------------------


@dialogue(log_dirs)
def log_directories_are_described(talk: Talk) -> None:
    two, empty = talk.topic("two", 2), talk.topic("empty")
    talk.do(producing(two, batch_of(talk, b"a", b"b"), partition=1))

    def described(*topics: tuple[str, list[int]], **options: Any) -> log_dirs.Request:
        wanted = [log_dirs.RequestTopic(topic=topic, partitions=partitions) for topic, partitions in topics]
        return log_dirs.Request(topics=wanted, **options)

    talk.ask("no topic", described())
    talk.ask("all partitions of two topics", described((two, [0, 1]), (empty, [0])))
    talk.ask("one partition", described((two, [1])))
    talk.ask("a partition twice", described((two, [1, 1])))
    talk.ask("a topic twice", described((two, [0]), (two, [1])))
    talk.ask("a topic without partitions", described((two, [])))
    talk.ask("a partition that is not there", described((two, [0, 7, -1])))
    talk.ask("a topic that is not there", described((talk.name("unknown"), [0]), ("", [0])))
    everything = talk.do(log_dirs.Request(topics=None))
    mine = [topic for topic in everything.results[0].topics if topic.name.endswith(talk.suffix)]
    talk.note("all topics", mine)
