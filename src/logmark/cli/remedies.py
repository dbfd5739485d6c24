"""What a user of the command line does about an error of the library, which knows no command and no option."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from logmark.client.errors import ReadOnly
from logmark.errors import DataDirectoryUnusable, DirectoryOfKafka, ListenFailed, LogmarkError, UserError
from logmark.offsets import errors
from logmark.offsets.reset.members import GroupActive
from logmark.offsets.reset.undo import ChangeConflict
from logmark.offsets.spark_checkpoints.sinks import KINDS
from logmark.spark import errors as spark_errors

if TYPE_CHECKING:
    from logmark.spark.pipelines.job import Job

_PENDING = "`logmark offsets finish {0.change_id}` completes it, `logmark offsets undo {0.change_id}` undoes it"
_OTHER_HISTORY = "name another file with --history, or move this one away"
REMEDIES: Mapping[type[errors.OffsetsError], str] = {
    GroupActive: "stop them and try again, or add --wait-empty to wait until they are gone",
    ChangeConflict: "add --force to do it all the same, or reset the group to where it shall start",
    errors.GroupNotFound: "to create it with these offsets, add --create-group",
    errors.TopicNotFound: "`logmark topics list` shows those that do",
    errors.NothingCommitted: "name topics with --topic",
    errors.TopicsNotRead: "name these topics with --topic, or add --allow-new-topics",
    errors.NothingToShift: "use --to-earliest, --to-latest or --to-offset there",
    errors.OffsetOutsideLog: "choose an offset in this range, name the partitions that you mean (--topic NAME:0,1), or "
    "add --clamp to go to the nearer end",
    errors.GroupKeepsMoving: "stop its reader, or choose an offset that does not depend on the committed one "
    "(--to-offset, --to-datetime)",
    errors.StatefulGroup: "`logmark pipelines replay {0.pipeline}` reads the records again into a new version. Add "
    "--force only for a query that you start again with a new checkpoint",
    errors.ChangeNotFound: "`logmark offsets history` shows them",
    errors.ChangeClosed: "`logmark offsets show {0.change_id}` tells what it was",
    errors.ChangePending: _PENDING,
    errors.ChangeOfAnotherUser: "to undo it all the same: logmark offsets undo {0.change_id}",
    errors.CheckpointChangePending: _PENDING,
    errors.HistoryUnusable: _OTHER_HISTORY,
    errors.HistoryMissing: "`logmark monitor` and `logmark lag --keep` write one",
    errors.HistoryLocked: "stop it, or give this one its own with --history FILE",
    errors.AddressUnusable: "choose another address with --listen HOST:PORT, or --listen none to serve no metrics",
    errors.ContextNotFound: "`logmark contexts` shows those that are there",
    errors.QueryOnLogmarkSource: "`logmark lag GROUP` shows them, and `logmark offsets reset GROUP` moves them, also "
    "while the query runs",
    errors.QueryMayRun: "stop it and wait a minute, or add --i-stopped-it if you did",
    errors.QueryRanSince: "--force does it and says how much",
    errors.StatefulQuery: "to read again, start it with a new checkpoint, or move it to format(\"logmark\") with "
    "--to-group",
    errors.SinkNotKnown: f"say it with --sink: a kind ({', '.join(KINDS)}) or the folder that it writes to, which is "
    "then looked at",
    errors.BatchNotKept: "--batches 100 shows those it has",
    errors.OtherCluster: "is it the right cluster (--bootstrap-servers)?",
    errors.SameTopic: "choose another --to-topic, or add --allow-same-topic if this is what you want",
    errors.TargetTopicMissing: "add --create-topic to create it with {0.partitions} partition(s)",
    errors.TargetTopicReplaced: "run the command again with --start-over",
    errors.CopiesLost: "start over with --start-over",
    errors.RangeBackward: "--to must not lie before --from",
    errors.ReplayInterrupted: "resume it with: logmark replay --resume {0.run_id}",
}  # fmt: skip

_TAKEOVER = (
    "`logmark pipelines run FILE --only NAME --takeover` does it, or `logmark pipelines start NAME --takeover` inside "
    "a running `logmark pipelines run`."
)
# What follows the whole message of an error; NAME is a pipeline, and GROUP its group.
NEXT_STEPS: Mapping[type[BaseException], str] = {
    DataDirectoryUnusable: "`logmark serve --data-dir DIR` serves another directory.",
    DirectoryOfKafka: "Back it up through its brokers: logmark backup --bootstrap-servers HOST:PORT DEST",
    ListenFailed: "`logmark serve --listen HOST:PORT` listens on another address.",
    ReadOnly: "Changes are forbidden here (--read-only, LOGMARK_READ_ONLY or the context).",
    spark_errors.MissingRecordIds: "Choose with --missing-id skip or --missing-id send; --abandon ends a started "
    "replay.",
    spark_errors.MissingOlderRecords: "Add --drop-older to do so.",
    spark_errors.ReplayHasNoEnd: "Leave out --to.",
    spark_errors.ReplayNeedsRebuild: "Add --rebuild.",
    spark_errors.UnfinishedReplay: "Add --resume to finish it, or --abandon to remove it.",
    spark_errors.PublicationStarted: "Resume it with `logmark pipelines replay NAME --resume`.",
    spark_errors.LiveVersionReplaced: "Resume the replay with `logmark pipelines replay NAME --resume`, and start the "
    "pipeline then.",
    spark_errors.LiveVersionBusy: "Resume it with `logmark pipelines replay NAME --resume`.",
    spark_errors.RecordsLost: "`logmark offsets reset GROUP --topic TOPIC:PARTITION --to-earliest` moves it to what "
    "is left.",
    spark_errors.TableGone: "`logmark offsets reset GROUP --all-topics --to-earliest` resets the group.",
    spark_errors.TableReplaced: "`logmark offsets reset GROUP --topic TOPIC:PARTITION --to-offset OFFSET` resets the "
    "group.",
    spark_errors.Superseded: _TAKEOVER,
    spark_errors.GroupInUse: _TAKEOVER,
    spark_errors.NotSupervised: "`logmark pipelines run FILE --only NAME` starts a pipeline of a file.",
    spark_errors.StateIncompatible: "`logmark pipelines replay NAME` builds a new version with the code of now; or "
    "take the change back and start it again.",
    spark_errors.StateUnreadable: "Restore the checkpoint from a backup, or build a new version with `logmark "
    "pipelines replay NAME`.",
    spark_errors.VersionOutdated: "`logmark pipelines replay NAME --abandon` removes it, `logmark pipelines replay "
    "NAME` starts again.",
    spark_errors.SettingRefused: "`logmark pipelines run --conf K=V` gives a setting to the Spark of the whole run.",
    spark_errors.CheckpointLost: "`logmark pipelines replay NAME --abandon` ends an unfinished replay.",
}  # fmt: skip


def describe_error(error: LogmarkError) -> list[str]:
    """Return the lines that tell a user of the command line what went wrong and what to do."""
    if isinstance(error, errors.OffsetsError) and error.remedy:
        problem = error.problem
        if isinstance(error, errors.ReplayInterrupted):
            problem = f"{' '.join(describe_error(error.cause))} {error.progress}"
        return [errors.join_remedy(problem, REMEDIES[type(error)].format(error))]
    if not isinstance(error, UserError):
        return [str(error)]
    return [f"{error} {NEXT_STEPS[type(error)]}"] if type(error) in NEXT_STEPS else list(error.lines)


def next_step(exception: type[BaseException], job: "Job") -> str:
    """Return what a user of the command line may do about an exception in a pipeline, empty if there is nothing."""
    step = NEXT_STEPS.get(exception, "")
    step = step.replace("FILE", job.file or "FILE")
    return step.replace("NAME", job.name).replace("GROUP", job.pipeline.group)


def describe_pipeline_error(error: LogmarkError, job: "Job") -> str:
    """Return what went wrong with a pipeline, and what to do, in one line."""
    if type(error) in NEXT_STEPS:
        return f"{job.name}: {error} {next_step(type(error), job)}"
    return f"{job.name}: {' '.join(describe_error(error))}"
