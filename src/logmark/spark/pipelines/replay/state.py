"""The persisted state of a replay: one step, one table of transitions, one file beside the pipeline's record.

The process that replays writes `replay.json` after each step. If it dies, whoever resumes the replay reads the file and
enters at the step that it names, or at an earlier one (`RESUME_AT`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from logmark.client.answers import Committed
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.errors import LiveVersionReplaced
from logmark.spark.pipelines.home import Home, write_file
from logmark.spark.source.offset_maps import flatten_by_partition, nest_by_topic
from logmark.spark.source.position import Offsets

_FILE = "replay.json"
_FORMAT = 2


class ReplayKind(StrEnum):
    """How a pipeline is replayed.

    IN_PLACE   its group is moved back, and its rows replace those of the same offsets; it has no steps
    BACKFILL   records are read again into a side topic, and rows that were not sent before are sent; the live version
               runs on
    SWAP       a new version is built beside the live one and takes over
    ROLLBACK   a version that was live before takes over again
    """

    IN_PLACE = "in-place"
    BACKFILL = "backfill"
    SWAP = "swap"
    ROLLBACK = "rollback"


class ReplayStep(StrEnum):
    """How far a replay is: what is true once the step is done.

    PLANNED       the record and replay.json name the version
    PREPARED      its group has its starting offsets, and its side topic exists
    BUILT         it has read nearly all there is, while the live version runs
    FENCED        nobody runs the live version: this process holds the live lock
    CAUGHT_UP     the version has read all there is
    PUBLISHING    the group is the version's; from here on the old version must not run, and there is no way back
    PUBLISHED     the table holds its rows, by one commit; or the topic has what was not sent before
    GROUP_MOVED   the pipeline's group is committed where the version resumes
    LIVE          the record names the version as the live one
    CLEANED       its group and side topic are deleted, and the old version unless it is kept; replay.json is deleted
    """

    PLANNED = "planned"
    PREPARED = "prepared"
    BUILT = "built"
    FENCED = "fenced"
    CAUGHT_UP = "caught-up"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    GROUP_MOVED = "group-moved"
    LIVE = "live"
    CLEANED = "cleaned"


# The steps of each kind, in order: from one step a replay goes to the next one of its row, and nowhere else.
TRANSITIONS: Mapping[ReplayKind, tuple[ReplayStep, ...]] = {
    ReplayKind.SWAP: tuple(ReplayStep),
    ReplayKind.ROLLBACK: tuple(ReplayStep),
    ReplayKind.BACKFILL: (
        ReplayStep.PLANNED, ReplayStep.PREPARED, ReplayStep.BUILT, ReplayStep.PUBLISHED, ReplayStep.CLEANED
    ),
}  # fmt: skip
# Where a new process enters: it holds no fence, and records were written since.
RESUME_AT: Mapping[ReplayStep, ReplayStep] = {
    ReplayStep.BUILT: ReplayStep.PREPARED,
    ReplayStep.FENCED: ReplayStep.PREPARED,
    ReplayStep.CAUGHT_UP: ReplayStep.PREPARED,
}
_ORDER = {step: number for number, step in enumerate(ReplayStep)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayState:
    """A replay on its way to a version.

    `replaced` is the version that was live until this one was: unless `keep_old` it is removed at the very end.
    `group_before` holds the commits that the pipeline's group had when the replay was started.
    """

    version: int
    kind: ReplayKind
    step: ReplayStep = ReplayStep.PLANNED
    starts: Offsets = field(default_factory=dict)
    stops: Offsets = field(default_factory=dict)
    keep_old: bool = True
    keep_side_topic: bool = False
    missing_id: str | None = None
    replaced: int | None = None
    group_before: Mapping[TopicPartition, Committed] = field(default_factory=dict)

    @property
    def next_step(self) -> ReplayStep:
        """The step that follows; raises ValueError after the last one."""
        steps = TRANSITIONS[self.kind]
        following = steps.index(self.step) + 1
        if following == len(steps):
            raise ValueError(f"a replay that is {self.step} has no further step")
        return steps[following]

    def advance(self, step: ReplayStep) -> "ReplayState":
        """Return the state with this step done; raises ValueError unless it is the next one."""
        if step is not self.next_step:
            raise ValueError(f"a replay of kind {self.kind} goes from {self.step} to {self.next_step}, not to {step}")
        return replace(self, step=step)

    def resume(self) -> "ReplayState":
        """Return the state at which a new process enters."""
        return replace(self, step=RESUME_AT.get(self.step, self.step))

    def has_reached(self, step: ReplayStep) -> bool:
        """Return whether the step is done."""
        return _ORDER[self.step] >= _ORDER[step]

    @property
    def is_irrevocable(self) -> bool:
        """Whether the replay can only be resumed: the version is being published, and the old one must not run."""
        return self.kind is not ReplayKind.BACKFILL and self.has_reached(ReplayStep.PUBLISHING)


def load_state(home: Home) -> ReplayState | None:
    """Return the replay that was started and is not finished, None if there is none; raises UserError if unreadable."""
    path = _path(home)
    try:
        stored = json.loads(path.read_text())
        if "format" not in stored:
            stored = _from_format_1(stored, live=home.record().live)
        elif stored["format"] != _FORMAT:
            raise UserError(f"{path} was written by a newer Logmark. Nothing was changed. Use that version of it.")
        return _parse(stored)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path} cannot be read, so the step of the replay is unknown. Nothing was changed. Remove the file and "
            "start the replay again."
        ) from None


def save_state(home: Home, state: ReplayState) -> None:
    """Write the state to disk; a crash leaves the old one or the new one."""
    stored: dict[str, Any] = {"format": _FORMAT} | {one.name: getattr(state, one.name) for one in fields(state)}
    stored |= {
        "starts": nest_by_topic(state.starts),
        "stops": nest_by_topic(state.stops),
        "group_before": [
            [partition.topic, partition.partition, commit.offset, commit.metadata]
            for partition, commit in sorted(state.group_before.items())
        ],
    }
    write_file(_path(home), json.dumps(stored, indent=1) + "\n")


def delete_state(home: Home) -> None:
    """Delete the state of a replay that is finished or abandoned."""
    _path(home).unlink(missing_ok=True)


def find_irrevocable_replay(home: Home) -> ReplayState | None:
    """Return the replay because of which the live version must not run any more, if there is one."""
    state = load_state(home)
    return state if state is not None and state.is_irrevocable and state.version != home.record().live else None


def check_live_may_run(home: Home) -> None:
    """Raise LiveVersionReplaced if a replay is publishing the version that replaces the live one."""
    state = find_irrevocable_replay(home)
    if state is not None:
        raise LiveVersionReplaced(
            f"A replay is publishing version {state.version} of {home.name} and is not finished: version "
            f"{home.record().live} must not run any more, because it would repeat what was published already. Nothing "
            "was read or written."
        )


def _parse(stored: Mapping[str, Any]) -> ReplayState:
    given = {name: value for name, value in stored.items() if name != "format"}
    return ReplayState(
        **given
        | {
            "kind": ReplayKind(given["kind"]),
            "step": ReplayStep(given["step"]),
            "starts": flatten_by_partition(given["starts"]),
            "stops": flatten_by_partition(given["stops"]),
            "group_before": {
                TopicPartition(topic, partition): Committed(offset=offset, metadata=metadata)
                for topic, partition, offset, metadata in given["group_before"]
            },
        }
    )


def _from_format_1(stored: Mapping[str, Any], *, live: int) -> dict[str, Any]:
    """Return the fields of a file that had three booleans instead of a step."""
    kind = {"copy": ReplayKind.BACKFILL, "back": ReplayKind.ROLLBACK}.get(stored["kind"], stored["kind"])
    if kind != ReplayKind.BACKFILL and stored["number"] == live:
        step = ReplayStep.LIVE
    elif stored["is_handed_over"]:
        step = ReplayStep.PUBLISHED
    elif stored["is_handing_over"]:
        step = ReplayStep.PUBLISHING
    else:
        step = ReplayStep.PREPARED if stored["is_prepared"] else ReplayStep.PLANNED
    return {
        "version": stored["number"],
        "kind": kind,
        "step": step,
        "starts": stored["starts"],
        "stops": stored["stops"],
        "keep_old": stored["keep"],
        "keep_side_topic": stored["keep_side_topic"],
        "missing_id": stored["without_id"],
        "replaced": stored["replaced"],
        "group_before": stored["before"],
    }


def _path(home: Home) -> Path:
    return home.folder / _FILE
