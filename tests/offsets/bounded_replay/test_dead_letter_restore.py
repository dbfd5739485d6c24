"""Dead letters go back as the records that they were: each once, to where they came from, whatever interrupts it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logmark.names import TopicPartition
from logmark.offsets.bounded_replay.copier import ReplayCopier
from logmark.offsets.bounded_replay.copy_buffer import Route
from logmark.offsets.bounded_replay.copy_headers import ORIGINAL_TOPIC_HEADERS
from logmark.offsets.bounded_replay.dead_letter_restore import (
    DeadLetterRestorer,
    RestoredRecord,
    SkipReason,
    redriven_ends,
    specs_after,
)
from logmark.offsets.bounded_replay.plan import resolve_ranges, start_run
from logmark.offsets.bounded_replay.range_reader import count_selected
from logmark.offsets.bounded_replay.runs import ReplayRequest, ReplayRun, RunStore, SourceProgress
from logmark.offsets.dead_letters.dead_letter import (
    DeadLetter,
    dead_letter_for_lost_record,
    dead_letter_for_record,
    dead_letter_headers,
)
from logmark.offsets.records import Record, read_records
from logmark.wire import batches
from tests.harness.brokers import BrokerUnderTest
from tests.offsets.bounded_replay.test_copier import FOREVER, NOW, Killed, MortalClient, MortalStore, StepLimit, small

__all__ = ["small"]  # a fixture


def letter(offset: int, *, topic: str = "clicks", partition: int = 0, **more: Any) -> DeadLetter:
    given: dict[str, Any] = {"error": "bad", "pipeline": "billing", **more}
    source = TopicPartition(topic, partition)
    key, value = b"k%d" % offset, b"v%d" % offset
    return dead_letter_for_record(source, offset, NOW - 9, key, value, [(b"trace", b"1")], **given)


def test_of_dead_letters_about_one_record_the_first_goes_back_and_those_without_the_record_do_not() -> None:
    restorer = DeadLetterRestorer(pipeline="billing")
    gone = dead_letter_for_lost_record(
        TopicPartition("clicks", 0), 5, error="bad", pipeline="billing", missing="deleted"
    )

    found = restorer.restore(letter(3, partition=2), 77)
    assert isinstance(found, RestoredRecord)
    assert (2, NOW - 9, b"k3") == (found.partition, found.timestamp_ms, found.key)
    assert SkipReason.REPEATED is restorer.restore(letter(3, partition=2), 78)
    assert SkipReason.VALUELESS is restorer.restore(gone, 77)
    assert SkipReason.OTHER_PIPELINE is restorer.restore(letter(4, pipeline="fraud"), 77)
    assert isinstance(restorer.restore(letter(4), 77), RestoredRecord)


def test_a_record_goes_back_to_its_partition_or_to_that_of_its_key() -> None:
    route = Route(source_partitions=9, target_partitions=3)

    assert (2, 2) == (route.back_to(2, b"x"), route.back_to(2, None))
    assert route.to(0, b"x") == route.back_to(7, b"x")
    assert 1 == route.back_to(7, None)
    assert 0 == replace(route, fixed=0).back_to(2, b"x")


def test_what_finished_replays_of_everything_have_sent_back_is_known() -> None:
    asked = ReplayRequest(topic="dead", to_original=("h",))
    run = ReplayRun(
        id="r", request=asked, source_cluster="c", target_cluster="c", source_topic_id="t", source_partitions=2,
        producer_id=1, producer_epoch=0, started_ms=0, updated_ms=0, is_finished=True,
        sources={0: SourceProgress(start=0, stop=5, next=5), 1: SourceProgress(start=2, stop=9, next=9)},
    )  # fmt: skip
    others = [
        replace(run, is_finished=False), replace(run, source_cluster="x"), replace(run, source_topic_id="x"),
        *(replace(run, request=replace(asked, **more)) for more in (
            {"limit": 3}, {"topic": "x"}, {"keys": ("00",)}, {"to_original": (), "to_topic": "x"}, {"pipeline": "a"},
        )),
    ]  # fmt: skip

    assert {0: 5, 1: 9} == redriven_ends([run, *others], asked, source_cluster="c", topic_id="t")
    assert {} == redriven_ends(others, asked, source_cluster="c", topic_id="t")
    [of_one] = [one for one in others if one.request.pipeline]
    assert {0: 5, 1: 9} == redriven_ends([of_one], replace(asked, pipeline="a"), source_cluster="c", topic_id="t")
    assert "0:7,1:9,2:0" == specs_after({0: 5, 1: 9}, [0, 1, 2], {0: 7, 1: 0, 2: 0})


class RedriveScenario:
    """A topic, its dead letters, each of them twice, and runs that send them back."""

    def __init__(self, broker: BrokerUnderTest, client: MortalClient, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.topic = broker.create_topic("clicks", 2, FOREVER)
        self.dead = broker.create_topic("dead", 1, FOREVER)
        once = [letter(offset, topic=self.topic, partition=offset % 2) for offset in range(5)]
        for some in ([once[0], once[1]], [once[0]], [once[1], once[2]], [*once[2:], *once]):
            batch = batches.build(
                [(one.dead_letter_key.encode(), one.value) for one in some],
                timestamp_ms=NOW,
                headers=[dead_letter_headers(one) for one in some],
            )
            client.produce(TopicPartition(self.dead, 0), batch)

    def begin(self) -> ReplayRun:
        request = ReplayRequest(topic=self.dead, to_original=tuple(name.decode() for name in ORIGINAL_TOPIC_HEADERS))
        sought = resolve_ranges(self.client, request, now_ms=NOW)
        run = start_run(self.client, request, sought, None, target_cluster=sought.cluster_id, now_ms=NOW)
        counts = count_selected(self.client, request, sought.spans, step=lambda offsets: None)
        assert (5, 8, {self.topic: 5}) == (counts[0].records, counts[0].repeated, dict(counts[0].topics))
        return run

    def copier(self, run: ReplayRun, step_limit: StepLimit, *, is_resumed: bool = False) -> ReplayCopier:
        store = MortalStore(self.folder)
        self.client.step_limit = store.step_limit = step_limit
        clock = iter(range(10_000))
        return ReplayCopier(
            self.client, self.client, run, store, is_resumed=is_resumed, clock=lambda: float(next(clock)),
            sleep=lambda seconds: None,
        )  # fmt: skip

    def back(self, ends: dict[TopicPartition, int]) -> dict[int, list[Record]]:
        """What came to the topic since."""
        now = self.client.latest(ends)
        return {one.partition: list(read_records(self.client, one, ends[one], now[one])) for one in ends}


@pytest.fixture
def scenario(our_broker: BrokerUnderTest, tmp_path: Path) -> Iterator[RedriveScenario]:
    with MortalClient(our_broker.bootstrap_servers) as client:
        client.step_limit = StepLimit()
        yield RedriveScenario(our_broker, client, tmp_path)


def test_dead_letters_that_were_written_twice_go_back_once_also_when_the_run_is_killed_at_any_step(
    scenario: RedriveScenario, small: None
) -> None:
    partitions = [TopicPartition(scenario.topic, number) for number in (0, 1)]
    step_limit = StepLimit()
    scenario.copier(scenario.begin(), step_limit).copy()
    assert step_limit.steps > 20
    for ends_at in range(step_limit.steps + 1):
        scenario.client.step_limit = StepLimit()
        ends = scenario.client.latest(partitions)
        run = scenario.begin()
        try:
            scenario.copier(run, StepLimit(ends_at)).copy()
        except Killed:
            store = RunStore(scenario.folder)
            known = store.load(run.id) if store.has(run.id) else run
            scenario.copier(known, StepLimit(), is_resumed=True).copy()

        found = scenario.back(ends)
        values = {number: [record.value for record in records] for number, records in found.items()}
        assert {0: [b"v0", b"v2", b"v4"], 1: [b"v1", b"v3"]} == values, f"killed at step {ends_at}"
        first = found[0][0]
        assert (b"k0", NOW - 9) == (first.key, first.timestamp_ms)
        assert [
            (b"trace", b"1"),
            (b"logmark.letter.attempts", b"1"),
            (b"logmark.letter.origin", f'["{scenario.topic}",0,0]'.encode()),
        ] == [header for header in first.headers if not header[0].startswith(b"logmark.replay.")]
