"""The board's arithmetic, and what the demo counts as untouched."""

from pathlib import Path

import pytest

from examples.clicks.board import View
from examples.clicks.checks import Checks, fingerprint


def view(**committed: dict[int, int]) -> View:
    return View(at_s=0.0, starts={0: 0, 1: 10}, ends={0: 100, 1: 50}, committed=committed)


@pytest.mark.parametrize(
    ("stands", "lag"), [({0: 100, 1: 50}, 0), ({0: 85, 1: 50}, 15), ({0: 0, 1: 0}, 140), ({1: 50}, 100), ({}, 140)]
)
def test_lag_is_what_is_still_there_to_read(stands: dict[int, int], lag: int) -> None:
    assert lag == view(fraud=stands).lag("fraud")


def test_a_group_that_has_not_begun_has_everything_before_it() -> None:
    assert 140 == view().lag("features")
    assert 0 == view().position("features")


def test_a_check_that_fails_is_named() -> None:
    checks = Checks()
    checks.add("billing is current", True, "lag 0")
    checks.add("fraud is behind", False, "lag 0")

    assert ["fraud is behind"] == [check.claim for check in checks.failed]


def test_a_fingerprint_changes_with_any_byte_and_any_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "a.parquet"
    file.write_bytes(b"1234")
    before = fingerprint(tmp_path)
    assert before == fingerprint(tmp_path)

    file.write_bytes(b"1235")
    changed = fingerprint(tmp_path)
    file.write_bytes(b"1234")
    file.rename(tmp_path / "data" / "b.parquet")

    assert 3 == len({before, changed, fingerprint(tmp_path)})
