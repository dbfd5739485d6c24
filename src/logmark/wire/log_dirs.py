"""DescribeLogDirs with one more tagged field in the request and in the response: the health of a broker of ours.

By Kafka's protocol (KIP-482) a receiver ignores tagged fields that it does not know. So Apache Kafka answers the
request as if it had no such field, and no client of Kafka's stumbles over the response. Kafka numbers its own from 0.
"""

from logmark.wire.messages import Message, array, boolean, data, int16, int32
from logmark.wire.schema import describe_log_dirs
from logmark.wire.schema.describe_log_dirs import RequestTopic, ResponsePartition, ResponseResult, ResponseTopic

__all__ = ["Request", "RequestTopic", "Response", "ResponsePartition", "ResponseResult", "ResponseTopic"]

KEY = describe_log_dirs.KEY
VERSIONS = describe_log_dirs.VERSIONS
FLEXIBLE_FROM: int | None = describe_log_dirs.FLEXIBLE_FROM

# The ASCII letters LM.
HEALTH_TAG = 0x4C4D


class Request(Message):
    topics: list[RequestTopic] | None = array(RequestTopic, nullable_since=0)
    wants_health: bool = boolean(since=2, tag=HEALTH_TAG)


class Response(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: list[ResponseResult] = array(ResponseResult)
    # A JSON object; `logmark.broker.health` writes it.
    health: bytes | None = data(default=None, nullable_since=2, since=2, tag=HEALTH_TAG)
