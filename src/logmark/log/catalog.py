"""The catalogue of topics: names, ids, partition counts and overrides, and the next free producer id.

It is one JSON file at the top of the data directory, replaced as a whole. A topic is entered before its folders are
made and struck out after they are gone, so that every folder always has an owner, whenever the process dies. This
module decides and encodes, and writes nothing: `broker/catalog_changes.py` makes a change durable before a client sees
it.
"""

import base64
import copy
import json
import os
import secrets
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from logmark.errors import ErrorCode, Refused, UserError
from logmark.log.settings import TopicSettings
from logmark.names import INTERNAL_TOPICS
from logmark.wire import columns

FILE_NAME = "logmark.catalog"
# Version 1 had no checksum; people who edit the file by hand use it.
VERSION = 2
_CHECKSUM_FIELD = b', "checksum": '
NAME_LENGTH_MAX = 249
PARTITIONS_MAX = 10_000
_LEGAL = frozenset(string.ascii_letters + string.digits + "._-")

# Apache Kafka hands out producer ids from 0. A batch of ours with one of those could make it
# acknowledge a record without writing it, so ours begin where Kafka will not get to.
PRODUCER_ID_BASE = 1 << 40
# No broker ever gets that far: a client has made up what lies above.
PRODUCER_ID_LIMIT = 1 << 62
PRODUCER_ID_BLOCK = 1000


def check_name(name: str) -> None:
    """Refuse a topic name that Kafka would refuse, with the reason."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"it is longer than {NAME_LENGTH_MAX} characters"
    elif not _LEGAL.issuperset(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def text_of_id(topic_id: bytes) -> str:
    """Return a topic id as Kafka writes it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def id_of_text(text: str) -> bytes:
    """Return the sixteen bytes of a topic id."""
    return base64.urlsafe_b64decode(text + "==")


def new_id() -> bytes:
    """Draw a random id that Kafka could have drawn: its text never starts with a dash."""
    while True:
        drawn = secrets.token_bytes(16)
        if not text_of_id(drawn).startswith("-"):
            return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One topic as the catalogue keeps it."""

    name: str
    id: bytes
    partitions: int
    overrides: Mapping[str, str] = field(default_factory=dict)
    is_deleting: bool = False

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def _entry(row: dict[str, Any]) -> Entry:
    """Return the topic in a line of the file; refuse what could not have been entered."""
    partitions, overrides = row["partitions"], row["overrides"]
    check_name(row["name"])
    try:
        topic_id = id_of_text(row["id"])
    except ValueError:
        topic_id = b""
    if len(topic_id) != 16:
        raise ValueError(f"the id of topic {row['name']} is {row['id']!r}")
    if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
        raise ValueError(f"topic {row['name']} has {partitions!r} partitions")
    TopicSettings(overrides)
    return Entry(
        name=row["name"],
        id=topic_id,
        partitions=partitions,
        overrides=overrides,
        is_deleting=bool(row.get("is_deleting", False)),
    )


class Catalog:
    """Every topic and the next free producer id, in memory; a copy of it is the draft of a change."""

    def __init__(self, content: bytes | None, *, path: str = FILE_NAME, cluster_id: str | None = None) -> None:
        """Read the file's content (None if there is none yet).

        A catalogue belongs to one cluster: that of another is refused, and a new one takes the `cluster_id` given.
        """
        self._path = path
        self.cluster_id: str | None = None
        self._entries: dict[str, Entry] = {}
        # The name of each topic by what Kafka makes of it in the names of metrics: no two may be the same.
        self._by_metric_name: dict[str, str] = {}
        # The topics' lines in the file, as far as they were encoded before: most of them stay from write to write.
        self._lines: dict[str, str] = {}
        self._next_producer_id = PRODUCER_ID_BASE
        if content is not None:
            self._read(content)
        if cluster_id is not None and self.cluster_id not in (None, cluster_id):
            raise UserError(
                f"{path} is of the cluster {self.cluster_id}, and {os.path.dirname(path)}/meta.properties of the "
                f"cluster {cluster_id}: files of two data directories were mixed. Nothing was changed. Restore both "
                "files from the same copy."
            )
        self.cluster_id = cluster_id or self.cluster_id

    def _read(self, content: bytes) -> None:
        try:
            document = json.loads(content)
            version = document["version"]
            if version not in (1, VERSION):
                raise UserError(
                    f"{self._path} has version {version!r}, and this Logmark reads versions 1 and {VERSION} only. "
                    "Nothing was changed. Use the Logmark that wrote it, or a newer one."
                )
            if version == VERSION:
                _check(content, document["checksum"])
            self.cluster_id = document.get("cluster_id")
            self._next_producer_id = int(document["next_producer_id"])
            for row in document["topics"]:
                entry = _entry(row)
                self._enter(entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Refused) as error:
            cause = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{self._path} cannot be read ({cause}). Nothing was changed; restore the file from a copy."
            ) from None

    def copy(self) -> "Catalog":
        """Return a draft: changes to it are not seen here."""
        draft = copy.copy(self)
        draft._entries = self._entries.copy()
        draft._by_metric_name = self._by_metric_name.copy()
        draft._lines = self._lines.copy()
        return draft

    def encode(self) -> bytes:
        """Return the content of the file, with a line for each topic; in any thread, while nobody changes this."""
        # Line by line: the encoder holds the interpreter's lock during a call, and thousands of topics take long.
        for name in self._entries.keys() - self._lines.keys():
            self._lines[name] = json.dumps(_row(self._entries[name]))
        topics = ",\n".join([self._lines[name] for name in self._entries])
        head = {
            "version": VERSION,
            **({"cluster_id": self.cluster_id} if self.cluster_id else {}),
            "next_producer_id": self._next_producer_id,
        }
        content = f'{json.dumps(head)[:-1]}, "topics": [\n{topics}\n]'.encode()
        return content + _CHECKSUM_FIELD + b"%d}\n" % columns.crc32c(content, 0, len(content))

    # What is there

    @property
    def next_producer_id(self) -> int:
        """Every id that was given out lies below."""
        return self._next_producer_id

    def entries(self) -> list[Entry]:
        """Return every topic that is not being deleted."""
        return [entry for entry in self._entries.values() if not entry.is_deleting]

    def deleting(self) -> list[Entry]:
        """Return the topics whose folders are still to be removed."""
        return [entry for entry in self._entries.values() if entry.is_deleting]

    def get(self, name: str) -> Entry | None:
        """Return the live topic of that name."""
        entry = self._entries.get(name)
        return None if entry is None or entry.is_deleting else entry

    def check_new_name(self, name: str) -> None:
        """Refuse a name that no new topic can have."""
        check_name(name)
        if name in self._entries:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        other = self._by_metric_name.get(_metric_name(name))
        if other is not None:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    def check_new(self, name: str, partitions: int, overrides: Mapping[str, str]) -> None:
        """Refuse what could not become a topic; change nothing."""
        self.check_new_name(name)
        check_partition_count(partitions)
        TopicSettings(overrides)

    # Changes

    def create(self, name: str, partitions: int, overrides: Mapping[str, str]) -> Entry:
        """Enter a new topic, with an id of its own."""
        self.check_new(name, partitions, overrides)
        return self._enter(Entry(name=name, id=new_id(), partitions=partitions, overrides=dict(overrides)))

    def adopt(self, entries: Iterable[Entry], next_producer_id: int) -> None:
        """Replace all topics by those of another directory, with their ids."""
        self._entries.clear()
        self._lines.clear()
        self._by_metric_name.clear()
        for entry in entries:
            self._enter(entry)
        self._next_producer_id = next_producer_id

    def grow(self, name: str, partitions: int) -> Entry:
        """Raise a topic's partition count; raises Refused if it would be too large."""
        check_partition_count(partitions)
        return self._enter(replace(self._entries[name], partitions=partitions))

    def override(self, name: str, overrides: Mapping[str, str]) -> Entry:
        """Replace a topic's overrides."""
        TopicSettings(overrides)
        return self._enter(replace(self._entries[name], overrides=dict(overrides)))

    def begin_deletion(self, name: str) -> Entry:
        """Mark a topic as being deleted: nobody sees it from now on, and its folders may be removed."""
        return self._enter(replace(self._entries[name], is_deleting=True))

    def finish_deletion(self, name: str) -> None:
        """Strike out a topic whose folders are gone."""
        del self._entries[name]
        self._lines.pop(name, None)
        self._by_metric_name.pop(_metric_name(name), None)

    def reserve_producer_ids(self, *, above: int = -1) -> range:
        """Return a block of producer ids that nobody ever had or will have; a log has one as high as `above`."""
        first = self._next_producer_id = max(self._next_producer_id, above + 1)
        self._next_producer_id += PRODUCER_ID_BLOCK
        return range(first, self._next_producer_id)

    def _enter(self, entry: Entry) -> Entry:
        self._entries[entry.name] = entry
        self._lines.pop(entry.name, None)
        self._by_metric_name[_metric_name(entry.name)] = entry.name
        return entry


def _check(content: bytes, checksum: int) -> None:
    """Raise ValueError unless the content is as it was written."""
    end = content.rindex(_CHECKSUM_FIELD)
    if checksum != columns.crc32c(content[:end], 0, end):
        raise ValueError("its checksum is wrong: it was damaged, or edited without setting the version to 1")


def check_partition_count(count: int) -> None:
    """Refuse a number of partitions that no topic can have."""
    if not 1 <= count <= PARTITIONS_MAX:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value."
            if count < 1
            else f"Number of partitions must not exceed {PARTITIONS_MAX} on one node.",
        )


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def _row(entry: Entry) -> dict[str, Any]:
    """Return the line of the file for a topic."""
    return {
        "name": entry.name,
        "id": text_of_id(entry.id),
        "partitions": entry.partitions,
        "overrides": dict(entry.overrides),
        **({"is_deleting": True} if entry.is_deleting else {}),
    }
