"""Every log of this broker: topics by name and id, their partitions, made, changed and removed together.

The catalogue is written first and read first: a topic is what the catalogue says, its folders follow.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

from logmark.broker.config import BrokerConfig
from logmark.clock import Clock
from logmark.errors import ErrorCode, LogFailed, Refused
from logmark.log.catalog import Catalog, Entry
from logmark.log.directory import DataDirectory
from logmark.log.groupcommit import GroupCommit
from logmark.log.partition import Partition
from logmark.log.settings import SETTINGS, TopicSettings
from logmark.names import OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS
from logmark.wire.batches import BatchRules

log = logging.getLogger(__name__)


class Topic:
    """One topic with its open partitions and the settings in force."""

    __slots__ = ("id", "is_internal", "name", "partitions", "rules", "settings")

    def __init__(self, entry: Entry, partitions: list[Partition], settings: TopicSettings, rules: BatchRules) -> None:
        self.name = entry.name
        self.id = entry.id
        self.is_internal = entry.is_internal
        self.partitions = partitions
        self.settings = settings
        self.rules = rules

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def configs(self) -> Iterator[tuple[str, str, str]]:
        """Every setting with the text in force and where it comes from: override, broker or default."""
        for name, setting in SETTINGS.items():
            text = self.settings.text(name)
            if name in self.settings.overrides:
                source = "override"
            else:
                source = "default" if text == setting.default else "broker"
            yield name, text, source


class Logs:
    """The owner of every topic and partition; to be used on the event loop only."""

    offsets_topic_name = OFFSETS_TOPIC

    def __init__(
        self, directory: DataDirectory, committer: GroupCommit, config: BrokerConfig, clock: Clock
    ) -> None:
        self._directory = directory
        self._committer = committer
        self._config = config
        self._clock = clock
        self._defaults = config.topic_defaults()
        self._catalog: Catalog = directory.catalog
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._producer_ids: Iterator[int] = iter(())
        self.on_topic_deleted: list[Callable[[str], None]] = []

    # -- opening and closing -------------------------------------------------------------------

    def open(self) -> None:
        """Opens every partition, and finishes the deletions that a stop interrupted."""
        for entry in self._catalog.deleting():
            for index in range(entry.partitions):
                self._directory.remove_partition(entry.name, index)
            self._catalog.finish_deletion(entry.name)
        for entry in self._catalog.entries():
            self._enter(entry, first_new=entry.partitions)

    def close(self, *, clean: bool) -> None:
        """Closes every partition; after a clean close the next start need not scan."""
        for topic in self._topics.values():
            for partition in topic.partitions:
                partition.close(clean=clean)

    def _enter(self, entry: Entry, *, first_new: int) -> Topic:
        settings = self._settings(entry.name, entry.overrides)
        known = self._topics.get(entry.name)
        partitions = list(known.partitions) if known else []
        for index in range(len(partitions), entry.partitions):
            make = self._directory.create_partition if index >= first_new else self._directory.open_partition
            partitions.append(
                make(entry.name, index, topic_id=entry.id, settings=settings, committer=self._committer, clock=self._clock)
            )
        topic = Topic(entry, partitions, settings, self._rules(settings))
        self._topics[topic.name] = self._by_id[topic.id] = topic
        return topic

    def _settings(self, name: str, overrides: Mapping[str, str]) -> TopicSettings:
        return TopicSettings(overrides, self._defaults)

    def _rules(self, settings: TopicSettings) -> BatchRules:
        return BatchRules(
            max_message_bytes=settings.max_message_bytes,
            decompressed_bytes_max=self._config.int("max.decompressed.message.bytes"),
            keys_required=settings.is_compacted,
            is_log_append_time=settings.is_log_append_time,
            timestamp_before_max_ms=settings.timestamp_before_max_ms,
            timestamp_after_max_ms=settings.timestamp_after_max_ms,
            compression_type=settings.compression_type,
        )

    # -- finding -------------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        """Every topic."""
        return list(self._topics.values())

    def topic(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """The topic of that id."""
        return self._by_id.get(topic_id)

    def partition(self, topic: str, index: int) -> Partition | None:
        """The log of one partition."""
        found = self._topics.get(topic)
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None

    # -- changing ------------------------------------------------------------------------------

    def check_new_topic(self, name: str, partitions: int, overrides: Mapping[str, str]) -> None:
        """Refuses what could not become a topic; changes nothing."""
        self._catalog.check_new(name, partitions, overrides)

    def create_topic(self, name: str, partitions: int, overrides: Mapping[str, str]) -> Topic:
        """Makes a topic and its partitions, durable before it returns."""
        if name == OFFSETS_TOPIC:
            if name in self._topics:
                raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
            if partitions != OFFSETS_TOPIC_PARTITIONS:
                raise Refused(ErrorCode.INVALID_PARTITIONS, f"{name} has {OFFSETS_TOPIC_PARTITIONS} partitions, always.")
        try:
            entry = self._catalog.create(name, partitions, overrides)
            return self._enter(entry, first_new=0)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused the topic: {error}") from error

    def create_internal_offsets_topic(self) -> None:
        """Makes the topic in which groups keep their places, unless it is there."""
        if OFFSETS_TOPIC not in self._topics:
            overrides = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": self._config.text("offsets.topic.segment.bytes"),
            }
            self.create_topic(OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, overrides)

    def create_partitions(self, name: str, count: int) -> None:
        """Grows a topic to that many partitions."""
        had = self._topics[name].partition_count
        try:
            self._enter(self._catalog.grow(name, count), first_new=had)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused the partitions: {error}") from error

    def override(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replaces a topic's overrides; they are in force when this returns."""
        try:
            entry = self._catalog.override(name, overrides)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused the change: {error}") from error
        topic = self._topics[name]
        topic.settings = self._settings(name, entry.overrides)
        topic.rules = self._rules(topic.settings)
        for partition in topic.partitions:
            partition.configure(topic.settings)

    def delete_topic(self, name: str) -> None:
        """Removes a topic; whoever waits on its partitions is woken."""
        try:
            entry = self._catalog.begin_deletion(name)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused the deletion: {error}") from error
        topic = self._topics.pop(name)
        del self._by_id[topic.id]
        for partition in topic.partitions:
            partition.close(clean=False)
        for told in self.on_topic_deleted:
            told(name)
        try:
            for partition in topic.partitions:
                self._directory.remove_partition(entry.name, partition.index)
            self._catalog.finish_deletion(name)
        except OSError:
            # The catalogue remembers: the next start removes the rest.
            log.exception("a deleted topic's files could not all be removed", extra={"topic": name})

    def next_producer_id(self) -> int:
        """An id that no producer ever had."""
        try:
            found = next(self._producer_ids, None)
            if found is None:
                self._producer_ids = iter(self._catalog.reserve_producer_ids())
                found = next(self._producer_ids)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused: {error}") from error
        return found

    # -- looking after -------------------------------------------------------------------------

    def apply_retention(self) -> None:
        """Removes what is too old or too much, partition by partition."""
        now_ms = self._clock.now_ms()
        for topic in self._topics.values():
            for partition in topic.partitions:
                if partition.failure is None:
                    try:
                        partition.apply_retention(now_ms)
                    except (OSError, LogFailed):
                        log.exception("retention failed", extra={"topic": topic.name, "partition": partition.index})

    def write_checkpoints(self) -> None:
        """Writes how far every log is durable, so that an unclean start scans less."""
        try:
            self._directory.write_checkpoints([p for topic in self._topics.values() for p in topic.partitions])
        except OSError:
            log.exception("the offset checkpoints could not be written")
