"""Fixtures for tests of the log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.directory_driver import LogDriver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[LogDriver]:
    """A durable data directory."""
    made = LogDriver(tmp_path)
    yield made
    made.close()


@pytest.fixture
def fast_driver(tmp_path: Path) -> Iterator[LogDriver]:
    """A data directory that leaves durability to the operating system."""
    made = LogDriver(tmp_path, durability="os")
    yield made
    made.close()
