"""A rate is kept from the first write on, by a clock that the test turns."""

import pytest

from logmark.errors import UserError
from logmark.offsets.bounded_replay.rate import Pacer, Rate, parse_rate


class SleepClock:
    """A clock that moves only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000/s", Rate(records_per_s=1000)),
        ("0.5/s", Rate(records_per_s=0.5)),
        ("2k/s", Rate(records_per_s=2000)),
        ("10MB/s", Rate(bytes_per_s=10_000_000)),
        ("512KiB/s", Rate(bytes_per_s=524_288)),
        ("1mb", Rate(bytes_per_s=1_000_000)),
        ("100B/s", Rate(bytes_per_s=100)),
    ],
)
def test_a_rate_is_records_or_bytes_in_a_second(text: str, expected: Rate) -> None:
    assert expected == parse_rate(text)


@pytest.mark.parametrize("text", ["", "fast", "0/s", "-5/s", "10/m", "10 MB per s", "1e3/s"])
def test_what_is_no_rate_is_refused_with_the_right_forms(text: str) -> None:
    with pytest.raises(UserError, match=r"1000/s.*10MB/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("rate", "writes", "expected_s"),
    [
        (Rate(), [(1000, 10**9)] * 5, 0.0),
        (Rate(records_per_s=100), [(20, 5)] * 11, 2.0),
        (Rate(records_per_s=0.5), [(1, 5)] * 3, 4.0),
        (Rate(bytes_per_s=1000), [(1, 500)] * 4 + [(1, 3000), (1, 1)], 5.0),
    ],
)
def test_each_write_waits_until_those_before_it_have_had_their_time(
    rate: Rate, writes: list[tuple[int, int]], expected_s: float
) -> None:
    hands = SleepClock()
    pace = Pacer(rate, clock=hands.read, sleep=hands.sleep)

    for records, size in writes:
        pace.wait(records, size)

    assert pytest.approx(expected_s) == hands.now - 100


def test_time_that_passed_unused_is_not_made_up_by_a_burst() -> None:
    hands = SleepClock()
    pace = Pacer(Rate(records_per_s=10), clock=hands.read, sleep=hands.sleep)
    pace.wait(1, 0)
    hands.sleep(60)

    for _ in range(11):
        pace.wait(1, 0)

    assert pytest.approx(61) == hands.now - 100


def test_a_slow_rate_is_a_stream_of_small_writes() -> None:
    assert (1, 200, None) == (
        Rate(records_per_s=3).records_at_once, Rate(records_per_s=1000).records_at_once, Rate().records_at_once
    )  # fmt: skip
    assert 200_000 == Rate(bytes_per_s=1_000_000).bytes_at_once
