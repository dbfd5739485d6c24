"""How fast `logmark replay` copies: records in a second through a broker in a process of its own.

`python -m bench.replay` prints a line for each way; `--records` and `--kafka` (Apache Kafka beside ours).
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from bench import sides
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.bounded_replay.copier import ReplayCopier
from logmark.offsets.bounded_replay.plan import plan_target, resolve_ranges, start_run
from logmark.offsets.bounded_replay.runs import ReplayRequest, RunStore
from logmark.wire import batches, codecs

VALUE_BYTES = 100
BATCH_RECORDS = 1000
# To a topic with as many partitions, to one with more of them (by key), one key of ten, and compressed as it is.
WAYS = {
    "whole, same partitions": ("plain", 1, {}),
    "whole, by key to 6 partitions": ("plain", 6, {}),
    "one key of ten": ("plain", 1, {"keys": (b"key-7".hex(),)}),
    "whole, zstd kept": ("zstd", 1, {}),
}


def measure(address: str, records: int, folder: Path) -> dict[str, tuple[int, float]]:
    """The records copied and the seconds for each way."""
    found = {}
    with Client(address) as client:
        for name, codec in (("plain", codecs.NONE), ("zstd", codecs.ZSTD)):
            client.create_topic(name, partitions=1, replication_factor=1)
            _fill(client, name, records, codec)
        for index, (way, (source, partitions, asked)) in enumerate(WAYS.items()):
            target = f"target-{index}"
            client.create_topic(target, partitions=partitions, replication_factor=1)
            request = ReplayRequest(topic=source, to_topic=target, **asked)
            now_ms = time.time_ns() // 1_000_000
            sought = resolve_ranges(client, request, now_ms=now_ms)
            goal = plan_target(client, client, request, sought, now_ms=now_ms)
            run = start_run(client, request, sought, goal, target_cluster=goal.cluster_id, now_ms=now_ms)
            began = time.perf_counter()
            done = ReplayCopier(client, client, run, RunStore(folder / "state")).copy()
            found[way] = done.copied, time.perf_counter() - began
    return found


def _fill(client: Client, topic: str, records: int, codec: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (b"key-%d" % (number % 10), b"%0*d" % (VALUE_BYTES, number)) for number in range(BATCH_RECORDS)
    ]
    for _ in range(0, records, BATCH_RECORDS):
        client.produce(TopicPartition(topic, 0), batches.build(pairs, timestamp_ms=now_ms, codec=codec))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000, help="how many records the topic has")
    parser.add_argument("--kafka", action="store_true", help="measure on Apache Kafka too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="logmark-bench-") as name:
        brokers: list[tuple[str, Callable[[], AbstractContextManager[sides.Running]]]] = [
            ("logmark", lambda: sides.logmark(Path(name) / "logmark", durability="sync"))
        ]
        if options.kafka:
            brokers.append(("kafka", lambda: sides.kafka(Path(name) / "kafka")))
        for broker, start in brokers:
            with start() as side:
                for way, (copied, seconds) in measure(side.address, options.records, Path(name) / broker).items():
                    rate = options.records / seconds
                    print(f"{broker:8} {way:30} {copied:>8} copied in {seconds:5.2f} s, {rate:>9,.0f} records/s read")


if __name__ == "__main__":
    main()
