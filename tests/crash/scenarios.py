"""Scripts of what a broker does, run on a disk that remembers every moment at which it could crash."""

import contextlib
import random
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from logmark.clock import ManualClock
from logmark.disk.file_system import FileSystem
from logmark.log.partition import Partition
from logmark.log.wal.entries import BLOCK_BYTES, HEADER_BYTES
from logmark.log.wal.log import FOLDER
from logmark.names import TopicPartition
from logmark.wire import batches
from tests.crash.broker_logs import PATH, BrokerLogsDriver, drawing
from tests.crash.crash_file_system import CrashFileSystem, Fate, PowerLoss
from tests.crash.promises import NOW_MS, PRODUCER_ID, Promises

TOPICS = ("clicks", "orders", "profiles")
OVERRIDES = {"clicks": {}, "orders": {"file.delete.delay.ms": "0"}, "profiles": {"cleanup.policy": "compact"}}
# Some topics have room for batches that take several blocks of the WAL.
LARGE, LARGER = {"segment.bytes": "1048576"}, 6

Script = list[tuple]
# How often each is done: most of a log's life is appending.
WEIGHTS = {
    "append": 12, "end transaction": 2, "create": 1, "sync": 4, "settle": 6, "flush": 2, "retain": 2,
    "delete records": 1, "checkpoint": 2, "restart": 1, "delete": 1, "kill": 1, "power loss": 1,
}  # fmt: skip


def script_of(seed: int) -> Script:
    """A script that depends on nothing but a number."""
    choose = random.Random(seed)
    share = lambda: choose.randrange(1000)  # noqa: E731
    arguments = {
        "append": lambda: (
            share(), choose.choice([-1, 0, 1, 100, 101]), choose.choice([1, 1, 2, 3]), choose.choice([0, 300, 1000])
        ),
        "end transaction": lambda: (share(), choose.random() < 0.5),
        "create": lambda: (share(), choose.randint(1, 2)),
        "sync": lambda: (share(), choose.randint(1, 9)),
        "retain": lambda: (choose.randint(0, 6),),
        "delete records": lambda: (share(), share()),
        "delete": lambda: (share(),),
        "power loss": lambda: (share(),),
    }  # fmt: skip
    steps = choose.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=choose.randint(5, 60))
    return [(step, *arguments.get(step, tuple)()) for step in steps]


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment at which the broker may crash: the disk as it is, what was promised, and where the script stood."""

    disk: CrashFileSystem
    promises: Promises
    doing: str


class Crashed(BaseException):
    """The broker is gone; nothing that it was doing goes on."""


class ScriptRun:
    """One script on one disk."""

    def __init__(self, disk: FileSystem, *, path: str = PATH, moments: bool = True) -> None:
        self.disk = disk
        self.path = path
        self.clock = ManualClock(NOW_MS)
        self.promises = Promises()
        self.moments: list[Moment] = []
        self.driver: BrokerLogsDriver | None = None
        self._doing = "start"
        self._number = 0
        self._keeps_moments = moments

    @property
    def _crash_disk(self) -> CrashFileSystem:
        assert isinstance(self.disk, CrashFileSystem), "only a disk that keeps its states can be crashed"
        return self.disk

    def run(self, script: Script) -> None:
        """Does everything in the script."""
        for _ in self.steps(script):
            pass
        self._doing = "end"
        self._remember()

    def steps(self, script: Script) -> Iterator[Promises]:
        """Does everything in the script, and says what is promised before its first step and after each."""
        self._start(self.disk)
        yield self.promises.at(self.driver)
        for step in script:
            self._doing = str(step)
            name, *arguments = step
            getattr(self, "_" + name.replace(" ", "_"))(*arguments)
            yield self.promises.at(self.driver)

    def _remember(self) -> None:
        if self._keeps_moments:
            self.moments.append(Moment(self._crash_disk.killed(), self.promises.at(self.driver), self._doing))

    def _start(self, disk: FileSystem) -> None:
        self.disk, self.driver = disk, None
        if self._keeps_moments:
            self._crash_disk.before_change = self._remember
        self.driver = BrokerLogsDriver(disk, self.clock, self.path)

    # Finding

    def _topic(self, share: int) -> str | None:
        names = sorted(self.promises.topics)
        return names[share % len(names)] if names else None

    def _partition(self, share: int) -> Partition | None:
        partitions = self.driver.partitions()
        return partitions[share % len(partitions)] if partitions else None

    # Doing

    def _create(self, share: int, partitions: int) -> None:
        name = TOPICS[share % len(TOPICS)]
        if name not in self.promises.topics:
            self.promises.begin_topic(name, partitions)
            overrides = OVERRIDES[name] | (LARGE if share % 5 == 4 else {})
            self.promises.certain(name, self.driver.create_topic(name, partitions, overrides).id)

    def _delete(self, share: int) -> None:
        name = self._topic(share)
        if name is not None:
            self.promises.topics[name].is_certain = False
            self.driver.delete_topic(name)
            del self.promises.topics[name]

    def _append(self, share: int, producer: int, count: int, size: int) -> None:
        partition = self._partition(share)
        if partition is None:
            self._create(share, 1 + share % 2)
            partition = self._partition(share)
        producer_id = -1 if producer < 0 else PRODUCER_ID + producer
        # More than five batches in flight are more than Kafka's producers send.
        unsettled = [sent for sent in self.promises.log(partition).sent.get(producer_id, [])
                     if sent.base_offset >= partition.high_watermark]  # fmt: skip
        if len(unsettled) >= 4:
            self._settle()
        if partition.settings.segment_bytes == int(LARGE["segment.bytes"]):
            size *= LARGER
        values = []
        for _ in range(count):
            self._number += 1
            values.append(self._value(random.Random(self._number), size // count, partition))
        self.promises.append(self.driver, partition, values, producer_id)

    def _value(self, choose: random.Random, size: int, partition: Partition) -> bytes:
        """What an adversary would send: zeros, batches with any offset, what the WAL holds; and random bytes."""
        name, size = b"%d:" % self._number, choose.randrange(size + 1)
        kind = choose.choice(["random", "zeros", "batches", "wal", "entries"])
        if kind == "zeros":
            return name + bytes(size)
        if kind == "batches":
            made = batches.build([(b"key", b"forged")], timestamp_ms=NOW_MS)
            offsets = [0, 1, 5, 1_500_000_000, partition.log_end_offset + 1, partition.log_end_offset + 2]
            struct.pack_into(">q", made, 0, choose.choice(offsets))
            return name + (bytes(made) * (size // len(made) + 1))[:size]
        blocks = self._wal_blocks()
        if kind == "wal" and blocks:
            return name + choose.choice(blocks)[:size]
        if kind == "entries" and blocks:
            # At the start of each block of the entry that the batch comes into, if it is the first one there.
            block = choose.choice([block for block in blocks if block.startswith(b"WALE")] or blocks)
            before = len(batches.build([(b"key", name + bytes(size))], timestamp_ms=NOW_MS)) - size - 1
            padding = choose.randbytes(-(HEADER_BYTES + before) % BLOCK_BYTES)
            return name + (padding + block * (size // BLOCK_BYTES + 1))[:size]
        return name + choose.randbytes(size)

    def _wal_blocks(self) -> list[bytes]:
        """Return the blocks of the WAL that are not all zeros: headers, entries, and those of a file's former life."""
        folder = f"{self.path}/{FOLDER}"
        if not self.disk.exists(folder):
            return []
        contents = [self.disk.read(f"{folder}/{name}") for name in self.disk.listdir(folder) if name.endswith(".wal")]
        found = [content[at : at + BLOCK_BYTES] for content in contents for at in range(0, len(content), BLOCK_BYTES)]
        return [block for block in found if any(block)]

    def _end_transaction(self, share: int, commit: bool) -> None:
        undecided = [
            (partition, each)
            for partition in self.driver.partitions()
            for each in self.promises.log(partition).transactions
            if each.marker is None
        ]
        if undecided:
            partition, transaction = undecided[share % len(undecided)]
            self.promises.end_transaction(self.driver, partition, transaction, commit=commit)

    def _sync(self, share: int, steps: int) -> None:
        self.driver.committer.begin()
        for _ in range(steps):
            self.driver.committer.step(share)

    def _settle(self) -> None:
        self.driver.settle()

    def _flush(self) -> None:
        self.driver.flush()

    def _retain(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)
        self.driver.logs.look_after()

    def _delete_records(self, share: int, before: int) -> None:
        partition = self._partition(share)
        if partition is not None and partition.settings.is_deleted:
            log = self.promises.log(partition)
            target = partition.deletion_target(before % (partition.high_watermark + 1))
            # A crash before the answer leaves the one or the other.
            log.start_possible = max(log.start_possible, target)
            with self.driver.logs.announce_log_starts({TopicPartition(partition.topic, partition.index): target}):
                self._checkpoint()
                log.start = partition.delete_records(target)

    def _checkpoint(self) -> None:
        self.driver.logs.checkpoint()()

    def _restart(self) -> None:
        assert self.driver.close()
        self.promises.is_closed = True
        self._remember()
        self.promises.is_closed = False
        self._begin_again(self.disk.killed() if isinstance(self.disk, CrashFileSystem) else self.disk)

    def _kill(self) -> None:
        self._begin_again(self._crash_disk.killed())

    def _power_loss(self, seed: int) -> None:
        choose = random.Random(seed)
        loss = choose.choice(list(self._crash_disk.power_losses()))
        self._begin_again(self._crash_disk.after(loss))

    def _begin_again(self, disk: FileSystem) -> None:
        self.promises = self.promises.at(self.driver)
        self._start(disk)
        self.promises.check(self.driver)


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash of a run: at a moment, how, and whether the recovery crashes too."""

    moment: Moment
    loss: PowerLoss | None
    again: int | None = None

    def disk(self) -> CrashFileSystem:
        """Return the disk as the crash leaves it."""
        return self.moment.disk.killed() if self.loss is None else self.moment.disk.after(self.loss)

    @property
    def state(self) -> int:
        """What tells it from other crashes: the disk, what was acknowledged, and the crash of the recovery."""
        topics = self.moment.promises.topics.items()
        told = [(name, [(log.acknowledged, log.start) for log in topic.partitions]) for name, topic in topics]
        unsynced = self.loss is None and [change.number for change in self.moment.disk.unsynced()]
        return hash((frozenset(self.disk().image().items()), str(told), str(unsynced), self.again))

    @property
    def kind(self) -> str:
        """What was lost, and whether the recovery crashed too."""
        if self.loss is None:
            return "killed, and power lost after that"
        again = ", and again in the recovery" if self.again is not None else ""
        return re.sub(r"\d+ ", "", self.loss.name) + again

    def __str__(self) -> str:
        how = "killed" if self.loss is None else f"power lost, {self.loss.name}"
        again = "" if self.again is None else f", and again in the recovery (seed {self.again})"
        return f"{how} while doing {self.moment.doing}{again}"


def crashes(moments: list[Moment], choose: random.Random, count: int) -> Iterator[Crash]:
    """So many crashes of a run that leave different states, spread over its moments and over the kinds of crash."""
    seen: set[int] = set()
    # A short run does not have so many.
    for _ in range(4 * count):
        if len(seen) == count:
            return
        moment = choose.choice(moments)
        kind = choose.random()
        if kind < 0.1:
            loss = None
        elif kind < 0.2:
            loss = moment.disk.any_power_loss(choose)
        else:
            loss = choose.choice(list(moment.disk.power_losses()))
        again = choose.randrange(2**32) if loss is None or choose.random() < 0.2 else None
        crash = Crash(moment, loss, again)
        state = crash.state
        if state not in seen:
            seen.add(state)
            yield crash


class Recoveries:
    """Recovers from crashes, of one version of the code.

    A recovery depends on nothing but the disk and on what was promised: where both are the same again, it has been seen
    how it ends. Most crashes differ only until the recovery after them.
    """

    def __init__(self) -> None:
        self._survived: set[int] = set()

    def survive(self, crash: Crash) -> None:
        """Recovers from a crash, checks every promise, goes on, and checks again after another start."""
        passed: list[int] = []
        for state in states_after(crash):
            if state in self._survived:
                break
            passed.append(state)
        self._survived.update(passed)


def states_after(crash: Crash) -> Iterator[int]:
    """What the further checks of a crash depend on, again and again until it is survived."""
    for life, (disk, promises) in enumerate(_lives_after(crash)):
        yield hash((life, frozenset(disk.image().items()), promises.key))


def _lives_after(crash: Crash) -> Iterator[tuple[CrashFileSystem, Promises]]:
    """The lives of a broker after a crash: the disk on which each begins, and what was promised before it."""
    promises, clock = crash.moment.promises.at(None), ManualClock(NOW_MS + 60_000)
    disk = crash.disk()
    if promises.is_closed:
        promises.check_files(disk, PATH)
    if crash.again is not None:
        with drawing(0):
            disk = _crash_in_recovery(disk, promises, clock, random.Random(crash.again))
    assert not disk.unsynced(), "what the disk may still lose belongs to its state"
    yield disk, promises
    with drawing(1):
        driver = BrokerLogsDriver(disk, clock)
        promises.check(driver)
        promises.check_producers(driver)
        promises.go_on(driver)
    disk = disk.after(PowerLoss("nothing unsynced kept", {}, Fate.LOST))
    yield disk, promises
    with drawing(2):
        driver = BrokerLogsDriver(disk, clock)
        promises.check(driver)
        assert driver.close()
    disk = disk.after(PowerLoss("nothing unsynced kept", {}, Fate.LOST))
    yield disk, promises
    promises.check_files(disk, PATH)
    with drawing(3):
        promises.check(BrokerLogsDriver(disk, clock))


def _crash_in_recovery(
    disk: CrashFileSystem, promises: Promises, clock: ManualClock, choose: random.Random
) -> CrashFileSystem:
    """The disk after a power loss in the middle of a recovery, or right after it, when readers have seen its work."""
    left = choose.choice([choose.randrange(20), 1000])

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crashed

    disk.before_change = count_down
    with contextlib.suppress(Crashed):
        promises.check(BrokerLogsDriver(disk, clock))
    disk.before_change = lambda: None
    # The start that crashed has taken the mark of the good stop away.
    promises.is_closed = False
    return disk.after(choose.choice([*disk.power_losses(), disk.any_power_loss(choose)]))
