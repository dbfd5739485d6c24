"""DescribeLogDirs returns how large partitions are, and how a broker's log directories are."""

from logmark.wire.messages import Message, array, boolean, int16, int32, int64, string

KEY = 35
VERSIONS = range(1, 6)
FLEXIBLE_FROM: int | None = 2


class RequestTopic(Message):
    topic: str = string()
    partitions: list[int] = array(int32())


class Request(Message):
    topics: list[RequestTopic] | None = array(RequestTopic, nullable_since=0)


class ResponsePartition(Message):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class ResponseTopic(Message):
    name: str = string()
    partitions: list[ResponsePartition] = array(ResponsePartition)


class ResponseResult(Message):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[ResponseTopic] = array(ResponseTopic)
    total_bytes: int = int64(default=-1, since=4)
    usable_bytes: int = int64(default=-1, since=4)
    is_cordoned: bool = boolean(since=5)


class Response(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: list[ResponseResult] = array(ResponseResult)
