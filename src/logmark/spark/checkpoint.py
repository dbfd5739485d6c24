"""What the checkpoint of a query says: which batches Spark planned and committed, and where the query resumes.

Spark writes `offsets/<batch>` before a batch and `commits/<batch>` after it.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

from logmark.errors import UserError
from logmark.spark.source.position import Offsets, Position
from logmark.spark.source.positions import Positions, QueryPosition, find_shared_partitions, merge_positions


def read_position(checkpoint: Path, batch: int) -> QueryPosition:
    """Return what a planned batch reads, of all sources of its query.

    Raises FileNotFoundError if the batch is not there, or of several sources the one before it, which says which of
    them are idle. Raises UserError if two of its sources read a partition in one group.
    """
    position = _read_lines(checkpoint, batch)
    if len(position.sources) == 1:
        return position
    # A source that had nothing to read repeats its line, as Spark takes it: it still says what it read last.
    before = _read_lines(checkpoint, batch - 1).sources if batch else ()
    return Positions(sources=tuple(_as_idle(source) if source in before else source for source in position.sources))


def _read_lines(checkpoint: Path, batch: int) -> QueryPosition:
    """Return the position that the sources of a planned batch gave to Spark."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    sources = [line[line.index("{") :] for line in lines[2:] if "{" in line]
    if not sources:
        raise UserError(
            'This query has no source that is format("logmark"), so nobody knows which offsets its rows came from. '
            'Nothing was written. Read the topics with format("logmark").'
        )
    position = merge_positions(Position.from_json(json.loads(line)) for line in sources)
    shared = find_shared_partitions(position, in_one_group=True)
    if shared:
        raise UserError(
            f"Two sources of this query read {shared[0]} in the group {position.group}, which has one position for "
            "both. Nothing was written. Load the topic once and use the frame that share_source(frame) of "
            "logmark.spark returns, or give each load() a group.id of its own; and give the query a new checkpoint."
        )
    return position


def _as_idle(source: Position) -> Position:
    return replace(source, first=source.next)


def planned_batch(checkpoint: Path) -> int | None:
    """Return the number of the last batch that was planned, None if there is none."""
    return _last_number(checkpoint / "offsets")


def committed_batch(checkpoint: Path) -> int | None:
    """Return the number of the last batch that was committed, None if there is none."""
    return _last_number(checkpoint / "commits")


def is_between_batches(checkpoint: Path) -> bool:
    """Return whether every planned batch was committed, so that stopping the query loses nothing."""
    return planned_batch(checkpoint) == committed_batch(checkpoint)


def is_unused(checkpoint: Path) -> bool:
    """Return whether a query was created with this checkpoint and never committed a batch."""
    return (checkpoint / "metadata").exists() and committed_batch(checkpoint) is None


def has_state(checkpoint: Path) -> bool:
    """Return whether the query keeps state between its batches."""
    return (checkpoint / "state").is_dir()


def has_watermark(checkpoint: Path) -> bool:
    """Return whether the query drops late rows: whether its last planned batch ran with a watermark of event time."""
    planned = planned_batch(checkpoint)
    if planned is None:
        return False
    lines = (checkpoint / "offsets" / str(planned)).read_text().splitlines()
    try:
        return int(json.loads(lines[1]).get("batchWatermarkMs", 0)) > 0
    except (IndexError, ValueError, TypeError, AttributeError):
        return False


def finished_position(checkpoint: Path) -> QueryPosition | None:
    """Return the position after the last batch; None if a planned batch was not committed, or none was planned."""
    planned = planned_batch(checkpoint)
    return _read_lines(checkpoint, planned) if planned is not None and is_between_batches(checkpoint) else None


def resume_position(checkpoint: Path) -> QueryPosition | None:
    """Return where the query resumes: after its last batch, or at the start of one that was not committed."""
    planned = planned_batch(checkpoint)
    if planned is None:
        return None
    if is_between_batches(checkpoint):
        return _read_lines(checkpoint, planned)
    position = read_position(checkpoint, planned)
    return merge_positions(replace(source, next=_starts(source)) for source in position.sources)


def _starts(source: Position) -> Offsets:
    return {partition: source.first.get(partition, end) for partition, end in source.next.items()}


def _last_number(folder: Path) -> int | None:
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdecimal()), default=None)
    except FileNotFoundError:
        return None
