"""ConsumerGroupDescribe returns the state and the members of groups of the newer protocol; only for the client."""

from logmark.wire.messages import Message, array, boolean, int8, int16, int32, string, struct, uuid

KEY = 69
VERSIONS = range(0, 2)
FLEXIBLE_FROM: int | None = 0


class Request(Message):
    group_ids: list[str] = array(string())
    include_authorized_operations: bool = boolean()


class ResponseTopicPartitions(Message):
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32())


class ResponseAssignment(Message):
    topic_partitions: list[ResponseTopicPartitions] = array(ResponseTopicPartitions)


class ResponseMember(Message):
    member_id: str = string()
    instance_id: str | None = string(default=None, nullable_since=0)
    rack_id: str | None = string(default=None, nullable_since=0)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string())
    subscribed_topic_regex: str | None = string(default=None, nullable_since=0)
    assignment: ResponseAssignment = struct(ResponseAssignment)
    target_assignment: ResponseAssignment = struct(ResponseAssignment)
    member_type: int = int8(default=-1, since=1)


class ResponseGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[ResponseMember] = array(ResponseMember)
    authorized_operations: int = int32(default=-2147483648)


class Response(Message):
    throttle_time_ms: int = int32()
    groups: list[ResponseGroup] = array(ResponseGroup)
