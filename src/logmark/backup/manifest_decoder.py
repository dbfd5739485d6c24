"""The decoder of manifests: the only code in which a manifest becomes typed values, and it trusts nothing in it.

Anybody with write access to a backup can write a manifest with a right checksum. So every name, path, count, size and
offset is checked here, before a file is opened or written because of it: a stored file's path follows from its
partition and its base offset, and counts have the limits that the broker itself has.
"""

import base64
import json
import re
import zlib
from collections.abc import Mapping
from typing import NoReturn

from logmark.backup.manifest import (
    BROKERS,
    DIRECTORY,
    VERSION,
    Damage,
    Manifest,
    StoredPartition,
    StoredSegment,
    freeze,
)
from logmark.errors import Malformed, Refused, UserError
from logmark.log.catalog import PARTITIONS_MAX, Entry, check_name
from logmark.log.identity import KAFKA_METADATA
from logmark.log.index import RELATIVE_OFFSET_MAX
from logmark.log.segment import LOG, file_name
from logmark.log.settings import INT_MAX, LONG_MAX, TopicSettings
from logmark.names import OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, TopicPartition

# About 400,000 segments. Python needs up to 25 times as much memory for the values in it.
MANIFEST_BYTES_MAX = 128 << 20
# Kafka's indexes count a segment's bytes in 31 bits.
SEGMENT_BYTES_MAX = INT_MAX
PARTITIONS_TOTAL_MAX = 1_000_000
TEXT_MAX = 65_536
PROBLEM_MAX = 200
FILE_NUMBER_DIGITS_MAX = 9
# Half of all ids are left for producers after a restore.
NEXT_PRODUCER_ID_MAX = 1 << 62
CRC_MAX = 2**32 - 1
SHOWN_MAX = 80

_VERSION = re.compile(rb'\{"version": ([0-9]{1,9})[,}]')
_HEAD = re.compile(rb'\{"version": [0-9]{1,9}, "crc": ([0-9]{1,10}), "backup":')
# Printable, and without what has a meaning in Java properties: it is written to meta.properties.
_CLUSTER_ID = re.compile(r"[!-\[\]-~]{1,249}")
_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_ORIGIN = re.compile(r"([0-9]{1,20}:[0-9]{1,20})?")

_TOP = frozenset(
    {
        "kind", "source", "cluster_id", "run", "node_id", "ended_ms", "next_producer_id", "topics", "partitions",
        "notes",
    }
)  # fmt: skip
_TOPIC = frozenset({"name", "id", "partitions", "overrides"})
_PARTITION = frozenset({"topic", "partition", "topic_id", "log_start_offset", "cleaned_to", "segments"})
_SEGMENT = frozenset(StoredSegment.__dataclass_fields__)
_DAMAGE = frozenset(Damage.__dataclass_fields__)


def decode(content: bytes, path: str, *, is_complete: bool = True) -> Manifest:
    """Return the manifest in a file's content.

    The progress of a run that is not complete may name partitions of topics that it does not list yet, and segments
    that a compaction has made overlap; all other rules hold for it too. Raises UserError, which names the field, if
    the content is of another version or cannot have been written by a backup.
    """
    try:
        return _decode(content, is_complete=is_complete)
    except _OtherVersion as other:
        raise UserError(
            f"{path} is of version {other.version}, and this Logmark reads version {VERSION} only. Nothing was "
            "changed. Use the Logmark that made this backup, or a newer one."
        ) from None
    except Malformed as error:
        raise UserError(
            f"{path} is damaged ({error}). Nothing was changed. Without it the backup cannot be trusted: "
            "take another backup, or use an older one."
        ) from None


def find_problem(manifest: Manifest, *, is_complete: bool) -> str | None:
    """Return why a manifest could not be read back, None if it can be."""
    try:
        _decode(manifest.encode(), is_complete=is_complete)
    except Malformed as error:
        return str(error)
    return None


def check_size(size: int, path: str) -> None:
    """Refuse a manifest that is too large to be one, before it is read."""
    if size > MANIFEST_BYTES_MAX:
        raise UserError(
            f"{path} has {size} bytes, and a manifest has at most {MANIFEST_BYTES_MAX}. Nothing was changed. Without "
            "it the backup cannot be trusted: take another backup, or use an older one."
        )


class _OtherVersion(Malformed):
    def __init__(self, version: int) -> None:
        super().__init__(f"it is of version {version}")
        self.version = version


def _decode(content: bytes, *, is_complete: bool) -> Manifest:
    if len(content) > MANIFEST_BYTES_MAX:
        raise Malformed(f"it has {len(content)} bytes, and a manifest has at most {MANIFEST_BYTES_MAX}")
    version = _VERSION.match(content)
    if version is not None and int(version[1]) != VERSION:
        raise _OtherVersion(int(version[1]))
    try:
        content.decode()
    except UnicodeDecodeError:
        raise Malformed("it is not text in UTF-8") from None
    lines = content.split(b"\n", 4)
    head = _HEAD.fullmatch(lines[0])
    if head is None:
        raise Malformed("its first line is not that of a manifest")
    if lines[2:] != [b"}", b""]:
        raise Malformed("it has other lines than a manifest")
    if int(head[1]) != zlib.crc32(lines[1]):
        raise Malformed("its checksum is wrong")
    try:
        document = json.loads(lines[1], object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise Malformed("its values are nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"its second line is not JSON: {error}") from None
    return _ManifestReader(is_complete=is_complete).read(document)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Malformed(f"the field {_show(twice)} is there twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed(f"{name} is not a number of JSON")


def _show(value: object) -> str:
    """Return a value as an error may show it: short, in ASCII and without control characters."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = ascii(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _refuse(where: str, value: object, rule: str) -> NoReturn:
    raise Malformed(f"{where} is {_show(value)}, and {rule}")


class _Object:
    """One JSON object, with its path in the document; it has exactly the fields that are named."""

    __slots__ = ("_values", "where")

    def __init__(self, value: object, where: str, fields: frozenset[str]) -> None:
        if not isinstance(value, dict):
            _refuse(where or "the manifest", value, "it must be an object")
        self.where = where
        self._values: dict[str, object] = value
        if value.keys() != fields:
            for name in sorted(fields - value.keys()):
                raise Malformed(f"{self.at(name)} is missing")
            name = min(value.keys() - fields)
            raise Malformed(f"{self.at(name if name.isidentifier() else _show(name))[:200]} is no field of a manifest")

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.where}.{name}" if self.where else name

    def refuse(self, name: str, rule: str) -> NoReturn:
        """Refuse the value of a field."""
        _refuse(self.at(name), self._values[name], rule)

    def integer(self, name: str, low: int = 0, high: int = LONG_MAX) -> int:
        value = self._values[name]
        # Python takes true for 1.
        if type(value) is not int or not low <= value <= high:
            self.refuse(name, f"it must be a whole number from {low} to {high}")
        return value

    def text(self, name: str, pattern: re.Pattern[str] | None = None, rule: str = "") -> str:
        value = self._values[name]
        if not isinstance(value, str) or len(value) > TEXT_MAX:
            self.refuse(name, f"it must be a text of at most {TEXT_MAX} characters")
        if pattern is not None and not pattern.fullmatch(value):
            self.refuse(name, rule)
        return value

    def id(self, name: str) -> bytes:
        rule = "it must be a topic id: 22 characters of URL-safe base64, not all zero"
        value = base64.urlsafe_b64decode(self.text(name, _ID, rule) + "==")
        if not any(value):
            self.refuse(name, rule)
        return value

    def list(self, name: str) -> list[object]:
        value = self._values[name]
        if not isinstance(value, list):
            self.refuse(name, "it must be a list")
        return value

    def mapping(self, name: str) -> dict[str, object]:
        value = self._values[name]
        if not isinstance(value, dict):
            self.refuse(name, "it must be an object")
        return value

    def is_null(self, name: str) -> bool:
        return self._values[name] is None


class _ManifestReader:
    """Reads one document; the topics come first, because the partitions are checked against them."""

    def __init__(self, *, is_complete: bool) -> None:
        self._is_complete = is_complete
        self._topics: dict[str, Entry] = {}
        self._partitions: dict[TopicPartition, StoredPartition] = {}

    def read(self, document: object) -> Manifest:
        top = _Object(document, "", _TOP)
        kind = top.text("kind")
        if kind not in (DIRECTORY, BROKERS):
            top.refuse("kind", f"it must be {DIRECTORY} or {BROKERS}")
        cluster_id = top.text(
            "cluster_id", _CLUSTER_ID, "a cluster id has 1 to 249 printable ASCII characters, no space and no backslash"
        )
        notes = top.list("notes")
        for index, note in enumerate(notes):
            if not isinstance(note, str):
                _refuse(f"notes[{index}]", note, "it must be a text")
        self._read_topics(top.list("topics"))
        for index, row in enumerate(top.list("partitions")):
            self._read_partition(_Object(row, f"partitions[{index}]", _PARTITION))
        return Manifest(
            kind=kind,
            source=top.text("source"),
            cluster_id=cluster_id,
            run=top.integer("run", 1),
            node_id=top.integer("node_id", 0, INT_MAX),
            ended_ms=top.integer("ended_ms"),
            next_producer_id=top.integer("next_producer_id", 0, NEXT_PRODUCER_ID_MAX),
            topics=tuple(self._topics.values()),
            partitions=freeze(self._partitions),
            notes=tuple(str(note) for note in notes),
        )

    # Topics

    def _read_topics(self, rows: list[object]) -> None:
        ids: dict[bytes, str] = {}
        twins: dict[str, str] = {}
        total = 0
        for index, value in enumerate(rows):
            row = _Object(value, f"topics[{index}]", _TOPIC)
            name = _read_topic_name(row, "name")
            # Kafka's metrics take both for the same name, so no broker has both.
            twin = twins.setdefault(name.replace(".", "_"), name)
            if name in self._topics:
                row.refuse("name", "another topic has the same name")
            if twin != name:
                row.refuse("name", f"topic {twin} differs from it only by '.' and '_'")
            topic_id = row.id("id")
            if ids.setdefault(topic_id, name) != name:
                row.refuse("id", f"topic {ids[topic_id]} has the same id")
            # A run through brokers notes the id of a topic before it knows more of it.
            partitions = row.integer("partitions", 1 if self._is_complete else 0, PARTITIONS_MAX)
            if name == OFFSETS_TOPIC and partitions not in (OFFSETS_TOPIC_PARTITIONS, 0):
                row.refuse("partitions", f"{OFFSETS_TOPIC} has {OFFSETS_TOPIC_PARTITIONS} partitions")
            total += partitions
            if total > PARTITIONS_TOTAL_MAX:
                row.refuse("partitions", f"all topics together may have {PARTITIONS_TOTAL_MAX} partitions")
            self._topics[name] = Entry(
                name=name, id=topic_id, partitions=partitions, overrides=_read_overrides(row)
            )  # fmt: skip

    # Partitions

    def _read_partition(self, row: _Object) -> None:
        topic = _read_topic_name(row, "topic")
        entry = self._topics.get(topic)
        partition = row.integer("partition", 0, PARTITIONS_MAX - 1)
        topic_id = row.id("topic_id")
        if self._is_complete:
            if entry is None:
                row.refuse("topic", "no topic of the backup has that name")
            if partition >= entry.partitions:
                row.refuse("partition", f"topic {topic} has {entry.partitions} partition(s), counted from 0")
            if topic_id != entry.id:
                row.refuse("topic_id", f"topic {topic} has another id")
        key = TopicPartition(topic, partition)
        if key in self._partitions:
            raise Malformed(f"{row.where} is {key}, and another row is the same partition")
        segments = self._read_segments(row, key)
        start = row.integer("log_start_offset")
        if self._is_complete:
            first, end = (segments[0].base_offset, segments[-1].next_offset) if segments else (0, 0)
            if not first <= start <= end:
                row.refuse("log_start_offset", f"the segments hold the offsets from {first} to {end}")
        stored = StoredPartition(
            topic_id=topic_id,
            log_start_offset=start,
            cleaned_to=None if row.is_null("cleaned_to") else row.integer("cleaned_to"),
            segments=segments,
        )
        if self._is_complete:
            for gap in stored.gaps():
                raise Malformed(
                    f"{row.where}.segments[{gap.at}].base_offset is {gap.next_offset}, and the segment before it "
                    f"ends at offset {gap.first_offset}: the segments of {key} with {gap} are missing, and that log "
                    "was never compacted"
                )
        self._partitions[key] = stored

    def _read_segments(self, partition: _Object, key: TopicPartition) -> tuple[StoredSegment, ...]:
        segments: list[StoredSegment] = []
        for index, value in enumerate(partition.list("segments")):
            row = _Object(value, f"{partition.where}.segments[{index}]", _SEGMENT)
            segment = _read_segment(row, key)
            if segments:
                before = segments[-1]
                lowest = before.next_offset if self._is_complete else before.base_offset + 1
                if segment.base_offset < max(lowest, before.base_offset + 1):
                    row.refuse("base_offset", f"the segment before it ends at offset {before.next_offset}")
            segments.append(segment)
        return tuple(segments)


def _read_topic_name(row: _Object, field: str) -> str:
    name = row.text(field)
    try:
        check_name(name)
    except Refused:
        row.refuse(field, "a topic name has 1 to 249 ASCII letters, digits, '.', '_' and '-', and is not '.' or '..'")
    if f"{name}-0" == KAFKA_METADATA:
        row.refuse(field, "the log of a Kafka controller is not in a backup")
    return name


def _read_overrides(row: _Object) -> Mapping[str, str]:
    texts: dict[str, str] = {}
    for name, text in row.mapping("overrides").items():
        if not isinstance(text, str) or len(text) > TEXT_MAX:
            where = f"{row.at('overrides')}[{_show(name)}]"
            _refuse(where, text, f"it must be a text of at most {TEXT_MAX} characters")
        texts[name] = text
    try:
        TopicSettings(texts)
    except Refused as refused:
        reason = "".join(one if one.isprintable() else "?" for one in (refused.message or "")[:PROBLEM_MAX])
        raise Malformed(f"{row.at('overrides')} cannot be a topic's: {reason}") from None
    return freeze(texts)


def _read_segment(row: _Object, key: TopicPartition) -> StoredSegment:
    base_offset = row.integer("base_offset")
    size = row.integer("size_bytes", 0, SEGMENT_BYTES_MAX)
    next_offset = row.integer("next_offset", base_offset, min(base_offset + RELATIVE_OFFSET_MAX + 1, LONG_MAX))
    if not size and next_offset != base_offset:
        row.refuse("size_bytes", f"the segment holds the offsets from {base_offset} to {next_offset}")
    return StoredSegment(
        base_offset=base_offset,
        file=_read_file(row, key, base_offset),
        size_bytes=size,
        crc=row.integer("crc", 0, CRC_MAX),
        next_offset=next_offset,
        last_position=row.integer("last_position", 0, max(size - 1, 0)),
        origin=row.text("origin", _ORIGIN, "it must be the numbers of a device and a file, or empty"),
        damage=_read_damage(row, size),
        producer_id_max=row.integer("producer_id_max", -1),
        ended=_read_ended(row),
        begun=_read_begun(row, base_offset, next_offset),
    )


def _read_file(row: _Object, key: TopicPartition, base_offset: int) -> str:
    """Return the path of a stored file, of which only a number at its end is not known beforehand."""
    file, wanted = row.text("file"), f"{key}/{file_name(base_offset, LOG)}"
    if file != wanted:
        number = file.removeprefix(f"{wanted}.")
        is_number = number != file and number.isascii() and number.isdigit()
        if not is_number or len(number) > FILE_NUMBER_DIGITS_MAX or number.startswith("0"):
            row.refuse("file", f"this segment is stored in {wanted}, or in that name with a number")
    return file


def _read_damage(segment: _Object, size: int) -> tuple[Damage, ...]:
    found: list[Damage] = []
    behind = 0
    for index, value in enumerate(segment.list("damage")):
        row = _Object(value, f"{segment.where}.damage[{index}]", _DAMAGE)
        position = row.integer("position", behind, size)
        damage = Damage(
            position=position,
            # One of no bytes says that the source lacked offsets there.
            size_bytes=row.integer("size_bytes", 0, size - position),
            problem=row.text("problem"),
        )
        if len(damage.problem) > PROBLEM_MAX or not damage.problem.isprintable():
            row.refuse("problem", f"it must be a text of at most {PROBLEM_MAX} printable characters")
        behind = position + max(damage.size_bytes, 1)
        found.append(damage)
    return tuple(found)


def _read_ended(segment: _Object) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for index, value in enumerate(segment.list("ended")):
        if type(value) is not int or not 0 <= value <= LONG_MAX or value in found:
            _refuse(f"{segment.where}.ended[{index}]", value, "it must be a producer id that is there once")
        found[value] = None
    return tuple(found)


def _read_begun(segment: _Object, base_offset: int, next_offset: int) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for index, pair in enumerate(segment.list("begun")):
        where = f"{segment.where}.begun[{index}]"
        if not isinstance(pair, list) or len(pair) != 2 or any(type(value) is not int for value in pair):
            _refuse(where, pair, "it must be a producer id and an offset")
        producer_id, offset = pair
        if not 0 <= producer_id <= LONG_MAX or producer_id in found:
            _refuse(where, producer_id, "it must be a producer id that is there once")
        if not base_offset <= offset < next_offset:
            _refuse(where, offset, f"the segment holds the offsets from {base_offset} to {next_offset}")
        found[producer_id] = offset
    return freeze(found)
