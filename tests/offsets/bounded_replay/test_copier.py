"""A replay copies each record once, in order, whatever interrupts it."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, RefusedByBroker
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.bounded_replay import copier
from logmark.offsets.bounded_replay.copier import ReplayCopier
from logmark.offsets.bounded_replay.copy_headers import copy_source
from logmark.offsets.bounded_replay.plan import check_unchanged, plan_target, resolve_ranges, start_run
from logmark.offsets.bounded_replay.rate import Rate
from logmark.offsets.bounded_replay.runs import ReplayRequest, ReplayRun, RunStore
from logmark.offsets.records import Record, read_records
from logmark.testing import Broker
from logmark.wire import batches, codecs
from tests.harness.brokers import BrokerUnderTest

NOW = 1_700_000_000_000
FOREVER = {"retention.ms": "-1"}


class Killed(BaseException):
    """The process is gone: nothing runs after it, not even what would tidy up."""


@dataclass(slots=True)
class StepLimit:
    """Counts the steps of a run and ends it at one of them; after Ctrl-C there is time to save."""

    ends_at: int | None = None
    end: type[BaseException] = Killed
    steps: int = 0

    def step(self) -> None:
        if self.steps == self.ends_at:
            self.ends_at = self.ends_at if self.end is Killed else None
            raise self.end
        self.steps += 1


class MortalClient(Client):
    """A client that may die before and after every write."""

    step_limit: StepLimit

    def produce(self, partition: TopicPartition, batch: bytes | bytearray) -> int:
        self.step_limit.step()
        written = super().produce(partition, batch)
        self.step_limit.step()
        return written


class MortalStore(RunStore):
    """A store that may die before and after every save."""

    step_limit: StepLimit

    def save(self, run: ReplayRun) -> None:
        self.step_limit.step()
        super().save(run)
        self.step_limit.step()


@dataclass(slots=True)
class CopyScenario:
    """Two topics, a folder for runs, and clients on one broker."""

    broker: BrokerUnderTest
    client: MortalClient
    folder: Path
    source: str = ""
    target: str = ""
    clock: float = 0.0

    def fill(self, batches_of: dict[int, list[list[tuple[bytes | None, bytes]]]], **options: Any) -> None:
        for number, held in batches_of.items():
            for index, records in enumerate(held):
                self.client.produce(
                    TopicPartition(self.source, number), batches.build(records, timestamp_ms=NOW + index, **options)
                )

    def begin(self, **asked: Any) -> ReplayRun:
        request = ReplayRequest(topic=self.source, to_topic=self.target, **asked)
        sought = resolve_ranges(self.client, request, now_ms=NOW)
        goal = plan_target(self.client, self.client, request, sought, now_ms=NOW)
        return start_run(self.client, request, sought, goal, target_cluster=goal.cluster_id, now_ms=NOW)

    def copier(
        self, run: ReplayRun, *, step_limit: StepLimit | None = None, saves: bool = True, **options: Any
    ) -> ReplayCopier:
        store = MortalStore(self.folder)
        self.client.step_limit = store.step_limit = step_limit or StepLimit()
        return ReplayCopier(
            self.client, self.client, run, store, clock=self.tick if saves else lambda: 0.0,
            sleep=lambda seconds: None, **options,
        )  # fmt: skip

    def tick(self) -> float:
        self.clock += 1
        return self.clock

    def copies(self, topic: str = "", since: ReplayRun | None = None) -> dict[TopicPartition, list[Record]]:
        topic = topic or self.target
        partitions = self.client.metadata([topic]).partitions(topic)
        starts = {one: since.targets[one].end if since else 0 for one in partitions}
        ends = self.client.latest(partitions)
        return {one: list(read_records(self.client, one, starts[one], ends[one])) for one in partitions}

    def came_from(self, run: ReplayRun) -> dict[TopicPartition, list[tuple[int, int]]]:
        found = {}
        for partition, records in self.copies(since=run).items():
            sources = [copy_source(record.headers, run.id.encode()) for record in records]
            found[partition] = [one for one in sources if one is not None]
        return found


@pytest.fixture
def scenario(broker: BrokerUnderTest, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CopyScenario]:
    sources, targets = getattr(request, "param", (2, 3))
    with MortalClient(broker.bootstrap_servers) as client:
        client.step_limit = StepLimit()
        yield CopyScenario(
            broker, client, tmp_path,
            source=broker.create_topic("orders", sources, FOREVER),
            target=broker.create_topic("sandbox", targets, FOREVER),
        )  # fmt: skip


def assert_once_and_in_order(scenario: CopyScenario, run: ReplayRun, expected: dict[int, int]) -> None:
    """Every offset of the partitions was copied once, and each way from partition to partition is in order."""
    found = scenario.came_from(run)
    counted = Counter(source for sources in found.values() for source in sources)
    assert {(number, offset): 1 for number, size in expected.items() for offset in range(size)} == counted
    for target, sources in found.items():
        for number in expected:
            offsets = [offset for partition, offset in sources if partition == number]
            assert sorted(offsets) == offsets, f"out of order in {target}"


def keyed(number: int, sizes: list[int]) -> list[list[tuple[bytes | None, bytes]]]:
    values = iter(range(10_000))
    return [[(b"k%d" % (value % 7), b"%d-%d" % (number, value)) for value, _ in zip(values, range(size), strict=False)]
            for size in sizes]  # fmt: skip


SIZES = [3, 1, 3]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small writes, so that there are many points between them."""
    monkeypatch.setattr(copier, "_GATHERED_BYTES", 1)
    monkeypatch.setattr(copier, "_BATCH_BYTES", 600)


@pytest.mark.parametrize(
    ("end", "saves"),
    [(Killed, True), (Killed, False), (KeyboardInterrupt, False)],
    ids=["killed", "killed-without-a-save", "ctrl-c"],
)
def test_a_run_that_ends_at_any_step_and_is_resumed_copies_each_record_once(
    scenario: CopyScenario, small: None, end: type[BaseException], saves: bool
) -> None:
    scenario.fill({number: keyed(number, SIZES) for number in (0, 1)})
    step_limit = StepLimit()
    whole = scenario.begin()
    scenario.copier(whole, step_limit=step_limit, saves=saves).copy()
    assert_once_and_in_order(scenario, whole, {0: 7, 1: 7})

    # Apache Kafka takes longer for each of them, and sees every kind of step all the same.
    for ends_at in range(0, step_limit.steps, 1 if scenario.broker.is_ours else 5):
        begun = scenario.begin()
        with pytest.raises(end):
            scenario.copier(begun, step_limit=StepLimit(ends_at, end), saves=saves).copy()
        known = begun if ends_at < 2 else RunStore(scenario.folder).load(begun.id)
        done = scenario.copier(known, is_resumed=True, saves=saves).copy()

        assert_once_and_in_order(scenario, begun, {0: 7, 1: 7})
        assert (14, True) == (done.copied, RunStore(scenario.folder).load(begun.id).is_finished)


def test_a_run_that_is_killed_again_and_again_copies_each_record_once(scenario: CopyScenario, small: None) -> None:
    scenario.fill({number: keyed(number, SIZES) for number in (0, 1)})
    begun = scenario.begin()
    RunStore(scenario.folder).save(begun)
    for ends_at in (7, 5, 4, 6, 3):
        with pytest.raises(Killed):
            scenario.copier(
                RunStore(scenario.folder).load(begun.id), step_limit=StepLimit(ends_at), is_resumed=True
            ).copy()
    done = scenario.copier(RunStore(scenario.folder).load(begun.id), is_resumed=True).copy()

    assert_once_and_in_order(scenario, begun, {0: 7, 1: 7})
    assert 14 == done.copied


def test_the_first_save_comes_before_the_first_write(scenario: CopyScenario) -> None:
    scenario.fill({0: keyed(0, [3])})
    begun = scenario.begin()
    with pytest.raises(Killed):
        scenario.copier(begun, step_limit=StepLimit(2)).copy()

    assert begun.targets == RunStore(scenario.folder).load(begun.id).targets
    assert 0 == sum(map(len, scenario.copies().values()))


class LateBatchClient(MortalClient):
    """Just before its first write, a batch arrives that the run before had sent."""

    late: Callable[[], object] | None = None

    def produce(self, partition: TopicPartition, batch: bytes | bytearray) -> int:
        if self.late is not None:
            late, self.late = self.late, None
            late()
        return super().produce(partition, batch)


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
@pytest.mark.parametrize("late_size", [10, 3], ids=["the same batch", "a shorter one"])
def test_a_batch_of_the_killed_run_that_arrives_late_is_not_written_twice(
    scenario: CopyScenario, late_size: int
) -> None:
    scenario.fill({0: keyed(0, [10])})
    begun = scenario.begin()
    dying = scenario.copier(replace(begun, request=replace(begun.request, limit=late_size)), step_limit=StepLimit(2))
    build, late = dying._batch, []

    def kept(*arguments: Any) -> bytearray:
        late.append(bytes(build(*arguments)))
        return bytearray(late[-1])

    dying._batch = kept  # type: ignore[method-assign]
    with pytest.raises(Killed):
        dying.copy()
    scenario.client.step_limit = StepLimit()
    with LateBatchClient(scenario.broker.bootstrap_servers) as client:
        client.step_limit = StepLimit()
        client.late = lambda: scenario.client.produce(TopicPartition(scenario.target, 0), late[0])
        ReplayCopier(
            scenario.client, client, begun, RunStore(scenario.folder), is_resumed=True, sleep=lambda seconds: None
        ).copy()

    assert client.late is None
    assert_once_and_in_order(scenario, begun, {0: 10})


@pytest.mark.parametrize("scenario", [(2, 1)], indirect=True)
def test_a_late_batch_with_other_records_is_not_taken_for_the_one_that_was_sent(scenario: CopyScenario) -> None:
    scenario.fill({0: keyed(0, [4]), 1: keyed(1, [4])})
    begun = scenario.begin()
    other = scenario.copier(replace(begun, sources={1: begun.sources[1]}))
    with LateBatchClient(scenario.broker.bootstrap_servers) as client:
        client.step_limit = StepLimit()
        client.late = other.copy
        done = ReplayCopier(
            scenario.client, client, begun, RunStore(scenario.folder), is_resumed=True, sleep=lambda seconds: None
        ).copy()

    assert_once_and_in_order(scenario, begun, {0: 4, 1: 4})
    assert 8 == done.copied


class UnclearClient(MortalClient):
    """Its second write ends without a clear answer: it was written, or it was not."""

    failure: UserError
    is_written: bool
    writes = 0

    def produce(self, partition: TopicPartition, batch: bytes | bytearray) -> int:
        self.writes += 1
        if self.writes != 2:
            return super().produce(partition, batch)
        if self.is_written:
            super().produce(partition, batch)
        raise self.failure


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize(
    "failure",
    [BrokerUnreachable("gone"), RefusedByBroker(ErrorCode.REQUEST_TIMED_OUT, "late")],
    ids=["no answer", "timed out"],
)
def test_what_an_unclear_answer_means_is_looked_up(
    scenario: CopyScenario, small: None, failure: UserError, is_written: bool
) -> None:
    scenario.fill({0: keyed(0, [6])})
    begun = scenario.begin()
    with UnclearClient(scenario.broker.bootstrap_servers) as client:
        client.step_limit, client.failure, client.is_written = StepLimit(), failure, is_written
        ReplayCopier(scenario.client, client, begun, RunStore(scenario.folder), sleep=lambda seconds: None).copy()

    assert_once_and_in_order(scenario, begun, {0: 6})


class RestartingClient(MortalClient):
    """Each second write finds its broker killed and started again: before it, or between it and its answer."""

    node: Broker
    writes = 0

    def produce(self, partition: TopicPartition, batch: bytes | bytearray) -> int:
        self.writes += 1
        if self.writes % 4 == 0:
            super().produce(partition, batch)
        if self.writes % 2 == 0:
            self.node.kill()
            self.node.start()
        if self.writes % 4 == 0:
            raise BrokerUnreachable("The answer was lost.")
        return super().produce(partition, batch)


def test_a_broker_that_is_killed_and_comes_back_has_each_record_once(small: None, tmp_path: Path) -> None:
    with Broker(subprocess=True, durability="sync") as node, RestartingClient(node.bootstrap_servers) as client:
        client.step_limit, client.node = StepLimit(), node
        broker = BrokerUnderTest("logmark", node.bootstrap_servers, node)
        source, target = broker.create_topic("orders", 1, FOREVER), broker.create_topic("sandbox", 2, FOREVER)
        scenario = CopyScenario(broker, MortalClient(node.bootstrap_servers), tmp_path, source=source, target=target)
        scenario.client.step_limit = StepLimit()
        with scenario.client:
            scenario.fill({0: keyed(0, [6])})
            begun = scenario.begin()
            ReplayCopier(scenario.client, client, begun, RunStore(tmp_path), sleep=lambda seconds: None).copy()
            assert_once_and_in_order(scenario, begun, {0: 6})
        assert client.writes >= 4
        broker.close()


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_copies_that_are_gone_are_missed_and_not_written_again(
    scenario: CopyScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.fill({0: keyed(0, [5, 5])})
    begun = scenario.begin()
    with monkeypatch.context() as patched:
        patched.setattr(copier, "_GATHERED_BYTES", 1)
        scenario.copier(begun).copy()
    scenario.broker.delete_records(scenario.target, 10)

    # As if the file knew of nothing that was written, and the target had lost it: only the broker remembers.
    with pytest.raises(UserError, match=r"are gone.*start a new one"):
        scenario.copier(begun, is_resumed=True).copy()

    assert 10 == scenario.broker.end_offset(scenario.target)


@pytest.mark.parametrize("scenario", [(1, 2)], indirect=True)
def test_records_of_others_in_the_target_are_passed_over(scenario: CopyScenario, small: None) -> None:
    scenario.fill({0: keyed(0, [6])})
    begun = scenario.begin()
    RunStore(scenario.folder).save(begun)
    with pytest.raises(Killed):
        scenario.copier(begun, step_limit=StepLimit(5)).copy()
    foreign = [(b"logmark.replay.id", begun.id.encode()), (b"logmark.replay.partition", b"0"),
               (b"logmark.replay.offset", b"999")]  # fmt: skip
    for number in (0, 1):
        scenario.client.step_limit = StepLimit()
        scenario.client.produce(
            TopicPartition(scenario.target, number), batches.build([(b"k", b"v")], timestamp_ms=NOW, headers=[foreign])
        )
    done = scenario.copier(RunStore(scenario.folder).load(begun.id), is_resumed=True).copy()

    assert 6 == done.copied
    copied = sorted(source for sources in scenario.came_from(begun).values() for source in sources if source[1] != 999)
    assert [(0, offset) for offset in range(6)] == copied


def test_each_copy_keeps_key_value_time_and_headers_and_goes_where_it_belongs(scenario: CopyScenario) -> None:
    headers = [[("n", b"1"), ("n", None)]]
    for number in (0, 1):
        source = TopicPartition(scenario.source, number)
        scenario.client.produce(source, batches.build([(b"k", None)], timestamp_ms=NOW + number, headers=headers))
        scenario.client.produce(source, batches.build([(None, b"v")], timestamp_ms=5))
    scenario.copier(scenario.begin()).copy()

    found = [record for records in scenario.copies().values() for record in records]
    keyed_ones = [record for record in found if record.key]
    assert {(NOW, b"k", None), (NOW + 1, b"k", None)} == {(one.timestamp_ms, one.key, one.value) for one in keyed_ones}
    assert [(b"n", b"1"), (b"n", None)] == list(keyed_ones[0].headers)[:2]
    assert {(5, None, b"v")} == {(one.timestamp_ms, one.key, one.value) for one in found if not one.key}
    numbers = {target.partition for target, records in scenario.copies().items() for one in records if not one.key}
    assert {0, 1} == numbers, "without a key the partition is the old one modulo the new count"
    assert 1 == len([target for target, records in scenario.copies().items() if any(one.key for one in records)])


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_batches_stay_compressed_or_get_another_codec_and_may_have_the_present_time(scenario: CopyScenario) -> None:
    scenario.fill({0: [[(b"k", b"v" * 100)]]}, codec=codecs.ZSTD)
    scenario.fill({0: [[(b"k", b"w" * 100)]]}, codec=codecs.GZIP)
    scenario.copier(scenario.begin()).copy()
    scenario.copier(scenario.begin(compression="lz4", timestamp="now"), now_ms=lambda: NOW + 99).copy()

    headers, at = [], 0
    data = scenario.client.fetch(TopicPartition(scenario.target, 0), 0).records
    while at < len(data):
        headers.append(batches.read_header(data, at))
        at += headers[-1].size
    assert [codecs.ZSTD, codecs.GZIP, codecs.LZ4] == [header.codec for header in headers]
    assert [NOW, NOW, NOW + 99] == [header.max_timestamp for header in headers]


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_a_record_that_is_too_large_is_named_all_before_it_is_copied_and_the_run_goes_on(
    scenario: CopyScenario, tmp_path: Path
) -> None:
    scenario.fill({0: [[(b"k", b"a"), (b"k", b"b")], [(b"k", b"c"), (b"k", b"x" * 3000), (b"k", b"d")]]})
    scenario.client.alter_configs(scenario.target, {"max.message.bytes": "2000"})
    begun = scenario.begin()
    with pytest.raises(
        UserError, match=rf"offset 3 of {scenario.source}-0 .*max\.message\.bytes.*resume it.*{begun.id}"
    ):
        scenario.copier(begun).copy()
    assert [(0, 0), (0, 1), (0, 2)] == scenario.came_from(begun)[TopicPartition(scenario.target, 0)]

    scenario.client.alter_configs(scenario.target, {"max.message.bytes": "9000"})
    scenario.copier(RunStore(scenario.folder).load(begun.id), is_resumed=True).copy()

    assert_once_and_in_order(scenario, begun, {0: 5})


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_a_record_without_a_key_is_named_when_the_target_is_compacted(scenario: CopyScenario) -> None:
    scenario.fill({0: [[(b"k", b"a"), (b"k", b"b"), (None, b"c"), (b"k", b"d")]]})
    scenario.client.alter_configs(scenario.target, {"cleanup.policy": "compact"})
    begun = scenario.begin()
    with pytest.raises(UserError, match=rf"offset 2 of {scenario.source}-0 .*no key"):
        scenario.copier(begun).copy()

    assert [(0, 0), (0, 1)] == scenario.came_from(begun)[TopicPartition(scenario.target, 0)]


@pytest.mark.parametrize("scenario", [(2, 2)], indirect=True)
@pytest.mark.parametrize(("limit", "expected"), [(5, (5, 0)), (7, (7, 0)), (9, (7, 2))])
def test_a_limit_holds_for_the_whole_run_also_when_it_was_interrupted(
    scenario: CopyScenario, small: None, limit: int, expected: tuple[int, int]
) -> None:
    scenario.fill({number: keyed(number, SIZES) for number in (0, 1)})
    begun = scenario.begin(limit=limit)
    with pytest.raises(Killed):
        scenario.copier(begun, step_limit=StepLimit(7)).copy()
    done = scenario.copier(RunStore(scenario.folder).load(begun.id), is_resumed=True).copy()

    assert expected == tuple(source.copied for source in done.sources.values())
    assert expected == tuple(source.next for source in done.sources.values())
    for number, count in enumerate(expected):
        copies = scenario.came_from(begun)[TopicPartition(scenario.target, number)]
        assert [(number, offset) for offset in range(count)] == copies


def test_a_run_is_not_taken_up_on_another_cluster_or_another_topic_of_the_name(scenario: CopyScenario) -> None:
    begun = scenario.begin()
    topic = begun.topics[scenario.target]
    check_unchanged(scenario.client, scenario.client, begun)

    for other, message in (
        (replace(begun, source_cluster="x"), "copies from cluster x"),
        (replace(begun, target_cluster="x"), "copies to cluster x"),
        (replace(begun, source_topic_id="00"), f"Topic {scenario.source} was deleted and created again"),
        (
            replace(begun, topics={scenario.target: replace(topic, topic_id="00")}),
            f"{scenario.target} was deleted and cre",
        ),
        (replace(begun, topics={"gone": topic}), r"Topic gone was deleted .*start a new one"),
    ):
        with pytest.raises(UserError, match=message):
            check_unchanged(scenario.client, scenario.client, other)


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_the_rate_is_kept_by_the_clock(scenario: CopyScenario) -> None:
    scenario.fill({0: keyed(0, [45])})
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    begun = scenario.begin()
    scenario.client.step_limit = StepLimit()
    done = ReplayCopier(
        scenario.client, scenario.client, begun, RunStore(scenario.folder),
        rate=Rate(records_per_s=50), clock=lambda: now[0], sleep=sleep,
    ).copy()  # fmt: skip

    assert (45, pytest.approx(0.8)) == (done.copied, now[0]), "four batches of ten go before the fifth"


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_a_slow_copy_tells_and_saves_its_progress_on_the_way(scenario: CopyScenario) -> None:
    scenario.fill({0: keyed(0, [3, 1, 3])})
    steps: list[int] = []
    begun = scenario.begin()
    with pytest.raises(KeyboardInterrupt):
        copier = scenario.copier(
            begun, step_limit=StepLimit(14, KeyboardInterrupt), rate=Rate(records_per_s=4), step=steps.append
        )  # fmt: skip
        copier.copy()

    # It was interrupted before it wrote the sixth.
    assert [1] * 5 == [step for step in steps if step]
    assert copier.describe_progress().startswith("5 records were copied and stay")
    assert 4 == RunStore(scenario.folder).load(begun.id).sources[0].next


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_a_refused_write_names_the_record_that_was_not_written(scenario: CopyScenario) -> None:
    scenario.fill({0: keyed(0, [3])})
    begun = scenario.begin(begin="1")
    with UnclearClient(scenario.broker.bootstrap_servers) as client:
        client.step_limit, client.is_written, client.writes = StepLimit(), False, 1
        client.failure = RefusedByBroker(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "You are not allowed to.")
        at = f"The record at offset 1 of {scenario.source}-0"
        with pytest.raises(UserError, match=rf"not allowed to\. {at} .*resume it"):
            ReplayCopier(scenario.client, client, begun, RunStore(scenario.folder)).copy()


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_a_dead_letter_of_a_topic_that_is_gone_is_named(scenario: CopyScenario) -> None:
    headers = [[("origin", b"gone")]]
    scenario.client.produce(
        TopicPartition(scenario.source, 0), batches.build([(b"k", b"v")], timestamp_ms=NOW, headers=headers)
    )
    request = ReplayRequest(topic=scenario.source, to_original=("origin",))
    sought = resolve_ranges(scenario.client, request, now_ms=NOW)
    begun = start_run(scenario.client, request, sought, None, target_cluster=sought.cluster_id, now_ms=NOW)

    with pytest.raises(
        UserError, match=rf"offset 0 of {scenario.source}-0 cannot go to gone: Topic gone does not exist"
    ):
        scenario.copier(begun).copy()


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_what_expired_before_it_was_read_is_counted_and_the_rest_is_copied(scenario: CopyScenario) -> None:
    scenario.fill({0: keyed(0, [5, 5])})
    begun = scenario.begin()
    scenario.broker.delete_records(scenario.source, 5)
    done = scenario.copier(begun).copy()

    assert (5, 5) == (done.expired, done.copied)
    assert [(0, offset) for offset in range(5, 10)] == scenario.came_from(begun)[TopicPartition(scenario.target, 0)]


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_replays_that_feed_each_other_end(scenario: CopyScenario) -> None:
    scenario.fill({0: keyed(0, [3])})
    scenario.copier(scenario.begin()).copy()
    scenario.source, scenario.target = scenario.target, scenario.source
    back = scenario.copier(scenario.begin()).copy()
    allowed = scenario.copier(scenario.begin(max_hops=2)).copy()
    again = scenario.copier(scenario.begin(max_hops=2)).copy()
    scenario.source, scenario.target = scenario.target, scenario.source
    third = scenario.copier(scenario.begin(max_hops=2, begin="3")).copy()

    assert [(0, 3), (3, 0), (3, 0), (0, 6)] == [(run.copied, run.hopped) for run in (back, allowed, again, third)]


@pytest.mark.parametrize("scenario", [(1, 1)], indirect=True)
def test_dead_letters_go_back_to_the_topics_that_their_headers_name(scenario: CopyScenario) -> None:
    first, second = scenario.broker.create_topic("clicks", 1, FOREVER), scenario.target
    named = [[("__connect.errors.topic", topic.encode())] if topic else [] for topic in (first, second, "", first)]
    scenario.client.produce(
        TopicPartition(scenario.source, 0),
        batches.build([(b"k", b"%d" % n) for n in range(4)], timestamp_ms=NOW, headers=named),
    )
    request = ReplayRequest(
        topic=scenario.source, to_original=("__connect.errors.topic",), strip_headers=("__connect.",)
    )
    sought = resolve_ranges(scenario.client, request, now_ms=NOW)
    begun = start_run(scenario.client, request, sought, None, target_cluster=sought.cluster_id, now_ms=NOW)
    with pytest.raises(Killed):
        scenario.copier(begun, step_limit=StepLimit(7)).copy()
    done = scenario.copier(RunStore(scenario.folder).load(begun.id), is_resumed=True).copy()

    def values(topic: str) -> list[bytes | None]:
        return [record.value for records in scenario.copies(topic).values() for record in records]

    assert ([b"0", b"3"], [b"1"]) == (values(first), values(second))
    assert (3, 1) == (done.copied, done.unaddressed)
    assert b"logmark.replay.id" == scenario.copies(first)[TopicPartition(first, 0)][0].headers[0][0]


@pytest.mark.kafka
def test_what_a_transaction_did_not_commit_is_not_copied(apache_kafka: BrokerUnderTest, tmp_path: Path) -> None:
    source = apache_kafka.create_topic("orders", 1, FOREVER)
    target = apache_kafka.create_topic("sandbox", 1, FOREVER)
    producer = apache_kafka.producer(transactional_id=apache_kafka.unique("writer"))
    producer.init_transactions(120)
    for value, is_committed in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        producer.produce(source, value)
        producer.flush()
        producer.commit_transaction(120) if is_committed else producer.abort_transaction(120)
    producer.begin_transaction()
    producer.produce(source, "open")
    producer.flush()
    with MortalClient(apache_kafka.bootstrap_servers) as client:
        client.step_limit = StepLimit()
        scenario = CopyScenario(apache_kafka, client, tmp_path, source=source, target=target)
        note = resolve_ranges(client, ReplayRequest(topic=source), now_ms=NOW).spans[0].note
        scenario.copier(scenario.begin()).copy()
        found = scenario.copies()[TopicPartition(target, 0)]
    producer.abort_transaction(120)

    assert [b"a", b"c"] == [record.value for record in found]
    assert "ends where an open transaction begins" == note
