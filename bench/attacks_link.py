"""Requests and connections of the attackers and of the clients beside them, in versions that both brokers serve."""

import socket
import struct
import time
from types import ModuleType
from typing import Any

from bench.load import connect, receive
from logmark.wire import fetch, frames, messages
from logmark.wire.schema import find_coordinator, join_group, list_offsets, sync_group

CLIENT = "bench"
# The topic that the well-behaved producer writes to, and its group member reads.
PROBE_TOPIC = "probe"
# Records for attackers to ask for.
LOG_TOPIC = "attacked"
FETCH_VERSION, JOIN_VERSION, SYNC_VERSION = 11, 3, 1
INT32_MAX = 2**31 - 1
PROTOCOL = "range"
# What a consumer says about itself: a version, one topic, no user data.
METADATA = struct.pack(">hih", 0, 1, len(PROBE_TOPIC)) + PROBE_TOPIC.encode() + struct.pack(">i", -1)
REBALANCE_IN_PROGRESS = 27


def request(schema: ModuleType, version: int, **fields: Any) -> bytes:
    """Return a whole request."""
    body = messages.encode_request(schema, version, schema.Request(**fields))
    flexible = messages.is_flexible(schema, version)
    return frames.request_frame(schema.KEY, version, 1, CLIENT, flexible=flexible, body=body)


def fetch_request(offsets: dict[str, int], *, min_bytes: int = 1, max_wait_ms: int = 500) -> bytes:
    """Return a Fetch of partition 0 of each topic from an offset, of as many bytes as a broker may give."""
    topics = [(name, [fetch.FetchPartition(0, -1, offset, -1, -1, INT32_MAX)]) for name, offset in offsets.items()]
    made = fetch.FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=INT32_MAX,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=topics,
        forgotten=[],
        rack_id="",
    )
    body = fetch.encode_request(FETCH_VERSION, made)
    return frames.request_frame(fetch.KEY, FETCH_VERSION, 1, CLIENT, flexible=False, body=body)


def join_request(group: str, member: str, *, metadata: bytes = METADATA, session_timeout_ms: int = 60_000) -> bytes:
    """Return a JoinGroup of a version in which a broker gives a new member its id at once."""
    return request(
        join_group,
        JOIN_VERSION,
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=session_timeout_ms,
        member_id=member,
        protocol_type="consumer",
        protocols=[join_group.RequestProtocol(name=PROTOCOL, metadata=metadata)],
    )


def sync_request(group: str, joined: Any) -> bytes:
    """Return the SyncGroup of a member; the leader gives every member an empty assignment."""
    assigned = [
        sync_group.RequestAssignment(member_id=each.member_id, assignment=b"")
        for each in (joined.members if joined.leader == joined.member_id else ())
    ]
    return request(
        sync_group,
        SYNC_VERSION,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=assigned,
    )


def read(schema: ModuleType, version: int, answer: memoryview) -> Any:
    """Return the response in an answer that has no length in front."""
    _, at = frames.read_response_header(answer, flexible=messages.is_flexible(schema, version))
    return messages.decode_response(schema, version, answer[at:])


def open_socket(address: str, *, receive_bytes: int | None = None) -> socket.socket:
    """Return a connection; with `receive_bytes` its system takes hardly more than that before it is read."""
    if receive_bytes is None:
        return connect(address)
    host, port = address.rsplit(":", 1)
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    opened.settimeout(60)
    opened.connect((host, int(port)))
    return opened


class Link:
    """A connection that sends one request after another and waits for each answer."""

    def __init__(self, address: str, *, timeout_s: float = 60) -> None:
        self._socket = connect(address)
        self._socket.settimeout(timeout_s)
        self._buffer = bytearray(1 << 16)

    def exchange(self, made: bytes) -> memoryview:
        """Send a whole request and return its answer, which is valid until the next one."""
        self.send(made)
        return self.receive()

    def send(self, made: bytes) -> None:
        """Send whole requests."""
        self._socket.sendall(made)

    def receive(self) -> memoryview:
        """Return the next answer, which is valid until the one after it."""
        return receive(self._socket, self._buffer)

    def ask(self, schema: ModuleType, version: int, **fields: Any) -> Any:
        """Send a request and return its response."""
        return read(schema, version, self.exchange(request(schema, version, **fields)))

    def wait_for_coordinator(self, group: str, deadline_s: float = 60) -> None:
        """Return when the broker coordinates a group: Apache Kafka first creates a topic for that."""
        until = time.monotonic() + deadline_s
        while self.ask(find_coordinator, 1, key=group, key_type=0).error_code:
            if time.monotonic() > until:
                raise RuntimeError(f"the broker found no coordinator of {group} in {deadline_s:g} s")
            time.sleep(0.05)

    def log_end_offset(self, topic: str) -> int:
        """Return the offset behind the last record of partition 0."""
        partition = list_offsets.RequestPartition(partition_index=0, timestamp=-1)
        wanted = list_offsets.RequestTopic(name=topic, partitions=[partition])
        return int(self.ask(list_offsets, 5, replica_id=-1, topics=[wanted]).topics[0].partitions[0].offset)

    def join(self, group: str, member: str = "") -> Any:
        """Join a group, take part in its rebalance, and return the response to the JoinGroup."""
        while True:
            joined = read(join_group, JOIN_VERSION, self.exchange(join_request(group, member)))
            if joined.error_code:
                raise RuntimeError(f"the broker answered error code {joined.error_code} to a JoinGroup")
            synced = read(sync_group, SYNC_VERSION, self.exchange(sync_request(group, joined)))
            if not synced.error_code:
                return joined
            if synced.error_code != REBALANCE_IN_PROGRESS:
                raise RuntimeError(f"the broker answered error code {synced.error_code} to a SyncGroup")
            member = joined.member_id

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
