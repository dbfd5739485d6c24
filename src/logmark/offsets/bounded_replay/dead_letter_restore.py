"""Dead letters that are sent back: which of them become records again, and what was sent back before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from logmark.offsets.bounded_replay.runs import ReplayRequest, ReplayRun
from logmark.offsets.dead_letters.dead_letter import DeadLetter, Headers, parse_dead_letter, restored_headers

UNSENT = "unsent"


class SkipReason(Enum):
    """Why a dead letter is not sent back."""

    OTHER_PIPELINE = auto()
    REPEATED = auto()
    VALUELESS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredRecord:
    """The record that is sent back, and its partition."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    headers: Headers


class DeadLetterRestorer:
    """Restores the dead letters of one partition, in order.

    Dead letters are written at least once, and those about one record have one key and so one partition: of several the
    first goes back.
    """

    def __init__(self, *, pipeline: str | None = None) -> None:
        self._pipeline = pipeline
        self._seen: set[str] = set()

    def restore(self, letter: DeadLetter, timestamp_ms: int) -> RestoredRecord | SkipReason:
        """Return the record that the dead letter is about, or why it is not sent back."""
        if self._pipeline is not None and letter.pipeline != self._pipeline:
            return SkipReason.OTHER_PIPELINE
        if letter.missing:
            return SkipReason.VALUELESS
        if letter.dead_letter_key in self._seen:
            return SkipReason.REPEATED
        self._seen.add(letter.dead_letter_key)
        return RestoredRecord(
            partition=letter.partition.partition,
            timestamp_ms=letter.timestamp_ms if letter.timestamp_ms >= 0 else timestamp_ms,
            key=letter.key,
            headers=restored_headers(letter),
        )

    def pass_over(self, value: bytes | None, headers: Headers) -> None:
        """Remembers a record of a range that was sent back before the run was interrupted."""
        letter = parse_dead_letter(value, headers)
        if letter is not None:
            self.restore(letter, 0)


def redriven_ends(
    runs: Iterable[ReplayRun], request: ReplayRequest, *, source_cluster: str, topic_id: str
) -> dict[int, int]:
    """Return the end offset of what finished replays have sent back from this topic, by partition.

    Replays of a part only, by a filter or a limit, do not count: what they left out was not sent back.
    """
    ends: dict[int, int] = {}
    for run in runs:
        known = run.request
        if (
            run.is_finished
            and (run.source_cluster, known.topic, run.source_topic_id) == (source_cluster, request.topic, topic_id)
            and known.is_whole
            and (known.to_original or known.restore)
            and known.pipeline in (None, request.pipeline)
        ):
            for number, source in run.sources.items():
                ends[number] = max(ends.get(number, 0), source.stop)
    return ends


def specs_after(ends: dict[int, int], partitions: Sequence[int], starts: dict[int, int]) -> str:
    """Return offset specs behind these ends (`0:100,1:200`), but not below the log starts."""
    return ",".join(f"{number}:{max(ends.get(number, 0), starts[number])}" for number in partitions)
