import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.offsets.partitions import Lag, compute_lag


@pytest.mark.parametrize(
    ("committed", "start", "end", "records", "lost"),
    [
        (142, 0, 142, 0, 0),
        (89, 0, 101, 12, 0),
        (258, 0, 1000, 742, 0),
        (0, 0, 0, 0, 0),
        (0, 200, 1000, 800, 200),
        (100, 200, 200, 0, 100),
        (900, 0, 500, 0, 0),
        (259_000_000_000, 258_000_000_000, 259_000_000_007, 7, 0),
    ],
)
def test_lag_counts_what_can_still_be_read_and_lost_what_expired(
    committed: int, start: int, end: int, records: int, lost: int
) -> None:
    assert Lag(records=records, lost=lost) == compute_lag(committed, start=start, end=end)


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62))
def test_lag_is_never_negative_and_never_more_than_the_log_holds(committed: int, one: int, other: int) -> None:
    start, end = sorted((one, other))
    lag = compute_lag(committed, start=start, end=end)

    assert 0 <= lag.records <= end - start
    assert 0 <= lag.lost <= start


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_every_record_behind_the_offset_is_either_lag_or_lost(committed: int, one: int, other: int) -> None:
    start, end = sorted((one, other))
    lag = compute_lag(committed, start=start, end=end)

    assert max(0, end - committed) == lag.records + lag.lost
