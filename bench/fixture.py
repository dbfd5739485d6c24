"""How long a test waits for its broker: logmark.testing beside librdkafka's mock, each in a fresh interpreter.

`python -m bench.fixture logmark|mock SPAWNED_AT` prints the two times as JSON; `measure` runs it.
"""

import json
import subprocess
import sys
import time

from bench.load import REPOSITORY

SIDES = ("logmark", "mock")


def measure(side: str) -> dict[str, float]:
    """Milliseconds to the first acknowledged record: after the import, and from before the interpreter started."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.fixture", side, repr(time.time())],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the fixture {side} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout))


def _first_ack(config: dict[str, object]) -> None:
    from confluent_kafka import Producer

    answers: list[object] = []
    producer = Producer({"linger.ms": 0, **config})
    producer.produce("first", b"record", on_delivery=lambda error, _: answers.append(error))
    producer.flush(30)
    if answers != [None]:
        raise RuntimeError(f"the record was not acknowledged: {answers}")


def _logmark() -> float:
    from logmark.testing import Broker

    imported = time.time()
    with Broker() as broker:
        broker.create_topic("first")
        _first_ack({"bootstrap.servers": broker.bootstrap_servers})
        acknowledged = time.time()
    return _tell(imported, acknowledged)


def _mock() -> float:
    import confluent_kafka  # noqa: F401

    imported = time.time()
    _first_ack({"bootstrap.servers": "", "test.mock.num.brokers": 1})
    return _tell(imported, time.time())


def _tell(imported: float, acknowledged: float) -> float:
    spawned = float(sys.argv[2])
    figures = {"after_import_ms": 1000 * (acknowledged - imported), "cold_ms": 1000 * (acknowledged - spawned)}
    print(json.dumps(figures))
    return acknowledged


if __name__ == "__main__":
    {"logmark": _logmark, "mock": _mock}[sys.argv[1]]()
