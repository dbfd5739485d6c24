import pytest

from logmark.errors import UserError
from logmark.offsets.times import format_duration, format_time, parse_datetime, parse_duration, parse_time

MARCH_5 = 1_709_596_800_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-03-05T00:00:00.000", MARCH_5),
        ("2024-03-05T00:00:00", MARCH_5),
        ("2024-03-05 00:00:00", MARCH_5),
        ("2024-03-05T00:00", MARCH_5),
        ("2024-03-05", MARCH_5),
        ("2024-03-05T00:00:00.000Z", MARCH_5),
        ("2024-03-05T01:00:00.000+01:00", MARCH_5),
        ("2024-03-04T19:00:00-0500", MARCH_5),
        ("2024-03-05T00:00:00.123", MARCH_5 + 123),
        ("2024-03-05T00:00:00.123999", MARCH_5 + 123),
        ("  2024-03-05  ", MARCH_5),
        ("1970-01-01", 0),
        ("1709596800", MARCH_5),
        ("1709596800123", MARCH_5 + 123),
    ],
)
def test_a_point_in_time_is_utc_unless_it_names_a_zone(text: str, expected: int) -> None:
    assert expected == parse_datetime(text)


def test_half_a_second_is_500_milliseconds_and_not_5() -> None:
    assert MARCH_5 + 500 == parse_datetime("2024-03-05T00:00:00.5")


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2024-13-01", "2024-03-05T25:00:00", "5", "03/05/2024", "1969-12-31"]
)
def test_what_is_no_point_in_time_is_refused_with_an_error(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a point|before 1970"):
        parse_datetime(text)


SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", 2 * HOUR),
        ("3d", 3 * DAY),
        ("90m", 90 * MINUTE),
        ("45s", 45 * SECOND),
        ("1w", 7 * DAY),
        ("250ms", 250),
        ("1h30m", 90 * MINUTE),
        ("1.5h", 90 * MINUTE),
        ("2H", 2 * HOUR),
        ("PT2H", 2 * HOUR),
        ("P3D", 3 * DAY),
        ("P1DT2H3M4S", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND),
        ("PT0.5S", 500),
        ("PT1M", MINUTE),
        ("P2W", 14 * DAY),
        ("p1d", DAY),
        ("PT0S", 0),
    ],
)
def test_a_length_of_time_is_short_or_iso(text: str, expected: int) -> None:
    assert expected == parse_duration(text)


@pytest.mark.parametrize("text", ["", "2", "h", "2y", "-2h", "P", "PT", "P1M", "2h3", "PT2"])
def test_what_is_no_length_of_time_is_refused_with_an_error(text: str) -> None:
    with pytest.raises(UserError, match="is not a length of time"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [(MARCH_5 + 7, "2024-03-05T00:00:00.007Z"), (0, "1970-01-01T00:00:00.000Z"), (10**18, "1000000000000000000 ms")],
)
def test_a_time_is_shown_in_utc(timestamp_ms: int, expected: str) -> None:
    assert expected == format_time(timestamp_ms)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", MARCH_5),
        ("3d ago", MARCH_5 - 3 * 86_400_000),
        ("1h30m ago", MARCH_5 - 5_400_000),
        ("PT2H ago", MARCH_5 - 7_200_000),
        ("-2h", MARCH_5 - 7_200_000),
        ("2024-03-05T01:00:00+01:00", MARCH_5),
        (str(MARCH_5 // 1000), MARCH_5),
        (str(MARCH_5), MARCH_5),
    ],
)
def test_a_moment_is_a_date_or_so_long_ago(text: str, expected: int) -> None:
    assert expected == parse_time(text, now_ms=MARCH_5)


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (250, "250 ms"), (1000, "1 s"), (59_400, "59 s"), (90_000, "1 min 30 s"), (7_200_000, "2 h"),
        (3 * 86_400_000 + 4 * 3_600_000 + 59, "3 d 4 h"),
    ],
)  # fmt: skip
def test_a_length_of_time_is_shown_in_its_two_largest_units(milliseconds: int, expected: str) -> None:
    assert expected == format_duration(milliseconds)
