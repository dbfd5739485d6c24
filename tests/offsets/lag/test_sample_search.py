"""Times of offsets from stored samples, against a search that looks at every sample."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logmark.names import TopicPartition
from logmark.offsets.lag import sample_search
from logmark.offsets.lag.history import History
from logmark.offsets.lag.sample import Sample
from logmark.offsets.lag.sample_search import EndTime, find_end_times, interpolate_end_time
from tests.harness.searches import examples

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("clicks", 2)]


def _sample(at_ms: int, ends: dict[TopicPartition, int]) -> Sample:
    return Sample(at_ms=at_ms, cluster_id="c", groups={}, starts=dict.fromkeys(ends, 0), ends=ends)


Steps = list[
    tuple[int, int, int]
]  # how far each partition has come by the next sample; -1 it is not seen, -2 recreated


def _written(history: History, steps: Steps) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Keeps samples, and returns what was seen of each partition since it was last recreated."""
    seen: dict[TopicPartition, list[tuple[int, int]]] = {one: [] for one in PARTITIONS}
    now = dict.fromkeys(PARTITIONS, 5)
    for number, step in enumerate(steps):
        at_ms = 1_000 * (number + 1)
        shown = {}
        for partition, grown in zip(PARTITIONS, step, strict=True):
            if grown == -1:
                continue
            if grown == -2:
                now[partition] = 0
            now[partition] += max(grown, 0)
            if seen[partition] and now[partition] < seen[partition][-1][1]:
                seen[partition].clear()
            seen[partition].append((at_ms, now[partition]))
            shown[partition] = now[partition]
        history.add(_sample(at_ms, shown))
    return seen


@settings(max_examples=examples(80, soak=5000))
@given(
    st.lists(st.tuples(*[st.integers(-2, 9)] * 3), max_size=14),
    st.lists(st.integers(0, 60), min_size=1, max_size=6),
    st.sampled_from([2, 3, 64]),
)
@example([(5, 5, 5), (4, 4, 4), (4, 4, 4), (-1, 3, 3), (-2, 2, 2)], [2, 8], 64)
def test_the_samples_around_an_offset_are_found(steps: Steps, offsets: Sequence[int], block: int) -> None:
    now_ms, grown = 1_000 * (len(steps) + 1), 7
    with pytest.MonkeyPatch.context() as patch, History(None) as history:
        patch.setattr(sample_search, "_BLOCK", block)
        seen = _written(history, steps)
        ends = {one: (points[-1][1] if points else 0) + grown for one, points in seen.items()}
        wanted = [(one, offset) for one in PARTITIONS for offset in offsets]

        found = find_end_times(history, wanted, now_ms=now_ms, ends=ends)

    for one, offset in wanted:
        # A log that was recreated while it was not seen is found out by the sample that sees it again.
        points = [*seen[one], (now_ms, ends[one])]
        below = [point for point in points if point[1] <= offset]
        above = [point for point in points if point[1] > offset]
        expected = interpolate_end_time(offset, below[-1], above[0]) if below and above else None
        assert expected == found.get((one, offset)), (one, offset, points)


@given(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(0, 10**9), st.integers(1, 10**6), st.data())
def test_a_time_lies_between_its_samples_and_its_bound_covers_both(
    at_ms: int, span_ms: int, end: int, grown: int, data: st.DataObject
) -> None:
    below, above = (at_ms, end), (at_ms + span_ms, end + grown)
    offset = data.draw(st.integers(end, end + grown - 1))

    passed = interpolate_end_time(offset, below, above)

    assert below[0] <= passed.at_ms <= above[0]
    assert passed.at_ms - passed.bound_ms <= below[0] and above[0] <= passed.at_ms + passed.bound_ms
    assert passed.bound_ms <= span_ms


def test_records_that_come_at_an_even_pace_have_even_times() -> None:
    assert [EndTime(2_500, 7_500), EndTime(5_000, 5_000), EndTime(7_500, 7_500), EndTime(10_000, 10_000)] == [
        interpolate_end_time(offset, (0, 0), (10_000, 4)) for offset in range(4)
    ]
