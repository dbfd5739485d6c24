"""How fast records may be written: so many records or bytes in a second."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from logmark.errors import UserError

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
_RATE = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,6})?)\s*(?P<unit>[kmg]i?)?(?P<bytes>b)?(?:/s)?", re.IGNORECASE)
# A batch is at most so much of a second, so that a slow rate is a stream and not a pulse.
_STEP_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A limit in records or in bytes of whole batches, as they are sent; None means that there is none."""

    records_per_s: float | None = None
    bytes_per_s: float | None = None

    @property
    def records_at_once(self) -> int | None:
        """As many records as one write may hold."""
        return None if self.records_per_s is None else max(1, int(self.records_per_s * _STEP_S))

    @property
    def bytes_at_once(self) -> int | None:
        """As many bytes as one write may hold, unless it is one record."""
        return None if self.bytes_per_s is None else max(1, int(self.bytes_per_s * _STEP_S))


def parse_rate(text: str) -> Rate:
    """Parse 1000/s, 2k/s (records), 10MB/s, 512KiB/s (bytes)."""
    match = _RATE.fullmatch(text.strip())
    amount = 0.0 if match is None else float(match["number"]) * _UNITS[(match["unit"] or "").lower()]
    if match is None or amount <= 0:
        raise UserError(
            f"{text!r} is not a rate: write records in a second (1000/s) or bytes in a second (10MB/s).", exit_code=2
        )
    return Rate(bytes_per_s=amount) if match["bytes"] else Rate(records_per_s=amount)


class Pacer:
    """Waits so long before each write that the rate is kept from the first write on; what was missed is not made up."""

    def __init__(
        self,
        rate: Rate,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def wait(self, records: int, size_bytes: int) -> None:
        """Block until this many records and bytes may be written."""
        now = self._clock()
        if self._free_at > now:
            self._sleep(self._free_at - now)
        else:
            self._free_at = now
        if self._rate.records_per_s is not None:
            self._free_at += records / self._rate.records_per_s
        if self._rate.bytes_per_s is not None:
            self._free_at += size_bytes / self._rate.bytes_per_s
