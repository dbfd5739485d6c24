import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.client.answers import Committed
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.inspect import Place
from logmark.offsets.plan import Move, ShiftBy, Target, ToEarliest, ToLatest, ToOffset, ToTime, make_plan

CLICKS = TopicPartition("clicks", 0)


def a_place(committed: int | None, start: int = 200, end: int = 1000, partition: TopicPartition = CLICKS) -> Place:
    return Place(
        group="fraud",
        partition=partition,
        committed=None if committed is None else Committed(offset=committed),
        start=start,
        end=end,
    )


def the_move(place: Place, target: Target, *, found: int | None = None, clamp: bool = False) -> Move:
    answers = None if found is None else {place.partition: found}
    (move,) = make_plan("fraud", [place], target, found=answers, clamp=clamp).moves
    return move


@pytest.mark.parametrize(
    ("target", "to", "read_again", "skipped", "lag_after"),
    [
        (ToEarliest(), 200, 650, 0, 800),
        (ToLatest(), 1000, 0, 150, 0),
        (ToOffset(500), 500, 350, 0, 500),
        (ToOffset(850), 850, 0, 0, 150),
        (ToOffset(1000), 1000, 0, 150, 0),
        (ShiftBy(-50), 800, 50, 0, 200),
        (ShiftBy(50), 900, 0, 50, 100),
        (ShiftBy(0), 850, 0, 0, 150),
    ],
)
def test_a_plan_counts_what_is_read_again_and_what_is_skipped(
    target: Target, to: int, read_again: int, skipped: int, lag_after: int
) -> None:
    move = the_move(a_place(850), target)

    assert (to, read_again, skipped, lag_after) == (move.to, move.read_again, move.skipped, move.lag_after)


def test_a_time_leads_to_the_record_that_was_found() -> None:
    assert 640 == the_move(a_place(850), ToTime(1_709_596_800_000), found=640).to


def test_a_time_after_the_last_record_leads_to_the_end_and_the_plan_says_so() -> None:
    move = the_move(a_place(850), ToTime(1_709_596_800_000), found=-1)

    assert (1000, "no record at or after 2024-03-05T00:00:00.000Z: the end") == (move.to, move.note)


@pytest.mark.parametrize("target", [ToOffset(199), ToOffset(1001), ToOffset(-1), ShiftBy(-651), ShiftBy(151)])
def test_an_offset_out_of_range_is_refused_and_names_the_range(target: Target) -> None:
    with pytest.raises(UserError, match=r"out of range .* holds offsets 200 to 1000. Nothing was changed"):
        the_move(a_place(850), target)


@pytest.mark.parametrize(
    ("target", "to", "note"),
    [
        (ToOffset(5), 200, "5 is below the log start"),
        (ToOffset(5000), 1000, "5000 is beyond the end"),
        (ShiftBy(-10_000), 200, "-9150 is below the log start"),
    ],
)
def test_a_clamp_is_shown_in_the_plan(target: Target, to: int, note: str) -> None:
    move = the_move(a_place(850), target, clamp=True)

    assert (to, note) == (move.to, move.note)


def test_a_shift_needs_a_place_to_shift_from() -> None:
    with pytest.raises(UserError, match="committed nothing in clicks-0"):
        the_move(a_place(None), ShiftBy(-1))


def test_a_partition_without_a_commit_reads_nothing_again_and_skips_nothing() -> None:
    move = the_move(a_place(None), ToEarliest())

    assert (0, 0, 800, True) == (move.read_again, move.skipped, move.lag_after, move.is_change)


def test_expired_records_are_not_counted_as_read_again_or_skipped() -> None:
    assert 0 == the_move(a_place(50), ToEarliest()).read_again
    assert 0 == the_move(a_place(50), ToEarliest()).skipped
    assert 800 == the_move(a_place(50), ToLatest()).skipped


def test_a_log_that_could_not_be_asked_stops_the_whole_plan() -> None:
    broken = Place(group="fraud", partition=CLICKS, committed=None, start=None, end=None, problem="It has no leader.")

    with pytest.raises(UserError, match=r"It has no leader. Nothing was changed"):
        make_plan("fraud", [a_place(3, partition=TopicPartition("clicks", 1)), broken], ToEarliest())


def test_moves_are_in_order_of_topic_and_partition() -> None:
    names = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2)]

    plan = make_plan("fraud", [a_place(300, partition=one) for one in names], ToEarliest())

    assert [("a", 2), ("a", 10), ("b", 0)] == [tuple(move.partition) for move in plan.moves]
    assert (300, 0) == (plan.read_again, plan.skipped)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(-2000, 2000))
def test_a_clamped_plan_stays_in_the_log_and_its_counts_add_up(one: int, other: int, committed: int, by: int) -> None:
    start, end = sorted((one, other))
    place = a_place(committed, start=start, end=end)
    move = the_move(place, ShiftBy(by), clamp=True)
    assert place.lag is not None

    assert start <= move.to <= end
    assert move.read_again == 0 or move.skipped == 0
    assert move.lag_after == place.lag.records + move.read_again - move.skipped
