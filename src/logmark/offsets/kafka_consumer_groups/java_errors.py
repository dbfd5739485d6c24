"""What Kafka's Java client calls an error, because the tool prints its exceptions."""

from logmark.client.errors import AuthenticationFailed, BrokerUnreachable, ClientError, NoCoordinator, RefusedByBroker
from logmark.errors import ErrorCode
from logmark.escaping import escape
from logmark.names import TopicPartition

EXECUTION = "java.util.concurrent.ExecutionException: "
_ERRORS = "org.apache.kafka.common.errors."
_UNKNOWN_SERVER = ("UnknownServerException", "The server experienced an unexpected error when processing the request.")
_TEXTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "UnknownTopicOrPartitionException", "This server does not host this topic-partition.",
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: (
        "LeaderNotAvailableException",
        "There is no leader for this topic-partition as we are in the middle of a leadership election.",
    ),
    ErrorCode.REQUEST_TIMED_OUT: ("TimeoutException", "The request timed out."),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        "OffsetMetadataTooLarge", "The metadata field of the offset request was too large.",
    ),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (
        "CoordinatorLoadInProgressException", "The coordinator is loading and hence can't process requests.",
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ("CoordinatorNotAvailableException", "The coordinator is not available."),
    ErrorCode.NOT_COORDINATOR: ("NotCoordinatorException", "This is not the correct coordinator."),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "InvalidTopicException", "The request attempted to perform an operation on an invalid topic.",
    ),
    ErrorCode.INVALID_GROUP_ID: ("InvalidGroupIdException", "The group id is invalid."),
    ErrorCode.UNKNOWN_MEMBER_ID: ("UnknownMemberIdException", "The coordinator is not aware of this member."),
    ErrorCode.REBALANCE_IN_PROGRESS: (
        "RebalanceInProgressException", "The group is rebalancing, so a rejoin is needed.",
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ("TopicAuthorizationException", "Topic authorization failed."),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ("GroupAuthorizationException", "Group authorization failed."),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ("ClusterAuthorizationException", "Cluster authorization failed."),
    ErrorCode.UNSUPPORTED_VERSION: ("UnsupportedVersionException", "The version of API is not supported."),
    ErrorCode.KAFKA_STORAGE_ERROR: (
        "KafkaStorageException", "Disk error when trying to access log file on the disk.",
    ),
    ErrorCode.NON_EMPTY_GROUP: ("GroupNotEmptyException", "The group is not empty."),
    ErrorCode.GROUP_ID_NOT_FOUND: ("GroupIdNotFoundException", "The group id does not exist."),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "GroupSubscribedToTopicException",
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it.",
    ),
}  # fmt: skip


def message_for(code: ErrorCode) -> str:
    """Return Kafka's message for an error code."""
    return _TEXTS.get(code, _UNKNOWN_SERVER)[1]


def format_code(code: ErrorCode, message: str | None = None) -> str:
    """Return the exception for a code as Java prints it, with this message or Kafka's own."""
    name, usual = _TEXTS.get(code, _UNKNOWN_SERVER)
    # Brokers put names into their messages.
    return f"{_ERRORS}{name}: {usual if message is None else escape(message)}"


def format_exception(error: ClientError, call: str) -> str:
    """Return an error of our client as the exception that Kafka's client would have thrown in this call."""
    match error:
        case NoCoordinator():
            key = f"`CoordinatorKey(idValue='{error.group}', type=GROUP)`"
            if error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
                message = f"FindCoordinator request for groupId {key} failed due to authorization failure"
            else:
                message = f"FindCoordinator request for key {key} failed due to an unexpected error"
            return format_code(error.code, message)
        case RefusedByBroker():
            return format_code(error.code, error.said)
        case BrokerUnreachable():
            return f"{_ERRORS}TimeoutException: Timed out waiting for a node assignment. Call: {call}"
        case AuthenticationFailed():
            return f"{_ERRORS}SaslAuthenticationException: {escape(str(error))}"
        case _:
            return escape(str(error))


def format_bare_message(error: ClientError, call: str) -> str:
    """Return only the message of the exception for an error of our client."""
    return format_exception(error, call).partition(": ")[2] or str(error)


def format_metadata_exception(partition: TopicPartition, code: ErrorCode) -> str:
    """Return the exception for a partition whose leader cannot be found because of its topic."""
    reasons = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: f"because metadata for topic `{partition.topic}` could not be found",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "due to topic authorization failure",
        ErrorCode.INVALID_TOPIC_EXCEPTION: f"due to invalid topic `{partition.topic}`",
    }
    reason = reasons.get(code, f"due to unexpected error for topic `{partition.topic}`")
    return format_code(code, f"Failed to fetch metadata for partition {partition} {reason}")
