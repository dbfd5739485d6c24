"""Nodes of Apache Kafka that all processes of one test run share, each started by the first test that needs it."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.harness.brokers import warm_up
from tests.harness.distribution import locked
from tests.harness.node import KafkaNode, start_node

FOLDER = "LOGMARK_HARNESS_FOLDER"
OWNER = "LOGMARK_HARNESS_OWNER"


def begin() -> None:
    """Makes this process the owner of the run's shared nodes, unless a parent of it is."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="logmark-harness-")
        os.environ[OWNER] = str(os.getpid())


def node(name: str, settings: Mapping[str, str] | None = None) -> KafkaNode:
    """The shared node of this name, started when nobody has yet."""
    folder = Path(os.environ[FOLDER])
    written = folder / f"{name}.json"
    with locked(folder / f"{name}.lock"):
        if not written.exists():
            started = start_node(folder / name, settings, owner_pid=int(os.environ[OWNER]))
            warm_up(started.bootstrap_servers)
            started.save(written)
    return KafkaNode.load(written)


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """No other process of this run is in here with the same name."""
    with locked(Path(os.environ[FOLDER]) / f"{name}.alone"):
        yield


def end() -> None:
    """Stops and removes every shared node, when this process is their owner."""
    if os.environ.get(OWNER) != str(os.getpid()):
        return
    folder = Path(os.environ.pop(FOLDER))
    del os.environ[OWNER]
    for written in folder.glob("*.json"):
        KafkaNode.load(written).remove()
    shutil.rmtree(folder, ignore_errors=True)
