"""What the checkpoint of a query says: which batches Spark planned and committed, and where the query resumes.

Spark writes `offsets/<batch>` before a batch and `commits/<batch>` after it.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

from logmark.errors import UserError
from logmark.spark.source.position import Position


def read_position(checkpoint: Path, batch: int) -> Position:
    """Return what a planned batch reads.

    Raises FileNotFoundError if there is no such batch, UserError if its query reads several sources.
    """
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    sources = [line[line.index("{") :] for line in lines[2:] if "{" in line]
    if len(sources) != 1:
        raise UserError(
            f"This query reads {len(sources)} sources, and a table takes the rows of one: offsets of several could not "
            "be told apart. Nothing was written. Subscribe one source to all the topics instead."
        )
    return Position.from_json(json.loads(sources[0]))


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


def finished_position(checkpoint: Path) -> Position | None:
    """Return the position after the last batch; None if a planned batch was not committed, or none was planned."""
    planned = planned_batch(checkpoint)
    return read_position(checkpoint, planned) if planned is not None and is_between_batches(checkpoint) else None


def resume_position(checkpoint: Path) -> Position | None:
    """Return where the query resumes: after its last batch, or at the start of one that was not committed."""
    planned = planned_batch(checkpoint)
    if planned is None:
        return None
    position = read_position(checkpoint, planned)
    if is_between_batches(checkpoint):
        return position
    starts = {partition: position.first.get(partition, end) for partition, end in position.next.items()}
    return replace(position, next=starts)


def _last_number(folder: Path) -> int | None:
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdecimal()), default=None)
    except FileNotFoundError:
        return None
