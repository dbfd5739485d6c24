"""When a failed query is started again: an exponential back-off, pure arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass, replace

FIRST_PAUSE_S = 1.0
PAUSE_S_MAX = 60.0
JITTER = 0.2
# A query has recovered that committed a batch since its last failure, if the failure is that long ago.
CALM_AFTER_S = 120.0


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
