"""Moves a stopped query on Spark's Kafka connector by adding a batch to its checkpoint; no batch is ever edited.

Spark resumes behind the newest batch that has both files. A batch that says other offsets, reads nothing and is
committed therefore moves the query, and later batches have later ids, as sinks that know a batch by its id need it.
The plan is written before the commit: in between, Spark would run the batch, find offsets that went back, and stop
(or, with failOnDataLoss=false, continue from there), and nothing is lost. The other way round it would run the last
batch again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from logmark.client.answers import LATEST, Committed, OffsetAndTimestamp
from logmark.client.client import Client
from logmark.client.errors import ReadOnly
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.errors import BatchNotKept, CheckpointChangePending
from logmark.offsets.journal.changes import Change, current_author, new_change_id
from logmark.offsets.journal.journal import Journal
from logmark.offsets.partitions import LogBounds
from logmark.offsets.reset.plan import ResetPlan, build_plan
from logmark.offsets.reset.target_offsets import look_up_times
from logmark.offsets.reset.targets import Target, ToOffsets
from logmark.offsets.spark_checkpoints import log_files
from logmark.offsets.spark_checkpoints.checkpoint import Checkpoint, read_checkpoint
from logmark.offsets.spark_checkpoints.folder import Folder
from logmark.offsets.spark_checkpoints.log_files import Offsets
from logmark.offsets.spark_checkpoints.preconditions import (
    check_finished,
    check_movable,
    check_same_query,
    check_sink,
    check_stopped,
    check_topics_exist,
)
from logmark.offsets.spark_checkpoints.sinks import Sink, find_sink
from logmark.offsets.suggestions import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedBatch:
    """The two files of a batch that is added."""

    id: int
    plan: bytes
    commit: bytes

    @property
    def files(self) -> list[tuple[str, bytes]]:
        """The files in the order in which they are written."""
        return [(f"offsets/{self.id}", self.plan), (f"commits/{self.id}", self.commit)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """A move of a query, planned: what it changes, and the batch that would be added."""

    checkpoint: Checkpoint
    plan: ResetPlan
    sink: str
    addition: AddedBatch


def plan_rewind(
    client: Client,
    folder: Folder,
    target: Target,
    *,
    topics: Mapping[str, Sequence[int] | None] | None = None,
    sink: Sink | None = None,
    clamp: bool = False,
    is_stopped: bool = False,
    changes: Sequence[Change] = (),
    now_ms: int,
) -> Rewind:
    """Plan to move the query of a checkpoint; raises UserError with the reason if it cannot be moved.

    `topics` narrows the move to some topics or partitions. `sink` is the sink that the user names, needed if it cannot
    be detected. `changes` are the journaled changes of this checkpoint: a batch that one of them added is no sign that
    the query runs. With `is_stopped` the user asserts that it does not.
    """
    checkpoint = read_checkpoint(folder, batches=3)
    check_finished(checkpoint, changes)
    check_movable(checkpoint)
    known = find_sink(checkpoint, folder)
    check_sink(checkpoint, known if known is not None and known.is_files else sink or known)
    if not is_stopped and not any(is_last_batch(one, folder, checkpoint) for one in changes):
        check_stopped(checkpoint, now_ms=now_ms)
    plan = plan_moves(client, checkpoint, target, topics, clamp=clamp)
    return build_rewind(checkpoint, plan, sink=(known or sink or Sink(name="", known_by="")).name, now_ms=now_ms)


def start_of_batch(folder: Folder, batch_id: int) -> ToOffsets:
    """Return the start of a batch as a target: the end of the batch before it."""
    offsets: Offsets | None = None
    if batch_id == 0:
        offsets = read_checkpoint(folder, batches=1).initial
    elif folder.read(f"offsets/{batch_id}") is not None:
        path = f"offsets/{batch_id - 1}"
        content = folder.read(path)
        offsets = (
            None
            if content is None
            else log_files.read_offset_log_entry(content, f"{folder.url}/{path}").sources[0].offsets
        )
    if not offsets:
        raise BatchNotKept(
            f"{folder.url} does not say where batch {batch_id} started: Spark keeps only the last batches "
            "(spark.sql.streaming.minBatchesToRetain, 100). Nothing was changed",
            "read_checkpoint(folder, batches=100) shows those it has",
        )
    committed = {one: Committed(offset=offset) for one, offset in offsets.items()}
    return ToOffsets(committed, f"the start of batch {batch_id}")


def apply_rewind(
    client: Client, folder: Folder, journal: Journal, rewind: Rewind, *, reason: str = "",
    details: Mapping[str, str] | None = None, now_ms: int,
) -> Change:  # fmt: skip
    """Add the batch of a plan, journaled before and after; raises UserError if the query ran since the plan."""
    check_writable(client)
    addition, plan = rewind.addition, rewind.plan
    current = read_checkpoint(folder, batches=1)
    if (current.last.id, current.offsets) != (rewind.checkpoint.last.id, rewind.checkpoint.offsets):
        raise UserError(_ran_since(folder))
    who = current_author()
    change = Change(
        id=new_change_id(now_ms),
        at_ms=now_ms,
        cluster_id=client.metadata([]).cluster_id,
        subject="checkpoint",
        name=folder.url,
        action=plan.action,
        how=plan.how,
        who=who.user,
        host=who.host,
        reason=reason,
        before={move.partition: move.committed for move in plan.changes},
        after={move.partition: move.after for move in plan.changes},
        undoes=plan.undoes,
        details={
            **(details or {}),
            "batch": str(addition.id),
            "query": rewind.checkpoint.query_id or "",
            "sink": rewind.sink,
            "offsets": addition.plan.decode(),
            "commit": addition.commit.decode(),
        },
    )
    journal.add(change)
    _write_plan(folder, journal, addition, change.id)
    _write_commit(folder, addition, change.id)
    journal.set_state(change.id, "done")
    return replace(change, state="done")


def complete_rewind(folder: Folder, journal: Journal, change: Change) -> Change:
    """Complete an interrupted change: write the missing commit, or journal that nothing was changed."""
    if change.state != "pending":
        raise UserError(f"The change {change.id} is {change.state} and not pending. Nothing was changed.")
    check_same_query(read_checkpoint(folder, batches=1), change)
    addition = added_batch(change)
    path, content = addition.files[0]
    if folder.read(path) != content:
        journal.set_state(change.id, "taken back")
        return replace(change, state="taken back")
    if folder.read(addition.files[1][0]) is None:
        _write_commit(folder, addition, change.id)
    journal.set_state(change.id, "done")
    return replace(change, state="done")


def check_writable(client: Client) -> None:
    """Raise ReadOnly for a read-only client."""
    if client.is_read_only:
        raise ReadOnly("This would change a checkpoint, and the client is read-only. Nothing was changed.")


def added_batch(change: Change) -> AddedBatch:
    """Return the batch that a journaled change adds."""
    details = change.details
    return AddedBatch(
        id=int(details["batch"]), plan=details["offsets"].encode(), commit=details["commit"].encode()
    )  # fmt: skip


def is_last_batch(change: Change, folder: Folder, checkpoint: Checkpoint) -> bool:
    """Whether the newest batch of a checkpoint is the one that a change added."""
    if change.details.get("batch") != str(checkpoint.last.id):
        return False
    return folder.read(f"offsets/{checkpoint.last.id}") == added_batch(change).plan


def plan_moves(
    client: Client,
    checkpoint: Checkpoint,
    target: Target,
    topics: Mapping[str, Sequence[int] | None] | None,
    *,
    clamp: bool,
) -> ResetPlan:
    """Return the moves of a query to a target, within what its logs hold; its other partitions stay."""
    check_topics_exist(client, checkpoint)
    chosen = _chosen(checkpoint, topics)
    bounds = bounds_for(client, checkpoint.offsets)
    partitions = [
        bounds.group_partition(checkpoint.url, one, Committed(offset=checkpoint.offsets[one])) for one in chosen
    ]
    if isinstance(target, ToOffsets):
        # What was not there at that time begins at its start, as it once did.
        starts = {one: Committed(offset=start) for one, start in bounds.starts.items()}
        target = replace(target, offsets={**starts, **target.offsets})
    found = look_up_times(client, chosen, target)
    plan = build_plan(checkpoint.url, partitions, target, found=found, clamp=clamp, action="rewind")
    staying = checkpoint.offsets.keys() - {move.partition for move in plan.moves}
    expired = sorted(one for one in staying if checkpoint.offsets[one] < bounds.starts.get(one, 0))
    return replace(plan, warnings=[*plan.warnings, *(_expired(one, checkpoint, bounds) for one in expired)])


def bounds_for(client: Client, offsets: Offsets) -> LogBounds:
    """Return the bounds of a move: a read_committed query never read beyond the last stable offset."""
    partitions = sorted(offsets)
    bounds = LogBounds.fetch(client, partitions)
    stable = client.try_list_offsets(
        dict.fromkeys((one for one in partitions if one in bounds.ends), LATEST), read_committed=True
    )
    ends = dict(bounds.ends)
    for one, answer in stable.items():
        if isinstance(answer, OffsetAndTimestamp) and offsets[one] <= answer.offset:
            ends[one] = min(ends[one], answer.offset)
    return LogBounds(bounds.starts, ends, bounds.problems)


def _chosen(checkpoint: Checkpoint, topics: Mapping[str, Sequence[int] | None] | None) -> list[TopicPartition]:
    known = sorted(checkpoint.offsets)
    if topics is None:
        return known
    found: list[TopicPartition] = []
    for topic, numbers in topics.items():
        those = [one for one in known if one.topic == topic]
        if not those:
            hint = did_you_mean(topic, {one.topic for one in known})
            raise UserError(f"The query of {checkpoint.url} does not read topic {topic}.{hint} Nothing was changed.")
        wanted = those if numbers is None else [TopicPartition(topic, number) for number in numbers]
        for one in wanted:
            if one not in those:
                raise UserError(
                    f"The query of {checkpoint.url} has not read partition {one.partition} of topic {topic}: Spark "
                    "begins a partition that is new to it at its start. Nothing was changed."
                )
        found += wanted
    return found


def build_rewind(checkpoint: Checkpoint, plan: ResetPlan, *, sink: str, now_ms: int) -> Rewind:
    """Return the batch that makes these moves."""
    last = checkpoint.last
    assert last.commit is not None
    to: dict[TopicPartition, int] = dict(checkpoint.offsets)
    to |= {move.partition: move.after.offset for move in plan.moves if move.after}
    addition = AddedBatch(
        id=last.id + 1, plan=last.plan.moved(to, now_ms=now_ms).to_bytes(), commit=last.commit.to_bytes()
    )
    return Rewind(checkpoint=checkpoint, plan=plan, sink=sink, addition=addition)


def _write_plan(folder: Folder, journal: Journal, addition: AddedBatch, change_id: str) -> None:
    path, content = addition.files[0]
    try:
        folder.create(path, content)
    except FileExistsError:
        journal.set_state(change_id, "refused")
        raise UserError(_ran_since(folder)) from None
    except OSError as error:
        if folder.read(path) is not None:
            raise _incomplete(folder, addition, change_id, error) from None
        journal.set_state(change_id, "refused")
        raise UserError(
            f"{folder.url} cannot be written ({error.strerror or error}). Nothing was changed; run this as the user "
            "that the query runs as."
        ) from None
    if folder.read(path) != content:
        # Not every file system can make a file only if there is none: the query has planned in the same moment.
        journal.set_state(change_id, "refused")
        raise UserError(_ran_since(folder))


def _write_commit(folder: Folder, addition: AddedBatch, change_id: str) -> None:
    try:
        folder.create(*addition.files[1])
    except FileExistsError:
        pass  # the query was started in this moment, and has run the batch
    except OSError as error:
        raise _incomplete(folder, addition, change_id, error) from None


def _incomplete(folder: Folder, added: AddedBatch, change_id: str, error: OSError) -> CheckpointChangePending:
    return CheckpointChangePending(
        change_id,
        f"Batch {added.id} of {folder.url} was planned, but its commit could not be written "
        f"({error.strerror or error}): the change {change_id} is not complete. Do not start the query",
    )


def _ran_since(folder: Folder) -> str:
    return f"The query of {folder.url} ran since the plan was made. Nothing was changed; stop it, and plan again."


def _expired(one: TopicPartition, checkpoint: Checkpoint, bounds: LogBounds) -> str:
    return (
        f"{one} stays at offset {checkpoint.offsets[one]}, and its log begins at {bounds.starts[one]}: the query will "
        "stop there, or with failOnDataLoss=false continue from the log start."
    )
