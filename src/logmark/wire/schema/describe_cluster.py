"""DescribeCluster names the cluster, its brokers and its controller."""

from logmark.wire.messages import Message, array, boolean, int8, int16, int32, string

KEY = 60
VERSIONS = range(0, 3)
FLEXIBLE_FROM: int | None = 0


class Request(Message):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(default=1, since=1)
    include_fenced_brokers: bool = boolean(since=2)


class ResponseBroker(Message):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(default=None, nullable_since=0)
    is_fenced: bool = boolean(since=2)


class Response(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)
    endpoint_type: int = int8(default=1, since=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[ResponseBroker] = array(ResponseBroker)
    cluster_authorized_operations: int = int32(default=-2147483648)
