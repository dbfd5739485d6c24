"""Replays as programs read them."""

from typing import Any

from logmark.offsets.bounded_replay.range_reader import RangeCount
from logmark.offsets.bounded_replay.ranges import OffsetRange
from logmark.offsets.bounded_replay.runs import ReplayRun


def run_json(run: ReplayRun) -> dict[str, Any]:
    """Return what a replay has copied so far, and how far it is in each partition."""
    return {
        "id": run.id,
        "topic": run.request.topic,
        "to": sorted(run.topics),
        "started_ms": run.started_ms,
        "updated_ms": run.updated_ms,
        "finished": run.is_finished,
        "copied": run.copied,
        "not_selected": run.not_selected,
        "copied_before": run.hopped,
        "without_topic": run.unaddressed,
        "repeated_dead_letters": run.repeated,
        "dead_letters_without_value": run.valueless,
        "expired": run.expired,
        "partitions": [
            {"partition": number, "from": one.start, "to": one.stop, "next": one.next, "copied": one.copied}
            for number, one in sorted(run.sources.items())
        ],
    }


def range_json(topic: str, offsets: OffsetRange, count: RangeCount) -> dict[str, Any]:
    """Return what a replay would copy of one partition."""
    return {
        "topic": topic,
        "partition": offsets.partition,
        "from": offsets.start,
        "to": offsets.stop,
        "records": count.records,
        "bytes": count.size_bytes,
        "first_timestamp_ms": count.first_ms,
        "last_timestamp_ms": count.last_ms,
        "not_selected": count.not_selected,
        "copied_before": count.hopped,
        "without_topic": count.unaddressed,
        "repeated_dead_letters": count.repeated,
        "dead_letters_without_value": count.valueless,
        "topics": dict(count.topics),
        "note": offsets.note,
    }
