"""The pytest plugin: a broker for one test, or one for the whole session, each with settings that a project chooses.

    @pytest.fixture
    def logmark_broker_config():
        return {"num.partitions": "3"}

It comes with the package and imports nothing of it before a fixture is used. Every pytest-xdist worker gets its own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from logmark.testing.broker import Broker


@pytest.fixture
def logmark_broker_config() -> Mapping[str, str]:
    """Return settings for `logmark_broker` under Kafka's server.properties names; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def logmark_broker_session_config() -> Mapping[str, str]:
    """Return settings for `logmark_broker_session`; override it to change them."""
    return {}


@pytest.fixture
def logmark_broker(logmark_broker_config: Mapping[str, str]) -> Iterator["Broker"]:
    """Yield a fresh broker with an empty data directory, gone when the test is over."""
    with _new_broker(logmark_broker_config) as broker:
        yield broker


@pytest.fixture
def logmark_broker_factory() -> Iterator[Callable[..., "Broker"]]:
    """Yield a function that starts brokers, with the arguments of `logmark.testing.Broker`; all end with the test."""
    with ExitStack() as stack:

        def start(config: Mapping[str, str] | None = None, **options: Any) -> "Broker":
            return stack.enter_context(_new_broker(config, **options))

        yield start


@pytest.fixture(scope="session")
def logmark_broker_session(logmark_broker_session_config: Mapping[str, str]) -> Iterator["Broker"]:
    """Yield one broker for all tests of the session: quick, but topics and groups are shared."""
    with _new_broker(logmark_broker_session_config) as broker:
        yield broker


def _new_broker(config: Mapping[str, str] | None, **options: Any) -> "Broker":
    # Only here: the plugin costs nothing in a test run that uses no broker.
    from logmark.testing.broker import Broker

    return Broker(config, **options)
