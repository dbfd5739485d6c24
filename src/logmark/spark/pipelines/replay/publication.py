"""The publication of a side topic: its records are copied to the topic itself, except those that were sent before.

A record is recognised by its id (`sink/topics.py`): the same records read again give rows of the same ids, by whatever
version and in whatever batches. An interrupted publication is repeated: it finds in the topic what it had sent by then.
Whoever publishes holds the live lock, or publishes only what the live version sent long ago or never will, so that
nobody sends an id between the look and the copy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.records import Record, read_records
from logmark.spark.errors import MissingRecordIds
from logmark.spark.sink.delivery import list_partitions
from logmark.spark.sink.topics import ID_HEADER, ids_in_topic
from logmark.wire import batches

SKIP, SEND = "skip", "send"
MISSING_ID_CHOICES = (SKIP, SEND)
_BATCH_BYTES_MAX = 256 << 10
_RECORD_BYTES = 40  # lengths, deltas and counts, which are mostly smaller
_SETTINGS_LIKE_THE_TOPIC = ("max.message.bytes", "message.timestamp.type", "compression.type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """How many records of a side topic were sent now, how many ids were known, how many records had no id."""

    sent: int = 0
    known: int = 0
    missing_id: int = 0


def create_side_topic(client: Client, topic: str, side_topic: str, *, is_new: bool) -> None:
    """Create the side topic with the partitions of the topic; `is_new` says that it must be empty.

    Raises UserError if a topic of that name holds records already.
    """
    count = len(list_partitions(client, topic))
    like = client.topic_settings([topic], _SETTINGS_LIKE_THE_TOPIC).get(topic, {})
    config = {name: value for name, value in like.items() if value is not None}
    # What waits to be published must not expire.
    config |= {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    try:
        client.create_topic(side_topic, partitions=count, config=config)
    except RefusedByBroker as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        partitions = list_partitions(client, side_topic)
        if len(partitions) < count:
            client.create_partitions({side_topic: count})
        if is_new and any(client.latest(partitions).values()):
            raise UserError(
                f"The topic {side_topic}, where the replay would send its rows, has records already. Nothing was "
                f"changed. Delete it (logmark topics delete {side_topic}) if nobody needs it, and start again."
            ) from None


def empty_side_topic(client: Client, side_topic: str) -> None:
    """Delete all records of the side topic, if there is one."""
    if partitions := client.metadata([side_topic]).partitions(side_topic):
        client.delete_records(client.latest(partitions))


def check_record_ids(
    client: Client,
    side_topic: str,
    topic: str,
    *,
    missing_id: str | None = None,
    checked: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """Return the end offsets up to which every record of the side topic has an id.

    Raises MissingRecordIds if one has none and `missing_id` does not say what becomes of it. Records before the offsets
    in `checked` are not read again.
    """
    if missing_id in MISSING_ID_CHOICES:
        return {}
    ends = client.latest(list_partitions(client, side_topic))
    starts = client.earliest(ends) | {one: offset for one, offset in (checked or {}).items() if one in ends}
    missing = sum(record_id(record) is None for _, record in _read(client, starts, ends))
    if missing:
        raise _missing_ids(missing, side_topic, topic)
    return ends


def publish_side_topic(
    client: Client,
    side_topic: str,
    topic: str,
    *,
    missing_id: str | None = None,
    report: Callable[[int, int], None] = lambda done, of: None,
) -> Publication:
    """Send every record of the side topic to the topic once; return how many were sent now.

    A record without an id cannot be recognised: `missing_id` says what becomes of it, "skip" or "send". Unless it is
    given, such a record raises MissingRecordIds, and nothing is sent.
    """
    ends = client.latest(list_partitions(client, side_topic))
    starts = client.earliest(ends)
    total = sum(ends[partition] - starts[partition] for partition in ends)
    ids: set[str] = set()
    missing = 0
    for _, record in _read(client, starts, ends):
        own_id = record_id(record)
        if own_id is None:
            missing += 1
        else:
            ids.add(own_id)
    if missing and missing_id not in MISSING_ID_CHOICES:
        raise _missing_ids(missing, side_topic, topic)
    known = ids_in_topic(client, ids, starts=dict.fromkeys(list_partitions(client, topic), 0)) if ids else set()
    known_before = len(known)
    producer = _CopyProducer(client, topic)
    for done, (partition, record) in enumerate(_read(client, starts, ends), 1):
        own_id = record_id(record)
        if own_id not in known if own_id is not None else missing_id == SEND:
            producer.send(TopicPartition(topic, partition.partition), record)
            if own_id is not None:
                known.add(own_id)
        report(done, total)
    producer.flush()
    return Publication(sent=producer.sent, known=known_before, missing_id=missing)


def record_id(record: Record) -> str | None:
    """Return the id that the sink wrote from a column `id`."""
    for name, value in reversed(record.headers):
        if name == ID_HEADER.encode() and value is not None:
            return value.decode()
    return None


def _missing_ids(missing: int, side_topic: str, topic: str) -> MissingRecordIds:
    return MissingRecordIds(
        f"{missing} of the records in {side_topic} have no id, so it is unknown whether they were sent to {topic} "
        "before. Nothing was sent. Resume the replay with a choice for rows with a missing id (skip or send); or "
        "abandon it, give every row an id, and replay again."
    )


def _read(
    client: Client, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Iterator[tuple[TopicPartition, Record]]:
    for partition in sorted(ends):
        for record in read_records(client, partition, starts[partition], ends[partition]):
            yield partition, record


@dataclass(slots=True)
class _PendingBatch:
    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0
    sequence: int = 0


class _CopyProducer:
    """Sends copies of records to a topic in order, as an idempotent producer."""

    def __init__(self, client: Client, topic: str) -> None:
        self.sent = 0
        self._client = client
        self._batches: dict[TopicPartition, _PendingBatch] = {}
        self._producer: tuple[int, int] | None = None
        limit = client.topic_settings([topic], ["max.message.bytes"]).get(topic, {}).get("max.message.bytes")
        self._bytes_max = min(_BATCH_BYTES_MAX, int(limit) * 15 // 16 if limit else _BATCH_BYTES_MAX)

    def send(self, partition: TopicPartition, record: Record) -> None:
        """Add one record to the batch of its partition, and produce the batch first if it is full."""
        batch = self._batches.setdefault(partition, _PendingBatch())
        size = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
        if batch.records and batch.size_bytes + size > self._bytes_max:
            self._produce(partition, batch)
        batch.records.append(record)
        batch.size_bytes += size

    def flush(self) -> None:
        """Produce the batches that are not full."""
        for partition, batch in self._batches.items():
            if batch.records:
                self._produce(partition, batch)

    def _produce(self, partition: TopicPartition, batch: _PendingBatch) -> None:
        if self._producer is None:
            self._producer = self._client.init_producer_id()
        producer_id, epoch = self._producer
        built = batches.build(
            [(record.key, record.value) for record in batch.records],
            timestamp_ms=[record.timestamp_ms for record in batch.records],
            headers=[record.headers for record in batch.records],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=batch.sequence,
        )
        self._client.produce(partition, built)
        self.sent += len(batch.records)
        batch.sequence += len(batch.records)
        batch.records, batch.size_bytes = [], 0
