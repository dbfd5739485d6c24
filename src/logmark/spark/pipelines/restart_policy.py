"""When a failed query is started again: an exponential back-off, pure arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass, replace

FIRST_PAUSE_S = 1.0
PAUSE_S_MAX = 60.0
JITTER = 0.2
# A query has recovered that committed a batch since its last failure, if the failure is that long ago.
CALM_AFTER_S = 120.0
# An unknown failure is final that comes back so often, for so long, in one batch.
UNKNOWN_FAILURES_MAX = 5
UNKNOWN_FAILURES_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often a query was started again, and how long it waits the next time.

    `has_worked` says that the query committed a batch since the last failure. Time alone says nothing: a try that only
    waits for a broker may take longer than any calm time.
    """

    count: int = 0
    in_a_row: int = 0
    failed_at_ms: int | None = None
    has_worked: bool = False

    def after_failure(self, now_ms: int) -> "RestartPolicy":
        """Return the policy after one more failure; the first one after a calm time starts a new row."""
        return RestartPolicy(
            count=self.count + 1, in_a_row=1 if self._is_calm(now_ms) else self.in_a_row + 1, failed_at_ms=now_ms
        )

    def after_batch(self) -> "RestartPolicy":
        """Return the policy after the query committed a batch."""
        return replace(self, has_worked=True)

    def while_active(self, now_ms: int) -> "RestartPolicy":
        """Return the policy while the query is active: after a calm time its failures are forgotten."""
        return replace(self, in_a_row=0) if self.in_a_row and self._is_calm(now_ms) else self

    def pause_s(self, random: Callable[[], float]) -> float:
        """Return how long to wait: a second at first, twice as long each time, a minute at most, with jitter."""
        pause_s: float = min(FIRST_PAUSE_S * 2 ** min(max(self.in_a_row - 1, 0), 30), PAUSE_S_MAX)
        return pause_s * (1 + JITTER * (2 * random() - 1))

    def _is_calm(self, now_ms: int) -> bool:
        return self.has_worked and self.failed_at_ms is not None and now_ms - self.failed_at_ms >= CALM_AFTER_S * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStreak:
    """How often the same batch failed for unknown reasons, and since when; `batch` is None before the first one."""

    batch: int | None = None
    count: int = 0
    since_ms: int = 0

    def after_failure(self, batch: int | None, now_ms: int) -> "FailureStreak":
        """Return the streak after one more failure; another batch begins a new one."""
        if not self.count or batch != self.batch:
            return FailureStreak(batch=batch, count=1, since_ms=now_ms)
        return replace(self, count=self.count + 1)

    def is_final(self, now_ms: int) -> bool:
        """Return whether another try would most likely fail too."""
        return self.count >= UNKNOWN_FAILURES_MAX and now_ms - self.since_ms >= UNKNOWN_FAILURES_S * 1000

    def describe(self, message: str, now_ms: int) -> str:
        """Return what happened, in one line."""
        where = "The query failed before its first batch" if self.batch is None else f"Batch {self.batch} failed"
        minutes = (now_ms - self.since_ms) // 60_000
        return (
            f"{where} {self.count} times in {minutes} minutes, each time for a reason that is unknown here: {message} "
            "Nothing of this batch was written or committed. Mend the cause and start it again."
        )
