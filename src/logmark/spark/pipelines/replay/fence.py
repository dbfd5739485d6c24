"""The fence around the live version: how a replay stops the query that runs it, and how the group is given back.

Only the process that holds `live.lock` runs the live version. To get the lock, a replay commits to the pipeline's group
that another query owns it, in a generation above all that it finds; the running query sees that at its next trigger,
stops, and releases the lock. Kafka has no conditional commit, so a commit of the running query may overwrite the claim:
until the lock is free, the replay looks at the group and claims it again.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.spark.checkpoint import has_state, resume_position
from logmark.spark.errors import LiveVersionBusy
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.live_query import hold_live_lock
from logmark.spark.pipelines.replay.state import load_state
from logmark.spark.source.positions import QueryPosition, merge_positions

_POLL_EVERY_S = 0.1
WAIT_S = 300.0


def claim_group(client: Client, group: str, position: QueryPosition) -> None:
    """Make the query of the position the owner of the group, there; a query that runs in the group will stop."""
    found = client.committed(group)
    if all(
        _is_owned_by(found.get(partition), source.query, offset)
        for source in position.sources
        for partition, offset in source.next.items()
    ):
        return
    marks = [mark for one in found.values() if (mark := CommitMetadata.parse(one.metadata)) is not None]
    generation = max([time.time_ns() // 1_000_000, position.generation, *(mark.generation for mark in marks)]) + 1
    commit_marked(client, group, merge_positions(replace(one, generation=generation) for one in position.sources))


def commit_marked(client: Client, group: str, position: QueryPosition, *, is_stateful: bool | None = None) -> None:
    """Commit the position to the group with the marks of its query."""
    if position.next:
        client.commit(group, position.commits(is_stateful=is_stateful))


@contextlib.contextmanager
def fence_live_version(
    job: Job, client: Client, position: QueryPosition, *, wait_s: float = WAIT_S, say: Callable[[str], None]
) -> Iterator[None]:
    """Hold the live lock, once the process that runs the live version has stopped.

    Raises LiveVersionBusy if that process does not end its batch within `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    has_said = False
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(hold_live_lock(job.home))
                break
            except UserError as error:
                if time.monotonic() > deadline:
                    raise LiveVersionBusy(
                        f"{error} It did not end its batch within {wait_s:.0f} s. The new version is kept, and the "
                        "replay can be resumed."
                    ) from None
            if not has_said:
                has_said = True
                say(f"{job.name}: waiting for the running version to end its batch")
            claim_group(client, job.group, position)
            time.sleep(_POLL_EVERY_S)
        yield


def restore_group(client: Client, job: Job) -> bool:
    """Give the group back to the live version, if a version that is not published yet has claimed it.

    Returns False if there was nothing to give back. Where the live version has not planned a batch, the group gets the
    commits that it had before the replay.
    """
    live, state = job.home.record().live, load_state(job.home)
    building = resume_position(job.home.checkpoint(state.version)) if state is not None else None
    if state is None or building is None or state.is_irrevocable or state.version == live:
        return False
    found = client.committed(job.group)
    queries = [source.query for source in building.sources]
    claimed = {
        partition
        for partition, one in found.items()
        if any(_is_owned_by(one, query, one.offset) for query in queries)
    }
    if not claimed:
        return False
    position = resume_position(job.home.checkpoint(live))
    before = dict(state.group_before)
    if position is not None and position.group == job.group:
        commit_marked(client, job.group, position, is_stateful=has_state(job.home.checkpoint(live)))
        before = {partition: one for partition, one in before.items() if partition not in position.next}
        claimed -= set(position.next)
    if before:
        client.commit(job.group, {partition: one for partition, one in before.items() if partition in claimed})
    unknown_before = claimed - set(before)
    if unknown_before:
        client.delete_offsets(job.group, unknown_before)
    return True


def _is_owned_by(commit: Committed | None, query: str, offset: int) -> bool:
    if commit is None or commit.offset != offset:
        return False
    mark = CommitMetadata.parse(commit.metadata)
    return mark is not None and (mark.query, mark.offset) == (query, offset)
