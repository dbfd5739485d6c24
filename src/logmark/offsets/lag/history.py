"""Samples kept in an SQLite file, so that lag has a past: bounded in age, in number and in bytes.

A sample is one row with the starts and ends of all partitions, and one row for each group with its distances to those
ends. Distances are small numbers where groups keep up, and compress to almost nothing. Old samples are thinned out,
oldest first: see `TIERS`. A file belongs to one cluster.
"""

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote

from logmark import private_files
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import activity_token
from logmark.offsets.errors import HistoryMissing, HistoryUnusable
from logmark.offsets.lag.annotations import Annotation
from logmark.offsets.lag.sample import Sample, matches
from logmark.offsets.lag.sample_codec import Ends, NameIds, pack_ends, pack_positions, unpack_positions
from logmark.offsets.user_files import state_folder

VERSION = 1
_PACKED = "places"  # a stored name: the column of the packed committed offsets
_APPLICATION_ID = 0x4C4D4B48  # "LMKH"
_REMEDY = "open another file, or move this one away"


class Tier(NamedTuple):
    """Samples younger than `age_ms` are kept at most one in `every_ms`."""

    age_ms: int
    every_ms: int


_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
TIERS = (Tier(_HOUR, 0), Tier(_DAY, _MINUTE), Tier(7 * _DAY, 15 * _MINUTE), Tier(90 * _DAY, _HOUR))
BYTES_MAX = 1 << 30
_THIN_EVERY_MS = _MINUTE
_CACHED_NUMBERS_MAX = 4_000_000

_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE names (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (kind, name));
CREATE TABLE samples (at_ms INTEGER PRIMARY KEY, ends BLOB NOT NULL);
CREATE TABLE positions (
    at_ms INTEGER NOT NULL, group_id INTEGER NOT NULL, state TEXT NOT NULL, members INTEGER NOT NULL,
    sign TEXT NOT NULL, {_PACKED} BLOB NOT NULL, PRIMARY KEY (at_ms, group_id)
) WITHOUT ROWID;
CREATE TABLE breaks (
    topic_id INTEGER NOT NULL, partition INTEGER NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY (topic_id, partition)
) WITHOUT ROWID;
CREATE TABLE annotations (
    id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, group_name TEXT NOT NULL, text TEXT NOT NULL, moves TEXT NOT NULL
) WITHOUT ROWID;
"""


class PartitionSample(NamedTuple):
    """A group in one partition at one time, with how many members it had and its sign of life."""

    at_ms: int
    committed: int
    start: int
    end: int
    members: int = 0
    sign: str = ""

    @property
    def lag(self) -> int:
        return max(0, self.end - max(self.committed, self.start))


def default_history_path(cluster_id: str, *, read_committed: bool = False) -> Path:
    """Return the file of a cluster's history in the user's state folder."""
    safe = "".join(one if one.isalnum() or one in "-_" else "_" for one in cluster_id) or "unknown"
    return state_folder() / f"history-{safe}{'-committed' if read_committed else ''}.sqlite"


class History:
    """One file; its context closes it. One writer at a time; any number may read meanwhile."""

    def __init__(
        self, path: Path | None, *, cluster_id: str = "", read_only: bool = False, tiers: Sequence[Tier] = TIERS,
        bytes_max: int = BYTES_MAX,
    ) -> None:  # fmt: skip
        """Open the file, or create it; raises HistoryUnusable for another cluster, version or kind of file.

        Without a path the history lives in memory.
        """
        self.path = path or Path(":memory:")
        self._tiers = tiers
        self._bytes_max = bytes_max
        self._thinned_ms: int | None = None
        self._ends: OrderedDict[int, Ends] = OrderedDict()
        self._cached = 0
        self._data_version = 0
        self._forgot_ms: int | None = None
        self._last_ends: dict[tuple[int, int], int] | None = None  # also of partitions that the last sample lacks
        if path is not None and not read_only:
            private_files.make_folders(path.parent)
        where = "file::memory:" if path is None else f"file:{quote(str(path.absolute()))}?mode="
        mode = "" if path is None else "ro" if read_only else "rwc"
        try:
            if path is not None and not read_only:
                # SQLite would make it readable for everybody; the files that it keeps beside get the same mode.
                with suppress(OSError):
                    private_files.create_file(path)
            self._db = sqlite3.connect(
                where + mode, uri=True, timeout=10, isolation_level=None, check_same_thread=False
            )
            self._begin(read_only=read_only)
        except sqlite3.Error as error:
            raise HistoryUnusable(f"The history {path} cannot be used: {error}. Nothing was changed", _REMEDY) from None
        self._names = self._known_names()
        self._is_read_only = read_only
        self._check_cluster(cluster_id, read_only=read_only)

    def _begin(self, *, read_only: bool) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        is_new = not self._db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        if not is_new and (application != _APPLICATION_ID or version != VERSION):
            self._db.close()
            what = f"of version {version}" if application == _APPLICATION_ID else "no history of lag"
            raise HistoryUnusable(
                f"{self.path} is {what}; this Logmark reads and writes version {VERSION}. Nothing was changed", _REMEDY
            )
        if read_only:
            return
        if is_new:
            self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(
                f"BEGIN; PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {VERSION}; {_SCHEMA} COMMIT;"
            )
        # A power cut may cost the last samples, never the file.
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(f"PRAGMA journal_size_limit = {64 << 20}")

    def _check_cluster(self, cluster_id: str, *, read_only: bool) -> None:
        known = self.get_value("cluster")
        if known is None and cluster_id and not read_only:
            self.set_value("cluster", cluster_id)
        elif known is not None and cluster_id and known != cluster_id:
            self.close()
            raise HistoryUnusable(
                f"The history {self.path} is of cluster {known}, and this is cluster {cluster_id}. Nothing was changed",
                _REMEDY,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, sample: Sample) -> None:
        """Add a sample, whole or not at all, and thin out old ones now and then.

        Samples that are not older than this one are dropped: they come from a clock that has been set back.
        """
        with self._change():
            self._notice_others()
            rows = [
                (
                    sample.at_ms,
                    self._names.of("group", one.group),
                    one.state,
                    len(one.members),
                    activity_token(commit.metadata for commit in one.committed.values()),
                    pack_positions(one.committed, sample.ends, self._names),
                )
                for one in sample.groups.values()
                if not one.problem and not one.is_unknown
            ]
            self._drop(self.times(since_ms=sample.at_ms))
            self._mark_breaks(sample)
            ends = pack_ends(sample.starts, sample.ends, self._names)
            self._db.execute("INSERT INTO samples VALUES (?, ?)", (sample.at_ms, ends))
            self._db.executemany("INSERT INTO positions VALUES (?, ?, ?, ?, ?, ?)", rows)
        if self._thinned_ms is None or not 0 <= sample.at_ms - self._thinned_ms < _THIN_EVERY_MS:
            self.thin(sample.at_ms)

    def _notice_others(self) -> None:
        """Another writer may have given names, or dropped some, since we last looked."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        if version != self._data_version:
            self._data_version = version
            self._names = self._known_names()
            self._last_ends = None

    def _mark_breaks(self, sample: Sample) -> None:
        """Note partitions whose end went back: older offsets belong to another log of the same name."""
        last = self._last_ends
        if last is None:
            times = self.times()
            last = self._last_ends = dict(self.ends_at(times[-1]).all()) if times else {}
        back = []
        for one, end in sample.ends.items():
            key = (self._names.of("topic", one.topic), one.partition)
            if end < last.get(key, 0):
                back.append((*key, sample.at_ms))
            last[key] = end
        self._db.executemany("INSERT OR REPLACE INTO breaks VALUES (?, ?, ?)", back)

    def annotate(self, annotations: Iterable[Annotation]) -> None:
        """Add changes that our own tools made; each is stored once."""
        rows = [
            (
                one.id, one.at_ms, one.group, one.text,
                json.dumps([[where.topic, where.partition, to] for where, to in one.moves.items()]),
            )
            for one in annotations
        ]  # fmt: skip
        if rows:
            with self._change():
                self._db.executemany("INSERT OR REPLACE INTO annotations VALUES (?, ?, ?, ?, ?)", rows)

    def annotations(self, *, group: str | None = None, since_ms: int = 0) -> list[Annotation]:
        """Return the changes that our own tools made, oldest first."""
        rows = self._db.execute(
            "SELECT id, at_ms, group_name, text, moves FROM annotations "
            "WHERE at_ms >= ? AND (? IS NULL OR group_name = ?) ORDER BY at_ms, id",
            (since_ms, group, group),
        )
        return [
            Annotation(
                id=key, at_ms=at_ms, group=name, text=text,
                moves={TopicPartition(topic, number): to for topic, number, to in json.loads(moves)},
            )
            for key, at_ms, name, text, moves in rows
        ]  # fmt: skip

    def set_value(self, key: str, value: str | None) -> None:
        """Store a small text under a key, across restarts; None deletes it."""
        with self._change():
            if value is None:
                self._db.execute("DELETE FROM meta WHERE key = ?", (key,))
            else:
                self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def get_value(self, key: str) -> str | None:
        """Return the text stored under a key."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def times(self, *, since_ms: int = 0, points_max: int | None = None) -> list[int]:
        """When samples were taken, oldest first; at most so many, evenly spread, with the first and the last."""
        found = [
            row[0] for row in self._db.execute("SELECT at_ms FROM samples WHERE at_ms >= ? ORDER BY 1", (since_ms,))
        ]
        if points_max is None or len(found) <= points_max:
            return found
        step = (len(found) - 1) / (points_max - 1)
        return [found[round(index * step)] for index in range(points_max)]

    def topic_id(self, topic: str) -> int | None:
        """Return the number of a topic in `ends_at`, None if no sample ever had it."""
        return self._names.known("topic", topic)

    def ends_at(self, at_ms: int) -> Ends:
        """Return starts and ends of all partitions in one sample; the last samples asked for are cached."""
        found = self._ends.get(at_ms)
        if found is None:
            row = self._db.execute("SELECT ends FROM samples WHERE at_ms = ?", (at_ms,)).fetchone()
            # A writer may have thinned it out since its time was read: then nothing is known of that time.
            found = self._ends[at_ms] = Ends(row[0]) if row else Ends.none()
            self._cached += found.size
            while len(self._ends) > 1 and self._cached > _CACHED_NUMBERS_MAX:
                self._cached -= self._ends.popitem(last=False)[1].size
        self._ends.move_to_end(at_ms)
        return found

    def breaks(self) -> dict[TopicPartition, int]:
        """Where an end has gone back, and when that was last seen."""
        rows = self._db.execute("SELECT topic_id, partition, at_ms FROM breaks").fetchall()
        self._refresh_names()
        topics = self._names.names("topic")
        return {TopicPartition(topics[topic], partition): at_ms for topic, partition, at_ms in rows}

    def series(
        self, group: str, *, since_ms: int = 0, points_max: int | None = None
    ) -> dict[TopicPartition, list[PartitionSample]]:
        """Return a group's samples in each partition, oldest first; only those in which it had a commit there."""
        return self.windows([group], since_ms=since_ms, points_max=points_max).get(group, {})

    def windows(
        self, groups: Collection[str], *, since_ms: int = 0, points_max: int | None = None
    ) -> dict[str, dict[TopicPartition, list[PartitionSample]]]:
        """Return the series of several groups, read in one pass."""
        times = self.times(since_ms=since_ms, points_max=points_max)
        self._refresh_names()
        wanted = {number: name for name in groups if (number := self._names.known("group", name)) is not None}
        topics = self._names.names("topic")
        partitions: dict[tuple[int, int], TopicPartition] = {}
        found: dict[str, dict[TopicPartition, list[PartitionSample]]] = {}
        for at_ms in times:
            ends = self.ends_at(at_ms)
            for number, members, sign, packed in self._rows(at_ms, wanted):
                series = found.setdefault(wanted[number], {})
                for topic, partition, distance in unpack_positions(packed):
                    start, end = ends.start(topic, partition), ends.end(topic, partition)
                    if end < 0:
                        continue
                    key = (topic, partition)
                    where = partitions.get(key) or partitions.setdefault(key, TopicPartition(topics[topic], partition))
                    moment = PartitionSample(at_ms, end - distance, start, end, members, sign)
                    series.setdefault(where, []).append(moment)
        return found

    def totals(
        self, groups: Collection[str] | None = None, *, since_ms: int = 0, points_max: int | None = None,
        topics: Collection[str] | None = None,
    ) -> dict[str, list[tuple[int, int]]]:  # fmt: skip
        """Return the lag in records per group, in these topics or in all, as pairs of time and lag, oldest first."""
        times = self.times(since_ms=since_ms, points_max=points_max)
        self._refresh_names()
        names = self._names.names("group")
        wanted = {number: name for number, name in names.items() if groups is None or name in groups}
        counted = {number for number, name in self._names.names("topic").items() if matches(name, topics)}
        found: dict[str, list[tuple[int, int]]] = {}
        for at_ms in times:
            ends = self.ends_at(at_ms)
            for number, _, _, packed in self._rows(at_ms, wanted):
                lag = sum(
                    max(0, min(distance, end - ends.start(topic, partition)))
                    for topic, partition, distance in unpack_positions(packed)
                    if topic in counted and (end := ends.end(topic, partition)) >= 0
                )
                found.setdefault(wanted[number], []).append((at_ms, lag))
        return found

    def groups(self) -> dict[str, int]:
        """Every group that the kept samples have, with the time of the last one."""
        rows = self._db.execute("SELECT group_id, MAX(at_ms) FROM positions GROUP BY group_id").fetchall()
        self._refresh_names()
        names = self._names.names("group")
        return {names[number]: at_ms for number, at_ms in rows}

    def _rows(self, at_ms: int, wanted: Mapping[int, str]) -> Iterator[tuple[int, int, str, bytes]]:
        select = f"SELECT group_id, members, sign, {_PACKED} FROM positions WHERE at_ms = ?"  # noqa: S608
        if len(wanted) <= 20:
            marks = ",".join("?" * len(wanted))
            yield from self._db.execute(f"{select} AND group_id IN ({marks})", (at_ms, *wanted))
            return
        rows = self._db.execute(select, (at_ms,))
        yield from (row for row in rows if row[0] in wanted)

    def thin(self, now_ms: int) -> None:
        """Drop samples that are too old or too dense for their age, and the oldest ones if the file is too large."""
        self._thinned_ms = now_ms
        with self._change():
            self._drop(_too_many(self.times(), now_ms, self._tiers))
            oldest = now_ms - self._tiers[-1].age_ms
            self._db.execute("DELETE FROM annotations WHERE at_ms < ?", (oldest,))
            self._db.execute("DELETE FROM breaks WHERE at_ms < ?", (oldest,))
            while self.bytes_used > self._bytes_max and len(times := self.times()) > 1:
                self._drop(times[: max(1, len(times) // 20)])
            self._forget_names(now_ms)
        self._db.execute("PRAGMA incremental_vacuum")

    def _drop(self, times: Sequence[int]) -> None:
        if not times:
            return
        for table in ("samples", "positions"):
            self._db.executemany(f"DELETE FROM {table} WHERE at_ms = ?", [(at_ms,) for at_ms in times])  # noqa: S608
        self._ends.clear()
        self._cached = 0

    def _forget_names(self, now_ms: int) -> None:
        """Drop the names of groups that are in no sample; once a day, because it reads every row."""
        if self._forgot_ms is None or now_ms - self._forgot_ms < _DAY:
            self._forgot_ms = self._forgot_ms or now_ms
            return
        self._forgot_ms = now_ms
        self._db.execute(
            "DELETE FROM names WHERE kind = 'group' AND id NOT IN (SELECT DISTINCT group_id FROM positions)"
        )
        self._names = self._known_names()

    def _refresh_names(self) -> None:
        """Read names that were added after this reader opened the file."""
        if self._is_read_only:
            self._names = self._known_names()

    @property
    def bytes_used(self) -> int:
        """The bytes of the file that hold something."""
        pages, free, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _known_names(self) -> NameIds:
        return NameIds(self._db.execute("SELECT id, kind, name FROM names").fetchall(), self._add_name)

    def _add_name(self, kind: str, name: str) -> int:
        number = self._db.execute("INSERT INTO names (kind, name) VALUES (?, ?)", (kind, name)).lastrowid
        assert number is not None
        return number

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Commit everything inside as one transaction, or nothing."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            self._names, self._last_ends = self._known_names(), None
            raise
        self._db.execute("COMMIT")


def open_history(path: Path | None, cluster_id: str, *, read_committed: bool = False) -> History | None:
    """Open the history of a cluster for reading, None if there is none; raises HistoryMissing for a named file."""
    found = path or default_history_path(cluster_id, read_committed=read_committed)
    if not found.exists():
        if path is not None:
            raise HistoryMissing(f"There is no history {path} yet", "History(path).add(sample) writes one")
        return None
    return History(found, cluster_id=cluster_id, read_only=True)


def _too_many(times: Sequence[int], now_ms: int, tiers: Sequence[Tier]) -> list[int]:
    """Return the samples that are too old or too dense: the first one of each interval stays."""
    drop, last = [], None
    for at_ms in times:
        every = next((tier.every_ms for tier in tiers if now_ms - at_ms < tier.age_ms), None)
        if every is None or (every and last == (every, at_ms // every)):
            drop.append(at_ms)
            continue
        last = (every, at_ms // every) if every else None
    return drop
