"""A change of committed offsets or of a checkpoint, as the journal keeps it."""

import getpass
import os
import random
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from logmark.client.answers import Committed
from logmark.errors import UserError
from logmark.names import TopicPartition

VERSION = 1
_PARTITIONS = "places"  # a stored name: journals have it

# pending     written down before anything was changed; what became of it is not known
# done        made, and seen to be made
# undone      made, and undone by a later change
# taken back  started, and undone before it was done
# refused     the cluster refused it, and nothing was changed
# overwritten made, and written over by a reader that runs and does not look
ChangeState = Literal["pending", "done", "undone", "taken back", "refused", "overwritten"]
STATES: tuple[ChangeState, ...] = ("pending", "done", "undone", "taken back", "refused", "overwritten")
GROUP, CHECKPOINT = "group", "checkpoint"

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"  # without i, l, o and u, which are misread
_EPOCH_MS = 1_577_836_800_000  # 2020-01-01: eight digits last until 2054
_TIME_DIGITS, _RANDOM_DIGITS = 8, 3


class Author(NamedTuple):
    """A person, as far as the machine knows, and the machine."""

    user: str
    host: str


def current_author() -> Author:
    """Return the user of this terminal and the machine's name; under sudo also the user who became root."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    behind = os.environ.get("SUDO_USER", "")
    return Author(f"{user} (sudo by {behind})" if behind and behind != user else user, socket.gethostname())


def new_change_id(now_ms: int) -> str:
    """Return a short id for a change: ids sort by time, and no two of one millisecond are equal."""
    time_part = _in_digits(max(now_ms - _EPOCH_MS, 0), _TIME_DIGITS)
    return time_part + _in_digits(random.SystemRandom().getrandbits(5 * _RANDOM_DIGITS), _RANDOM_DIGITS)


def _in_digits(number: int, length: int) -> str:
    found = ""
    while number or len(found) < length:
        number, digit = divmod(number, 32)
        found = _DIGITS[digit] + found
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Who changed which offsets, when, why, from what and to what; None stands for nothing committed.

    `subject` says what `name` names: a group, or the path of a checkpoint. `how` says in words what was asked for.
    `undoes` is the change that this one undoes. `details` has what belongs to no partition.
    """

    id: str
    at_ms: int
    cluster_id: str
    subject: str = GROUP
    name: str
    action: str
    how: str = ""
    who: str = ""
    host: str = ""
    reason: str = ""
    before: Mapping[TopicPartition, Committed | None]
    after: Mapping[TopicPartition, Committed | None]
    undoes: str | None = None
    state: ChangeState = "pending"
    details: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the change as the journal writes it."""
        return {
            "version": VERSION,
            "id": self.id,
            "at_ms": self.at_ms,
            "cluster_id": self.cluster_id,
            "subject": self.subject,
            "name": self.name,
            "action": self.action,
            "how": self.how,
            "who": self.who,
            "host": self.host,
            "reason": self.reason,
            _PARTITIONS: [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "before": _to_json(self.before.get(one)),
                    "after": _to_json(self.after.get(one)),
                }
                for one in sorted({*self.before, *self.after})
            ],
            "undoes": self.undoes,
            "state": self.state,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Change":
        """Parse what `to_json` returned; raises UserError for a format of a later version."""
        check_version(fields)
        partitions = [(TopicPartition(one["topic"], one["partition"]), one) for one in fields[_PARTITIONS]]
        if fields["state"] not in STATES:
            raise ValueError(f"a change cannot be {fields['state']!r}")
        return cls(
            **{
                name: fields[name]
                for name in ("id", "at_ms", "cluster_id", "subject", "name", "action", "how", "who", "host", "reason")
            },
            before={partition: _read(one["before"]) for partition, one in partitions},
            after={partition: _read(one["after"]) for partition, one in partitions},
            undoes=fields["undoes"],
            state=fields["state"],
            details=dict(fields["details"]),
        )


def resolve_states(changes: Iterable[Change]) -> dict[str, Change]:
    """Return the changes by id, each in its state after all undos, and undos of undos.

    That a change is undone follows from the change which undid it, so there is no moment between the two.
    """
    known = {one.id: one for one in changes}
    undone_by: dict[str, list[str]] = {}
    for one in known.values():
        if one.undoes in known:
            undone_by.setdefault(one.undoes, []).append(one.id)
    holds: dict[str, bool] = {}
    # An undo is younger than its change: from the youngest on, the state of every undo is known before it is needed.
    for one in sorted(known.values(), key=_by_age, reverse=True):
        is_undone = any(holds.get(by, False) for by in undone_by.get(one.id, ()))
        holds[one.id] = one.state == "done" and not is_undone
        if is_undone:
            known[one.id] = replace(one, state="taken back" if one.state == "pending" else "undone")
    return known


def sort_changes(changes: Iterable[Change]) -> list[Change]:
    """Return the changes ordered by age, the newest last."""
    return sorted(changes, key=_by_age)


def _by_age(change: Change) -> tuple[int, str]:
    return change.at_ms, change.id


def check_version(fields: Mapping[str, Any]) -> None:
    """Raise UserError if a later Logmark has written these fields."""
    if fields["version"] != VERSION:
        raise UserError(
            f"The journal was written by a newer Logmark (version {fields['version']} of its format; this one knows "
            f"{VERSION}). Nothing was changed; upgrade Logmark."
        )


def _to_json(committed: Committed | None) -> dict[str, Any] | None:
    if committed is None:
        return None
    return {"offset": committed.offset, "leader_epoch": committed.leader_epoch, "metadata": committed.metadata}


def _read(fields: Mapping[str, Any] | None) -> Committed | None:
    if fields is None:
        return None
    return Committed(offset=fields["offset"], leader_epoch=fields["leader_epoch"], metadata=fields["metadata"])
