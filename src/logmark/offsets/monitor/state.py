"""What a monitor keeps over a restart: its alerts, the groups it knows, and messages that are not delivered yet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logmark.offsets.monitor.alerts import AlertMemory, AlertState, AlertSubject
from logmark.offsets.monitor.notifications import Message
from logmark.offsets.monitor.retention import IdleGroup

VERSION = 1
_PENDING_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorState:
    """Alerts that are pending or firing, groups, and messages as (whom, what) that have not arrived."""

    memory: AlertMemory = field(default_factory=AlertMemory)
    idle: Mapping[str, IdleGroup] = field(default_factory=dict)
    outbox: Sequence[tuple[str, Message]] = ()

    def to_text(self) -> str:
        """Return the state as text; of too many pending alerts the last ones start again after a restart."""
        pending = [one for one in self.memory.alerts.values() if one.fired_ms is None][:_PENDING_MAX]
        return json.dumps(
            {
                "version": VERSION,
                "alerts": [_alert_fields(one) for one in [*self.memory.firing, *pending]],
                "known": dict(self.memory.known),
                "idle": {group: list(one) for group, one in self.idle.items()},
                "outbox": [[name, dict(message)] for name, message in self.outbox],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str | None) -> "MonitorState":
        """Parse a stored state; one of another version, or none, is empty."""
        fields: dict[str, Any] = json.loads(text) if text else {}
        if fields.get("version") != VERSION:
            return cls()
        alerts = [_alert(one) for one in fields["alerts"]]
        return cls(
            memory=AlertMemory(alerts={(one.rule, one.subject): one for one in alerts}, known=fields["known"]),
            idle={group: IdleGroup(*one) for group, one in fields["idle"].items()},
            outbox=[(name, message) for name, message in fields["outbox"]],
        )


def _alert_fields(one: AlertState) -> dict[str, Any]:
    return {
        "rule": one.rule,
        "subject": list(one.subject),
        "since_ms": one.since_ms,
        "seen_ms": one.seen_ms,
        "fired_ms": one.fired_ms,
        "clear_since_ms": one.clear_since_ms,
        "value": one.value,
        "sentence": one.sentence,
        "severity": one.severity,
        "notify": list(one.notify),
    }


def _alert(fields: Mapping[str, Any]) -> AlertState:
    return AlertState(
        **{**fields, "subject": AlertSubject(*fields["subject"]), "notify": tuple(fields["notify"])},
    )
