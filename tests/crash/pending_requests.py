"""One request on a connection of its own, so that a test can see whether it has been answered yet."""

import socket
from types import ModuleType
from typing import Self

from logmark.wire import frames, produce
from logmark.wire.messages import Message, decode_response, encode_request
from logmark.wire.schema import offset_commit, offset_fetch
from tests.harness.terminals import is_readable

# Old versions: their headers have no tagged fields.
PRODUCE_VERSION, COMMIT_VERSION, FETCH_VERSION = 7, 7, 5


class PendingRequest:
    """A request that was sent; its answer may come or not."""

    def __init__(self, bootstrap_servers: str, key: int, version: int, body: bytes) -> None:
        host, port = bootstrap_servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.sendall(frames.request_frame(key, version, 1, "test", flexible=False, body=body))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def is_answered(self) -> bool:
        """Whether anything has come back, an answer or the end of the connection."""
        return is_readable(self._socket.fileno())

    def body(self) -> bytes:
        """The answer without its header, as soon as it is there."""
        size = int.from_bytes(self._exactly(4), "big")
        return self._exactly(size)[4:]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the broker closed the connection"
            data += part
        return data


class PendingProduce(PendingRequest):
    """A batch on its way into one partition."""

    def __init__(self, bootstrap_servers: str, topic: str, partition: int, batch: bytes, *, acks: int = -1) -> None:
        data = [(topic, [produce.PartitionData(partition, memoryview(batch))])]
        request = produce.ProduceRequest(None, acks, 30_000, data)
        body = produce.encode_request(PRODUCE_VERSION, request)
        super().__init__(bootstrap_servers, produce.KEY, PRODUCE_VERSION, body)

    def answer(self) -> tuple[int, int]:
        """The error code and the base offset."""
        ((_, (answer,)),) = produce.decode_response(PRODUCE_VERSION, self.body()).topics
        return answer.error_code, answer.base_offset


class _PendingMessage(PendingRequest):
    def __init__(self, bootstrap_servers: str, schema: ModuleType, version: int, request: Message) -> None:
        super().__init__(bootstrap_servers, schema.KEY, version, encode_request(schema, version, request))
        self._read = lambda: decode_response(schema, version, self.body())


class PendingCommit(_PendingMessage):
    """A committed offset on its way, sent by nobody's member."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str, offset: int) -> None:
        partition = offset_commit.RequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        topics = [offset_commit.RequestTopic(name=topic, partitions=[partition])]
        request = offset_commit.Request(group_id=group, topics=topics)
        super().__init__(bootstrap_servers, offset_commit, COMMIT_VERSION, request)

    def answer(self) -> int:
        """The error code."""
        response = self._read()
        assert isinstance(response, offset_commit.Response)
        return response.topics[0].partitions[0].error_code


class PendingOffsetFetch(_PendingMessage):
    """The question where a group stands."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        topics = [offset_fetch.RequestTopic(name=topic, partition_indexes=[0])]
        super().__init__(
            bootstrap_servers, offset_fetch, FETCH_VERSION, offset_fetch.Request(group_id=group, topics=topics)
        )

    def answer(self) -> int:
        """The committed offset, -1 when there is none."""
        response = self._read()
        assert isinstance(response, offset_fetch.Response)
        return response.topics[0].partitions[0].committed_offset
