"""Apache Kafka's cleaner and ours make the same of the same logs, round after round.

Before each round Apache Kafka's folder is copied, and our log layer cleans the copy at the moment at which Apache Kafka
cleaned the original. Listed differences: compressed bodies, because the libraries compress differently (their content
must be the same, and so must every index where nothing is compressed), and the last stable offsets in a transaction
index, which our recovery of the copy finds anew.
"""

import asyncio
import re
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as TopicPartitionOfClient
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec

from logmark.clock import ManualClock
from logmark.disk.file_system import RealFileSystem
from logmark.log import checkpoints, segment_cleaner, segment_swap
from logmark.log.group_commit import GroupCommit
from logmark.log.partition import Partition
from logmark.log.segment_cleaner import Cleaned, Limits
from logmark.log.settings import TopicSettings
from logmark.log.transactions import AbortedTransactions
from logmark.names import TopicPartition
from logmark.testing import Broker
from logmark.wire import codecs
from tests.compat.test_files import COMPLAINTS
from tests.harness.brokers import QUIET
from tests.harness.gateway import call_tool
from tests.harness.node import KafkaNode, kafka_node, wait_until
from tests.harness.tools import DUMP_LOG
from tests.log.test_compaction import parse
from tests.oracle.records import Batch

pytestmark = pytest.mark.kafka

PLAIN, PACKED = "plain", "packed"
# Few index entries fit, so that a segment has a few batches only.
CONFIG = {
    "cleanup.policy": "compact", "segment.index.bytes": "60", "index.interval.bytes": "1", "retention.ms": "-1",
    "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "1.0", "file.delete.delay.ms": "0",
}  # fmt: skip
WIDE_INDEX = "10485760"
HORIZON = 0x40
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, kw_only=True)
class CleaningPass:
    """One cleaning by Apache Kafka: its folder before and after, and what was in force."""

    topic: str
    number: int
    before: Path
    after: Path
    cleaned_from: int | None
    cleaned_to: int
    retention_ms: int

    @property
    def now_ms(self) -> int:
        """When it ran: a horizon that it set says so."""
        known = {batch.base_timestamp for batch in batches(self.before) if batch.attributes & HORIZON}
        new = {batch.base_timestamp for batch in batches(self.after) if batch.attributes & HORIZON} - known
        assert len(new) <= 1
        return new.pop() - self.retention_ms if new else round(time.time() * 1000)


def files(folder: Path, suffix: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob(f"*{suffix}"))}


def batches(folder: Path) -> list[Batch]:
    return [batch for data in files(folder, ".log").values() for batch in parse(data)]


class Writer:
    """Plain, idempotent and transactional producers that write to one topic, batch by batch."""

    def __init__(self, node: KafkaNode, topic: str, codecs: tuple[str, ...]) -> None:
        self._topic = topic
        common = {"bootstrap.servers": node.bootstrap_servers, "linger.ms": 5, **QUIET}
        self.plain = [Producer({**common, "compression.type": codec, "enable.idempotence": False}) for codec in codecs]
        self.sure = [Producer({**common, "compression.type": codecs[-1], "enable.idempotence": True}) for _ in "ab"]
        self.transactional = []
        for number in range(3):
            options = {"transactional.id": f"{topic}-{number}", "compression.type": codecs[number % len(codecs)]}
            self.transactional.append(Producer({**common, **options}))
            self.transactional[-1].init_transactions(60)

    def send(self, producer: Producer, records: dict[str, str | None]) -> None:
        for key, value in records.items():
            producer.produce(
                self._topic, key=key, value=value, partition=0, headers=[("h", b"1"), ("none", None)] if value else None
            )
        assert 0 == producer.flush(60)

    def transaction(self, number: int, records: dict[str, str | None], *, commit: bool) -> None:
        producer = self.transactional[number]
        producer.begin_transaction()
        self.send(producer, records)
        producer.commit_transaction(60) if commit else producer.abort_transaction(60)

    def fill(self) -> None:
        """Enough small batches to leave everything before them in inactive segments."""
        for number in range(12):
            self.send(self.plain[0], {f"filler-{number % 2}": "x"})

    def first_round(self) -> None:
        for at, producer in enumerate(self.plain):
            self.send(producer, {f"key-{number}": f"old {at}" for number in range(8)})
            self.send(producer, {f"own-{at}-{number}": "stays" * 9 for number in range(3)})
            self.send(producer, {f"key-{number}": f"new {at}" for number in range(at, 5)})
        for producer in self.sure:
            self.send(producer, {"sure": "first", "key-1": "newest"})
            self.send(producer, {"sure": "second"})
        self.transaction(0, {"paid": "yes", "key-2": "committed"}, commit=True)
        self.transaction(0, {"paid": "no", "key-3": "aborted"}, commit=False)
        self.transaction(1, {"gone": "soon"}, commit=True)
        self.transaction(1, {"gone": None}, commit=True)
        self.transaction(2, {"only": "aborted"}, commit=False)
        self.send(self.plain[0], {"own-0-1": None, "key-7": None, "never": None})
        self.send(self.sure[0], {"key-6": None, "sure": "third"})
        self.transaction(0, {"paid": "at last"}, commit=True)
        self.fill()

    def second_round(self) -> None:
        self.send(self.sure[1], {"key-5": None, "late": "here"})
        self.transaction(1, {"gone": "again"}, commit=True)
        self.send(self.plain[-1], {"key-4": "after the horizon", "own-0-2": None})
        self.fill()

    def third_round(self) -> None:
        self.send(self.plain[0], {"late": "gone", "another": None})
        self.transaction(2, {"last": "one"}, commit=False)
        self.fill()


def configure(node: KafkaNode, topic: str, **values: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers, **QUIET})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(60)


def wait_until_in_force(node: KafkaNode) -> None:
    """Return when the broker has applied every change of configuration that was answered.

    It applies changes one after the other, some time after the answer: when the second topic has its folder, all that
    came before the first one is applied.
    """
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers, **QUIET})
    for _ in range(2):
        name = f"in-force-{uuid.uuid4()}"
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(60)
        wait_until((node.log_dir / f"{name}-0").exists, f"Apache Kafka has made {name}")


def wait_until_ended(node: KafkaNode, topic: str) -> None:
    """Return when the markers of all transactions are written: the answer to their end may come before."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers, **QUIET})
    partition = TopicPartitionOfClient(topic, 0)

    def end(level: IsolationLevel) -> int:
        return admin.list_offsets({partition: OffsetSpec.latest()}, isolation_level=level)[partition].result(60).offset

    wait_until(
        lambda: end(IsolationLevel.READ_COMMITTED) == end(IsolationLevel.READ_UNCOMMITTED),
        f"every transaction in {topic} has ended",
    )


def cleaned_to(node: KafkaNode, topic: str) -> int | None:
    path = node.log_dir / "cleaner-offset-checkpoint"
    return checkpoints.read_offsets(path.read_bytes()).get(TopicPartition(topic, 0)) if path.exists() else None


def last_base(folder: Path) -> int:
    return int(max(path.name for path in folder.glob("*.log"))[:20])


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.deleted"))
    return target


def run_pass(node: KafkaNode, topic: str, number: int, retention_ms: int, path: Path) -> CleaningPass:
    folder = node.log_dir / f"{topic}-0"
    wait_until_ended(node, topic)
    before = copy(folder, path / f"{topic}-{number}-before")
    began, end = cleaned_to(node, topic), last_base(folder)
    configure(
        node, topic, min_cleanable_dirty_ratio="0.0", segment_index_bytes=WIDE_INDEX,
        delete_retention_ms=str(retention_ms),
    )  # fmt: skip
    wait_until(lambda: (cleaned_to(node, topic) or -1) >= end, f"Apache Kafka has compacted {topic}")
    configure(node, topic, min_cleanable_dirty_ratio="1.0", segment_index_bytes=CONFIG["segment.index.bytes"])
    # Else the cleaner might continue with the next round's records, by this round's retention.
    wait_until_in_force(node)
    wait_until(lambda: not list(folder.glob("*.swap")), "the swap is done")
    after = copy(folder, path / f"{topic}-{number}-after")
    return CleaningPass(
        topic=topic, number=number, before=before, after=after, cleaned_from=began, cleaned_to=end,
        retention_ms=retention_ms,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CleaningPasses:
    """What Apache Kafka did."""

    passes: list[CleaningPass]
    refusal: str


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> CleaningPasses:
    """Three rounds on two topics: the first sets horizons that pass at once, the second some that do not pass."""
    path = tmp_path_factory.mktemp("compaction")
    found = []
    settings = {"log.cleaner.backoff.ms": "50", "log.cleaner.dedupe.buffer.size": "4194304"}
    with kafka_node(path / "node", settings) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers, **QUIET})
        topics = [NewTopic(name, num_partitions=1, replication_factor=1, config=CONFIG) for name in (PLAIN, PACKED)]
        for made in admin.create_topics(topics).values():
            made.result(60)
        for topic, of_topic in ((PLAIN, ("none",)), (PACKED, CODECS)):
            writer = Writer(node, topic, of_topic)
            rounds = ((writer.first_round, 1), (writer.second_round, 3_600_000), (writer.third_round, 3_600_000))
            for number, (write, retention_ms) in enumerate(rounds):
                write()
                found.append(run_pass(node, topic, number, retention_ms, path))
        return CleaningPasses(passes=found, refusal=refusal(node.bootstrap_servers, PLAIN))


@pytest.fixture
def passes(seen: CleaningPasses) -> list[CleaningPass]:
    return seen.passes


def compact(made: CleaningPass, folder: Path) -> Partition:
    """Cleans a copy of what Apache Kafka cleaned, at the same moment."""
    copy(made.before, folder)
    loop = asyncio.new_event_loop()
    system = RealFileSystem(sync=False)
    committer = GroupCommit(loop, durability="os")
    clock = ManualClock(made.now_ms)
    settings = TopicSettings(
        {**CONFIG, "segment.index.bytes": WIDE_INDEX, "delete.retention.ms": str(made.retention_ms)}
    )
    partition = Partition.open(
        str(folder), made.topic, 0, bytes(16), settings, files=system, committer=committer, clock=clock, clean=False,
        cleaned_to=made.cleaned_from,
    )  # fmt: skip
    part = partition.dirty_part(clock.now_ms())
    assert part is not None and made.cleaned_to == part.end_offset
    for found in segment_cleaner.clean(partition.cleaning_plan(part, now_ms=clock.now_ms(), limits=Limits()), system):
        if isinstance(found, Cleaned):
            incoming = segment_swap.load(str(folder), found, system)
            loop.run_until_complete(partition.take_over(incoming, now_ms=clock.now_ms()))
        else:
            assert made.cleaned_to == found.cleaned_to
    clock.advance(seconds=1)
    partition.apply_retention(clock.now_ms())
    partition.close()
    committer.close()
    loop.close()
    return partition


def without_codec(data: bytes) -> list[bytes]:
    """Every batch with its records as they were before compression, and without length and checksum."""
    found, at = [], 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        body = codecs.decompress(data[at + 22] & 7, data[at + 61 : end], bytes_max=1 << 24) if end - at > 61 else b""
        found.append(data[at : at + 8] + data[at + 12 : at + 17] + data[at + 21 : at + 61] + body)
        at = end
    return found


@pytest.mark.parametrize("number", [0, 1, 2], ids=["first round", "second round", "third round"])
@pytest.mark.parametrize("topic", [PLAIN, PACKED])
def test_the_same_batches_survive(passes: list[CleaningPass], tmp_path: Path, topic: str, number: int) -> None:
    (made,) = (each for each in passes if (each.topic, each.number) == (topic, number))
    folder = tmp_path / f"{topic}-0"

    compact(made, folder)

    theirs, ours = files(made.after, ".log"), files(folder, ".log")
    assert list(theirs) == list(ours)
    for name, data in theirs.items():
        assert without_codec(data) == without_codec(ours[name]), name
    if topic == PLAIN:
        assert theirs == ours
        inactive = [name[:20] for name in theirs][:-1]
        for suffix in (".index", ".timeindex"):
            for digits in inactive:
                assert files(made.after, suffix)[digits + suffix] == files(folder, suffix)[digits + suffix]
    assert aborted(made.after) == aborted(folder)
    assert len(batches(made.after)) < len(batches(made.before))


def aborted(folder: Path) -> dict[str, list[tuple[int, ...]]]:
    return {
        name: [entry[:3] for entry in AbortedTransactions.decode(data, base_offset=int(name[:20])).entries]
        for name, data in files(folder, ".txnindex").items()
    }


def test_the_rounds_have_seen_every_rule_at_work(passes: list[CleaningPass]) -> None:
    first, second, third = (each for each in passes if each.topic == PLAIN)
    of_kind = {
        name: [batch for batch in batches(made.after) if is_it(batch)]
        for name, made, is_it in (
            ("emptied batches", first, lambda batch: not batch.records),
            (
                "tombstones with a horizon",
                first,
                lambda batch: batch.attributes & HORIZON and not batch.attributes & 0x20,
            ),
            (
                "idle markers with a horizon",
                second,
                lambda batch: batch.attributes & HORIZON and batch.attributes & 0x20,
            ),
            ("tombstones that wait", third, lambda batch: any(record.value is None for record in batch.records)),
        )
    }
    assert all(of_kind.values()), {name: len(found) for name, found in of_kind.items()}
    assert len(files(first.after, ".log")) < len(files(first.before, ".log"))

    def tombstones(folder: Path) -> set[bytes | None]:
        return {record.key for batch in batches(folder) for record in batch.records if record.value is None}

    assert b"key-7" in tombstones(first.after) - tombstones(second.after)
    assert {b"key-5", b"own-0-2"} <= tombstones(second.after) & tombstones(third.after)


def dumped(option: str, folder: Path, suffixes: tuple[str, ...], *, is_closed: bool) -> str:
    """What Apache Kafka's tool says of a folder; the indexes of an open log are no files that can be read."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in suffixes)
    if not is_closed:
        names = [name for name in names if int(name[:20]) < last_base(folder)]
    result = call_tool(DUMP_LOG, option, "--files", ",".join(str(folder / name) for name in names)).check()
    return (result.stdout + result.stderr).replace(str(folder), "")


def findings(text: str) -> list[str]:
    """Whatever the tool complains of, line by line."""
    told = re.findall(r"^Found timestamp mismatch in .*\n.*", text, re.MULTILINE)
    left = re.sub(r"^Found timestamp mismatch in .*\n.*", "", text, flags=re.MULTILINE)
    return told + [line for line in left.splitlines() if any(complaint in line for complaint in COMPLAINTS)]


def test_dump_log_segments_finds_nothing_in_our_files_that_it_does_not_find_in_its_own(
    passes: list[CleaningPass], tmp_path: Path
) -> None:
    """It takes the largest timestamp of an emptied batch for -1, in any log, and so calls its time index wrong."""
    (made,) = (each for each in passes if (each.topic, each.number) == (PACKED, 1))
    folder = tmp_path / f"{PACKED}-0"
    compact(made, folder)

    kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    ours, theirs = (dumped("--deep-iteration", path, kinds, is_closed=path is folder) for path in (folder, made.after))
    assert findings(theirs) == findings(ours)
    assert not [each for each in findings(ours) if "log timestamp: -1" not in each]
    count = sum(len(batch.records) for batch in batches(folder))
    assert count == len(re.findall(r"^\| offset: \d+", ours, re.MULTILINE))
    for option in ("--verify-index-only", "--index-sanity-check"):
        said = dumped(option, folder, (".index", ".timeindex"), is_closed=True)
        assert not [each for each in findings(said) if "log timestamp: -1" not in each]


def refusal(bootstrap_servers: str, topic: str) -> str:
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap_servers, **QUIET})
    producer.produce(topic, value=b"without a key", partition=0, on_delivery=on_delivery)
    producer.flush(60)
    return errors[0].name()


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(seen: CleaningPasses) -> None:
    with Broker() as broker:
        broker.create_topic(PLAIN, config={"cleanup.policy": "compact"})
        assert "INVALID_RECORD" == seen.refusal == refusal(broker.bootstrap_servers, PLAIN)
