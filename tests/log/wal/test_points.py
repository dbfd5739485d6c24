"""The recovery points: a file that is whole, or refused."""

import pytest

from logmark.errors import Malformed
from logmark.log.wal.entries import partition_key
from logmark.log.wal.recovery_points import RecoveryPoint, RecoveryPoints

POINTS = RecoveryPoints(
    b"d" * 16,
    42,
    {partition_key(b"t" * 16, 0): RecoveryPoint(10, 4, 333), partition_key(b"t" * 16, 1): RecoveryPoint(2**62, 0, 1)},
)


def test_the_points_come_back_as_they_were() -> None:
    assert POINTS == RecoveryPoints.decode(POINTS.encode())


def test_a_directory_without_records_has_no_points() -> None:
    none = RecoveryPoints(b"d" * 16, 1, {})

    assert none == RecoveryPoints.decode(none.encode())


@pytest.mark.parametrize("at", range(len(POINTS.encode())))
def test_points_with_a_flipped_bit_are_refused(at: int) -> None:
    data = bytearray(POINTS.encode())
    data[at] ^= 1 << at % 8

    with pytest.raises(Malformed):
        RecoveryPoints.decode(bytes(data))


@pytest.mark.parametrize("size", range(len(POINTS.encode())))
def test_points_that_are_cut_short_are_refused(size: int) -> None:
    with pytest.raises(Malformed):
        RecoveryPoints.decode(POINTS.encode()[:size])


def test_points_with_more_behind_them_are_refused() -> None:
    with pytest.raises(Malformed):
        RecoveryPoints.decode(POINTS.encode() + b"\0")
