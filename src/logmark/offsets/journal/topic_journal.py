"""A journal in a compacted topic of the cluster: a whole team writes it and reads it.

The key of a record is the id of a change, its value the change as JSON; the last record of an id holds.
"""

import json
from dataclasses import replace

from logmark.client.answers import NewTopic
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Change, ChangeState, resolve_states, sort_changes
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.records import read_records
from logmark.wire import batches, codecs

DEFAULT_TOPIC = "__logmark_journal"
PARTITIONS = 1  # one order for all changes
REPLICAS_MAX = 3
# One change of a group with some ten thousand partitions is one record.
_RECORD_BYTES_MAX = 8 << 20


def plan_journal_topic(client: Client, name: str = DEFAULT_TOPIC) -> NewTopic:
    """Return the topic that `create_journal_topic` would create: one partition, on up to three brokers."""
    brokers = len(client.metadata([]).brokers)
    return NewTopic(
        name=name,
        partitions=PARTITIONS,
        replication_factor=min(REPLICAS_MAX, max(brokers, 1)),
        config={"cleanup.policy": "compact", "max.message.bytes": str(_RECORD_BYTES_MAX)},
    )


def create_journal_topic(client: Client, topic: NewTopic) -> None:
    """Create the topic; it may exist already."""
    try:
        client.create_topic(
            topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            config=topic.config,
        )
    except RefusedByBroker as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def check_journal_topic(client: Client, name: str) -> None:
    """Raise UserError if the topic cannot be a journal: it would lose changes or mix up their order."""
    partitions = len(client.metadata([name]).partitions(name))
    policy = next((one.value for one in client.describe_configs([name])[name] if one.name == "cleanup.policy"), "")
    if partitions != PARTITIONS or policy != "compact":
        raise UserError(
            f"Topic {name} cannot be the journal: it has {partitions} partitions and cleanup.policy {policy}, and a "
            f"journal has {PARTITIONS} and compact. Nothing was changed; name another topic."
        )


class TopicJournal:
    """Changes of everybody in one cluster; those of the user's own file that are not here yet count as well."""

    def __init__(self, client: Client, topic: str = DEFAULT_TOPIC, *, also: FileJournal | None = None) -> None:
        self.topic = topic
        self._client = client
        self._also = also
        self._cluster_id = client.metadata([]).cluster_id
        self._partition = TopicPartition(topic, 0)
        self._producer: tuple[int, int] | None = None
        self._sequence = 0

    @property
    def location(self) -> str:
        """Where the journal is, for people."""
        return f"the topic {self.topic} of the cluster {self._cluster_id}"

    def add(self, change: Change) -> None:
        """Write a change; every in-sync replica has it when this returns."""
        self._write([change])

    def set_state(self, id: str, state: ChangeState) -> None:
        """Write the new state of a change; every in-sync replica has it when this returns."""
        self._write([replace(self._read()[id], state=state)])

    def changes(
        self, cluster_id: str | None = None, name: str | None = None, since_ms: int | None = None
    ) -> list[Change]:
        """Return the changes of a cluster, of a group or a checkpoint, since a time: the newest last."""
        if cluster_id is not None and cluster_id != self._cluster_id:
            return []
        return sort_changes(
            one
            for one in resolve_states(self._read().values()).values()
            if (name is None or one.name == name) and (since_ms is None or one.at_ms >= since_ms)
        )

    def import_file(self) -> list[Change]:
        """Copy to the topic what only the user's file has of this cluster; return the copied changes."""
        here = self._in_topic()
        missing = [one for one in self._in_file() if one.id not in here]
        for one in missing:
            self._write([one])
        return missing

    def _read(self) -> dict[str, Change]:
        return {**{one.id: one for one in self._in_file()}, **self._in_topic()}

    def _in_file(self) -> list[Change]:
        return self._also.written_changes(self._cluster_id) if self._also else []

    def _in_topic(self) -> dict[str, Change]:
        start = self._client.earliest([self._partition])[self._partition]
        end = self._client.latest([self._partition])[self._partition]
        found: dict[str, Change] = {}
        for record in read_records(self._client, self._partition, start, end):
            if record.key is None or record.value is None:
                continue
            try:
                found[bytes(record.key).decode()] = Change.from_json(json.loads(bytes(record.value)))
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"Offset {record.offset} of topic {self.topic} is no change that was journaled "
                    f"({type(error).__name__}: {error}). Nothing was changed. Its writer can remove it "
                    "with a record of the same key and no value."
                ) from None
        return found

    def _write(self, changes: list[Change]) -> None:
        if self._producer is None:
            self._producer = self._client.init_producer_id()
        producer_id, epoch = self._producer
        batch = batches.build(
            [(one.id.encode(), json.dumps(one.to_json(), ensure_ascii=False).encode()) for one in changes],
            timestamp_ms=[one.at_ms for one in changes],
            codec=codecs.GZIP,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequence,
        )
        try:
            self._client.produce(self._partition, batch)
        except RefusedByBroker as error:
            raise UserError(
                f"The journal in topic {self.topic} cannot be written: {error} What is not journaled is not done."
            ) from None
        self._sequence += len(changes)
