"""What the offset tools refuse, each reason with a class of its own.

UserError
└── OffsetsError              `problem` says what happened and what it means for the data, `remedy` what to call next
    ├── GroupNotFound         no such consumer group
    ├── TopicNotFound         no such topic
    ├── NothingCommitted      the group has no committed offset
    ├── TopicsNotRead         the group has committed nothing in topics that a file or another group names
    ├── NothingToShift        no committed offset to shift from
    ├── OffsetOutsideLog      an offset below the log start or beyond the log end
    ├── GroupKeepsMoving      the group moves faster than a plan can be confirmed
    ├── StatefulGroup         the group's query keeps state, which cannot be moved with the offsets
    ├── ChangeNotFound, ChangeClosed, ChangePending, ChangeOfAnotherUser, CheckpointChangePending
    ├── HistoryUnusable, HistoryMissing, HistoryLocked
    ├── AddressUnusable       the metrics server cannot listen there
    ├── ContextNotFound       no such context in the settings
    ├── QueryOnLogmarkSource, QueryMayRun, QueryRanSince, StatefulQuery, SinkNotKnown, BatchNotKept, OtherCluster
    └── SameTopic, TargetTopicMissing, TargetTopicReplaced, CopiesLost, RangeBackward, CopyRefused, ReplayInterrupted

More of them stand beside what they carry: GroupActive, PlanOutdated, ChangeConflict. Remedies name Python calls; the
command line replaces them by its own options (logmark.cli.remedies).
"""

from logmark.errors import UserError


class OffsetsError(UserError):
    """An offset tool refused; the message is the problem, then the remedy."""

    def __init__(self, problem: str, remedy: str = "", *, exit_code: int = 1) -> None:
        """Take the problem without its last period, and what a Python caller can do about it."""
        super().__init__(join_remedy(problem, remedy), exit_code=exit_code)
        self.problem = problem
        self.remedy = remedy


def join_remedy(problem: str, remedy: str) -> str:
    """Return one message of a problem and its remedy."""
    return f"{problem}; {remedy}." if remedy else f"{problem}."


class GroupNotFound(OffsetsError):
    """No such consumer group."""


class TopicNotFound(OffsetsError):
    """No such topic."""


class NothingCommitted(OffsetsError):
    """The group has no committed offset."""


class TopicsNotRead(OffsetsError):
    """The group has committed nothing in topics that a file or another group names."""


class NothingToShift(OffsetsError):
    """The group has no committed offset to shift from."""


class OffsetOutsideLog(OffsetsError):
    """An offset lies below the log start or beyond the log end."""


class GroupKeepsMoving(OffsetsError):
    """The group moves faster than a plan can be confirmed."""


class ChangeNotFound(OffsetsError):
    """The journal has no change of this id."""


class ChangeClosed(OffsetsError):
    """A change is neither done nor pending, so that it cannot be undone."""

    def __init__(self, change_id: str, state: str) -> None:
        super().__init__(
            f"The change {change_id} is {state} already. Nothing was changed", "list_changes shows what it was"
        )
        self.change_id = change_id


class ChangePending(OffsetsError):
    """A change was interrupted, and is in the journal as pending."""

    def __init__(self, change_id: str, what: str) -> None:
        super().__init__(
            f"{what} The change {change_id} is journaled as pending",
            f'finish_change(client, "{change_id}") completes it, undo_change(client, "{change_id}") undoes it',
        )
        self.change_id = change_id


class ChangeOfAnotherUser(OffsetsError):
    """The last change is somebody else's, and no id was given."""

    def __init__(self, change_id: str, what: str) -> None:
        super().__init__(what, f'undo_change(client, "{change_id}") undoes it all the same')
        self.change_id = change_id


class CheckpointChangePending(OffsetsError):
    """A batch was added to a checkpoint whose commit is missing."""

    def __init__(self, change_id: str, what: str) -> None:
        super().__init__(
            what, f'finish_change(client, "{change_id}") completes it, undo_change(client, "{change_id}") undoes it'
        )
        self.change_id = change_id


class HistoryUnusable(OffsetsError):
    """The file is no lag history, or one of another version or cluster."""


class HistoryMissing(OffsetsError):
    """No history was kept yet."""


class HistoryLocked(OffsetsError):
    """Another monitor writes this history, or it cannot be written."""


class AddressUnusable(OffsetsError):
    """The metrics server cannot listen on this address."""


class ContextNotFound(OffsetsError):
    """The settings have no context of this name."""


class QueryOnLogmarkSource(OffsetsError):
    """A checkpoint belongs to a query on format("logmark"), whose group has its offsets."""


class QueryMayRun(OffsetsError):
    """A checkpoint was written to so lately that its query may still run."""


class QueryRanSince(OffsetsError):
    """A query has run batches since the change that is to be undone."""


class StatefulQuery(OffsetsError):
    """The query keeps state, which an added batch would not have."""


class StatefulGroup(OffsetsError):
    """The group's query keeps state, which cannot be moved with the offsets; `pipeline` is its pipeline, if known."""

    def __init__(self, group: str, query: str) -> None:
        super().__init__(
            f"Group {group} belongs to the query {query}, which keeps state (aggregations, joins, duplicates that it "
            "drops). Its state has counted every record up to the committed offsets, so the query would restore them. "
            "Nothing was changed",
            "build a new version with Pipeline.replay, or pass allow_stateful=True for a query that starts again with "
            "a new checkpoint",
        )
        self.group = group
        self.pipeline = "NAME"


class SinkNotKnown(OffsetsError):
    """A checkpoint does not tell its query's sink."""


class BatchNotKept(OffsetsError):
    """Spark has removed the batch from the checkpoint."""


class OtherCluster(OffsetsError):
    """The cluster lacks a topic that the query reads."""


class SameTopic(OffsetsError):
    """A topic would be copied to itself."""


class TargetTopicMissing(OffsetsError):
    """The topic to copy to does not exist."""

    def __init__(self, what: str, partitions: int) -> None:
        super().__init__(what, f"pass create=True to create it with {partitions} partition{'s'[: partitions != 1]}")
        self.partitions = partitions


class TargetTopicReplaced(OffsetsError):
    """A topic of a replay was deleted, or deleted and created again, since the replay started."""


class CopiesLost(OffsetsError):
    """Copies that a replay had written are gone, so that it cannot be resumed."""


class RangeBackward(OffsetsError):
    """A range ends before it starts."""


class CopyRefused(OffsetsError):
    """The target topic refuses a record."""


class ReplayInterrupted(OffsetsError):
    """A replay stopped before its end; what it has copied stays."""

    def __init__(self, run_id: str, cause: UserError, progress: str) -> None:
        super().__init__(
            f"{cause} {progress}",
            f'resume it with ReplayCopier(..., store.load("{run_id}"), store, is_resumed=True)',
            exit_code=cause.exit_code,
        )
        self.run_id = run_id
        self.cause = cause
        self.progress = progress
