"""ConsumerGroupHeartbeat joins, keeps and leaves a group of the newer protocol (KIP-848)."""

from logmark.wire.messages import Message, array, int16, int32, string, struct, uuid

KEY = 68
VERSIONS = range(0, 2)
FLEXIBLE_FROM: int | None = 0


class TopicPartitions(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32())


class Request(Message):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(default=None, nullable_since=0)
    rack_id: str | None = string(default=None, nullable_since=0)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string(), default=None, nullable_since=0)
    subscribed_topic_regex: str | None = string(default=None, since=1, nullable_since=1)
    server_assignor: str | None = string(default=None, nullable_since=0)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, default=None, nullable_since=0)


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class Response(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)
    member_id: str | None = string(default=None, nullable_since=0)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = struct(Assignment, default=None, nullable_since=0)
