"""Offsets of several partitions, for people and for programs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logmark.names import TopicPartition


def nested(offsets: "Mapping[TopicPartition, int] | None") -> dict[str, dict[str, int]] | None:
    """The offsets by topic and partition, as JSON has them."""
    if offsets is None:
        return None
    found: dict[str, dict[str, int]] = {}
    for place, offset in sorted(offsets.items()):
        found.setdefault(place.topic, {})[str(place.partition)] = offset
    return found


def shown(offsets: "Mapping[TopicPartition, int] | None") -> str | None:
    """The offsets in a line."""
    return None if offsets is None else ", ".join(f"{place}: {offset}" for place, offset in sorted(offsets.items()))
