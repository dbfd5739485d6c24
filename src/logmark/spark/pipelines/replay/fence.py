"""The place of the live version: how somebody takes it from a query that runs, and how it is given back.

Only one process runs the live version: it holds `live.lock`. To get it, a commit to the pipeline's group says that
another query has it, in a generation above all that are found; the running query sees that at its next trigger, ends,
and lets go of the lock. Kafka has no conditional commit, so a commit of the running query may land on top of it: as
long as the lock is held the group is looked at, and claimed again.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.spark.pipelines.replay.build import standing
from logmark.spark.pipelines.replay.state import read_work
from logmark.spark.pipelines.supervisor import Job, held
from logmark.spark.source.position import Position

_LOOK_EVERY_S = 0.1
WAIT_S = 300.0


def claim(client: Client, group: str, position: Position) -> None:
    """The group belongs to the query of the position, and stands there; a query that runs in it will end."""
    found = client.committed(group)
    if all(_is_of(found.get(place), position.query, offset) for place, offset in position.next.items()):
        return
    marks = [mark for one in found.values() if (mark := CommitMetadata.parse(one.metadata)) is not None]
    generation = max([time.time_ns() // 1_000_000, position.generation, *(mark.generation for mark in marks)]) + 1
    put(client, group, replace(position, generation=generation))


def put(client: Client, group: str, position: Position) -> None:
    """The group stands where the position does, by the mark of its query."""
    marked = {
        place: Committed(offset=offset, metadata=position.mark(place).to_text())
        for place, offset in position.next.items()
    }
    if marked:
        client.commit(group, marked)


def _is_of(commit: Committed | None, query: str, offset: int) -> bool:
    if commit is None or commit.offset != offset:
        return False
    mark = CommitMetadata.parse(commit.metadata)
    return mark is not None and (mark.query, mark.offset) == (query, offset)


@contextlib.contextmanager
def live_place(
    job: Job, client: Client, position: Position, *, wait_s: float = WAIT_S, say: Callable[[str], None]
) -> Iterator[None]:
    """Holds the place of the live version, taken from whoever runs it."""
    deadline = time.monotonic() + wait_s
    is_told = False
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(held(job.home))
                break
            except UserError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"{error} It did not end its batch within {wait_s:.0f} s. The version that was built is kept: "
                        f"`logmark pipelines replay {job.pipeline.name}` goes on with it."
                    ) from None
            if not is_told:
                is_told = True
                say(f"{job.pipeline.name}: waiting for the running version to end its batch")
            claim(client, job.pipeline.group, position)
            time.sleep(_LOOK_EVERY_S)
        yield


def give_back(client: Client, job: Job) -> bool:
    """The group belongs to the live version again, if one that is being built had claimed it and has not handed over.

    False if nothing was given back. Where the live version has not even planned a batch, the group gets what it had.
    """
    record, work = job.home.record(), read_work(job.home)
    group = job.pipeline.group
    building = standing(job.home.checkpoint(work.number)) if work is not None else None
    if work is None or building is None or work.is_handing_over or work.number == record.live:
        return False
    found = client.committed(group)
    claimed = {place for place, one in found.items() if _is_of(one, building.query, one.offset)}
    if not claimed:
        return False
    position = standing(job.home.checkpoint(record.live))
    places: dict[TopicPartition, Committed] = dict(work.before)
    if position is not None and position.group == group:
        put(client, group, position)
        places = {place: one for place, one in places.items() if place not in position.next}
        claimed -= set(position.next)
    if places:
        client.commit(group, {place: one for place, one in places.items() if place in claimed})
    gone = claimed - set(places)
    if gone:
        client.delete_offsets(group, gone)
    return True
