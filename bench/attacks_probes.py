"""The well-behaved clients of `bench/attacks.py`, each in a process of its own.

`python -m bench.attacks_probes NAME JSON-ARGUMENTS` prints "ready" when it is served, works until standard input ends,
and prints as JSON when each of its requests was due and how long it took. A request that was due while the one before
it waited counts with the time it would have waited: else a broker that stands still for ten seconds would delay one.
"""

import json
import math
import select
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import wire
from bench.attacks_link import FETCH_VERSION, PROBE_TOPIC, Link, fetch_request
from logmark.wire import batches, fetch, frames
from logmark.wire.schema import heartbeat, offset_commit

GROUP = "well-behaved"
INTERVAL_S = 0.01
# A client of Kafka gives a request up after 30 s.
TIMEOUT_S = 30.0
VALUE_BYTES = 1024
# Every tenth request carries a batch that the broker must reserve memory for.
LARGE_EVERY, LARGE_RECORDS = 10, 100
WARM_UPS = 30


class Broken(Exception):
    """A request that got an error, or no answer."""


class Probe:
    """Sends a request when it is due, notes how long each takes, and connects again when it has to."""

    interval_s = INTERVAL_S

    def __init__(self, address: str) -> None:
        self.address = address
        self.link: Link | None = None
        self.samples: list[tuple[float, float]] = []
        self.errors: Counter[str] = Counter()
        self.number = 0

    def open(self, link: Link) -> None:
        """Prepare a new connection."""

    def send(self, link: Link) -> None:
        """Send one request and wait for its answer."""
        raise NotImplementedError

    def run(self, is_over: Callable[[float], bool]) -> None:
        """Send requests until it is over."""
        due = time.monotonic()
        while not is_over(max(0.0, due - time.monotonic())):
            began = time.monotonic()
            if began < due:
                continue
            try:
                self._send_on_link()
            except (OSError, RuntimeError, Broken) as error:
                self.errors[f"{type(error).__name__}: {error}"] += 1
                self._drop_link()
            ended = time.monotonic()
            self.note(began, ended)
            due = max(due + self.interval_s, ended) if self.link is not None else ended + 0.1
            self.number += 1
            if self.number == WARM_UPS:
                print("ready", flush=True)

    def note(self, began: float, ended: float) -> None:
        """Keep the time of a request."""
        self.keep(began, ended)

    def keep(self, began: float, ended: float, next_began: float = math.inf) -> None:
        """Keep a time, and that of the requests that were due before the next one was sent, while this one waited."""
        due = began
        while due < min(ended, next_began):
            self.samples.append((due, ended - due))
            due += INTERVAL_S

    def _send_on_link(self) -> None:
        if self.link is None:
            self.link = Link(self.address, timeout_s=TIMEOUT_S)
            self.open(self.link)
        self.send(self.link)

    def _drop_link(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None


class Producer(Probe):
    """Writes records of 1 KiB with acks=all; each begins with the time at which it was sent."""

    def send(self, link: Link) -> None:
        count = LARGE_RECORDS if self.number % LARGE_EVERY == 0 else 1
        value = struct.pack(">d", time.monotonic()).ljust(VALUE_BYTES, b".")
        answer = link.exchange(wire.produce_request(PROBE_TOPIC, 0, wire.batch(value, count)))
        if error := wire.produce_error(answer, PROBE_TOPIC):
            raise Broken(f"error code {error} to a Produce")


class Consumer(Probe):
    """Fetches what the producer writes; a sample is the time from its sending to its arrival here."""

    interval_s = 0.0

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._offset: int | None = None
        self._last: tuple[float, float] | None = None  # when the last record was sent, and when it came

    def open(self, link: Link) -> None:
        if self._offset is None:
            self._offset = link.log_end_offset(PROBE_TOPIC)

    def send(self, link: Link) -> None:
        assert self._offset is not None
        answer = link.exchange(fetch_request({PROBE_TOPIC: self._offset}))
        _, at = frames.read_response_header(answer, flexible=False)
        partition = fetch.decode_response(FETCH_VERSION, answer[at:]).topics[0][1][0]
        if partition.error_code:
            raise Broken(f"error code {partition.error_code} to a Fetch")
        now, records, at = time.monotonic(), partition.records, 0
        while len(records) - at >= batches.HEADER_BYTES:
            header = batches.read_header(records, at)
            if at + header.size > len(records):
                break
            if header.base_offset >= self._offset:
                sent = _time_in(records, at + batches.HEADER_BYTES)
                if self._last is not None:
                    self.keep(*self._last, sent)
                self._last = sent, now
                self._offset = header.next_offset
            at += header.size

    def note(self, began: float, ended: float) -> None:
        """Keep nothing: the samples are those of the records."""


def _time_in(records: Any, at: int) -> float:
    """Return the time at the beginning of the first value of a batch whose records begin here."""
    at = _skip_varint(records, at) + 1  # the record's length and its attributes
    for _ in range(4):  # the deltas of timestamp and offset, the lengths of key and value
        at = _skip_varint(records, at)
    return float(struct.unpack_from(">d", records, at)[0])


def _skip_varint(data: Any, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1


class Member(Probe):
    """A member of a group that sends heartbeats and commits in turn."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._joined: Any = None
        self._member = ""

    def open(self, link: Link) -> None:
        link.wait_for_coordinator(GROUP)
        if self._joined is None:
            # A broker that does not know the member any more refuses its id; the next time it joins as a new one.
            member, self._member = self._member, ""
            self._joined = link.join(GROUP, member)
            self._member = self._joined.member_id

    def send(self, link: Link) -> None:
        generation, member = self._joined.generation_id, self._joined.member_id
        if self.number % 2:
            answer = link.ask(heartbeat, 3, group_id=GROUP, generation_id=generation, member_id=member)
            error, sent = answer.error_code, "Heartbeat"
        else:
            partition = offset_commit.RequestPartition(
                partition_index=0, committed_offset=self.number, committed_metadata=""
            )
            topic = offset_commit.RequestTopic(name=PROBE_TOPIC, partitions=[partition])
            answer = link.ask(
                offset_commit,
                7,
                group_id=GROUP,
                generation_id_or_member_epoch=generation,
                member_id=member,
                topics=[topic],
            )
            error, sent = answer.topics[0].partitions[0].error_code, "OffsetCommit"
        if error:
            self._joined = None
            raise Broken(f"error code {error} to a {sent}")


PROBES = {"producer": Producer, "consumer": Consumer, "member": Member}


def main(name: str, address: str) -> None:
    """Run one probe until standard input ends."""
    probe = PROBES[name](address)

    def is_over(wait_s: float) -> bool:
        return bool(select.select([sys.stdin], [], [], wait_s)[0])

    probe.run(is_over)
    samples = [(round(at, 4), round(1000 * seconds, 3)) for at, seconds in probe.samples]
    print(json.dumps({"samples": samples, "errors": dict(probe.errors)}))


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
