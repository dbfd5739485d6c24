"""The data directory: one lock, who it belongs to, whether it was left cleanly, and the folders of its partitions.

Only files and partition folders lie in it, and while the broker runs the write-ahead log: a sub-directory that stops
Apache Kafka from opening what a crash left. A start first recovers what a WAL holds; a clean stop removes it.
"""

import errno
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from logmark import properties
from logmark.clock import Clock
from logmark.disk.files import FileSystem, Lock
from logmark.errors import Malformed, UserError
from logmark.log import catalog, checkpoints
from logmark.log.catalog import Catalog
from logmark.log.folder import METADATA
from logmark.log.groupcommit import GroupCommit
from logmark.log.partition import Partition
from logmark.log.prefetch import ReadAhead
from logmark.log.settings import TopicSettings
from logmark.log.wal import log as wal
from logmark.log.wal import replay
from logmark.log.wal.entries import partition_key, split_key
from logmark.log.wal.log import WalLimits, WriteAheadLog, remove_unfinished
from logmark.log.wal.replay import Recovered
from logmark.names import TopicPartition

LOCK = ".lock"
META = "meta.properties"
CLEAN = ".kafka_cleanshutdown"
CATALOG = catalog.FILE_NAME
ABORTED = "logmark.aborted"
BOOTSTRAP = "bootstrap.checkpoint"
KAFKA_METADATA = "__cluster_metadata-0"
NODE_ID = 1
FOLDER_NAME_MAX = 255

_FOLDER = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<index>\d+)")
_GOING = re.compile(r".+\.[0-9a-f]{32}-delete")
_STRAY = re.compile(r".+\.[0-9a-f]{32}-stray")

logger = logging.getLogger(__name__)


class DataDirectory:
    """One open data directory and the partitions in it."""

    def __init__(
        self,
        path: str,
        *,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
        lock: Lock,
        meta: Mapping[str, str],
        names: Iterable[str],
    ) -> None:
        """Made by `open`."""
        self.path = path
        # What was found here and not opened yet: asking again for each of thousands of partitions would take long.
        self._found = set(names)
        self.cluster_id = meta["cluster.id"]
        self.directory_id = meta["directory.id"]
        self.node_id = int(meta["node.id"])
        self.was_clean = files.exists(f"{path}/{CLEAN}")
        self.partitions: dict[TopicPartition, Partition] = {}
        committer.open_wal = self._open_wal
        self._files = files
        self._committer = committer
        self._clock = clock
        self._lock = lock
        self._going: list[tuple[int, str]] = []
        self._writing = threading.Lock()
        self._taken = 0
        self._written = 0
        self._is_used = False
        # What a recovery from the WAL has found, until the partitions' own files say the same.
        self._recovered: dict[bytes, Recovered] = {}
        self._has_old_wal = False
        self._wal_limits: WalLimits | None = None
        self._recovery_points = self._read_offsets(checkpoints.RECOVERY_POINTS)
        self._log_starts = self._read_offsets(checkpoints.LOG_STARTS)
        self._cleaned, self._is_cleaned_unknown = self._read_cleaned()
        self._aborted = self._read_aborted()
        self._checkpointed = self._remembered(self._recovery_points, self._log_starts)

    def _remembered(self, *offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Return the partitions of which the checkpoints say something; an offset of 0 says nothing."""
        return {key for each in offsets for key, offset in each.items() if offset} | self._cleaned.keys()

    # Opening and closing

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
        wal_limits: WalLimits | None = None,
    ) -> "DataDirectory":
        """Locks a directory, makes it one of ours if it is new, and refuses it with a sentence if it cannot be."""
        path = os.path.abspath(os.fspath(path))
        try:
            _make(path, files)
            lock = files.lock(f"{path}/{LOCK}")
            if lock is None:
                raise UserError(
                    f"The data directory {path} is in use by another broker. Nothing was changed. "
                    "Stop that broker, or choose another directory with --data-dir."
                )
            try:
                names = files.listdir(path)
                meta = _meta(path, files, names)
                self = cls(path, files=files, committer=committer, clock=clock, lock=lock, meta=meta, names=names)
                self._wal_limits = wal_limits
                self._recover(names)
                self._begin()
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise unusable(path, error) from error
        return self

    def _begin(self) -> None:
        # Gone before anything is written: a crash from here on must be seen as one.
        if self.was_clean:
            self._files.remove(f"{self.path}/{CLEAN}")
        # After a kill the names may be in memory only, and whoever reads from them takes them for granted.
        self._files.sync_directory(self.path)
        for name in sorted(self._found):
            if _GOING.fullmatch(name):
                self.remove_folder(f"{self.path}/{name}")
            elif name.endswith(".tmp") and not self._files.is_directory(f"{self.path}/{name}"):
                with suppress(FileNotFoundError):
                    self._files.remove(f"{self.path}/{name}")

    # The write-ahead log

    def _recover(self, names: Sequence[str]) -> None:
        """Write what a WAL holds to the segments, and cut what was never acknowledged."""
        remove_unfinished(self.path, self._files)
        if wal.FOLDER not in names:
            return
        if self.was_clean:
            raise UserError(
                f"The write-ahead log {self.path}/{wal.FOLDER} does not belong to the last clean stop of {self.path}. "
                f"Nothing was changed. Files of two moments were mixed. If the segments are the newer ones, move "
                f"{wal.FOLDER} away; otherwise put the files of one moment together again, or restore a backup."
            )
        content = replay.read(self.path, checkpoints.id_bytes(self.directory_id), self._files)
        work = replay.Replay(
            content,
            self._files,
            folder_of=self._folders_by_id(),
            make_folder=self._complete_folder,
        )
        work.check()
        self._recovered = work.run()
        self._has_old_wal = True
        logger.info("recovered from the write-ahead log: %s", replay.describe(content, self._recovered))

    def _folders_by_id(self) -> Callable[[bytes, int], str | None]:
        """Return what finds the folder of a partition by the id of its topic; None if the topic is deleted."""
        return folders_by_id(self.path, self._files)

    def _complete_folder(self, folder: str, topic_id: bytes) -> None:
        complete_folder(folder, topic_id, self._files)
        self._found.add(os.path.basename(folder))

    def finish_recovery(self) -> None:
        """Remove the WAL that was recovered: every partition's own files hold what it held, and that is durable."""
        if not self._has_old_wal:
            return
        for key, found in self._recovered_keys():
            self._recovery_points[key] = max(found.end, self._recovery_points.get(key, 0))
        self.write_checkpoints()
        wal.remove(self.path, self._files)
        self._has_old_wal = False
        self._recovered = {}

    def _recovered_keys(self) -> list[tuple[TopicPartition, Recovered]]:
        folders = self._folders_by_id()
        found = []
        for key, recovered in self._recovered.items():
            folder = folders(*split_key(key))
            partition = None if folder is None else partition_of(folder)
            if partition is not None:
                found.append((partition, recovered))
        return found

    def _open_wal(self) -> WriteAheadLog:
        """Make the WAL for the first record of this run."""
        self.finish_recovery()
        made = WriteAheadLog(self.path, checkpoints.id_bytes(self.directory_id), self._files, self._wal_limits)
        made.create(self._committer.flusher.points)
        return made

    def close(self, *, clean: bool = True) -> bool:
        """Closes every partition and says whether the next start can trust the files as they are."""
        if clean:
            self._committer.settle()
            for partition in self.partitions.values():
                self._committer.flusher.mark(partition)
            self._committer.flusher.settle()
        else:
            self._committer.stop()
        closed = [partition.close(clean=clean) for partition in self.partitions.values()]
        is_complete = all(closed) and (self.was_clean or self._is_all_open())
        try:
            # A start that was given up before it opened anything leaves the checkpoints as they are.
            if clean and self._is_used:
                self.write_checkpoints()
            if clean and is_complete:
                self.finish_recovery()
                self._committer.close_wal(remove=True)
                self._write_aborted()
                marker = json.dumps({"version": 0, "brokerEpoch": -1}, separators=(",", ":"))
                self._files.write_atomically(f"{self.path}/{CLEAN}", marker.encode())
        except OSError as error:
            logger.error("%s was not closed cleanly, the next start will check it: %s", self.path, error)
            is_complete = False
        finally:
            self._committer.close_wal(remove=False)
            self._lock.release()
        return clean and is_complete

    def _read_aborted(self) -> dict[TopicPartition, dict[int, int]] | None:
        """Which transaction indexes a clean stop has left; None when nobody noted them."""
        try:
            content = self.read(ABORTED)
            return None if content is None else checkpoints.read_aborted(content)
        except Malformed as error:
            logger.warning("%s/%s is not used: %s", self.path, ABORTED, error)
            return None

    def _write_aborted(self) -> None:
        """Notes which transaction indexes there are: one that is lost later must not make aborted records visible."""
        known = {key: dict(partition.aborted_checksums) for key, partition in self.partitions.items()}
        known = {key: found for key, found in {**(self._aborted or {}), **known}.items() if found}
        if known or self._aborted is not None:
            self.write(ABORTED, checkpoints.write_aborted(known))

    def _is_all_open(self) -> bool:
        """After a crash a folder that nobody opened was not checked: the next start has to."""
        return all(key in self.partitions for key in self.folders())

    # Files of the top level

    def read(self, name: str) -> bytes | None:
        """A file at the top of the directory, or None."""
        path = f"{self.path}/{name}"
        return self._files.read(path) if self._files.exists(path) else None

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file at the top of the directory, durably."""
        self._files.write_atomically(f"{self.path}/{name}", data)

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(self.read(name) or b"")
        except Malformed as error:
            # As Kafka does: without a recovery point everything is checked, without a log start nothing is hidden.
            logger.warning("%s/%s is not used: %s", self.path, name, error)
            return {}

    def _read_cleaned(self) -> tuple[dict[TopicPartition, int], bool]:
        """How far each log was cleaned; and True when nobody knows any more, so that any log may have holes."""
        try:
            return checkpoints.read_offsets(self.read(checkpoints.CLEANED) or b""), False
        except Malformed as error:
            logger.warning("%s/%s is not used: %s", self.path, checkpoints.CLEANED, error)
            return {}, True

    def note_cleaned(self, partition: Partition, offset: int) -> Callable[[], None]:
        """Notes how far a log is clean, or that it is about to be cleaned; the returned call writes that, in a thread.

        A log that is in the file may have holes from then on, so it is entered before its first segment is swapped.
        """
        partition.cleaned_to = offset
        self._cleaned[TopicPartition(partition.topic, partition.index)] = offset
        self._checkpointed |= self._cleaned.keys()
        return self._write_cleaned

    def _write_cleaned(self) -> None:
        with self._writing:
            # As it is now, not as it was when somebody asked: an older state must not replace a newer one.
            self.write(checkpoints.CLEANED, checkpoints.write_offsets(dict(self._cleaned)))

    def write_checkpoints(self) -> None:
        """Writes the recovery points, high watermarks and log starts as they are now."""
        self.checkpoint()()

    def checkpoint(self) -> Callable[[], None]:
        """Takes the offsets now; the returned call writes them, and may be made from a thread."""
        high_watermarks = {}
        for key, partition in self.partitions.items():
            if not partition.has_folder:
                # Nothing was ever written to it: there is nothing to remember, and a start has nothing to forget.
                continue
            self._recovery_points[key] = partition.recovery_point
            high_watermarks[key] = partition.high_watermark
            if partition.log_start_offset > partition.oldest_offset:
                self._log_starts[key] = partition.log_start_offset
            else:
                self._log_starts.pop(key, None)
        # Copies, because the write may come later; what is known of partitions that were not opened stays.
        recovery_points, log_starts = dict(self._recovery_points), dict(self._log_starts)
        self._checkpointed = self._remembered(recovery_points, log_starts)
        self._taken += 1
        taken = self._taken

        def write() -> None:
            with self._writing:
                # A later one may have been faster: an older one must not replace it.
                if taken > self._written:
                    self._written = taken
                    self.write(checkpoints.RECOVERY_POINTS, checkpoints.write_offsets(recovery_points))
                    self.write(checkpoints.HIGH_WATERMARKS, checkpoints.write_offsets(high_watermarks))
                    # Last: a log start above the log's end would make Kafka drop the log.
                    self.write(checkpoints.LOG_STARTS, checkpoints.write_offsets(log_starts))

        return write

    # Partitions

    def folder(self, topic: str, index: int) -> str:
        """Where a partition lies."""
        return f"{self.path}/{topic}-{index}"

    def folders(self) -> list[TopicPartition]:
        """The partitions whose folders are there, known or not."""
        found = []
        for name in self._files.listdir(self.path):
            partition = partition_of(name)
            if partition is not None and self._files.is_directory(f"{self.path}/{name}"):
                found.append(partition)
        return found

    def create_partition(
        self, topic: str, index: int, topic_id: bytes, settings: TopicSettings, *, first_offset: int = 0
    ) -> Partition:
        """A new, durable partition; its first record gets `first_offset`."""
        (partition,) = self.create_partitions(topic, [index], topic_id, settings, first_offset=first_offset)
        return partition

    def create_partitions(
        self,
        topic: str,
        indexes: Iterable[int],
        topic_id: bytes,
        settings: TopicSettings,
        *,
        first_offset: int = 0,
        lazily: bool = False,
    ) -> list[Partition]:
        """New, durable partitions of a topic; lazy ones, of which there may be many, get a folder when first used."""
        keys = [TopicPartition(topic, index) for index in indexes]
        self.forget_predecessors(keys)
        created = []
        self._is_used = True
        for key in keys:
            partition = Partition.create(
                self.folder(*key), topic, key.partition, topic_id, settings,
                files=self._files, committer=self._committer, clock=self._clock, first_offset=first_offset,
                lazily=lazily,
            )  # fmt: skip
            self.partitions[key] = partition
            created.append(partition)
        if not lazily:
            self._files.sync_directory(self.path)
        return created

    def forget_predecessors(self, keys: Sequence[TopicPartition]) -> None:
        """What is remembered of deleted partitions will not be believed of their successors; durable."""
        if any(key in self._checkpointed for key in keys):
            for key in keys:
                self._forget(key)
            self.write_checkpoints()

    def open_partition(self, topic: str, index: int, topic_id: bytes, settings: TopicSettings) -> Partition:
        """The partition as it was left; one without a folder, new or lazy, is empty."""
        key, folder = TopicPartition(topic, index), self.folder(topic, index)
        name = f"{topic}-{index}"
        is_there = name in self._found or self._files.exists(folder)
        self._found.discard(name)
        recovered = self._recovered.get(partition_key(topic_id, index))
        if is_there and self._has_old_wal and recovered is None and not self._recovery_points.get(key):
            # The WAL knows nothing of it: not one record was acknowledged, and any part of its files may be lost.
            self.remove_folder(folder)
            is_there = False
        if is_there and not self._belongs(folder, key, topic_id):
            # What the checkpoints say of the partition is said of that folder.
            self._set_aside(folder, topic, index)
            self._forget(key)
            recovered = None
            is_there = False
        if not is_there:
            return self._open_missing(key, topic_id, settings, recovered)
        self._is_used = True
        partition = Partition.open(
            folder, topic, index, topic_id, settings,
            files=self._files, committer=self._committer, clock=self._clock, clean=self.was_clean,
            recovery_point=self._recovery_points.get(key, 0) if recovered is None else recovered.recovery_point,
            durable_end=0 if recovered is None else recovered.end,
            is_replayed=recovered is not None and recovered.is_whole and recovered.end > 0,
            log_start_offset=self._log_starts.get(key, 0),
            cleaned_to=self._cleaned.get(key, 0 if self._is_cleaned_unknown else None),
            aborted_checksums=None if self._aborted is None else self._aborted.get(key, {}),
        )  # fmt: skip
        self.partitions[key] = partition
        return partition

    def _open_missing(
        self, key: TopicPartition, topic_id: bytes, settings: TopicSettings, recovered: Recovered | None
    ) -> Partition:
        """Return a partition without a folder: one that never had a record, or one whose folder was taken away.

        The WAL, or the checkpoints of a clean stop, know how many offsets of the latter were given out: none is given
        out again. After a crash the checkpoints may still speak of a deleted topic of the same name.
        """
        topic, index = key
        known_end = self._recovery_points.get(key, 0) if self.was_clean else 0
        if recovered is not None:
            known_end = recovered.end
        if not known_end:
            (partition,) = self.create_partitions(topic, [index], topic_id, settings, lazily=True)
            return partition
        logger.error(
            "the folder of %s-%d is missing: its records below offset %d are lost, and new ones begin there",
            topic, index, known_end,
        )  # fmt: skip
        return self.create_partition(topic, index, topic_id, settings, first_offset=known_end)

    def read_ahead(self, keys: Iterable[TopicPartition]) -> ReadAhead:
        """Begins to read what opening these partitions will read; to be stopped by the caller."""
        found = (key for key in keys if f"{key.topic}-{key.partition}" in self._found)
        return ReadAhead((self.folder(*key) for key in found), self._files)

    def _belongs(self, folder: str, key: TopicPartition, topic_id: bytes) -> bool:
        """Whether a folder is the topic's; one that a crash left without an id or data is completed."""
        path = f"{folder}/{METADATA}"
        try:
            content = self._files.read(path)
        except FileNotFoundError:
            content = b""
        if not content and not any(name.endswith(".log") for name in self._files.listdir(folder)):
            self._files.write(path, checkpoints.write_partition_metadata(topic_id), sync=False)
            return True
        try:
            return checkpoints.read_partition_metadata(content) == topic_id
        except Malformed as error:
            if not self.was_clean and not self._recovery_points.get(key):
                # A crash came before the first record was durable, and took the id.
                logger.warning("%s: %s", path, error)
                return False
            # Not set aside: the topic would begin again at offset 0, and its readers would not notice.
            raise UserError(
                f"{path} cannot be used: {error}. Nothing was changed. Restore that file from a copy, or move the "
                "folder away to begin that partition anew."
            ) from None

    def _set_aside(self, folder: str, topic: str, index: int) -> None:
        aside = f"{self.path}/{_name_with_suffix(topic, index, 'stray')}"
        logger.warning("%s is not of the topic's id: it is kept as %s and not used", folder, aside)
        self._files.replace(folder, aside)

    def delete_partition(self, topic: str, index: int) -> None:
        """Close a partition and take its folder out of use, durably; `purge` removes the files later."""
        self.delete_partitions(topic, [index])

    def delete_partitions(self, topic: str, indexes: Iterable[int]) -> None:
        """Do the same for several partitions, with one sync for all."""
        self._is_used = True
        renamed = [index for index in indexes if self._take_out(TopicPartition(topic, index))]
        if renamed:
            self._files.sync_directory(self.path)

    def _take_out(self, key: TopicPartition) -> bool:
        """Close a partition and rename its folder; returns whether there was one."""
        partition = self.partitions.pop(key, None)
        self._forget(key)
        if partition is not None:
            partition.close(clean=False)
        folder = self.folder(*key)
        if not self._files.exists(folder):
            return False
        going = f"{self.path}/{_name_with_suffix(*key, 'delete')}"
        self._files.replace(folder, going)
        delay_ms = partition.settings.file_delete_delay_ms if partition is not None else 0
        self._going.append((self._clock.now_ms() + delay_ms, going))
        return True

    def _forget(self, key: TopicPartition) -> None:
        self._recovery_points.pop(key, None)
        self._log_starts.pop(key, None)
        if self._aborted is not None:
            self._aborted.pop(key, None)
        if self._cleaned.pop(key, None) is not None:
            self._write_cleaned()

    def purge(self, now_ms: int) -> None:
        """Removes the files of partitions that were deleted long enough ago."""
        for path in self.take_removable(now_ms):
            self.remove_folder(path)

    def take_removable(self, now_ms: int) -> list[str]:
        """The folders of partitions that were deleted long enough ago: whoever takes them removes them."""
        if not self._going:
            return []
        due = [path for deadline_ms, path in self._going if deadline_ms <= now_ms]
        self._going = [(deadline_ms, path) for deadline_ms, path in self._going if deadline_ms > now_ms]
        return due

    def remove_folder(self, path: str) -> None:
        """Removes a folder with its files."""
        for name in self._files.listdir(path):
            self._files.remove(f"{path}/{name}")
        self._files.rmdir(path)


def partition_of(folder: str) -> TopicPartition | None:
    """Return the partition that a folder is named after, or None if it is named otherwise."""
    match = _FOLDER.fullmatch(os.path.basename(folder))
    return None if match is None else TopicPartition(match["topic"], int(match["index"]))


def folders_by_id(path: str, files: FileSystem) -> Callable[[bytes, int], str | None]:
    """Return what finds the folder of a partition by the id of its topic; None if the topic is deleted."""
    catalogue = f"{path}/{CATALOG}"
    content = files.read(catalogue) if files.exists(catalogue) else None
    by_id = {entry.id: entry for entry in Catalog(content, write=lambda _: None, path=catalogue).entries()}

    def find(topic_id: bytes, index: int) -> str | None:
        entry = by_id.get(topic_id)
        return None if entry is None or index >= entry.partitions else f"{path}/{entry.name}-{index}"

    return find


def complete_folder(folder: str, topic_id: bytes, files: FileSystem) -> None:
    """Make a partition's folder with the id of its topic, where a crash has lost that; opening it adds the rest."""
    if not files.exists(folder):
        files.mkdir(folder)
    metadata = f"{folder}/{METADATA}"
    wanted = checkpoints.write_partition_metadata(topic_id)
    if not files.exists(metadata) or files.read(metadata) != wanted:
        files.write(metadata, wanted, sync=False)
    files.sync_file(metadata)


def _make(path: str, files: FileSystem) -> None:
    if files.is_directory(path):
        return
    if files.exists(path):
        raise UserError(f"{path} is not a directory. Nothing was changed. Choose another with --data-dir.")
    parent = os.path.dirname(path)
    _make(parent, files)
    files.mkdir(path)
    files.sync_directory(parent)


def _meta(path: str, files: FileSystem, names: Sequence[str]) -> dict[str, str]:
    """What meta.properties says; a new directory gets one."""
    folders = [name for name in names if files.is_directory(f"{path}/{name}")]
    ours = (wal.FOLDER, *wal.UNFINISHED)
    folders = [name for name in folders if name not in ours]
    foreign = [name for name in folders if not (_FOLDER.fullmatch(name) or _GOING.fullmatch(name)
                                                or _STRAY.fullmatch(name))]  # fmt: skip
    is_ours = CATALOG in names
    if KAFKA_METADATA in folders or (META in names and not is_ours and (folders or BOOTSTRAP in names)):
        raise UserError(
            f"Apache Kafka wrote the data directory {path}. Nothing was changed. "
            "Logmark opens only directories of its own: choose another with --data-dir."
        )
    if foreign or (folders and not is_ours):
        raise UserError(
            f"{path} holds a folder that is not a partition of Logmark, {(foreign or folders)[0]!r}. Nothing was "
            "changed. A data directory holds nothing else: choose an empty one with --data-dir."
        )
    if META not in names:
        meta = {
            "cluster.id": _new_id(),
            "directory.id": _new_id(),
            "node.id": str(NODE_ID),
            "version": "1",
        }
        files.write_atomically(f"{path}/{META}", properties.write(meta))
        return meta
    meta = properties.parse(files.read(f"{path}/{META}").decode("utf-8", "replace"))
    missing = {"cluster.id", "directory.id", "node.id", "version"} - meta.keys()
    if missing:
        problem, remedy = f"lacks {', '.join(sorted(missing))}", "Restore that file from a copy"
    elif meta["version"] != "1":
        problem = f"has version {meta['version']}, and this Logmark reads version 1 only"
        remedy = "Use the Logmark that wrote it, or a newer one"
    elif not meta["node.id"].isdecimal():
        problem, remedy = f"has the node.id {meta['node.id']!r}", "Restore that file from a copy"
    else:
        return meta
    raise UserError(f"{path}/{META} {problem}. Nothing was changed. {remedy}, or choose another with --data-dir.")


def _new_id() -> str:
    while (text := checkpoints.id_text(secrets.token_bytes(16))).startswith("-"):
        pass
    return text


def _name_with_suffix(topic: str, index: int, suffix: str) -> str:
    tail = f"-{index}.{secrets.token_hex(16)}-{suffix}"
    return topic[: FOLDER_NAME_MAX - len(tail)] + tail


def unusable(path: str, error: OSError) -> UserError:
    """The sentence for a data directory that the operating system does not let us use."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason, remedy = "cannot be written to", "Give this user the right to write there"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason, remedy = "is on a full disk", "Free some space"
    else:
        reason, remedy = f"cannot be used ({error.strerror or error})", "Repair it"
    return UserError(
        f"The data directory {path} {reason}. Nothing was changed. {remedy}, or choose another with --data-dir."
    )
