"""The items that a dump of a log's files shows, each a view of something in a file; `to_json` makes them JSON."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple


class Where(NamedTuple):
    """The file of an item, and the partition that it is about, as far as that is known."""

    path: str
    topic: str | None = None
    partition: int | None = None


@dataclass(frozen=True)
class Item:
    """Something in a file; `kind` says what."""

    kind: ClassVar[str] = ""

    where: Where

    def fields(self) -> dict[str, Any]:
        """Return the item's own fields, in their order."""
        names = [each.name for each in fields(self)[1:]]
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """Return kind, file, partition and the item's own fields, in JSON's types."""
        return _to_object({"kind": self.kind, **self.where._asdict(), **self.fields()})


@dataclass(frozen=True, kw_only=True)
class FileItem(Item):
    """A file and its size."""

    kind: ClassVar[str] = "file"

    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class DamageItem(Item):
    """What is wrong with a file."""

    kind: ClassVar[str] = "damage"

    problem: str


@dataclass(frozen=True, kw_only=True)
class BatchDamageItem(Item):
    """Damaged bytes of a log, and the offsets that they held."""

    kind: ClassVar[str] = "damage"

    position: int
    size_bytes: int
    first_offset: int
    next_offset: int | None
    problem: str


@dataclass(frozen=True, kw_only=True)
class BatchItem(Item):
    """The header of a batch."""

    kind: ClassVar[str] = "batch"

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    record_count: int
    codec: str
    timestamp_type: str
    max_timestamp: int
    delete_horizon: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    leader_epoch: int
    is_transactional: bool
    is_control: bool
    crc: int


@dataclass(frozen=True, kw_only=True)
class MarkerItem(Item):
    """The marker that ends a transaction."""

    kind: ClassVar[str] = "marker"

    offset: int
    type: str
    coordinator_epoch: int | None
    producer_id: int
    producer_epoch: int
    timestamp: int


@dataclass(frozen=True, kw_only=True)
class RecordItem(Item):
    """A record; `says` is what one of the offsets topic means, where that was asked for."""

    kind: ClassVar[str] = "record"

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    says: Mapping[str, object] | None = None

    def fields(self) -> dict[str, Any]:
        """Return the item's own fields, in their order; without `says` if nobody asked for it."""
        found = Item.fields(self)
        return found if self.says is not None else {name: value for name, value in found.items() if name != "says"}

    def to_json(self) -> dict[str, Any]:
        """Return the record with its headers as objects."""
        headers = [_to_object({"key": key, "value": value}) for key, value in self.headers]
        return Item.to_json(self) | {"headers": headers}


@dataclass(frozen=True, kw_only=True)
class WalPointsItem(Item):
    """The recovery points of a write-ahead log."""

    kind: ClassVar[str] = "wal_points"

    wal_id: str
    first_entry: int


@dataclass(frozen=True, kw_only=True)
class RecoveryPointItem(Item):
    """Up to where the files of a partition are durable."""

    kind: ClassVar[str] = "recovery_point"

    topic_id: str
    offset: int
    segment: str
    position: int


@dataclass(frozen=True, kw_only=True)
class WalHeaderItem(Item):
    """The header of a file of the write-ahead log."""

    kind: ClassVar[str] = "wal_header"

    wal_id: str
    sequence: int


@dataclass(frozen=True, kw_only=True)
class WalEntryItem(Item):
    """An entry of the write-ahead log; `is_needed` says whether a recovery reads it, if that is known."""

    kind: ClassVar[str] = "wal_entry"

    number: int
    run_count: int
    size_bytes: int
    is_needed: bool | None


@dataclass(frozen=True, kw_only=True)
class WalRunItem(Item):
    """Batches of one partition in an entry, and where they belong."""

    kind: ClassVar[str] = "wal_run"

    topic_id: str
    number: int
    segment: str
    position: int
    first_offset: int
    last_offset: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class IndexEntryItem(Item):
    """An entry of an offset index."""

    kind: ClassVar[str] = "index_entry"

    offset: int
    position: int


@dataclass(frozen=True, kw_only=True)
class TimeIndexEntryItem(Item):
    """An entry of a time index."""

    kind: ClassVar[str] = "time_index_entry"

    timestamp: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class AbortedTransactionItem(Item):
    """An entry of a transaction index."""

    kind: ClassVar[str] = "aborted_transaction"

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, kw_only=True)
class ProducerItem(Item):
    """A producer of a snapshot."""

    kind: ClassVar[str] = "producer"

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


@dataclass(frozen=True, kw_only=True)
class LeaderEpochItem(Item):
    """A leader epoch and its first offset."""

    kind: ClassVar[str] = "leader_epoch"

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, kw_only=True)
class PartitionMetadataItem(Item):
    """The topic id in a partition's folder."""

    kind: ClassVar[str] = "partition_metadata"

    topic_id: str


@dataclass(frozen=True, kw_only=True)
class OffsetItem(Item):
    """The offset of a partition in a checkpoint."""

    kind: ClassVar[str] = "offset"

    offset: int


def _to_object(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in JSON's types: UTF-8 bytes as text, others in base64 under a name with that suffix."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        text = decode_text(value) if isinstance(value, bytes) else None
        if isinstance(value, bytes) and text is None:
            found[f"{name}_base64"] = base64.b64encode(value).decode()
        else:
            found[name] = text if isinstance(value, bytes) else _to_plain(value)
    return found


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _to_object(value)
    if isinstance(value, (list, tuple)):
        return [_to_plain(one) for one in value]
    if isinstance(value, bytes):
        return decode_text(value) or base64.b64encode(value).decode()
    return value


def decode_text(data: bytes) -> str | None:
    """Return bytes as text; None if they are no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
