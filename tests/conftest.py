"""Fixtures for tests that run on our broker, on Apache Kafka and on Spark."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness import distribution, file_scheduler, searches, shared
from tests.harness.brokers import BrokerUnderTest
from tests.harness.restartable_broker import OUR_SETTINGS, RestartableBroker, own_broker
from tests.harness.sparks import spark_of_tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

searches.register_profiles()

BOTH = ["logmark", pytest.param("kafka", marks=pytest.mark.kafka)]


@pytest.fixture(autouse=True)
def _settings_of_nobody(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools neither read nor write what belongs to whoever runs the tests."""
    home = tmp_path_factory.getbasetemp() / "home"
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(home / name.lower()))
    for name in ("LOGMARK_BOOTSTRAP_SERVERS", "LOGMARK_CONTEXT", "LOGMARK_CONFIG", "LOGMARK_READ_ONLY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="module")
def _modules_of_the_tests() -> Iterator[None]:
    """A pipeline that is loaded again has the modules of its folder loaded again, and these tests are among them.

    A process that a later test starts would not find its function by the name of a module that is another one now.
    """
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "tests"}
    yield
    sys.modules.update(before)


def pytest_configure(config: pytest.Config) -> None:
    searches.take_seed(config)
    shared.begin()
    # A shell ignores Ctrl-C for what it starts in the background, and every process that a test starts inherits that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # kafka-python reads its schemas by a call that Python has deprecated.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


def pytest_unconfigure(config: pytest.Config) -> None:
    if gateway := sys.modules.get("tests.harness.gateway"):
        gateway.end()
    shared.end()
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, and never look at the modules and items again: they stay to the end.

    The tests make few cycles, so the collector looks for some after 10,000 new objects and not after 700.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give out first what takes longest, so that no worker is left alone with it in the end."""
    items.sort(key=lambda item: file_scheduler.rank_of(item.nodeid.partition("::")[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadFileScheduling | None":
    """Spreads files over workers; other ways to spread, when asked for, stay what they are."""
    return file_scheduler.FileScheduler(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `kafka` never passes quietly without Apache Kafka."""
    if item.get_closest_marker("kafka") is None:
        return
    reason = distribution.why_not()
    if reason is None:
        return
    if os.environ.get("ALLOW_NO_KAFKA") == "1":
        pytest.skip(f"{reason} (allowed by ALLOW_NO_KAFKA=1)")
    pytest.fail(f"{reason} To run without Apache Kafka, set ALLOW_NO_KAFKA=1.", pytrace=False)


@pytest.fixture(scope="session")
def _our_broker() -> Iterator[object]:
    from logmark.testing import Broker

    with Broker(OUR_SETTINGS) as broker:
        yield broker


@pytest.fixture(params=BOTH)
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerUnderTest]:
    """Our broker, then Apache Kafka: shared by many tests, with names that are the test's own."""
    yield from _under_test(request, request.param)


@pytest.fixture
def our_broker(request: pytest.FixtureRequest) -> Iterator[BrokerUnderTest]:
    """Our broker alone, for what Apache Kafka cannot be asked to do."""
    yield from _under_test(request, "logmark")


@pytest.fixture
def apache_kafka(request: pytest.FixtureRequest) -> Iterator[BrokerUnderTest]:
    """Apache Kafka alone; the test is marked `kafka` by whoever uses this."""
    yield from _under_test(request, "kafka")


@pytest.fixture(params=BOTH)
def failing_broker(request: pytest.FixtureRequest) -> Iterator[BrokerUnderTest]:
    """Our broker, then Apache Kafka, whose next commits can be made to fail: `.control.fail_next`."""
    if request.param == "logmark":
        yield from _under_test(request, "logmark")
        request.getfixturevalue("_our_broker").clear_faults()
        return
    from tests.harness.proxy import FailingListener

    with shared.alone("proxy"), closing(FailingListener(shared.node("kafka"))) as listener:
        broker = BrokerUnderTest("kafka", listener.bootstrap_servers, listener)
        yield broker
        broker.close()


@pytest.fixture(params=BOTH)
def start_own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., RestartableBroker]]:
    """Starts a broker that belongs to the test: ours, then Apache Kafka; takes settings by server.properties names."""
    with ExitStack() as started:
        yield lambda settings=None: started.enter_context(own_broker(request.param, tmp_path, settings or {}))


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The one Spark of this process."""
    spark = spark_of_tests()
    yield spark
    spark.stop()


def _under_test(request: pytest.FixtureRequest, kind: str) -> Iterator[BrokerUnderTest]:
    control = request.getfixturevalue("_our_broker") if kind == "logmark" else shared.node("kafka")
    broker = BrokerUnderTest(kind, control.bootstrap_servers, control)
    yield broker
    broker.close()
