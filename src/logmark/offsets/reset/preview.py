"""The records between a group's old committed offset and its new one: when they were written, and their size."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from logmark.client.answers import FetchedPartition
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.client.fetcher import Fetcher, next_offset
from logmark.names import TopicPartition
from logmark.offsets.records import DECOMPRESSED_BYTES_MAX, iterate_batches
from logmark.offsets.reset.plan import AffectedRecords, PartitionMove, ResetPlan
from logmark.wire import batches, columns

# Each look is a connection of its own and two fetches; a plan for a very wide topic is not held up by all of them.
LOOKS_MAX = 200
_BYTES_MAX = 64 << 10
_WAIT_MS = 100
_STEPS_MAX = 13


def add_preview(
    client: Client, plan: ResetPlan, *, looks_max: int = LOOKS_MAX, looked: Callable[[int, int], None] = lambda *_: None
) -> ResetPlan:
    """Add times and sizes of the affected records, for the partitions with the most of them.

    `looked` is called with the number of partitions done and their total.
    """
    compacted = _compacted(client, plan)
    moving = [move for move in plan.moves if move.touched[0] < move.touched[1]]
    largest = sorted(moving, key=lambda move: move.touched[0] - move.touched[1])[:looks_max]
    spans: dict[TopicPartition, AffectedRecords] = {}
    for count, move in enumerate(largest, 1):
        spans[move.partition] = _span(client, move)
        looked(count, len(largest))
    return replace(plan, moves=[_described(move, spans, compacted) for move in plan.moves])


def _described(move: PartitionMove, spans: dict[TopicPartition, AffectedRecords], compacted: set[str]) -> PartitionMove:
    if move.touched[0] >= move.touched[1]:
        return move
    span = spans.get(move.partition, AffectedRecords(is_upper_bound=False))
    return replace(move, span=replace(span, is_upper_bound=span.is_upper_bound or move.partition.topic in compacted))


def _compacted(client: Client, plan: ResetPlan) -> set[str]:
    """Return the topics whose offsets may have gaps: compacted ones, or those whose settings are unknown."""
    topics = sorted({move.partition.topic for move in plan.moves})
    try:
        settings = client.describe_configs(topics)
    except RefusedByBroker:
        return set(topics)
    return {
        topic
        for topic, entries in settings.items()
        if any(one.name == "cleanup.policy" and "compact" in (one.value or "") for one in entries)
    }


def _span(client: Client, move: PartitionMove) -> AffectedRecords:
    first, stop = move.touched
    try:
        with client.fetcher(move.partition, bytes_max=_BYTES_MAX, max_wait_ms=_WAIT_MS, min_bytes=0) as fetcher:
            head = _Look(_fetch(fetcher, first), first, stop)
            first_ms, first_record_at = _first_time(fetcher, head, first, stop)
            tail = _last_look(fetcher, first_record_at, stop)
    except RefusedByBroker:
        # Without the right to read the records, the plan still says how far the group moves.
        return AffectedRecords()
    looks = (head, tail) if tail else (head,)
    return AffectedRecords(
        first_ms=first_ms,
        last_ms=tail.times[-1] if tail and tail.times else first_ms,
        size_bytes=_size(looks, first, stop),
        is_upper_bound=any(look.has_holes for look in looks),
    )


class _Look:
    """The batches that one fetch brought, as far as they lie in [start, stop)."""

    def __init__(self, answer: FetchedPartition, start: int, stop: int) -> None:
        self.after = next_offset(answer.records, start)
        self.headers: list[batches.BatchHeader] = []
        self.offsets: list[int] = []
        self.times: list[int] = []
        for header, batch in iterate_batches(answer.records, stop):
            if header.last_offset >= start:
                self.headers.append(header)
                if not header.is_control:
                    held = columns.decode(
                        batch,
                        start=start,
                        stop=stop,
                        with_headers=False,
                        decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
                    )
                    self.offsets += held.offsets
                    self.times += held.timestamps_ms

    @property
    def has_holes(self) -> bool:
        """Offsets without a record were seen: markers, transactions that may have been aborted, compaction."""
        return any(
            one.is_transactional or one.is_control or one.record_count != one.last_offset_delta + 1
            for one in self.headers
        ) or any(one.next_offset != following.base_offset for one, following in pairwise(self.headers))


def _fetch(fetcher: Fetcher, offset: int) -> FetchedPartition:
    fetcher.send(offset)
    return fetcher.receive()


def _first_time(fetcher: Fetcher, head: _Look, first: int, stop: int) -> tuple[int | None, int]:
    look, at = head, first
    for _ in range(_STEPS_MAX):
        if look.times:
            return look.times[0], look.offsets[0]
        if look.after <= at or look.after >= stop:
            break
        at = look.after
        look = _Look(_fetch(fetcher, at), at, stop)
    return None, first


def _last_look(fetcher: Fetcher, first: int, stop: int) -> _Look | None:
    """Sample the end of the range; if its last offsets hold no record, search further and further before them."""
    for step in range(_STEPS_MAX):
        at = max(stop - (1 << step), first)
        look = _Look(_fetch(fetcher, at), at, stop)
        if look.times or at == first:
            return look
    return None


def _size(looks: Sequence[_Look], first: int, stop: int) -> int | None:
    """Return the bytes of [first, stop), estimated from the batches at both ends."""
    headers = sorted({one for look in looks for one in look.headers})
    if not headers:
        return None
    offsets = sum(one.last_offset_delta + 1 for one in headers)
    return round(sum(one.size for one in headers) / offsets * (stop - first))
