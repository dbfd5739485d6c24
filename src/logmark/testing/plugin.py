"""The pytest plugin: a broker for one test, or one for the whole session, each with settings that a project chooses.

    @pytest.fixture
    def logmark_broker_config():
        return {"num.partitions": "3"}

It comes with the package and imports nothing of it before a fixture is used. Every pytest-xdist worker gets its own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from logmark import testing


@pytest.fixture
def logmark_broker_config() -> Mapping[str, str]:
    """Return settings for `logmark_broker` under Kafka's server.properties names; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def logmark_broker_session_config() -> Mapping[str, str]:
    """Return settings for `logmark_broker_session`; override it to change them."""
    return {}


@pytest.fixture
def logmark_broker(logmark_broker_config: Mapping[str, str]) -> Iterator["testing.Broker"]:
    """Yield a fresh broker with an empty data directory, gone when the test is over."""
    with testing.Broker(logmark_broker_config) as broker:
        yield broker


@pytest.fixture
def logmark_broker_factory() -> Iterator[Callable[..., "testing.Broker"]]:
    """Yield a function that starts brokers, with the arguments of `logmark.testing.Broker`; all end with the test."""
    with ExitStack() as stack:

        def start(config: Mapping[str, str] | None = None, **options: Any) -> "testing.Broker":
            return stack.enter_context(testing.Broker(config, **options))

        yield start


@pytest.fixture(scope="session")
def logmark_broker_session(logmark_broker_session_config: Mapping[str, str]) -> Iterator["testing.Broker"]:
    """Yield one broker for all tests of the session: quick, but topics and groups are shared."""
    with testing.Broker(logmark_broker_session_config) as broker:
        yield broker
