"""The class archives of Apache Kafka, one of its server and one of its tools: a JVM that has one starts with less work.

Run as a program, it makes both if there are none: `make test` does so before the tests, whose time is limited.
"""

import contextlib
import functools
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness import distribution
from tests.harness.tools import (
    CONFIGS,
    CONSOLE_CONSUMER,
    CONSUMER_GROUPS,
    DUMP_LOG,
    GATEWAY,
    GET_OFFSETS,
    SERVER,
    TOPICS,
    VERIFIABLE_CONSUMER,
    VERIFIABLE_PRODUCER,
    class_path,
)

if TYPE_CHECKING:
    from tests.harness.gateway import JavaTools
    from tests.harness.node import KafkaNode


def sharing_of(main_class: str) -> str:
    """Return the option that makes a JVM use the archive of its kind."""
    return f"-XX:SharedArchiveFile={class_archive(SERVER if main_class == SERVER else GATEWAY)}"


@functools.cache
def class_archive(main_class: str) -> Path:
    """Return the archive of `SERVER`, or of `GATEWAY` for all tools; the first process that asks makes both.

    If one cannot be made, the file is empty, and a JVM starts without it.
    """
    folder = distribution.cache_folder() / "classes"
    paths = {each: folder / f"{each}-{_identity(each)}.jsa" for each in (SERVER, GATEWAY)}
    with distribution.locked(folder / ".lock"):
        if not all(path.exists() for path in paths.values()):
            made = {each: path.with_suffix(".new") for each, path in paths.items()}
            for path in made.values():
                path.unlink(missing_ok=True)
            # In a process of its own, whose failure is not the one of the test that happened to come first.
            command = [sys.executable, "-m", "tests.harness.kafka_archive", *map(str, made.values())]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, cwd=distribution.REPOSITORY, capture_output=True, timeout=240, check=False)
            for each, path in made.items():
                path.touch()  # an empty one keeps the next process from trying again
                path.rename(paths[each])
    return paths[main_class]


def _identity(main_class: str) -> str:
    """Name what an archive depends on: the Java runtime and the class path, in its order."""
    made_for = distribution.java_version(distribution.java()) + class_path(main_class)
    return hashlib.sha256(made_for.encode()).hexdigest()[:12]


def _leave_archives(server: str, tools: str) -> None:
    """Run a node and the tools as most tests do, and end their JVMs, which then write the archives."""
    from tests.harness.gateway import JavaTools
    from tests.harness.node import start_node

    with (
        tempfile.TemporaryDirectory() as folder,
        JavaTools(sharing=f"-XX:ArchiveClassesAtExit={tools}") as java_tools,
    ):
        node = start_node(Path(folder, "node"), sharing=f"-XX:ArchiveClassesAtExit={server}")
        try:
            _use(node, java_tools)
        finally:
            node.remove()


def _use(node: "KafkaNode", java_tools: "JavaTools") -> None:
    """Write and read records with and without transactions, and call the tools that tests call most."""
    from tests.harness.brokers import BrokerUnderTest, at, read, warm_up

    warm_up(node.bootstrap_servers)
    broker = BrokerUnderTest("kafka", node.bootstrap_servers)
    topic, group = broker.create_topic("orders", partitions=2), broker.group("readers")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        broker.produce(topic, ["a", "b"], compression_type=codec)
    producer = broker.producer(transactional_id=group)
    producer.init_transactions()
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic, "c", partition=0)
        producer.flush()
        end()
    consumer = broker.consumer(group)
    consumer.subscribe([topic])
    consumer.commit(message=read(consumer, 10)[-1], asynchronous=False)
    broker.close()
    broker.consumer().assign(at((topic, 0, 0)))
    broker.delete_records(topic, 1)
    servers = ("--bootstrap-server", node.bootstrap_servers)
    segment = str(node.log_dir / f"{topic}-0" / f"{0:020}.log")
    for main_class, *args in (
        (TOPICS, *servers, "--describe"),
        (GET_OFFSETS, *servers, "--topic", topic),
        (CONFIGS, *servers, "--entity-type", "topics", "--entity-name", topic, "--describe", "--all"),
        (CONSUMER_GROUPS, *servers, "--group", group, "--describe"),
        (CONSUMER_GROUPS, *servers, "--group", group, "--reset-offsets", "--all-topics", "--to-earliest", "--execute"),
        (CONSOLE_CONSUMER, *servers, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "3"),
        (VERIFIABLE_PRODUCER, *servers, "--topic", topic, "--max-messages", "10"),
        (VERIFIABLE_CONSUMER, *servers, "--topic", topic, "--group-id", "verifiers", "--reset-policy", "earliest",
         "--max-messages", "10"),
        (DUMP_LOG, "--files", segment, "--print-data-log"),
        (TOPICS, *servers, "--delete", "--topic", topic),
    ):  # fmt: skip
        java_tools.run(main_class, *args)
    broker.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _leave_archives(*sys.argv[1:])
    elif (distribution.cache_folder() / "lib").is_dir():  # if not, Maven has just failed to fetch it
        with contextlib.suppress(distribution.KafkaUnavailable):  # no Java: the tests say so
            class_archive(SERVER)
