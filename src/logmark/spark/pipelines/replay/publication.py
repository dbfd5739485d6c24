"""What a version has sent to its side topic goes to the topic itself, but for what was sent there before.

Which records were sent is known by their ids (`topics.py`): the same records read again give rows of the same ids, by
whatever version and in whatever batches. A release that was stopped anywhere is made again: what it had sent by then is
found in the topic like everything else. Whoever releases holds the place of the live version, or releases only what
the live version has long sent or never will, so that nobody sends an id between the look and the copy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.records import Record, read_records
from logmark.spark.sink.delivery import partitions_of
from logmark.spark.sink.topics import ID_HEADER, ids_in_topic
from logmark.wire import batches

SKIP, SEND = "skip", "send"
WITHOUT_ID = (SKIP, SEND)
_BATCH_BYTES_MAX = 256 << 10
_RECORD_BYTES = 40  # lengths, deltas and counts, which are mostly smaller
_SETTINGS_LIKE_THE_TOPIC = ("max.message.bytes", "message.timestamp.type", "compression.type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """How many records of a side topic were sent, were known already, and had no id."""

    sent: int = 0
    known: int = 0
    without_id: int = 0


def side_topic(topic: str, number: int) -> str:
    """Where version `number` of a pipeline sends its rows until it is released."""
    return f"{topic}.v{number}"


def make_side_topic(client: Client, topic: str, side: str, *, is_new: bool) -> None:
    """There is a side topic with the partitions of the topic; `is_new` says that nothing may be in it yet."""
    count = len(partitions_of(client, topic))
    like = client.topic_settings([topic], _SETTINGS_LIKE_THE_TOPIC).get(topic, {})
    config = {name: value for name, value in like.items() if value is not None}
    # What waits to be released must not expire.
    config |= {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    try:
        client.create_topic(side, partitions=count, config=config)
    except RefusedByBroker as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        places = partitions_of(client, side)
        if len(places) < count:
            client.create_partitions({side: count})
        if is_new and any(client.latest(places).values()):
            raise UserError(
                f"The topic {side}, where the replay would send its rows, has records already. Nothing was changed. "
                f"Delete it (logmark topics delete {side}) if nobody needs it, and start again."
            ) from None


def empty(client: Client, side: str) -> None:
    """Nothing is in the side topic any more, if there is one."""
    if places := client.metadata([side]).partitions(side):
        client.delete_records(client.latest(places))


def check_named(
    client: Client,
    side: str,
    topic: str,
    *,
    without_id: str | None = None,
    checked: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """Raises a sentence if a release would, for records without an id; else the ends up to which it has looked.

    Records before those that are given as `checked` are not looked at again.
    """
    if without_id in WITHOUT_ID:
        return {}
    ends = client.latest(partitions_of(client, side))
    starts = client.earliest(ends) | {place: offset for place, offset in (checked or {}).items() if place in ends}
    nameless = sum(id_of(record) is None for _, record in _records(client, starts, ends))
    if nameless:
        raise _without_ids(nameless, side, topic)
    return ends


def _without_ids(nameless: int, side: str, topic: str) -> UserError:
    return UserError(
        f"{nameless} of the records in {side} have no id, so nobody can say whether they were sent to {topic} before. "
        "Nothing was sent. Go on with `logmark pipelines replay` and --without-id skip or --without-id send; or give "
        "it up with --abandon, give every row an id, and begin again."
    )


def release(
    client: Client,
    side: str,
    topic: str,
    *,
    without_id: str | None = None,
    report: Callable[[int, int], None] = lambda done, of: None,
) -> Released:
    """The topic has every record of the side topic once; how many came now.

    A record without an id cannot be recognised: `without_id` says what becomes of those, "skip" or "send"; unless it
    is given, they are a sentence, and nothing is sent.
    """
    ends = client.latest(partitions_of(client, side))
    starts = client.earliest(ends)
    total = sum(ends[place] - starts[place] for place in ends)
    ids: set[str] = set()
    nameless = 0
    for _, record in _records(client, starts, ends):
        own_id = id_of(record)
        if own_id is None:
            nameless += 1
        else:
            ids.add(own_id)
    if nameless and without_id not in WITHOUT_ID:
        raise _without_ids(nameless, side, topic)
    known = ids_in_topic(client, ids, starts=dict.fromkeys(partitions_of(client, topic), 0)) if ids else set()
    found = len(known)
    post = _Post(client, topic)
    for done, (place, record) in enumerate(_records(client, starts, ends), 1):
        own_id = id_of(record)
        if own_id not in known if own_id is not None else without_id == SEND:
            post.put(TopicPartition(topic, place.partition), record)
            if own_id is not None:
                known.add(own_id)
        report(done, total)
    post.close()
    return Released(sent=post.sent, known=found, without_id=nameless)


def id_of(record: Record) -> str | None:
    """The id that the sink wrote from a column `id`."""
    for name, value in reversed(record.headers):
        if name == ID_HEADER.encode() and value is not None:
            return value.decode()
    return None


def _records(
    client: Client, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Iterator[tuple[TopicPartition, Record]]:
    for place in sorted(ends):
        for record in read_records(client, place, starts[place], ends[place]):
            yield place, record


@dataclass(slots=True)
class _Box:
    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0
    sequence: int = 0


class _Post:
    """Copies on their way into the topic, in order, each batch once however often it is sent."""

    def __init__(self, client: Client, topic: str) -> None:
        self.sent = 0
        self._client = client
        self._boxes: dict[TopicPartition, _Box] = {}
        self._producer: tuple[int, int] | None = None
        limit = client.topic_settings([topic], ["max.message.bytes"]).get(topic, {}).get("max.message.bytes")
        self._bytes_max = min(_BATCH_BYTES_MAX, int(limit) * 15 // 16 if limit else _BATCH_BYTES_MAX)

    def put(self, place: TopicPartition, record: Record) -> None:
        """Takes one record, and sends the batch that is full without it."""
        box = self._boxes.setdefault(place, _Box())
        size = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
        if box.records and box.size_bytes + size > self._bytes_max:
            self._send(place, box)
        box.records.append(record)
        box.size_bytes += size

    def close(self) -> None:
        """Sends what is left."""
        for place, box in self._boxes.items():
            if box.records:
                self._send(place, box)

    def _send(self, place: TopicPartition, box: _Box) -> None:
        if self._producer is None:
            self._producer = self._client.init_producer_id()
        number, epoch = self._producer
        batch = batches.build(
            [(record.key, record.value) for record in box.records],
            timestamp_ms=[record.timestamp_ms for record in box.records],
            headers=[record.headers for record in box.records],
            producer_id=number,
            producer_epoch=epoch,
            base_sequence=box.sequence,
        )
        self._client.produce(place, batch)
        self.sent += len(box.records)
        box.sequence += len(box.records)
        box.records, box.size_bytes = [], 0
