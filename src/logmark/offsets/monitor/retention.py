"""How long what a group has not read will still be there, and how long an idle group will."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from logmark.client.bulk import chunks
from logmark.client.client import Client
from logmark.client.errors import ClientError
from logmark.offsets.lag.sample import GroupSample

# Kafka's own default, where a broker's setting must not be looked at.
OFFSETS_RETENTION_MS = 7 * 86_400_000
_ASK_AGAIN_MS = 600_000
_TOPICS_PER_REQUEST = 200


def seconds_until_deletion(
    *,
    age_s: float | None,
    retention_ms: int | None,
    headroom: int,
    start_per_s: float | None,
    read_per_s: float = 0.0,
) -> float | None:
    """How long the oldest unread record will still be there, at worst; infinite if nothing deletes it.

    The less of two: retention.ms less the age of that record, and the records between it and the log start, divided
    by the rate at which the start comes nearer (start_per_s - read_per_s). None if neither is known. `retention_ms`
    is -1 where time deletes nothing.
    """
    known = []
    if retention_ms is not None and retention_ms < 0:
        known.append(math.inf)
    elif retention_ms is not None and age_s is not None:
        known.append(max(retention_ms / 1000 - age_s, 0.0))
    if start_per_s is not None:
        nearer = start_per_s - read_per_s
        known.append(headroom / nearer if nearer > 0 else math.inf)
    return min(known, default=None)


class IdleGroup(NamedTuple):
    """What a group had committed when we first saw it so, and when that was."""

    mark: str
    since_ms: int


def idle_groups(before: Mapping[str, IdleGroup], groups: Sequence[GroupSample], now_ms: int) -> dict[str, IdleGroup]:
    """Since when each group without members has committed nothing, as far as we have watched it."""
    found = {}
    for group in groups:
        if group.problem and group.group in before:
            found[group.group] = before[group.group]
        elif group.state == "Empty" and group.committed:
            mark = _mark(group)
            known = before.get(group.group)
            found[group.group] = known if known is not None and known.mark == mark else IdleGroup(mark, now_ms)
    return found


def _mark(group: GroupSample) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for partition, commit in sorted(group.committed.items()):
        text = f"{partition.topic}\0{partition.partition}\0{commit.offset}\0{commit.metadata}\0"
        digest.update(text.encode("utf-8", "replace"))
    return digest.hexdigest()


class Retention:
    """How long topics keep records and brokers keep offsets, asked now and then."""

    def __init__(self) -> None:
        self._topics: dict[str, int | None] = {}
        self._asked_ms: int | None = None
        self._offsets_ms: int | None = None

    def refresh(self, client: Client, topics: set[str], *, offsets: bool, now_ms: int) -> None:
        """Asks for what is not known yet, and for everything again after ten minutes."""
        if self._asked_ms is None or not 0 <= now_ms - self._asked_ms < _ASK_AGAIN_MS:
            self._topics, self._offsets_ms, self._asked_ms = {}, None, now_ms
        missing = sorted(topics - self._topics.keys())
        for some in chunks(missing, _TOPICS_PER_REQUEST):
            try:
                found = client.topic_settings(some, ["retention.ms", "cleanup.policy"])
            except ClientError:
                found = {}
            self._topics |= {topic: _retention_ms(found.get(topic, {})) for topic in some}
        if offsets and self._offsets_ms is None:
            self._offsets_ms = _offsets_retention_ms(client)

    def of_topic(self, topic: str) -> int | None:
        """Milliseconds, -1 if time deletes nothing, None if nobody may say."""
        return self._topics.get(topic)

    @property
    def of_offsets_ms(self) -> int:
        """Milliseconds that the offsets of an idle group are kept."""
        return OFFSETS_RETENTION_MS if self._offsets_ms is None else self._offsets_ms


def _retention_ms(settings: Mapping[str, str | None]) -> int | None:
    policy, value = settings.get("cleanup.policy"), settings.get("retention.ms")
    if policy is not None and "delete" not in policy:
        return -1
    return int(value) if value is not None and value.lstrip("-").isdigit() else None


def _offsets_retention_ms(client: Client) -> int:
    try:
        broker = next(iter(client.metadata([]).brokers), None)
        value = None if broker is None else client.broker_settings(broker, [_OFFSETS_RETENTION]).get(_OFFSETS_RETENTION)
    except ClientError:
        value = None
    return int(value) * 60_000 if value is not None and value.isdigit() else OFFSETS_RETENTION_MS


_OFFSETS_RETENTION = "offsets.retention.minutes"
