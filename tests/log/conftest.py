"""Fixtures for tests of the log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.directory_driver import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A durable data directory."""
    made = Lab(tmp_path)
    yield made
    made.close()


@pytest.fixture
def fast_lab(tmp_path: Path) -> Iterator[Lab]:
    """A data directory that leaves durability to the operating system."""
    made = Lab(tmp_path, durability="os")
    yield made
    made.close()
