"""Looks at one cluster again and again: samples it, keeps the history, and says what each sample means."""

import fcntl
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from logmark import private_files
from logmark.client.client import Client
from logmark.client.errors import ClientError
from logmark.client.metadata import ClusterMetadata
from logmark.clock import Clock
from logmark.errors import LogmarkError, UserError
from logmark.offsets.errors import HistoryLocked, HistoryUnusable
from logmark.offsets.journal.journal import open_journal
from logmark.offsets.lag.age_cache import AgeCache
from logmark.offsets.lag.annotations import annotations_from_changes
from logmark.offsets.lag.history import History, default_history_path
from logmark.offsets.lag.sample import Sample, matches, take_sample
from logmark.offsets.monitor.exporters import ExporterSample
from logmark.offsets.monitor.reading_builder import ReadingBuilder
from logmark.offsets.monitor.readings import Reading
from logmark.offsets.monitor.retention import IdleGroup, Retention, idle_groups
from logmark.offsets.partitions import LogBounds

_JOURNAL_EVERY_MS = 60_000
_JOURNAL_SINCE_MS = 86_400_000
_SAID_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleScope:
    """What of a cluster is looked at: groups and topics by name or pattern, None for all, and what costs more."""

    groups: Sequence[str] | None = None
    topics: Sequence[str] | None = None
    every_partition: bool = False
    falling_off: bool = False
    expiring: bool = False
    cluster_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """One sample, what the exporters would see, and what it means."""

    sample: Sample
    seen: ExporterSample
    reading: Reading
    requests: int
    took_ms: int


class ClusterSampler:
    """A cluster, its history, and what was learned of it so far; a look that fails closes the connections."""

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        wanted: SampleScope,
        clock: Clock,
        say: Callable[[str], None],
        history_path: Path | None = None,
    ) -> None:
        self._connect = connect
        self._wanted = wanted
        self._clock = clock
        self._say = say
        self._history_path = history_path
        self._client: Client | None = None
        self._lock: IO[bytes] | None = None
        self.cluster_id = ""
        self.history: History | None = None
        self.idle: Mapping[str, IdleGroup] = {}
        self._ages = AgeCache()
        self._retention = Retention()
        self._judge = ReadingBuilder(self._retention, falling_off=wanted.falling_off)
        self._previous: Sample | None = None
        self._journal_ms: int | None = None
        self._is_kept = False
        self._said: set[str] = set()

    def open(self) -> History:
        """Open the history of the cluster, and lock it against other monitors.

        Raises if the cluster cannot be reached.
        """
        if self.history is None:
            self.cluster_id = self._connected().metadata([]).cluster_id
            path = self._history_path or default_history_path(self.cluster_id)
            self._lock = _locked(path)
            self.history = History(path, cluster_id=self.cluster_id)
        return self.history

    def look(self) -> SampleResult:
        """Take a sample, store it, and return what it means; raises ClientError if the cluster cannot be reached."""
        began_ms = self._clock.now_ms()
        try:
            client = self._connected()
            before = client.requests_sent
            history = self.open()
            sample = take_sample(client, self._wanted.groups, self._wanted.topics, now_ms=self._clock.now_ms)
            self._refuse_another(sample)
            for note in sample.notes:
                self._say_once(note)
            seen = self._seen(client, sample)
            self._keep(client, history, sample)
            ages = self._ages.of(sample, history, client)
            self._learn_expiry(client, sample)
            reading = self._judge.read(
                sample,
                ages,
                history if self._is_kept else None,
                history.annotations(since_ms=sample.at_ms - _JOURNAL_SINCE_MS),
                idle=self.idle if self._wanted.expiring else {},
            )
        except ClientError:
            self.disconnect()
            raise
        self._previous = sample
        took_ms = self._clock.now_ms() - began_ms
        return SampleResult(
            sample=sample, seen=seen, reading=reading, requests=client.requests_sent - before, took_ms=took_ms
        )  # fmt: skip

    def disconnect(self) -> None:
        """Close the connections; the next sample connects again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        """Close the connections and the history."""
        self.disconnect()
        if self.history is not None:
            self.history.close()
            self.history = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _refuse_another(self, sample: Sample) -> None:
        if sample.cluster_id != self.cluster_id:
            raise UserError(
                f"Cluster {sample.cluster_id} answers where cluster {self.cluster_id} was. "
                "Their histories are kept apart: restart the monitor."
            )

    def _seen(self, client: Client, sample: Sample) -> ExporterSample:
        metadata = _NO_METADATA
        starts, ends = sample.starts, sample.ends
        if self._wanted.every_partition:
            known = client.metadata()
            topics = {name: topic for name, topic in known.topics.items() if matches(name, self._wanted.topics)}
            metadata = replace(known, topics=topics)
            others = [
                partition
                for topic in metadata.topics
                for partition in metadata.partitions(topic)
                if partition not in ends and partition not in sample.problems
            ]
            bounds = LogBounds.fetch(client, others, wait_for_leader=False)
            starts, ends = {**starts, **bounds.starts}, {**ends, **bounds.ends}
        return ExporterSample(
            at_ms=sample.at_ms,
            took_ms=sample.took_ms,
            cluster_name=self._wanted.cluster_name or sample.cluster_id,
            metadata=metadata,
            starts=starts,
            ends=ends,
            groups=[one for one in sample.groups.values() if not one.is_unknown and not one.problem],
        )

    def _keep(self, client: Client, history: History, sample: Sample) -> None:
        self._is_kept = False
        try:
            history.add(sample)
            self._is_kept = True
            if self._is_journal_due(sample):
                since_ms = sample.at_ms - _JOURNAL_SINCE_MS
                history.annotate(
                    annotations_from_changes(
                        open_journal(client).changes(cluster_id=sample.cluster_id, since_ms=since_ms)
                    )
                )
                self._journal_ms = sample.at_ms
        except sqlite3.Error as error:
            self._say_once(f"The history {history.path} cannot be written: {error}; continuing without it.")
        except LogmarkError as error:
            self._say_once(f"The journal of changes cannot be read, so our own resets look like anybody's: {error}")

    def _is_journal_due(self, sample: Sample) -> bool:
        # A group that moved back may have been reset by us: that must be known before an alert fires.
        if self._journal_ms is None or not 0 <= sample.at_ms - self._journal_ms < _JOURNAL_EVERY_MS:
            return True
        return self._previous is not None and _is_any_moved_back(self._previous, sample)

    def _learn_expiry(self, client: Client, sample: Sample) -> None:
        if self._wanted.expiring:
            self.idle = idle_groups(self.idle, list(sample.groups.values()), sample.at_ms)
        behind: set[str] = set()
        if self._wanted.falling_off:
            behind = {
                partition.topic
                for group in sample.groups.values()
                for partition in group.committed
                if sample.unread(group.group, partition) is not None
            }
        if behind or self._wanted.expiring:
            self._retention.refresh(client, behind, offsets=self._wanted.expiring, now_ms=sample.at_ms)

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            if len(self._said) >= _SAID_MAX:
                self._said.clear()
            self._said.add(sentence)
            self._say(sentence)


_NO_METADATA = ClusterMetadata(cluster_id="", controller=-1, brokers={}, topics={}, errors={})


def _is_any_moved_back(before: Sample, after: Sample) -> bool:
    for group in after.groups.values():
        known = before.groups.get(group.group)
        if known is None:
            continue
        for partition, commit in group.committed.items():
            was = known.committed.get(partition)
            if was is not None and commit.offset < was.offset:
                return True
    return False


def _locked(path: Path) -> IO[bytes]:
    """Return a lock beside the history, held until it is closed: two monitors would send everything twice."""
    try:
        private_files.make_folders(path.parent)
        lock = private_files.open_file(path.with_name(path.name + ".lock"), "ab")
    except OSError as error:
        raise HistoryUnusable(
            f"The history {path} cannot be written: {error.strerror}. Nothing was changed", "write another file"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise HistoryLocked(
            f"Another monitor writes the history {path}", "stop it, or give this one a history_path of its own"
        ) from None
    return lock
