"""Once per batch, without transactions: how what was written of a batch before is recognised.

Query, batch, Spark partition and row travel in the header of every record batch, in the fields of Kafka's idempotent
producers: the producer id is made from the query and the Spark partition, the epoch is the batch, and the sequence is
the number of the row among those that this task has for this partition of the topic. It costs no byte, consumers see
nothing of it, and the leader of the partition itself refuses what does not follow: a row that is there already, a row
that another attempt of the task was quicker to write, and a late attempt of an older batch.

A leader forgets producers that are silent for a day (`producer.id.expiration.ms`), and a query may be down for longer.
So before the tasks of a batch write, the tail of the topic is looked at: from where it ended when the last batch was
committed. It is the committed offset of a group, `logmark-sink-<id>`, whose metadata names the query and the
batch, and says how many rows that had and what they add up to.

Of the batch that was committed last nothing is written again, and of those before nothing is known any more. So a
batch of such a number is only left out if it is the last one and has the same rows; any other one is a checkpoint that
is older than the topic, and the rows of its batches may be new ones.
"""

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker, UnknownTopic
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.suggestions import unknown_topic
from logmark.wire import batches

# Brokers give out small numbers: these are never theirs.
FIRST_ID = 1 << 62
EPOCHS = 1 << 15
SEQUENCE_MAX = (1 << 31) - 1
_PRINTS_MAX = (1 << 64) - 1
_NOTE = re.compile(r"(.+?) (\d+)(?: (\d+) ([0-9a-f]+))?")
_HOW = "as one from a backup is, or one that lost its last batches when a machine went down."
_REMEDY = (
    "Remove the checkpoint, so that a new query starts at its group's offsets, or skip this batch with "
    "delivery=at-least-once; either may write rows that are there once more."
)


class Sender(NamedTuple):
    """One task of one batch, as a producer."""

    producer_id: int
    producer_epoch: int


def make_sender(query: str, batch: int, task: int) -> Sender:
    """Return the sender of a task, the same for every attempt; a later batch has a higher epoch, or another id."""
    text = f"{query}\n{task}\n{batch // EPOCHS}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return Sender(FIRST_ID | number & (FIRST_ID - 1), batch % EPOCHS)


Written = dict[Sender, int]


@dataclass(frozen=True, slots=True)
class Content:
    """The rows of a batch or of a part of it, in whatever order: how many they are, and the sum of their prints."""

    rows: int = 0
    prints: int = 0

    def __add__(self, other: "Content") -> "Content":
        return Content(self.rows + other.rows, self.prints + other.prints & _PRINTS_MAX)

    @classmethod
    def of(cls, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]) -> "Content":
        """Return the content of these rows, with the same fingerprints as `fingerprint` in half the time."""
        crc32 = zlib.crc32
        seeds = map(crc32, [key or b"" for key in keys]) if keys is not None else repeat(0)
        return cls(len(values), sum(map(crc32, [value or b"" for value in values], seeds)) & _PRINTS_MAX)


class DeliveredBatch(NamedTuple):
    """The batch of a query that was committed last; what it holds is not known where an older Logmark wrote it."""

    batch: int
    content: Content | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPlan:
    """What tasks know before they write.

    counts  how many partitions keys are spread over, by topic
    starts  where the rows of this batch can begin in a partition, at the earliest
    written the rows that are there already: the next row by partition and sender
    done    the last batch that was committed, by query
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    written: Mapping[TopicPartition, Written] = field(default_factory=dict)
    done: Mapping[str, int] = field(default_factory=dict)

    def is_done(self, query: str, batch: int) -> bool:
        """Return whether the batch, or one that came after it, was committed as a whole before."""
        return self.done.get(query, -1) >= batch

    def check_last(self, query: str, batch: int) -> None:
        """Raise UserError if a later batch of the query was committed: what this one wrote is not known any more."""
        last = self.done.get(query, -1)
        if last > batch:
            raise UserError(
                f"The query would write batch {batch}, and batch {last} was written before: its checkpoint is older "
                f"than the topic, {_HOW} Nothing was written. {_REMEDY}"
            )


def sink_group(id: str, *, is_stream: bool) -> str:
    """Return the group whose committed offsets say where the next batch begins."""
    return f"logmark-{'sink' if is_stream else 'write'}-{id}"


def list_partitions(client: Client, topic: str) -> list[TopicPartition]:
    """Return the topic's partitions; raises UserError if there is no such topic."""
    metadata = client.metadata([topic])
    found = metadata.partitions(topic)
    if found:
        return found
    code = metadata.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise RefusedByBroker(code, f"You are not allowed to see topic {topic}. Nothing was written.")
    if code.is_retriable and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise RefusedByBroker(code, f"Topic {topic} cannot be written at the moment: the broker answered {code.name}.")
    raise UnknownTopic(
        f"{unknown_topic(client, topic)} Nothing was written. `logmark topics create {topic}` creates it."
    )


def read_delivery_plan(client: Client, *, topic: str | None, group: str | None) -> DeliveryPlan:
    """Return where the batch starts in its topics, and what of it is written; the first one starts at the log ends."""
    kept = client.committed(group) if group is not None else {}
    if topic is not None:
        kept = {partition: one for partition, one in kept.items() if partition.topic == topic}
        if not kept:
            ends = client.latest(list_partitions(client, topic))
            kept = {partition: Committed(offset=end) for partition, end in ends.items()}
            if group is not None:
                client.commit(group, kept)
    starts = {partition: one.offset for partition, one in kept.items()}
    return DeliveryPlan(
        counts=_counts(starts),
        starts=starts,
        written=find_written(client, starts) if group is not None else {},
        done={query: last.batch for query, last in _done(one.metadata for one in kept.values()).items()},
    )


def _counts(partitions: Iterable[TopicPartition]) -> dict[str, int]:
    # A topic that has got more partitions uses them from the next batch on: a repeated batch must spread its keys as
    # it did before.
    counts: dict[str, int] = {}
    for partition in partitions:
        counts[partition.topic] = max(counts.get(partition.topic, 0), partition.partition + 1)
    return counts


def _done(notes: Iterable[str]) -> dict[str, DeliveredBatch]:
    done: dict[str, DeliveredBatch] = {}
    for note in notes:
        found = _NOTE.fullmatch(note)
        if found is not None:
            query, batch, rows, prints = found.groups()
            one = DeliveredBatch(int(batch), None if rows is None else Content(int(rows), int(prints, 16)))
            done[query] = max(done.get(query, one), one, key=lambda known: known.batch)
    return done


def commit_batch(
    client: Client, *, topics: Iterable[str], group: str, query: str, batch: int, content: Content
) -> None:
    """Commit to the group that this batch is written, and that the next one starts at the present log ends.

    Of a batch that it says this of already, nothing was written now: raises UserError if it has other rows.
    """
    kept = client.committed(group)
    last = _done(one.metadata for one in kept.values()).get(query)
    if last is not None and last.batch >= batch:
        if last.batch == batch and content.rows and last.content not in (None, content):
            assert last.content is not None
            raise UserError(
                f"Batch {batch} was written before with other rows ({last.content.rows} then, {content.rows} now): the "
                f"query makes other rows of the same records, or its checkpoint is older than the topic, {_HOW} "
                f"Nothing was written. {_REMEDY}"
            )
        return
    metadata = client.metadata(sorted({partition.topic for partition in kept} | set(topics)))
    partitions = [partition for topic in metadata.topics for partition in metadata.partitions(topic)]
    if not partitions:
        return
    note = f"{query} {batch} {content.rows} {content.prints:x}"
    # One request, which brokers keep as a whole or not at all.
    client.commit(
        group, {partition: Committed(offset=end, metadata=note) for partition, end in client.latest(partitions).items()}
    )


def find_written(client: Client, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, Written]:
    """Return what sinks have written since these offsets: the next row by partition and sender."""
    found: dict[TopicPartition, Written] = {}
    for partition, records in _since(client, starts):
        for header, _ in _sinks(records):
            sender = Sender(header.producer_id, header.producer_epoch)
            rows = found.setdefault(partition, {})
            rows[sender] = max(rows.get(sender, 0), header.last_sequence + 1)
    return found


def fingerprint(key: bytes | None, value: bytes | None) -> int:
    """Return the fingerprint by which rows are compared."""
    return zlib.crc32(value or b"", zlib.crc32(key or b""))


def read_fingerprints(client: Client, partition: TopicPartition, start: int, sender: Sender) -> dict[int, int]:
    """Return the fingerprints of the rows that this sender has written since this offset, by their numbers."""
    found: dict[int, int] = {}
    for _, records in _since(client, {partition: start}):
        for header, batch in _sinks(records):
            if (header.producer_id, header.producer_epoch) == sender and len(batch) == header.size:
                for one in batches.unpack(batch):
                    found[header.base_sequence + one.offset - header.base_offset] = fingerprint(one.key, one.value)
    return found


def _since(client: Client, starts: Mapping[TopicPartition, int]) -> Iterator[tuple[TopicPartition, memoryview]]:
    """Return what the partitions hold from these offsets to their present ends."""
    ends = client.latest(starts) if starts else {}
    behind = {partition: offset for partition, offset in starts.items() if offset < ends[partition]}
    firsts = client.earliest(behind) if behind else {}
    for partition, offset in behind.items():
        with client.fetcher(partition) as fetcher:
            for answer in fetcher.read(max(offset, firsts[partition]), ends[partition]):
                yield partition, answer.records


def _sinks(records: memoryview) -> Iterator[tuple[batches.BatchHeader, memoryview]]:
    """Return the record batches of sinks."""
    at = 0
    while len(records) - at >= batches.HEADER_BYTES:
        header = batches.read_header(records, at)
        if header.producer_id >= FIRST_ID and not header.is_control:
            yield header, records[at : at + header.size]
        at += header.size
