"""Every log of this broker: topics by name and id, their partitions, made, changed and removed together.

The catalogue is written first and read first: a topic is what the catalogue says. A partition's folder follows with its
first record, so that making a topic is one write and cannot be left half done.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from logmark.broker.config import BrokerConfig
from logmark.clock import Clock
from logmark.errors import ErrorCode, Refused
from logmark.log import catalog
from logmark.log.catalog import Catalog, Entry
from logmark.log.directory import DataDirectory
from logmark.log.partition import Partition, batch_rules
from logmark.log.settings import TopicSettings
from logmark.names import OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, TopicPartition
from logmark.wire.batches import BatchRules

# When so many partitions took so long each, they come from the disk, and the rest is read ahead of their opening.
FIRST_LOOK, SLOW_MS = 100, 1
# The first look at a log reads its time index and a batch: so many take a few milliseconds.
SEEN_IN_A_TURN = 25

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


class Logs:
    """The owner of every topic and partition; to be used on the event loop only."""

    offsets_topic_name = OFFSETS_TOPIC

    def __init__(self, directory: DataDirectory, config: BrokerConfig, clock: Clock) -> None:
        self._directory = directory
        self._config = config
        self._clock = clock
        self._defaults = config.topic_defaults()
        content = directory.read(catalog.FILE_NAME)
        self._catalog = Catalog(
            content,
            write=lambda content: directory.write(catalog.FILE_NAME, content),
            path=f"{directory.path}/{catalog.FILE_NAME}",
            cluster_id=directory.cluster_id,
        )
        if content is None:
            # From the first start on the directory says whose it is.
            self._catalog.save()
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._producer_ids: Iterator[int] = iter(())
        self.on_topic_deleted: list[Callable[[str], None]] = []

    # -- opening and closing -------------------------------------------------------------------

    def open(self) -> None:
        """Opens every partition, and finishes the deletions that a stop interrupted."""
        for entry in self._catalog.deleting():
            self._remove_folders(entry)
        # What is opened stays: looking for garbage among it, again and again, was a third of the time.
        was_collecting = gc.isenabled()
        began_ms = self._clock.now_ms()
        gc.disable()
        try:
            self._open_all(self._catalog.entries(), began_ms)
        finally:
            if was_collecting:
                gc.enable()
        self._directory.finish_recovery()
        if self._topics and not self._directory.was_clean:
            count = sum(topic.partition_count for topic in self._topics.values())
            took_ms = self._clock.now_ms() - began_ms
            log.info("the last stop was not clean: opened %d partitions in %d ms, checking their ends", count, took_ms)

    def _open_all(self, entries: Sequence[Entry], began_ms: int) -> None:
        waiting = [TopicPartition(entry.name, index) for entry in entries for index in range(entry.partitions)]
        opened, ahead = 0, None
        try:
            for entry in entries:
                settings = TopicSettings(entry.overrides, self._defaults)
                partitions = []
                for index in range(entry.partitions):
                    partitions.append(self._directory.open_partition(entry.name, index, entry.id, settings))
                    opened += 1
                    if opened == FIRST_LOOK and self._clock.now_ms() - began_ms > FIRST_LOOK * SLOW_MS:
                        ahead = self._directory.read_ahead(waiting[opened:])
                self._enter(entry, partitions, settings)
        finally:
            if ahead is not None:
                ahead.stop()

    def _enter(self, entry: Entry, partitions: list[Partition], settings: TopicSettings) -> Topic:
        topic = Topic(entry, partitions, settings, self._rules(settings))
        self._topics[topic.name] = self._by_id[topic.id] = topic
        return topic

    def _rules(self, settings: TopicSettings) -> BatchRules:
        return batch_rules(settings, decompressed_bytes_max=self._config.int("max.decompressed.message.bytes"))

    def _remove_folders(self, entry: Entry) -> None:
        self._directory.delete_partitions(entry.name, range(entry.partitions))
        self._catalog.finish_deletion(entry.name)

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

    def check_new_name(self, name: str) -> None:
        """Refuses a name that no new topic can have."""
        self._catalog.check_new_name(name)

    def check_new_topic(self, name: str, partitions: int, overrides: Mapping[str, str]) -> TopicSettings:
        """The settings that the topic would have; refuses what could not become a topic and changes nothing."""
        self._catalog.check_new(name, partitions, overrides)
        return TopicSettings(overrides, self._defaults)

    def create_topic(self, name: str, partitions: int, overrides: Mapping[str, str]) -> Topic:
        """Makes a topic and its partitions, durable before it returns."""
        if name == OFFSETS_TOPIC:
            if name in self._topics:
                raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
            if partitions != OFFSETS_TOPIC_PARTITIONS:
                raise Refused(ErrorCode.INVALID_PARTITIONS, f"{name} has {OFFSETS_TOPIC_PARTITIONS} partitions.")
        self.check_new_topic(name, partitions, overrides)
        try:
            # First: a topic that is in the catalogue must not find its place taken by a full disk.
            self._directory.forget_predecessors([TopicPartition(name, index) for index in range(partitions)])
            entry = self._catalog.create(name, partitions, overrides)
            settings = TopicSettings(entry.overrides, self._defaults)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused the topic: {error}") from error
        created = self._directory.create_partitions(name, range(partitions), entry.id, settings, lazily=True)
        return self._enter(entry, created, settings)

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
        topic = self._topics[name]
        try:
            added = range(topic.partition_count, count)
            self._directory.forget_predecessors([TopicPartition(name, index) for index in added])
            self._catalog.grow(name, count)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused the partitions: {error}") from error
        topic.partitions += self._directory.create_partitions(
            name, range(topic.partition_count, count), topic.id, topic.settings, lazily=True
        )

    def override(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replaces a topic's overrides; they are in force when this returns."""
        try:
            entry = self._catalog.override(name, overrides)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused the change: {error}") from error
        topic = self._topics[name]
        topic.settings = TopicSettings(entry.overrides, self._defaults)
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
        for told in self.on_topic_deleted:
            told(name)
        try:
            self._remove_folders(entry)
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

    def look_after(self) -> None:
        """Removes what is too old or too much, and forgets producers that have been silent for long."""
        for _ in self.look_after_in_turns():
            pass

    def look_after_in_turns(self) -> Iterator[None]:
        """The same, some partitions at a time: clients of others must not wait for thousands."""
        now_ms = self._clock.now_ms()
        expiration_ms = self._config.int("producer.id.expiration.ms")
        seen = 0
        for topic in self.topics():
            for partition in list(topic.partitions):
                partition.expire_producers(now_ms=now_ms, expiration_ms=expiration_ms)
                if partition.failure is None:
                    partition.apply_retention(now_ms)
                seen += len(partition.segments) > 0
                if seen == SEEN_IN_A_TURN:
                    seen = 0
                    yield
        try:
            self._directory.purge(now_ms)
        except OSError:
            log.exception("the files of a deleted topic could not be removed")

    def remove_files(self) -> Callable[[], None] | None:
        """Lets the partitions remove what they let go long enough ago; the call removes deleted ones, in any thread."""
        now_ms = self._clock.now_ms()
        for topic in self._topics.values():
            for partition in topic.partitions:
                partition.remove_deleted(now_ms)
        folders = self._directory.take_removable(now_ms)
        if not folders:
            return None

        def remove() -> None:
            for folder in folders:
                self._directory.remove_folder(folder)

        return remove

    def checkpoint(self) -> Callable[[], None]:
        """Takes how far every log is durable and where it starts; the call writes it, from any thread."""
        return self._directory.checkpoint()
