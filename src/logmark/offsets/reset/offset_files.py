"""A group's offsets as a file: Kafka's CSV, or JSON with what is stored beside them."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.reset.planner import TopicSelection, existing_partitions
from logmark.offsets.reset.targets import ToOffsets
from logmark.offsets.suggestions import unknown_group

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetExport:
    """A group's committed offsets at one moment."""

    group: str
    cluster_id: str
    offsets: Mapping[TopicPartition, Committed]

    def to_csv(self) -> str:
        """Lines as kafka-consumer-groups.sh --export writes and --from-file reads them: topic,partition,offset."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows(
            (one.topic, one.partition, committed.offset) for one, committed in sorted(self.offsets.items())
        )
        return out.getvalue()

    def to_json(self) -> str:
        """One document with leader epochs and metadata as well."""
        fields = {
            "version": VERSION,
            "group": self.group,
            "cluster_id": self.cluster_id,
            "offsets": [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "offset": committed.offset,
                    "leader_epoch": committed.leader_epoch,
                    "metadata": committed.metadata,
                }
                for one, committed in sorted(self.offsets.items())
            ],
        }
        return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def export_offsets(client: Client, group: str, topics: TopicSelection | None = None) -> OffsetExport:
    """Return the committed offsets of a group, in all topics or in some; raises UserError if there are none."""
    offsets = client.committed(group)
    if not offsets and client.describe_groups([group])[group].is_unknown:
        raise UserError(f"{unknown_group(client, group)} Nothing was written.")
    if topics is not None:
        wanted = set(existing_partitions(client, topics))
        offsets = {one: committed for one, committed in offsets.items() if one in wanted}
    if not offsets:
        raise UserError(f"Group {group} has committed nothing there. Nothing was written.")
    return OffsetExport(group=group, cluster_id=client.metadata([]).cluster_id, offsets=offsets)


def parse_offsets(text: str, group: str, source: str) -> ToOffsets:
    """Parse a file of offsets as a target: CSV of three or four columns, or our JSON.

    Metadata and leader epochs are taken from JSON that the same group was exported to; into another group only the
    offsets go, because what is stored beside them may name a reader.
    """
    return _parse_json(text, group, source) if text.lstrip().startswith("{") else _parse_csv(text, group, source)


def _parse_csv(text: str, group: str, source: str) -> ToOffsets:
    offsets: dict[TopicPartition, Committed] = {}
    others: set[str] = set()
    columns = 0
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        columns = columns or len(row)
        if len(row) != columns or columns not in (3, 4):
            raise _wrong(source, f"line {number}", "write topic,partition,offset or group,topic,partition,offset")
        if columns == 4 and row[0] != group:
            others.add(row[0])
            continue
        topic, partition, offset = (cell.strip() for cell in row[-3:])
        if not (topic and _is_number(partition) and _is_number(offset)):
            raise _wrong(source, f"line {number}", "partition and offset are numbers from 0 on")
        _add(offsets, TopicPartition(topic, int(partition)), Committed(offset=int(offset)), source)
    if not offsets:
        found = f"; it has those of {', '.join(sorted(others))}" if others else ""
        raise UserError(f"{source} has no offsets of group {group}{found}. Nothing was changed.")
    return ToOffsets(offsets, source)


def _parse_json(text: str, group: str, source: str) -> ToOffsets:
    try:
        fields: Any = json.loads(text)
        version, rows = fields["version"], fields["offsets"]
        offsets: dict[TopicPartition, Committed] = {}
        if version == VERSION:
            for row in rows:
                if not _is_offset(row):
                    raise _wrong(source, f"the entry {json.dumps(row)}", "it needs topic, partition and offset")
                committed = Committed(
                    offset=row["offset"], leader_epoch=row.get("leader_epoch", -1), metadata=row.get("metadata", "")
                )
                _add(offsets, TopicPartition(row["topic"], row["partition"]), committed, source)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _wrong(source, "it", f"{type(error).__name__}: {error}") from None
    if version != VERSION:
        raise UserError(f"{source} is of version {version!r}, and this Logmark knows {VERSION}. Nothing was changed.")
    if not offsets:
        raise UserError(f"{source} has no offsets. Nothing was changed.")
    return ToOffsets(offsets, source, is_exact=fields.get("group") == group)


def _add(
    offsets: dict[TopicPartition, Committed], partition: TopicPartition, committed: Committed, source: str
) -> None:
    if partition in offsets:
        raise UserError(f"{source} has two offsets for {partition}. Nothing was changed.")
    offsets[partition] = committed


def _is_offset(row: Any) -> bool:
    return (
        isinstance(row["topic"], str)
        and isinstance(row.get("metadata", ""), str)
        and isinstance(row.get("leader_epoch", -1), int)
        and all(isinstance(row[name], int) and not isinstance(row[name], bool) for name in ("partition", "offset"))
        and row["partition"] >= 0
        and row["offset"] >= 0
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _wrong(source: str, where: str, why: str) -> UserError:
    return UserError(f"{source} cannot be read: {where} is no offset of a partition ({why}). Nothing was changed.")
