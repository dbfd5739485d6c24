"""The pytest plugin: a broker of its own for a test, or one for the whole session.

It comes with the package and imports nothing of it before a fixture is used. Every pytest-xdist worker gets its own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from logmark.testing.broker import Broker


@pytest.fixture
def logmark_broker() -> Iterator["Broker"]:
    """Provide a fresh broker with an empty data directory, stopped and removed after the test."""
    from logmark.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def logmark_broker_session() -> Iterator["Broker"]:
    """Provide one broker for all tests of the session: quick, but topics and groups are shared."""
    from logmark.testing.broker import Broker

    with Broker() as broker:
        yield broker
