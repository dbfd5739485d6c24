"""The health of this broker as `logmark health` shows it: what it takes, what it cannot do and why, and what it uses.

The description is a JSON object that only grows: a reader ignores what it does not know. It is made on request, from
what the broker has in memory and from one question to the disk, which may go unanswered. So it also tells the truth
when the disk takes nothing any more.
"""

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from logmark import __version__
from logmark.broker.event_loop_turns import Pace

if TYPE_CHECKING:
    from logmark.broker.server import Broker
    from logmark.log.partition import Partition

# A response stays small, whatever has failed.
LISTED_MAX = 100
REASON_CHARS_MAX = 500
FAILURES_MAX = 10
# A large log is read as a whole before the first output of its compaction.
STALLED_SECONDS = 900
# What a new group takes, about, with one member and a few offsets.
GROUP_BYTES = 4096


class RecentFailures(logging.Handler):
    """The last events of level ERROR that Logmark has logged in this process, in order."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.events: deque[dict[str, object]] = deque(maxlen=FAILURES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        event = record.getMessage()[:REASON_CHARS_MAX]
        if record.exc_info is not None and record.exc_info[1] is not None:
            event += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"[:REASON_CHARS_MAX]
        self.events.append({"at_ms": int(record.created * 1000), "event": event})

    def start(self) -> None:
        """Keep what is logged from now on."""
        logging.getLogger("logmark").addHandler(self)

    def stop(self) -> None:
        """Keep nothing more."""
        logging.getLogger("logmark").removeHandler(self)


async def describe_health(broker: "Broker", *, is_in_reserve: bool = False) -> dict[str, Any]:
    """Return the health of a broker, in turns where there are many partitions.

    `is_in_reserve` says that the client has no connection left and may ask nothing else.
    """
    failure = broker.write_failure
    limit, budget = broker.connection_limit, broker.budget
    disk = await broker.disk_probe.ask()
    return {
        "version": 1,
        "logmark": __version__,
        "node_id": broker.node_id,
        "cluster_id": broker.cluster_id,
        "started_ms": broker.started_ms,
        "now_ms": broker.clock.now_ms(),
        "durability": broker.durability,
        "accepts_writes": failure is None,
        "wal": {
            "state": "failed" if failure is not None else "open" if broker.has_wal else "none",
            "reason": None if failure is None else _cut(str(failure)),
        },
        "disk": {
            "state": disk.state.value,
            "reason": _cut(disk.reason),
            "free_bytes": disk.free_bytes,
            "total_bytes": disk.total_bytes,
        },
        "compaction": _describe_compaction(broker),
        "partitions": await _describe_partitions(broker),
        "coordinators": _describe_coordinators(broker),
        "failed_deletions": [_cut(reason) for reason in broker.logs.failed_deletions[:LISTED_MAX]],
        "memory": {
            "used_bytes": budget.used,
            "max_bytes": broker.memory_max,
            "has_waiting": budget.has_waiting,
            "has_room_for_groups": budget.has_room_for_groups(GROUP_BYTES),
        },
        "connections": {"used": limit.used, "max": limit.total_max, "is_in_reserve": is_in_reserve},
        "turns": [
            {
                "work": work,
                "longest_ms": round(turns.longest_seconds * 1000),
                "at_ms": turns.longest_at_ms,
                "long_count": turns.long_count,
            }
            for work, turns in sorted(broker.watchdog.turns.items(), key=lambda item: -item[1].longest_seconds)
        ],
        "failures": list(broker.recent_failures.events),
    }


async def _describe_partitions(broker: "Broker") -> dict[str, Any]:
    total, pace = 0, Pace()
    troubled: list[dict[str, Any]] = []
    listed: list[dict[str, Any]] = []
    for topic in broker.logs.topics():
        for partition in list(topic.partitions):
            total += 1
            trouble = _describe_trouble(partition)
            if trouble is not None:
                troubled.append(trouble)
                if len(listed) < LISTED_MAX:
                    listed.append(trouble)
            await pace.step()
    return {"total": total, "open": total - len(troubled), "troubled": listed, "left_out": len(troubled) - len(listed)}


def _describe_trouble(partition: "Partition") -> dict[str, Any] | None:
    """Return why a partition does not take records or cannot show all of them; None if it does both."""
    if partition.failure is not None:
        state, reason = partition.status.value, str(partition.failure)
    elif partition.refusal is not None:
        state, reason = "full", str(partition.refusal)
    elif partition.damage:
        state, reason = "damaged", str(partition.damage[0])
    else:
        return None
    return {"topic": partition.topic, "partition": partition.index, "state": state, "reason": _cut(reason)}


def _describe_coordinators(broker: "Broker") -> dict[str, Any]:
    states = broker.groups.coordinator_states()
    troubled = [
        {"partition": index, "state": state.value, "reason": _cut(reason)}
        for index, (state, reason) in enumerate(states)
        if not state.is_ready
    ]
    return {"total": len(states), "ready": len(states) - len(troubled), "troubled": troubled}


def _describe_compaction(broker: "Broker") -> dict[str, Any] | None:
    progress = broker.cleaner.progress
    if progress is None:
        return None
    seconds = max(0, broker.clock.now_ms() - progress.since_ms) // 1000
    return {
        "log": progress.name,
        "seconds_without_progress": seconds,
        "is_stalled": seconds >= STALLED_SECONDS,
        "pid": progress.pid,
    }


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARS_MAX else text[: REASON_CHARS_MAX - 1] + "…"
