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


def parse_datetime(text: str) -> int:
    """Milliseconds since 1970 of a date, a date and time, or a number of seconds or milliseconds; no zone means UTC."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and len(stripped) >= 9:
        # Nine to eleven digits are seconds (1973 to 5138), more are milliseconds.
        return int(stripped) * (1000 if len(stripped) <= 11 else 1)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise UserError(
            f"{text!r} is not a date that is understood: write 2024-03-05, 2024-03-05T00:00:00.000 or "
            "2024-03-05T01:00:00+01:00 (without a zone it is UTC)."
        ) from None
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


def show_time(timestamp_ms: int) -> str:
    """A point in time in UTC, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
