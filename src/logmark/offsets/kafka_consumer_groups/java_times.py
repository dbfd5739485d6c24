"""Dates and lengths of time as Java reads them, which is stricter here and laxer there than what people write."""

import re

from logmark.offsets.kafka_consumer_groups.failures import Failed

_PARSE = "java.text.ParseException: "
# Spaces before a number are passed over, and what follows the zone is not looked at.
_DATE = re.compile(
    r"[ \t]*(\d+)-[ \t]*(\d+)-[ \t]*(\d+)T[ \t]*(\d+):[ \t]*(\d+):[ \t]*(\d+)\.[ \t]*(\d+)[ \t]*"
    r"(?:(Z)|([+-])(?:([01]\d|2[0-3]):([0-5]\d)|([01]\d|2[0-3])))",
    re.ASCII,
)
# A T must be followed by something, a small one need not.
_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?"
    r"(?:(?-i:T(?=.)|t)(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?(?:(?P<seconds>[-+]?\d+)(?:[.,](?P<part>\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_UNIT_S = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_LONG_MAX = (1 << 63) - 1
_YEAR_MAX = 292_278_993
_ZONE_MIN_S, _ZONE_MAX_S = -13 * 3600, 14 * 3600


def parse_date(text: str) -> int:
    """Milliseconds since 1970 of `yyyy-MM-ddTHH:mm:ss.SSS` with Z, +hh:mm, +hh or nothing, which is Z."""
    _, _, rest = text.partition("T")
    clock = rest.partition("T")[0]
    if not rest.strip("T"):
        raise Failed(f"{_PARSE}Error parsing timestamp. It does not contain a 'T' according to ISO8601 format")
    if not any(sign in clock for sign in "+-Z"):
        text += "Z"
    match = _DATE.match(text)
    found = match and _moment(match)
    if found is None:
        raise Failed(f'{_PARSE}Unparseable date: "{text}"')
    return found


def _moment(match: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second, milli = (int(one) for one in match.groups()[:7])
    sign, zone_hours, zone_minutes, zone_hours_alone = match.groups()[8:12]
    if not (1 <= year <= _YEAR_MAX and 1 <= month <= 12 and 1 <= day <= _days_in(year, month)):
        return None
    if hour > 23 or minute > 59 or second > 59 or milli > 999:
        return None
    seconds = (_days_since_1970(year, month, day) * 24 + hour) * 3600 + minute * 60 + second
    if sign:
        zone = int(f"{sign}1") * (int(zone_hours or zone_hours_alone) * 3600 + int(zone_minutes or 0) * 60)
        if not _ZONE_MIN_S <= zone <= _ZONE_MAX_S:
            return None
        seconds -= zone
    return seconds * 1000 + milli


def _days_in(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _days_since_1970(year: int, month: int, day: int) -> int:
    """Return the days since 1970.

    `datetime` ends with the year 9999. Years start in March here, so that a leap day is the last day of its year.
    """
    year -= month <= 2
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return 365 * year + year // 4 - year // 100 + year // 400 + day_of_year - 719_468


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days, hours, minutes and seconds, rounded down."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match[unit] for unit in _UNIT_S):
        raise Failed("Text cannot be parsed to a Duration")
    total_ns = 0
    for unit, seconds in _UNIT_S.items():
        number = int(match[unit] or 0)
        if abs(number * seconds) > _LONG_MAX:
            raise Failed(f"Text cannot be parsed to a Duration: {unit}")
        total_ns += number * seconds * 1_000_000_000
    part = int((match["part"] or "").ljust(9, "0"))
    total_ns += -part if (match["seconds"] or "").startswith("-") else part
    if abs(total_ns) // 1_000_000_000 > _LONG_MAX:
        raise Failed("Text cannot be parsed to a Duration: overflow")
    return -(total_ns // 1_000_000) if match["sign"] == "-" else total_ns // 1_000_000
