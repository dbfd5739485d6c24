"""The records of groups in `__consumer_offsets`: Kafka's keys and Kafka's values, byte for byte.

Written: offsets as value version 3 (version 1 when the client asked for a retention of its own), groups as
value version 3. Read: every version that Kafka ever wrote; other record types are left alone.
"""

import struct
from dataclasses import asdict
from sys import intern
from typing import Any

from logmark.coordination.facts import (
    Fact,
    GroupForgotten,
    GroupRecorded,
    MemberRecorded,
    OffsetCommitted,
    OffsetForgotten,
)
from logmark.errors import Malformed

_LEGACY_OFFSET, _OFFSET, _GROUP = 0, 1, 2
_TEXT_BYTES_MAX = 2**15 - 1
_OUR_OFFSET, _OUR_VERSION = b"\x00\x01", b"\x00\x03"
_OFFSET_V3 = struct.Struct(">hqih")


def encode(fact: Fact) -> tuple[bytes, bytes | None]:
    """Return the key and the value that keep a fact; a value of None deletes the key."""
    match fact:
        case OffsetCommitted():
            return _offset_key(fact), _offset_value(fact)
        case OffsetForgotten():
            return _offset_key(fact), None
        case GroupRecorded():
            return _group_key(fact.group), _group_value(fact)
        case GroupForgotten():
            return _group_key(fact.group), None


def decode(key: bytes | None, value: bytes | None) -> Fact | None:
    """Return the fact that a record keeps; None for a record type that we do not keep."""
    if key is None:
        raise Malformed("a record of the offsets topic has no key")
    if value is not None and (fact := _read_our_offset(key, value)) is not None:
        return fact
    reader = _Reader(key)
    kind = reader.int16()
    if kind in (_LEGACY_OFFSET, _OFFSET):
        group, topic, partition = reader.text(), reader.text(), reader.int32()
        if value is None:
            return OffsetForgotten(group=group, topic=topic, partition=partition)
        return _read_offset(group, topic, partition, _Reader(value))
    if kind == _GROUP:
        group = reader.text()
        return GroupForgotten(group=group) if value is None else _read_group(group, _Reader(value))
    return None


def describe(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return the fact that a record keeps by the names of its fields, and what is known of a record that keeps none."""
    try:
        fact = decode(key, value)
    except Malformed as error:
        return {"type": "unreadable", "problem": str(error)}
    if fact is None:
        record_type = int.from_bytes((key or b"")[:2], "big", signed=True)
        return {"type": f"group record of type {record_type}", "is_tombstone": value is None}
    return {"type": type(fact).__name__, **asdict(fact)}


def _offset_key(fact: OffsetCommitted | OffsetForgotten) -> bytes:
    return struct.pack(">h", _OFFSET) + _text(fact.group) + _text(fact.topic) + struct.pack(">i", fact.partition)


def _offset_value(fact: OffsetCommitted) -> bytes:
    if fact.expires_at_ms is not None:
        return (
            struct.pack(">hq", 1, fact.offset)
            + _text(fact.metadata)
            + struct.pack(">qq", fact.committed_at_ms, fact.expires_at_ms)
        )
    return (
        struct.pack(">hqi", 3, fact.offset, fact.leader_epoch)
        + _text(fact.metadata)
        + struct.pack(">q", fact.committed_at_ms)
    )


def _group_key(group: str) -> bytes:
    return struct.pack(">h", _GROUP) + _text(group)


def _group_value(fact: GroupRecorded) -> bytes:
    parts = [
        struct.pack(">h", 3),
        _text(fact.protocol_type or ""),
        struct.pack(">i", fact.generation),
        _optional_text(fact.protocol),
        _optional_text(fact.leader),
        struct.pack(">qi", fact.state_changed_at_ms, len(fact.members)),
    ]
    for member in fact.members:
        parts += (
            _text(member.id),
            _optional_text(member.instance_id),
            _text(member.client_id),
            _text(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _blob(member.subscription),
            _blob(member.assignment),
        )
    return b"".join(parts)


def _read_our_offset(key: bytes, value: bytes) -> OffsetCommitted | None:
    """Read an offset as we write it, quickly: a load is made of little else. Return None for anything else."""
    if len(key) < 10 or len(value) < 24 or key[:2] != _OUR_OFFSET or value[:2] != _OUR_VERSION:
        return None
    topic_at = 4 + (key[2] << 8 | key[3])
    metadata_end = len(value) - 8
    if topic_at + 6 > len(key) or topic_at + 6 + (key[topic_at] << 8 | key[topic_at + 1]) != len(key):
        return None
    _, offset, leader_epoch, metadata_size = _OFFSET_V3.unpack_from(value)
    if 16 + metadata_size != metadata_end:
        return None
    try:
        return OffsetCommitted(
            group=key[4:topic_at].decode(),
            topic=intern(key[topic_at + 2 : -4].decode()),
            partition=int.from_bytes(key[-4:], "big", signed=True),
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=value[16:metadata_end].decode(),
            committed_at_ms=int.from_bytes(value[metadata_end:], "big", signed=True),
        )
    except UnicodeDecodeError as error:
        raise Malformed("a name is not UTF-8") from error


def _read_offset(group: str, topic: str, partition: int, reader: "_Reader") -> OffsetCommitted:
    version = reader.version(newest=4)
    reader.is_flexible = version >= 4
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.text()
    committed_at_ms = reader.int64()
    expires_at_ms = reader.int64() if version == 1 else -1
    return OffsetCommitted(
        group=group,
        topic=topic,
        partition=partition,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        committed_at_ms=committed_at_ms,
        expires_at_ms=None if expires_at_ms == -1 else expires_at_ms,
    )


def _read_group(group: str, reader: "_Reader") -> GroupRecorded:
    version = reader.version(newest=4)
    reader.is_flexible = version >= 4
    protocol_type = reader.text()
    generation = reader.int32()
    protocol = reader.optional_text()
    leader = reader.optional_text()
    state_changed_at_ms = reader.int64() if version >= 2 else -1
    members = tuple(_read_member(version, reader) for _ in range(reader.count()))
    return GroupRecorded(
        group=group,
        generation=generation,
        protocol_type=protocol_type or None,
        protocol=protocol,
        leader=leader,
        state_changed_at_ms=state_changed_at_ms,
        members=members,
    )


def _read_member(version: int, reader: "_Reader") -> MemberRecorded:
    member_id = reader.text()
    instance_id = reader.optional_text() if version >= 3 else None
    client_id = reader.text()
    client_host = reader.text()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    member = MemberRecorded(
        id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=reader.blob(),
        assignment=reader.blob(),
    )
    if reader.is_flexible:
        reader.skip_tags()
    return member


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > _TEXT_BYTES_MAX:
        raise Malformed(f"a name of {len(data)} bytes cannot be kept")
    return struct.pack(">h", len(data)) + data


def _optional_text(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _text(text)


def _blob(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class _Reader:
    """Reads one key or value; every length is checked against what is left."""

    __slots__ = ("_at", "_data", "is_flexible")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.is_flexible = False

    def version(self, *, newest: int) -> int:
        version = self.int16()
        if not 0 <= version <= newest:
            raise Malformed(f"a value of version {version} in the offsets topic; {newest} is the newest known")
        return version

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def text(self) -> str:
        text = self.optional_text()
        if text is None:
            raise Malformed("a name is missing")
        return text

    def optional_text(self) -> str | None:
        length = self._varint() - 1 if self.is_flexible else self.int16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise Malformed("a name is not UTF-8") from error

    def blob(self) -> bytes:
        length = self._varint() - 1 if self.is_flexible else self.int32()
        return b"" if length == -1 else bytes(self._take(length))

    def count(self) -> int:
        count = self._varint() - 1 if self.is_flexible else self.int32()
        if not 0 <= count <= len(self._data) - self._at:
            raise Malformed(f"{count} members cannot fit in {len(self._data) - self._at} bytes")
        return count

    def skip_tags(self) -> None:
        for _ in range(self._varint()):
            self._varint()
            self._take(self._varint())

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7
            if shift > 28:
                raise Malformed("a length of more than five bytes")

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise Malformed(f"{size} bytes wanted, {len(self._data) - self._at} left")
        start, self._at = self._at, self._at + size
        return bytes(self._data[start : self._at])
