"""Metadata gives a client the brokers, the topics and who leads each partition."""

from logmark.wire.messages import Message, array, boolean, int16, int32, string, uuid

KEY = 3
VERSIONS = range(0, 14)
FLEXIBLE_FROM: int | None = 9


class RequestTopic(Message):
    topic_id: bytes = uuid(since=10)
    name: str | None = string(nullable_since=10)


class Request(Message):
    topics: list[RequestTopic] | None = array(RequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(default=True, since=4)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


class ResponseBroker(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(default=None, since=1, nullable_since=1)


class ResponsePartition(Message):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1, since=7)
    replica_nodes: list[int] = array(int32())
    isr_nodes: list[int] = array(int32())
    offline_replicas: list[int] = array(int32(), since=5)


class ResponseTopic(Message):
    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: bytes = uuid(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[ResponsePartition] = array(ResponsePartition)
    topic_authorized_operations: int = int32(default=-2147483648, since=8)


class Response(Message):
    throttle_time_ms: int = int32(since=3)
    brokers: list[ResponseBroker] = array(ResponseBroker)
    cluster_id: str | None = string(default=None, since=2, nullable_since=2)
    controller_id: int = int32(default=-1, since=1)
    topics: list[ResponseTopic] = array(ResponseTopic)
    cluster_authorized_operations: int = int32(default=-2147483648, since=8, until=10)
    error_code: int = int16(since=13)
