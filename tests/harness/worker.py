"""A consumer in a process of its own, so that a test can crash it for real.

Run as a program it takes one JSON command per line and answers one JSON line; `Worker` is the test's side of it.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Received(NamedTuple):
    """One message as the worker got it."""

    partition: int
    offset: int
    value: str


class Worker:
    """A consumer that can be killed: nothing is committed, nobody says goodbye to the broker."""

    def __init__(
        self, config: Mapping[str, Any], *, topic: str, partition: int | None = None, client: str = "confluent-kafka"
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, client],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._ask(do="start", config=dict(config), topic=topic, partition=partition)

    def _send(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the worker has ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["ok"]

    def _ask(self, **command: Any) -> Any:
        self._send(**command)
        return self._answer()

    def assignment(self) -> list[int]:
        """The partitions that the group has given to this worker so far; nothing of them is read yet."""
        return sorted(self._ask(do="assignment"))

    def read(self, count: int) -> list[Received]:
        """The next messages, handed over one by one."""
        return [Received(*each) for each in self._ask(do="read", count=count)]

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commits by hand and waits for the broker's answer."""
        self._ask(do="commit", offsets=sorted(offsets.items()))

    def store(self, partition: int, offset: int) -> None:
        """Has librdkafka's next automatic commit carry this offset."""
        self._ask(do="store", partition=partition, offset=offset)

    def position(self, partition: int) -> int:
        """The next offset that the client will hand over; only the client knows it."""
        return int(self._ask(do="position", partition=partition))

    def crash(self) -> None:
        """Kills the process."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Ends the process without a word to the broker."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


class _Confluent:
    """The worker's own side, with librdkafka."""

    def start(self, config: dict[str, Any], topic: str, partition: int | None) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self.topic = topic
        self.is_reading = False
        self.consumer = Consumer(config)
        if partition is None:
            self.consumer.subscribe([topic], on_assign=self._assigned)
        else:
            self.consumer.assign([TopicPartition(topic, partition)])

    def _assigned(self, consumer: Any, partitions: Sequence[Any]) -> None:
        # A group that is still gathering gives the first worker every partition: nothing is read before the test asks.
        consumer.assign(partitions)
        # A pause outlives the assignment in librdkafka, so it is taken back in words.
        (consumer.resume if self.is_reading else consumer.pause)(partitions)

    def assignment(self) -> list[int]:
        assert self.consumer.poll(0.05) is None, "a message came before the test asked for one"
        return [each.partition for each in self.consumer.assignment()]

    def read(self, count: int) -> list[tuple[int, int, str]]:
        received: list[tuple[int, int, str]] = []
        self.is_reading = True
        self.consumer.resume(self.consumer.assignment())
        deadline = time.monotonic() + 60
        while len(received) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} messages wanted, came: {received}")
            message = self.consumer.poll(0.1)
            if message is not None:
                if message.error():
                    raise RuntimeError(message.error().str())
                received.append((message.partition(), message.offset(), message.value().decode()))
        return received

    def commit(self, offsets: Sequence[tuple[int, int]]) -> None:
        from confluent_kafka import TopicPartition

        wanted = [TopicPartition(self.topic, partition, offset) for partition, offset in offsets]
        self.consumer.commit(offsets=wanted, asynchronous=False)

    def position(self, partition: int) -> int:
        from confluent_kafka import TopicPartition

        return self.consumer.position([TopicPartition(self.topic, partition)])[0].offset

    def store(self, partition: int, offset: int) -> None:
        from confluent_kafka import TopicPartition

        self.consumer.store_offsets(offsets=[TopicPartition(self.topic, partition, offset)])


class _KafkaPython:
    """The worker's own side, with kafka-python: it fetches, commits and answers only inside poll()."""

    def start(self, config: dict[str, Any], topic: str, partition: int | None) -> None:
        from kafka import KafkaConsumer

        assert partition is None
        self.consumer = KafkaConsumer(topic, **{name.replace(".", "_"): value for name, value in config.items()})

    def read(self, count: int) -> list[tuple[int, int, str]]:
        received: list[tuple[int, int, str]] = []
        deadline = time.monotonic() + 60
        while len(received) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} messages wanted, came: {received}")
            # Long: kafka-python 3.0 never takes up an assignment whose answer comes between two polls.
            for messages in self.consumer.poll(timeout_ms=5000, max_records=count - len(received)).values():
                received += [(message.partition, message.offset, message.value.decode()) for message in messages]
        return received


class _Aiokafka:
    """The worker's own side, with aiokafka: its event loop runs on, also while a message is processed."""

    def start(self, config: dict[str, Any], topic: str, partition: int | None) -> None:
        import asyncio
        import threading

        from aiokafka import AIOKafkaConsumer

        assert partition is None
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

        async def begin() -> Any:
            consumer = AIOKafkaConsumer(topic, **{name.replace(".", "_"): value for name, value in config.items()})
            await consumer.start()
            return consumer

        self.consumer = self._run(begin())

    def _run(self, wanted: Any) -> Any:
        import asyncio

        return asyncio.run_coroutine_threadsafe(wanted, self.loop).result(60)

    def read(self, count: int) -> list[tuple[int, int, str]]:
        messages = [self._run(self.consumer.getone()) for _ in range(count)]
        return [(message.partition, message.offset, message.value.decode()) for message in messages]


_CLIENTS = {"confluent-kafka": _Confluent, "kafka-python": _KafkaPython, "aiokafka": _Aiokafka}


def _main() -> None:
    program = _CLIENTS[sys.argv[1]]()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": getattr(program, command.pop("do"))(**command)}
        except Exception as error:  # noqa: BLE001 - the test reads it
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
