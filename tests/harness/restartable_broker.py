"""A broker of a test's own, ours or Apache Kafka, that it may stop, restart, reconfigure and move in time."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from logmark.testing import Broker
from tests.harness.brokers import BrokerUnderTest, warm_up
from tests.harness.moved_clock import MovedClock
from tests.harness.node import SMALL_TOPICS, KafkaNode, start_node

# What tests want shorter than operators do, on both sides; tests.harness.node gives the same to Apache Kafka.
OUR_SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": "100",
    "log.initial.task.delay.ms": "200",
    "log.retention.check.interval.ms": "1000",
    "offsets.retention.check.interval.ms": "2000",
}
# Rarer on brokers that many tests share: a check between two requests takes away a group that has no offset yet, and
# one of hundreds of topics takes time from all tests.
OWN_SETTINGS = {"log.retention.check.interval.ms": "200", "offsets.retention.check.interval.ms": "200"}


class RestartableBroker:
    """One broker with its data folder; every start gives new clients, because Apache Kafka's port changes."""

    def __init__(self, kind: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.kind = kind
        self._folder = folder
        self._settings = {**OWN_SETTINGS, **settings}
        self._clients: BrokerUnderTest | None = None
        self._node: KafkaNode | None = None
        self._ours: Broker | None = None
        self._clock = MovedClock(folder) if kind == "kafka" else None

    @property
    def log_dir(self) -> Path:
        """The folder that holds the partitions."""
        return self._folder / "node" / "data" if self.kind == "kafka" else self._folder / "logmark"

    @property
    def clients(self) -> BrokerUnderTest:
        """What a test uses to talk to the broker while it runs."""
        assert self._clients is not None, "the broker does not run"
        return self._clients

    def start(self) -> BrokerUnderTest:
        """Serves from the folder."""
        if self._clock is not None:
            settings = {**SMALL_TOPICS, **self._settings}
            self._node = start_node(self._folder / "node", settings, env=self._clock.env)
            warm_up(self._node.bootstrap_servers)
            bootstrap_servers = self._node.bootstrap_servers
        else:
            self._ours = Broker({**OUR_SETTINGS, **self._settings}, data_dir=str(self.log_dir))
            self._ours.start()
            bootstrap_servers = self._ours.bootstrap_servers
        self._clients = BrokerUnderTest(self.kind, bootstrap_servers, self)
        return self._clients

    def stop(self) -> None:
        """Stops cleanly; the folder stays."""
        if self._clients is not None:
            self._clients.close()
            self._clients = None
        if self._node is not None:
            self._node.stop()
            self._node = None
        if self._ours is not None:
            self._ours.stop()
            self._ours = None

    def begin_at(self, topic: str, first_offset: int) -> None:
        """Stops the broker and gives a new partition another first segment, so that its log begins there."""
        self.clients.produce(topic, ["gone"])  # our broker makes the files of a partition with its first record
        self.stop()
        folder = self.log_dir / f"{topic}-0"
        for file in (*folder.glob("0*.*"), folder / "leader-epoch-checkpoint"):
            file.unlink(missing_ok=True)
        (folder / f"{first_offset:020}.log").touch()
        # Our broker lists the segments when it stops, and would miss those that are gone.
        (self.log_dir / "logmark.segments").unlink(missing_ok=True)

    def advance(self, *, days: float) -> None:
        """Moves the broker's time of day forward."""
        if self._clock is not None:
            self._clock.advance(days=days)
        else:
            assert self._ours is not None
            self._ours.advance(days * 86_400)


@contextlib.contextmanager
def own_broker(kind: str, folder: Path, settings: Mapping[str, str]) -> Iterator[RestartableBroker]:
    """Starts a broker of the caller's own and stops it in the end."""
    broker = RestartableBroker(kind, folder, settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
