"""A listener of Apache Kafka whose commits can be made to fail: `.fail_next`, as our own broker has it."""

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator

from logmark.errors import ErrorCode
from logmark.wire import frames, messages
from logmark.wire.schema import offset_commit
from tests.harness.node import KafkaNode


class FailingListener:
    """Stands between clients and a node; what it is told to fail never reaches the node."""

    def __init__(self, node: KafkaNode) -> None:
        self.bootstrap_servers = f"127.0.0.1:{node.proxy_port}"
        self._target = ("127.0.0.1", node.proxied_port)
        self._failures: deque[ErrorCode] = deque()
        self._listener = socket.create_server(("127.0.0.1", node.proxy_port))
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def fail_next(self, api: str, error: str, *, times: int = 1) -> None:
        """The next commits are answered with the error and do nothing."""
        assert "OffsetCommit" == api, "only commits fail here"
        self._failures.extend([ErrorCode[error]] * times)

    def close(self) -> None:
        """Drops every connection and listens no more."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                node = socket.create_connection(self._target)
                self._sockets += [client, node]
                _Connection(client, node, self._failures).start()


class _Connection:
    """One client's connection and its twin to the node."""

    def __init__(self, client: socket.socket, node: socket.socket, failures: deque[ErrorCode]) -> None:
        self._client, self._node, self._failures = client, node, failures
        self._waiting = 0
        self._is_quiet = threading.Condition()

    def start(self) -> None:
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._answers, daemon=True).start()

    def _requests(self) -> None:
        for frame in _frames(self._client):
            if struct.unpack_from(">h", frame)[0] == offset_commit.KEY and self._failures:
                with self._is_quiet:  # answers keep the order of the requests
                    self._is_quiet.wait_for(lambda: not self._waiting)
                self._client.sendall(_framed(_failed(frame, self._failures.popleft())))
                continue
            with self._is_quiet:
                self._waiting += 1
            self._node.sendall(_framed(frame))
        with contextlib.suppress(OSError):
            self._node.shutdown(socket.SHUT_RDWR)

    def _answers(self) -> None:
        for frame in _frames(self._node):
            with contextlib.suppress(OSError):
                self._client.sendall(_framed(frame))
            with self._is_quiet:
                self._waiting -= 1
                self._is_quiet.notify_all()
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)


def _failed(frame: bytes, error: ErrorCode) -> bytes:
    """The answer to a commit in which every partition has the error."""
    header = frames.read_request_header(memoryview(frame), lambda _: offset_commit.FLEXIBLE_FROM)
    request = messages.decode_request(offset_commit, header.api_version, memoryview(frame)[header.body_at :])
    topics = [
        offset_commit.ResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                offset_commit.ResponsePartition(partition_index=each.partition_index, error_code=int(error))
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    body = messages.encode_response(offset_commit, header.api_version, offset_commit.Response(topics=topics))
    is_flexible = messages.is_flexible(offset_commit, header.api_version)
    return frames.response_header(header.correlation_id, flexible=is_flexible) + body


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """The frames that come in until the connection ends."""
    with contextlib.suppress(OSError), connection.makefile("rb") as stream:
        while size := stream.read(4):
            yield stream.read(struct.unpack(">i", size)[0])
