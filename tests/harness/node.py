"""One node of Apache Kafka, formatted fresh, on free ports."""

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.harness import distribution
from tests.harness.tools import SERVER, STORAGE, java_command, run_tool

JVM = ("-Xlog:disable", "-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")

# What a test wants shorter than an operator does; everything else is Apache Kafka's default.
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "auto.create.topics.enable": "false",
    "log.initial.task.delay.ms": "200",
    "log.retention.check.interval.ms": "1000",
    "offsets.retention.check.interval.ms": "2000",
}

# For nodes whose tests do not look at these topics: each partition of them is made, checked and closed.
SMALL_TOPICS = {"offsets.topic.num.partitions": "5", "transaction.state.log.num.partitions": "5"}


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[socket.socket]]:
    """Bind sockets to free ports, all different; while one of them is open, the system gives its port to nobody.

    Whoever asks for that very port and sets SO_REUSEADDR, as Java and Python's servers do, can listen on it meanwhile.
    """
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield sockets


def ports_of(sockets: Sequence[socket.socket]) -> list[int]:
    """Return the port of each socket."""
    return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def unserved_address() -> Iterator[str]:
    """Yield an address at which nobody listens, and nobody begins to meanwhile."""
    with held_ports(1) as held:
        yield f"127.0.0.1:{ports_of(held)[0]}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago, all different."""
    with held_ports(count) as sockets:
        return ports_of(sockets)


class Ports(NamedTuple):
    """What a node listens on, and the port that its second listener advertises."""

    broker: int
    controller: int
    proxied: int
    proxy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaNode:
    """A running node: where it listens, where its files are, and the process that guards it."""

    bootstrap_servers: str
    folder: str
    pid: int
    proxied_port: int  # a second listener, which sends its clients to the port beside
    proxy_port: int

    @property
    def log_dir(self) -> Path:
        """The folder of its partitions."""
        return Path(self.folder, "data")

    def save(self, path: Path) -> None:
        """Writes this node down for other processes."""
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(self)))
        scratch.replace(path)

    @classmethod
    def load(cls, path: Path) -> "KafkaNode":
        """The node that another process wrote down."""
        return cls(**json.loads(path.read_text()))

    def stop(self, *, is_kill: bool = False) -> None:
        """Ends the node and waits until its process is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1 if is_kill else signal.SIGTERM)
        wait_until(lambda: not is_alive(self.pid), "Apache Kafka has stopped", deadline_s=60)

    def remove(self) -> None:
        """Ends the node and removes its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_node(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *,
    owner_pid: int | None = None,
    env: Mapping[str, str] | None = None,
    jvm: Sequence[str] = JVM,
    sharing: str | None = None,
) -> KafkaNode:
    """Starts a node in `folder`, formatted unless it is there already; it ends when the process `owner_pid` does."""
    properties = folder / "server.properties"
    if not properties.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _format(folder)
    # Ports are chosen anew at each start: nobody keeps those of a stopped node free.
    with held_ports(4) as held:
        ports = Ports(*ports_of(held))
        _write_properties(properties, folder, ports, settings or {})
        owner_pid = owner_pid or os.getpid()
        guard = subprocess.Popen(
            [
                *(sys.executable, str(Path(__file__).with_name("guard.py")), str(owner_pid)),
                *java_command(SERVER, [str(properties)], jvm=jvm, sharing=sharing),
            ],
            stdin=subprocess.DEVNULL,
            stdout=(folder / "stdout").open("ab"),
            stderr=(folder / "stderr").open("ab"),
            env={**os.environ, **(env or {})},
            start_new_session=True,
            # The guard holds the ports to its end: before the node listens, and between two uses of the proxy's.
            pass_fds=[each.fileno() for each in held],
        )
    node = KafkaNode(
        bootstrap_servers=f"127.0.0.1:{ports.broker}",
        folder=str(folder),
        pid=guard.pid,
        proxied_port=ports.proxied,
        proxy_port=ports.proxy,
    )
    try:
        wait_until(lambda: _answers(node) or _has_ended(guard, folder), "Apache Kafka answers", deadline_s=90)
    except BaseException:
        node.stop()
        raise
    return node


def _format(folder: Path) -> None:
    """Gives the node a formatted data folder under ids of its own."""
    shutil.copytree(_formatted(), folder / "data")
    names = folder / "data" / "meta.properties"
    kept = [line for line in names.read_text().splitlines() if not line.startswith(("cluster.id=", "directory.id="))]
    names.write_text("\n".join([*kept, f"cluster.id={_new_id()}", f"directory.id={_new_id()}", ""]))


def _formatted() -> Path:
    """A data folder as Apache Kafka's own tool formats it: made once, for a call of the tool takes a second."""
    made = distribution.cache_folder() / "formatted"
    with distribution.locked(distribution.cache_folder() / ".formatted.lock"):
        if not made.is_dir():
            with tempfile.TemporaryDirectory(dir=made.parent) as work:
                properties = Path(work, "server.properties")
                _write_properties(properties, Path(work), Ports(*free_ports(4)), {})
                # Without a class archive: what makes the archives starts a node itself.
                run_tool(STORAGE, "format", "-t", _new_id(), "-c", str(properties), sharing="-Xshare:auto").check()
                Path(work, "data").rename(made)
    return made


def _new_id() -> str:
    """A random id as Apache Kafka writes them; one that begins with a dash would read as an option."""
    return "A" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")[1:]


def _write_properties(path: Path, folder: Path, ports: Ports, settings: Mapping[str, str]) -> None:
    here = "127.0.0.1"
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{here}:{ports.controller}",
        "listeners": f"PLAINTEXT://{here}:{ports.broker},PROXIED://{here}:{ports.proxied},"
        f"CONTROLLER://{here}:{ports.controller}",
        "advertised.listeners": f"PLAINTEXT://{here}:{ports.broker},PROXIED://{here}:{ports.proxy}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        **SETTINGS,
        **settings,
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def _answers(node: KafkaNode) -> bool:
    host, port = node.bootstrap_servers.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        client = AdminClient({"bootstrap.servers": node.bootstrap_servers, "log_level": 0})
        return bool(client.list_topics(timeout=5).brokers)
    except (OSError, KafkaException):
        return False


def _has_ended(guard: "subprocess.Popen[bytes]", folder: Path) -> bool:
    if guard.poll() is None:
        return False
    raise distribution.KafkaUnavailable(
        f"Apache Kafka ended before it was ready (exit code {guard.returncode}); "
        f"its last words: {(folder / 'stderr').read_text()[-800:]} {(folder / 'stdout').read_text()[-800:]}"
    )


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs; a zombie of ours is reaped and counts as gone."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(is_true: Callable[[], object], what: str, *, deadline_s: float = 60) -> None:
    """Returns as soon as `is_true()` holds; fails with `what` when the deadline passes first."""
    deadline = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < deadline, f"waited {deadline_s} s in vain until: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def kafka_node(
    folder: Path, settings: Mapping[str, str] | None = None, *, jvm: Sequence[str] = JVM
) -> Iterator[KafkaNode]:
    """A node of the caller's own, gone at the end; for benches and for tests with settings of their own."""
    node = start_node(folder, settings, jvm=jvm)
    try:
        yield node
    finally:
        node.remove()
