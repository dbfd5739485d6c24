"""Every log of this broker: topics by name and id, their partitions, made, changed and removed together.

The catalogue is written first and read first: a topic is what the catalogue says. A partition's folder follows with its
first record, so that making a topic is one write and cannot be left half done. All topics of a request are made,
changed or removed by one change of the catalogue, of which each topic is accepted or refused by itself. Whatever waits
for the disk runs in a thread, and whatever takes long on the event loop lets others have their turn.
"""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from logmark.broker.catalog_changes import CatalogChanges
from logmark.broker.config import BrokerConfig
from logmark.broker.event_loop_turns import Pace, decide_each
from logmark.clock import Clock
from logmark.errors import ErrorCode, Refused
from logmark.log import catalog
from logmark.log.catalog import PRODUCER_ID_LIMIT, Catalog, Entry, check_partition_count
from logmark.log.directory import DataDirectory
from logmark.log.partition import Partition, batch_rules
from logmark.log.partitions import DeletedPartition
from logmark.log.settings import TopicSettings
from logmark.names import OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, TopicPartition
from logmark.wire.batches import BatchRules

# When so many partitions took so long each, they come from the disk, and the rest is read ahead of their opening.
FIRST_LOOK, SLOW_MS = 100, 1
# The first look at a log reads its time index and a batch: so many take a few milliseconds.
SEEN_IN_A_TURN = 25
# One that never had a record has nothing to look at.
EMPTY_SHARE = 0.02
# Closing a log closes its files: that takes so much longer than closing one that has none.
CLOSE_STEPS = 10

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that somebody wants."""

    name: str
    partitions: int
    overrides: Mapping[str, str]


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


class _SettingsInForce:
    """The settings and batch rules of topics, one object for all that have the same overrides."""

    def __init__(self, config: BrokerConfig, defaults: Mapping[str, str]) -> None:
        self._defaults = defaults
        self._decompressed_bytes_max = config.int("max.decompressed.message.bytes")
        self._known: dict[frozenset[tuple[str, str]], tuple[TopicSettings, BatchRules]] = {}

    def get(self, overrides: Mapping[str, str]) -> tuple[TopicSettings, BatchRules]:
        """Return what is in force; raises Refused for overrides that no topic can have."""
        key = frozenset(overrides.items())
        found = self._known.get(key)
        if found is None:
            settings = TopicSettings(overrides, self._defaults)
            rules = batch_rules(settings, decompressed_bytes_max=self._decompressed_bytes_max)
            found = self._known[key] = settings, rules
        return found


class _Room:
    """How many partitions may still be created: each takes some 4 KB of memory, also without a record.

    The internal topic does not count: a client that uses up all partitions must not keep others from having groups.
    """

    def __init__(self, catalog: Catalog, partitions_max: int) -> None:
        self._partitions_max = partitions_max
        self._left = partitions_max - sum(
            entry.partitions for entry in catalog.entries() if entry.name != OFFSETS_TOPIC
        )

    def take(self, topic: str, partitions: int) -> None:
        """Count new partitions; raises Refused if there would be too many."""
        if topic == OFFSETS_TOPIC:
            return
        if partitions > self._left:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"The broker would have more than {self._partitions_max} partitions. Delete topics, or raise its "
                "setting partitions.max.",
            )
        self._left -= partitions


def _check_offsets_topic(topic: str, settings: TopicSettings) -> None:
    """Refuse settings by which retention would delete committed offsets; raises Refused."""
    if topic == OFFSETS_TOPIC and settings.cleanup_policy != {"compact"}:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{topic} holds the committed offsets of all groups: its cleanup.policy is compact and nothing else.",
        )


class Logs:
    """The owner of every topic and partition; to be used on the event loop only."""

    offsets_topic_name = OFFSETS_TOPIC

    def __init__(self, directory: DataDirectory, config: BrokerConfig, clock: Clock) -> None:
        self._directory = directory
        self._config = config
        self._clock = clock
        self._defaults = config.topic_defaults()
        content = directory.read(catalog.FILE_NAME)
        topics = Catalog(content, path=f"{directory.path}/{catalog.FILE_NAME}", cluster_id=directory.cluster_id)
        self._changes = CatalogChanges(topics, partial(directory.write, catalog.FILE_NAME))
        if content is None:
            # From the first start on the directory says whose it is.
            self._changes.commit_now(topics)
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        # Reserved, and not given out yet.
        self._producer_ids = range(0)
        self._are_producer_ids_checked = False
        self.on_topics_deleted: list[Callable[[Sequence[str]], Awaitable[None]]] = []

    # -- opening and closing -------------------------------------------------------------------

    def open(self) -> None:
        """Open every partition, and finish the deletions that a stop interrupted."""
        self._finish_interrupted_deletions()
        # What is opened stays: looking for garbage among it, again and again, was a third of the time.
        was_collecting = gc.isenabled()
        began_ms = self._clock.now_ms()
        gc.disable()
        try:
            self._open_all(self._changes.catalog.entries(), began_ms)
        finally:
            if was_collecting:
                gc.enable()
        self._directory.finish_recovery()
        if self._topics and not self._directory.was_clean:
            count = sum(topic.partition_count for topic in self._topics.values())
            took_ms = self._clock.now_ms() - began_ms
            log.info("the last stop was not clean: opened %d partitions in %d ms, checking their ends", count, took_ms)

    def _finish_interrupted_deletions(self) -> None:
        draft = self._changes.catalog.copy()
        entries = draft.deleting()
        if not entries:
            return
        deleted: list[DeletedPartition] = []
        for entry in entries:
            deleted += self._directory.begin_deletion(entry.name, range(entry.partitions))
        failed = self._directory.finish_deletion(deleted)
        self._strike_out(draft, {entry.name for entry in entries}, failed)
        self._changes.commit_now(draft)

    @staticmethod
    def _strike_out(draft: Catalog, names: Set[str], failed: Iterable[TopicPartition]) -> None:
        """Strike deleted topics out of a draft, but for those of which a folder is still there."""
        for name in names - {key.topic for key in failed}:
            draft.finish_deletion(name)

    async def close(self) -> None:
        """Wait for the change of topics that is under way; none begins any more."""
        await self._changes.close()

    def _open_all(self, entries: Sequence[Entry], began_ms: int) -> None:
        waiting = [TopicPartition(entry.name, index) for entry in entries for index in range(entry.partitions)]
        opened, ahead = 0, None
        in_force = self._settings_in_force()
        try:
            for entry in entries:
                settings, rules = in_force.get(entry.overrides)
                partitions = []
                for index in range(entry.partitions):
                    partitions.append(self._directory.open_partition(entry.name, index, entry.id, settings))
                    opened += 1
                    if opened == FIRST_LOOK and self._clock.now_ms() - began_ms > FIRST_LOOK * SLOW_MS:
                        ahead = self._directory.read_ahead(waiting[opened:])
                self._enter(Topic(entry, partitions, settings, rules))
        finally:
            if ahead is not None:
                ahead.stop()

    def _enter(self, topic: Topic) -> None:
        self._topics[topic.name] = self._by_id[topic.id] = topic

    def _settings_in_force(self) -> _SettingsInForce:
        return _SettingsInForce(self._config, self._defaults)

    # -- finding -------------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        """Return every topic."""
        return list(self._topics.values())

    def topic(self, name: str) -> Topic | None:
        """Return the topic of that name."""
        return self._topics.get(name)

    def find(self, name: str) -> Topic:
        """Return the topic of that name; raises Refused if there is none."""
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return topic

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """Return the topic of that id."""
        return self._by_id.get(topic_id)

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return the log of one partition."""
        found = self._topics.get(topic)
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None

    # -- changing ------------------------------------------------------------------------------

    def check_new_name(self, name: str) -> None:
        """Raise Refused for a name that no new topic can have."""
        self._changes.catalog.check_new_name(name)

    def check_new_topic(self, wanted: NewTopic) -> TopicSettings:
        """Return the settings that the topic would have; refuse an impossible topic, and change nothing."""
        self._changes.catalog.check_new(wanted.name, wanted.partitions, wanted.overrides)
        return TopicSettings(wanted.overrides, self._defaults)

    def new_offsets_topic(self) -> NewTopic:
        """Return the internal topic of committed offsets, as it has to be created."""
        overrides = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": self._config.text("offsets.topic.segment.bytes"),
        }
        return NewTopic(OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, overrides)

    # The methods below take a call for each topic, which decides what becomes of it, or raises Refused. The calls are
    # made when no other change is under way; a topic may be named once. Who calls first is served first.

    async def create_topic(self, name: str, partitions: int, overrides: Mapping[str, str]) -> Topic:
        """Create one topic, durably. Raises Refused."""
        (created,) = await self.create_topics([partial(NewTopic, name, partitions, overrides)])
        if isinstance(created, Refused):
            raise created
        return created

    async def create_topics(self, wanted: Sequence[Callable[[], NewTopic]]) -> list[Topic | Refused]:
        """Create topics and their partitions, durably; return each topic, or why it was refused."""
        return await self._changes.run(lambda: self._create_topics(wanted))

    async def _create_topics(self, wanted: Sequence[Callable[[], NewTopic]]) -> list[Topic | Refused]:
        draft, in_force, pace = self._changes.catalog.copy(), self._settings_in_force(), Pace()
        room = _Room(draft, self._config.int("partitions.max"))
        successors: list[TopicPartition] = []

        def enter(decide: Callable[[], NewTopic]) -> Entry:
            new = decide()
            draft.check_new(new.name, new.partitions, new.overrides)
            if new.name == OFFSETS_TOPIC and new.partitions != OFFSETS_TOPIC_PARTITIONS:
                raise Refused(ErrorCode.INVALID_PARTITIONS, f"{new.name} has {OFFSETS_TOPIC_PARTITIONS} partitions.")
            settings, _ = in_force.get(new.overrides)
            _check_offsets_topic(new.name, settings)
            room.take(new.name, new.partitions)
            successors.extend(self._find_successors(new.name, range(new.partitions)))
            return draft.create(new.name, new.partitions, new.overrides)

        calls = [partial(enter, decide) for decide in wanted]
        answers: list[Topic | Refused] = []
        for entry in await self._commit("the topic", draft, calls, pace, successors):
            if isinstance(entry, Refused):
                answers.append(entry)
                continue
            settings, rules = in_force.get(entry.overrides)
            partitions = await self._create_partitions(entry, range(entry.partitions), settings, pace)
            topic = Topic(entry, partitions, settings, rules)
            self._enter(topic)
            answers.append(topic)
        return answers

    async def add_partitions(self, wanted: Sequence[Callable[[], tuple[Topic, int]]]) -> list[Topic | Refused]:
        """Grow each topic to a number of partitions; return the topic, or why it was refused."""
        return await self._changes.run(lambda: self._add_partitions(wanted))

    async def _add_partitions(self, wanted: Sequence[Callable[[], tuple[Topic, int]]]) -> list[Topic | Refused]:
        draft, pace = self._changes.catalog.copy(), Pace()
        room = _Room(draft, self._config.int("partitions.max"))
        successors: list[TopicPartition] = []

        def grow(decide: Callable[[], tuple[Topic, int]]) -> tuple[Topic, Entry]:
            topic, count = decide()
            check_partition_count(count)
            room.take(topic.name, count - topic.partition_count)
            successors.extend(self._find_successors(topic.name, range(topic.partition_count, count)))
            return topic, draft.grow(topic.name, count)

        calls = [partial(grow, decide) for decide in wanted]
        answers: list[Topic | Refused] = []
        for grown in await self._commit("the partitions", draft, calls, pace, successors):
            if isinstance(grown, Refused):
                answers.append(grown)
                continue
            topic, entry = grown
            added = range(topic.partition_count, entry.partitions)
            topic.partitions += await self._create_partitions(entry, added, topic.settings, pace)
            answers.append(topic)
        return answers

    async def override(self, wanted: Sequence[Callable[[], tuple[Topic, Mapping[str, str]]]]) -> list[Topic | Refused]:
        """Replace the overrides of each topic; return the topic, with the new settings in force, or why not."""
        return await self._changes.run(lambda: self._override(wanted))

    async def _override(self, wanted: Sequence[Callable[[], tuple[Topic, Mapping[str, str]]]]) -> list[Topic | Refused]:
        draft, in_force, pace = self._changes.catalog.copy(), self._settings_in_force(), Pace()

        def change(decide: Callable[[], tuple[Topic, Mapping[str, str]]]) -> tuple[Topic, Entry]:
            topic, overrides = decide()
            settings, _ = in_force.get(overrides)
            _check_offsets_topic(topic.name, settings)
            return topic, draft.override(topic.name, overrides)

        answers: list[Topic | Refused] = []
        for changed in await self._commit("the change", draft, [partial(change, decide) for decide in wanted], pace):
            if isinstance(changed, Refused):
                answers.append(changed)
                continue
            topic, entry = changed
            topic.settings, topic.rules = in_force.get(entry.overrides)
            for partition in topic.partitions:
                partition.configure(topic.settings)
                await pace.step()
            answers.append(topic)
        return answers

    async def delete_topics(self, wanted: Sequence[Callable[[], Topic]]) -> list[Topic | Refused]:
        """Delete topics and wake the fetches that wait on them; return each topic, or why it was refused."""
        return await self._changes.run(lambda: self._delete_topics(wanted))

    async def _delete_topics(self, wanted: Sequence[Callable[[], Topic]]) -> list[Topic | Refused]:
        draft, pace = self._changes.catalog.copy(), Pace()

        def mark(decide: Callable[[], Topic]) -> Topic:
            topic = decide()
            if draft.get(topic.name) is None:
                # Once by its name and once by its id.
                raise Refused(
                    ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
                )
            draft.begin_deletion(topic.name)
            return topic

        answers = await self._commit("the deletion", draft, [partial(mark, decide) for decide in wanted], pace)
        deleted = {each.name: each for each in answers if isinstance(each, Topic)}
        if deleted:
            await self._remove(deleted, pace)
        return answers

    async def _remove(self, topics: Mapping[str, Topic], pace: Pace) -> None:
        """Remove topics that are marked as deleted: nobody sees them any more, then their folders go."""
        closed: list[DeletedPartition] = []
        for topic in topics.values():
            del self._topics[topic.name], self._by_id[topic.id]
            for partition in topic.partitions:
                await partition.wait_for_flush()
                closed += self._directory.begin_deletion(topic.name, [partition.index])
                await pace.step(CLOSE_STEPS if partition.has_folder else 1)
        for forget in self.on_topics_deleted:
            await forget(list(topics))
        try:
            failed = await _in_thread(partial(self._directory.finish_deletion, closed))
            draft = self._changes.catalog.copy()
            self._strike_out(draft, topics.keys(), failed)
            await self._changes.commit(draft)
        except OSError:
            # The catalogue remembers: the next start removes the rest.
            log.exception("the files of deleted topics could not all be removed", extra={"topics": len(topics)})

    @property
    def failed_deletions(self) -> Sequence[str]:
        """Why folders of deleted topics are still there, one reason for each."""
        return self._directory.failed_deletions

    @property
    def has_unfinished_deletions(self) -> bool:
        """Whether topics are being deleted whose folders the disk did not let us rename."""
        return bool(self._directory.unrenamed)

    async def retry_deletions(self) -> None:
        """Try again to finish deletions that the disk has refused."""
        await self._changes.run(self._retry_deletions)

    async def _retry_deletions(self) -> None:
        closed = [DeletedPartition(key, self._clock.now_ms()) for key in self._directory.unrenamed]
        failed = await _in_thread(partial(self._directory.finish_deletion, closed))
        finished = {deleted.key.topic for deleted in closed} - {key.topic for key in failed}
        if finished:
            draft = self._changes.catalog.copy()
            self._strike_out(draft, finished, failed)
            await self._changes.commit(draft)

    async def next_producer_id(self) -> int:
        """Return an id that no producer ever had. Raises Refused if the disk does not take the reservation."""
        while not self._producer_ids:
            await self._changes.run(self._reserve_producer_ids)
        producer_id, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
        return producer_id

    def _highest_producer_id(self) -> int:
        """Return the highest id that a log remembers: a catalogue that is older than the logs has given it out already.

        Only before the first reservation: after it every id of ours lies below the next one. Ids that a client has made
        up, near the end of the range, do not count.
        """
        if self._are_producer_ids_checked:
            return -1
        self._are_producer_ids_checked = True
        partitions = (partition for topic in self._topics.values() for partition in topic.partitions)
        known = (producer_id for partition in partitions for producer_id, _ in partition.producers)
        return max((producer_id for producer_id in known if producer_id < PRODUCER_ID_LIMIT), default=-1)

    async def _reserve_producer_ids(self) -> None:
        if self._producer_ids:
            return  # for somebody who asked before
        draft = self._changes.catalog.copy()
        reserved = draft.reserve_producer_ids(above=self._highest_producer_id())
        try:
            await self._changes.commit(draft)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused: {error}") from error
        self._producer_ids = reserved

    def _find_successors(self, name: str, indexes: Iterable[int]) -> list[TopicPartition]:
        """Return those of new partitions whose names deleted ones had, of which the checkpoints still speak."""
        keys = [TopicPartition(name, index) for index in indexes]
        return keys if self._directory.have_predecessors(keys) else []

    async def _commit(
        self,
        what: str,
        draft: Catalog,
        decisions: Iterable[Callable[[], T]],
        pace: Pace,
        successors: Sequence[TopicPartition] = (),
    ) -> list[T | Refused]:
        """Let decisions change a draft, and make it the catalogue, durably; all are refused if the disk refuses it."""
        decided = await decide_each(decisions, pace)
        if all(isinstance(each, Refused) for each in decided):
            return decided
        try:
            if successors:
                # First: a topic that is in the catalogue must not inherit what the checkpoints say of another.
                await _in_thread(self._directory.forget_predecessors(successors))
            await self._changes.commit(draft)
        except OSError as error:
            refused = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk refused {what}: {error}")
            return [each if isinstance(each, Refused) else refused for each in decided]
        return decided

    async def _create_partitions(
        self, entry: Entry, indexes: range, settings: TopicSettings, pace: Pace
    ) -> list[Partition]:
        created = []
        for index in indexes:
            created += self._directory.create_partitions(entry.name, [index], entry.id, settings, lazily=True)
            await pace.step()
        return created

    # -- looking after -------------------------------------------------------------------------

    def look_after(self) -> None:
        """Apply retention, and expire the state of idle producers."""
        for _ in self.look_after_in_turns():
            pass

    def look_after_in_turns(self) -> Iterator[None]:
        """Do the same, some partitions at a time: clients of others must not wait for thousands."""
        now_ms = self._clock.now_ms()
        expiration_ms = self._config.int("producer.id.expiration.ms")
        seen = 0.0
        for topic in self.topics():
            for partition in list(topic.partitions):
                partition.expire_producers(now_ms=now_ms, expiration_ms=expiration_ms)
                if partition.failure is None:
                    partition.apply_retention(now_ms)
                seen += 1.0 if len(partition.segments) else EMPTY_SHARE
                if seen >= SEEN_IN_A_TURN:
                    seen = 0.0
                    yield
        try:
            self._directory.purge(now_ms)
        except OSError:
            log.exception("the files of a deleted topic could not be removed")

    def remove_files(self) -> Callable[[], None] | None:
        """Remove files deleted by partitions long enough ago; return what removes deleted partitions, in any thread."""
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
        """Read every log's recovery point and log start offset; the returned call writes them, from any thread."""
        return self._directory.checkpoint()

    def announce_log_starts(self, log_starts: Mapping[TopicPartition, int]) -> AbstractContextManager[None]:
        """Let every checkpoint within the block say that logs start at these offsets, before they move there."""
        return self._directory.announce_log_starts(log_starts)


async def _in_thread(call: Callable[[], T]) -> T:
    """Return what a call returns that waits for the disk."""
    return await asyncio.get_running_loop().run_in_executor(None, call)
