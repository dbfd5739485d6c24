"""Dates and durations as Java reads them, with its surprises."""

import pytest

from logmark.offsets.kafka_consumer_groups.failures import Failed
from logmark.offsets.kafka_consumer_groups.java_times import parse_date, parse_duration

MARCH_5 = 1_709_596_800_000
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2024-03-05T00:00:00.000", MARCH_5),
        ("2024-03-05T00:00:00.000Z", MARCH_5),
        ("2024-03-05T00:00:00.000+01:30", MARCH_5 - HOUR - HOUR // 2),
        ("2024-03-05T00:00:00.000-08", MARCH_5 + 8 * HOUR),
        ("2024-03-05T00:00:00.000+0130", MARCH_5 - HOUR),  # the minutes are not looked at
        ("2024-03-05T00:00:00.5", MARCH_5 + 5),  # not half a second
        ("2024-3-5T0:0:0.000", MARCH_5),
        ("2024-03-05T00:00:00.000Z and more", MARCH_5),
        ("1969-12-31T23:59:59.999", -1),
        ("2000-02-29T00:00:00.000", 951_782_400_000),
        ("99999-12-31T00:00:00.000", 3_093_527_894_400_000),
    ],
)
def test_dates(text: str, moment: int) -> None:
    assert moment == parse_date(text)


@pytest.mark.parametrize(
    "text",
    ["2024-03-05T00:00:00", "2024-02-30T00:00:00.000", "2024-03-05T24:00:00.000", "2024-03-05T00:00:00.1234", "T1"],
)
def test_dates_that_are_none(text: str) -> None:
    with pytest.raises(Failed, match=f'^java.text.ParseException: Unparseable date: "{text}Z"$'):
        parse_date(text)


@pytest.mark.parametrize("text", ["2024-03-05", "", "2024-03-05T"])
def test_a_date_without_a_time_of_day(text: str) -> None:
    with pytest.raises(Failed, match=r"It does not contain a 'T' according to ISO8601 format$"):
        parse_date(text)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("P1D", 24 * HOUR),
        ("PT1H30M", HOUR * 3 // 2),
        ("pt0.5s", 500),
        ("PT-0.5S", -500),
        ("-P1DT-1H", -23 * HOUR),
        ("P-1DT+36H", 12 * HOUR),
    ],
)
def test_durations(text: str, length: int) -> None:
    assert length == parse_duration(text)


@pytest.mark.parametrize("text", ["1h", "P", "PT", "P1W", "P1H", "PT1D", "P1DT", ""])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(Failed, match=r"^Text cannot be parsed to a Duration$"):
        parse_duration(text)
