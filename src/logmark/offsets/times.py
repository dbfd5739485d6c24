"""Points in time and lengths of time as people write them."""

import re
from datetime import UTC, datetime

from logmark.errors import UserError

_SHORT = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+", re.IGNORECASE)
_SHORT_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.IGNORECASE)
_ISO = re.compile(
    r"P(?=.)(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?(?:T(?=.)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:[.,]\d+)?)S)?)?",
    re.IGNORECASE,
)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


_AGO = re.compile(r"(?P<length>\S+)\s+ago|-(?P<short>[\dP]\S*)", re.IGNORECASE)
FORMATS = (
    "2024-03-05, 2024-03-05T00:00:00.000, 2024-03-05T01:00:00+01:00 (without a zone it is UTC), seconds or "
    "milliseconds since 1970, 3d ago, or now"
)


def parse_time(text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970 of a point in time: what `parse_datetime` reads, `3d ago`, `-3d`, or `now`."""
    stripped = text.strip()
    if stripped.lower() == "now":
        return now_ms
    ago = _AGO.fullmatch(stripped)
    if ago is None:
        return parse_datetime(text)
    return max(now_ms - parse_duration(ago["length"] or ago["short"]), 0)


def parse_datetime(text: str) -> int:
    """Milliseconds since 1970 of a date, a date and time, or a number of seconds or milliseconds; no zone means UTC."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and len(stripped) >= 9:
        # Nine to eleven digits are seconds (1973 to 5138), more are milliseconds.
        return int(stripped) * (1000 if len(stripped) <= 11 else 1)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise UserError(f"{text!r} is not a point in time that is understood: write {FORMATS}.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    found = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    if found < 0:
        raise UserError(f"{text!r} lies before 1970, and no record does.")
    return found


def parse_duration(text: str) -> int:
    """Milliseconds of a length of time such as 2h, 3d, 1h30m, or ISO 8601's PT2H and P3D."""
    stripped = text.strip()
    if _SHORT.fullmatch(stripped):
        parts = _SHORT_PART.findall(stripped)
        return round(sum(float(number) * _UNIT_MS[unit.lower()] for number, unit in parts))
    match = _ISO.fullmatch(stripped)
    if match is None:
        raise UserError(
            f"{text!r} is not a length of time that is understood: write 2h, 3d, 1h30m, or PT2H, P3D, PT1H30M."
        )
    return round(
        sum(float(number.replace(",", ".")) * _UNIT_MS[unit] for unit, number in match.groupdict().items() if number)
    )


def format_duration(milliseconds: float) -> str:
    """Format a duration in its two largest units: 3 d 4 h, 1 min 30 s, 12 s, 250 ms."""
    if milliseconds < 1000:
        return f"{round(milliseconds)} ms"
    seconds = round(milliseconds / 1000)
    for unit, size, next_unit, next_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            return f"{whole} {unit} {rest // next_size} {next_unit}" if rest >= next_size else f"{whole} {unit}"
    return f"{seconds} s"


def format_time(timestamp_ms: int) -> str:
    """Format a point in time in UTC, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
