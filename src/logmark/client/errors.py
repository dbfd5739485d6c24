"""What can go wrong between a client and its brokers, each with a message for people and a type for programs.

ClientError (a UserError)
├── BadProperties          the client's properties say something that cannot be
├── ReadOnly               the client may only look, and was asked to write
├── BrokerUnreachable      nobody answered, or what answered is no broker
├── AuthenticationFailed   the broker does not accept these credentials
└── RefusedByBroker        a broker answered with an error code
    ├── NoCoordinator      no broker would say who keeps a group
    ├── UnknownTopic       a topic or a partition is not there
    ├── OffsetOutOfRange   an offset outside of what the log holds
    └── CommitRefused      a commit of offsets was refused, wholly or for some partitions
"""

from collections.abc import Mapping

from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition


def error_code(number: int) -> ErrorCode:
    """Return the code by its number; a number newer than our table counts as an unknown server error."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class ClientError(UserError):
    """A client's call did not do what it was asked to do."""


class BadProperties(ClientError):
    """The client's properties say something that cannot be."""


class ReadOnly(ClientError):
    """The client may only look, and was asked to write."""


class BrokerUnreachable(ClientError):
    """Nobody answered at this address in time, or what answered is no broker."""


class AuthenticationFailed(ClientError):
    """The broker does not accept these credentials."""


class RefusedByBroker(ClientError):
    """A broker answered with an error code; `said` is what it wrote beside it, if anything."""

    def __init__(self, code: ErrorCode, message: str, *, said: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.said = said


class NoCoordinator(RefusedByBroker):
    """No broker would say who keeps this group."""

    def __init__(self, group: str, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.group = group


class UnknownTopic(RefusedByBroker):
    """A topic or a partition is not there."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


class OffsetOutOfRange(RefusedByBroker):
    """An offset lies outside of what the log holds; `log_end` is the visible end."""

    def __init__(self, partition: TopicPartition, offset: int, *, log_start: int, log_end: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} is not in partition {partition.partition} of topic {partition.topic}: "
            f"it holds offsets {log_start} to {log_end} (the end is the next offset to be written).",
        )
        self.partition = partition
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class CommitRefused(RefusedByBroker):
    """A commit of offsets was refused for the partitions in `errors`; the others were committed."""

    def __init__(self, group: str, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        code = next(iter(errors.values()))
        super().__init__(code, _describe_commit_error(group, code, errors))
        self.group = group
        self.errors = dict(errors)


_COMMIT_REASONS = {
    ErrorCode.UNKNOWN_MEMBER_ID: "it has active members; stop them and try again",
    ErrorCode.REBALANCE_IN_PROGRESS: "it is rebalancing; stop its members and try again",
    ErrorCode.ILLEGAL_GENERATION: "it has active members; stop them and try again",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata that goes with an offset is longer than the broker allows",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "you are not allowed to read this group",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "you are not allowed to read this topic",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the topic or the partition does not exist",
    ErrorCode.INVALID_GROUP_ID: "the group's name is not allowed",
}


def _describe_commit_error(group: str, code: ErrorCode, errors: Mapping[TopicPartition, ErrorCode]) -> str:
    reason = _COMMIT_REASONS.get(code, f"the broker answered {code.name}")
    where = ", ".join(str(partition) for partition in sorted(errors))
    return f"The offsets of group {group} were not committed for {where}: {reason}."
