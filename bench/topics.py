"""Topics of texts for the Spark bench: lines that compress as logs do, and clicks as JSON."""

import json
import random
from collections.abc import Sequence

from confluent_kafka import Producer

CLICKS_SCHEMA = (
    "id STRING, user STRING, campaign STRING, url STRING, ip STRING, price DECIMAL(10,6), at TIMESTAMP, bot BOOLEAN"
)
CHUNK = 10_000


def clicks(count: int = CHUNK) -> list[bytes]:
    """Clicks of about 200 bytes, all different."""
    chance = random.Random(7)
    return [
        json.dumps(
            {
                "id": f"{chance.getrandbits(64):016x}",
                "user": f"user-{chance.randrange(100_000)}",
                "campaign": f"campaign-{chance.randrange(200)}",
                "url": f"https://shop.example/item/{chance.randrange(10**6)}",
                "ip": f"10.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(256)}",
                "price": chance.randrange(500_000) / 1e6,
                "at": f"2026-11-16T12:{chance.randrange(60):02d}:{chance.randrange(60):02d}.123Z",
                "bot": chance.random() < 0.1,
            }
        ).encode()
        for _ in range(count)
    ]


def lines(size: int, count: int = CHUNK) -> list[bytes]:
    """Texts of so many bytes, which a codec makes about a third as long."""
    chance = random.Random(8)
    words = [f"{chance.getrandbits(40):x}" for _ in range(500)]
    return [" ".join(chance.choices(words, k=size // 8 + 1)).encode()[:size].ljust(size) for _ in range(count)]


def fill(
    address: str,
    topic: str,
    values: Sequence[bytes | tuple[bytes, bytes]],
    *,
    partitions: int,
    records: int,
    codec: str,
) -> float:
    """Produces the values, or keys and values, over and over; bytes of values in all."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": 256 << 10,
            "compression.type": codec,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    failures: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    some = [{"value": one} if isinstance(one, bytes) else {"key": one[0], "value": one[1]} for one in values]
    size = 0
    for number, begin in enumerate(range(0, records, CHUNK)):
        part = [some[at % len(some)] for at in range(begin, min(records, begin + CHUNK))]
        size += sum(len(item["value"]) for item in part)
        where = -1 if "key" in part[0] else number % partitions  # by its key
        producer.produce_batch(topic, part, partition=where, on_delivery=told)
        while len(producer) > 300_000:
            producer.poll(0.005)
    if producer.flush(120) or failures:
        raise RuntimeError(f"records were not taken: {failures[:1] or 'no answer after two minutes'}")
    return size
