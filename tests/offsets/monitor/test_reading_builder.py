"""What samples mean for groups, one after the other, without a cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logmark.client.answers import Committed
from logmark.names import TopicPartition
from logmark.offsets.lag.ages import Ages
from logmark.offsets.lag.annotations import Annotation
from logmark.offsets.lag.history import History
from logmark.offsets.lag.sample import GroupSample, Sample
from logmark.offsets.monitor.reading_builder import ReadingBuilder
from logmark.offsets.monitor.readings import GroupReading
from logmark.offsets.monitor.retention import IdleGroup, Retention

NOW_MS = 1_700_000_000_000
AT = TopicPartition("orders", 0)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.sqlite") as history:
        yield history


def sample(
    after_s: int, committed: dict[str, int], *, end: int = 1000, start: int = 0, notes: tuple[str, ...] = ()
) -> Sample:
    groups = {
        name: GroupSample(group=name, state="Empty", committed={AT: Committed(offset=offset)})
        for name, offset in committed.items()
    }
    return Sample(
        at_ms=NOW_MS + after_s * 1000, cluster_id="c", groups=groups, starts={AT: start}, ends={AT: end}, notes=notes
    )


def read(
    judge: ReadingBuilder, history: History, taken: Sample, annotations: list[Annotation] | None = None
) -> dict[str, GroupReading]:
    history.add(taken)
    reading = judge.read(taken, Ages(sample=taken), history, annotations or [])
    return {one.group: one for one in reading.groups}


def test_a_group_that_stands_still_without_members_is_stopped_and_never_catches_up(history: History) -> None:
    judge = ReadingBuilder(Retention())

    verdicts = [read(judge, history, sample(at, {"g": 500}))["g"].verdict for at in (0, 30, 60, 90)]

    assert ["", "", "STOPPED", "STOPPED"] == verdicts
    last = read(judge, history, sample(120, {"g": 500}))["g"]
    assert float("inf") == last.catch_up_s
    assert "500 records behind" in last.partitions[0].evidence


def test_who_is_caught_up_is_ok_at_once(history: History) -> None:
    found = read(ReadingBuilder(Retention()), history, sample(0, {"g": 1000}))["g"]

    (only,) = found.partitions
    assert ("OK", 0.0) == (found.verdict, found.catch_up_s)
    assert (0, 0.0, "caught up", "OK") == (only.lag, only.seconds, only.method, only.verdict)


def test_records_that_are_lost_are_told_apart(history: History) -> None:
    found = read(ReadingBuilder(Retention()), history, sample(0, {"g": 10}, start=40))["g"]

    assert (960, 30) == (found.partitions[0].lag, found.partitions[0].lost)


def test_what_is_behind_takes_turns_and_keeps_its_verdict_meanwhile(history: History) -> None:
    judge = ReadingBuilder(Retention(), partitions_max=1)
    for at in (0, 30, 60):
        read(judge, history, sample(at, {"a": 500, "b": 500}))

    first = read(judge, history, sample(90, {"a": 500, "b": 500}))
    second = read(judge, history, sample(120, {"a": 501, "b": 501}))

    # One of them was judged at the last sample, the other at the one before.
    assert {"STOPPED"} == {one.verdict for one in first.values()}
    assert {"STOPPED"} == {one.verdict for one in second.values()} - {"OK", "SLOW"}
    assert {499} == {one.partitions[0].lag for one in second.values()}, "the lag is always that of the sample"


def test_without_a_history_there_is_no_verdict(history: History) -> None:
    judge = ReadingBuilder(Retention())
    for at in (0, 30, 60):
        read(judge, history, sample(at, {"g": 500}))
    taken = sample(90, {"g": 500})

    (found,) = judge.read(taken, Ages(sample=taken), None).groups

    assert ("", 500) == (found.verdict, found.partitions[0].lag)


def test_a_reset_of_ours_is_known_with_its_time(history: History) -> None:
    reset = Annotation(id="1", at_ms=NOW_MS - 5, group="g", text="reset", moves={AT: 1})

    assert NOW_MS - 5 == read(ReadingBuilder(Retention()), history, sample(0, {"g": 1}), [reset])["g"].reset_at_ms


def test_an_idle_group_has_what_is_left_of_the_retention() -> None:
    taken = sample(0, {"g": 1000})

    (found,) = (
        ReadingBuilder(Retention())
        .read(taken, Ages(sample=taken), None, idle={"g": IdleGroup("mark", NOW_MS - 86_400_000)})
        .groups
    )

    assert 6 * 86_400 == found.expires_in_s


def test_the_log_start_that_comes_nearer_is_seen(history: History) -> None:
    judge = ReadingBuilder(Retention(), falling_off=True)
    lefts = [
        read(judge, history, sample(at, {"g": 500}, start=start))["g"].partitions[0].left_s
        for at, start in ((0, 0), (300, 60), (600, 120), (1200, 240))
    ]

    # From 0 to 240 in 1,200 s: 0.2 records a second; 260 records lie between the start and the group.
    assert [None, None] == lefts[:2]
    assert pytest.approx(1900) == lefts[2]
    assert pytest.approx(1300) == lefts[3]


def test_a_look_that_may_have_left_groups_out_says_so(history: History) -> None:
    taken = sample(0, {}, notes=("A coordinator is loading.",))

    assert not ReadingBuilder(Retention()).read(taken, Ages(sample=taken), history).is_complete
