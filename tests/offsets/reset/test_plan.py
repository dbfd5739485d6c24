import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.client.answers import Committed
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.partitions import GroupPartition
from logmark.offsets.reset.plan import PartitionMove, ResetPlan, build_plan
from logmark.offsets.reset.targets import (
    FoundRecord,
    ShiftBy,
    Target,
    ToCurrent,
    ToEarliest,
    ToKey,
    ToLatest,
    ToOffset,
    ToOffsets,
    ToTime,
    format_key,
)

CLICKS = TopicPartition("clicks", 0)


def group_partition(
    committed: int | Committed | None, start: int = 200, end: int = 1000, partition: TopicPartition = CLICKS
) -> GroupPartition:
    return GroupPartition(
        group="fraud",
        partition=partition,
        committed=Committed(offset=committed) if isinstance(committed, int) else committed,
        start=start,
        end=end,
    )


def the_move(
    planned: GroupPartition, target: Target, *, found: int | None = None, clamp: bool = False
) -> PartitionMove:
    answers = None if found is None else {planned.partition: found}
    (move,) = build_plan("fraud", [planned], target, found=answers, clamp=clamp).moves
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
    move = the_move(group_partition(850), target)

    assert (to, read_again, skipped, lag_after) == (move.to, move.read_again, move.skipped, move.lag_after)


def test_a_time_leads_to_the_record_that_was_found() -> None:
    assert 640 == the_move(group_partition(850), ToTime(1_709_596_800_000), found=640).to


def test_a_time_after_the_last_record_leads_to_the_end_and_the_plan_says_so() -> None:
    move = the_move(group_partition(850), ToTime(1_709_596_800_000), found=-1)

    assert (1000, "no record at or after 2024-03-05T00:00:00.000Z: the end") == (move.to, move.note)


@pytest.mark.parametrize("target", [ToOffset(199), ToOffset(1001), ToOffset(-1), ShiftBy(-651), ShiftBy(151)])
def test_an_offset_out_of_range_is_refused_and_names_the_range(target: Target) -> None:
    with pytest.raises(UserError, match=r"out of range .* holds offsets 200 to 1000. Nothing was changed"):
        the_move(group_partition(850), target)


@pytest.mark.parametrize(
    ("target", "to", "note"),
    [
        (ToOffset(5), 200, "5 is below the log start"),
        (ToOffset(5000), 1000, "5000 is beyond the end"),
        (ShiftBy(-10_000), 200, "-9150 is below the log start"),
    ],
)
def test_a_clamp_is_shown_in_the_plan(target: Target, to: int, note: str) -> None:
    move = the_move(group_partition(850), target, clamp=True)

    assert (to, note) == (move.to, move.note)


def test_a_shift_needs_an_offset_to_shift_from() -> None:
    with pytest.raises(UserError, match="committed nothing in clicks-0"):
        the_move(group_partition(None), ShiftBy(-1))


def test_a_partition_without_a_commit_reads_nothing_again_and_skips_nothing() -> None:
    move = the_move(group_partition(None), ToEarliest())

    assert (0, 0, 800, True) == (move.read_again, move.skipped, move.lag_after, move.is_change)


def test_expired_records_are_not_counted_as_read_again_or_skipped() -> None:
    assert 0 == the_move(group_partition(50), ToEarliest()).read_again
    assert 0 == the_move(group_partition(50), ToEarliest()).skipped
    assert 800 == the_move(group_partition(50), ToLatest()).skipped


def test_a_log_that_could_not_be_asked_stops_the_whole_plan() -> None:
    broken = GroupPartition(
        group="fraud", partition=CLICKS, committed=None, start=None, end=None, problem="It has no leader."
    )

    with pytest.raises(UserError, match=r"It has no leader. Nothing was changed"):
        build_plan("fraud", [group_partition(3, partition=TopicPartition("clicks", 1)), broken], ToEarliest())


def test_moves_are_in_order_of_topic_and_partition() -> None:
    names = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2)]

    plan = build_plan("fraud", [group_partition(300, partition=one) for one in names], ToEarliest())

    assert [("a", 2), ("a", 10), ("b", 0)] == [tuple(move.partition) for move in plan.moves]
    assert (300, 0) == (plan.read_again, plan.skipped)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(-2000, 2000))
def test_a_clamped_plan_stays_in_the_log_and_its_counts_add_up(one: int, other: int, committed: int, by: int) -> None:
    start, end = sorted((one, other))
    planned = group_partition(committed, start=start, end=end)
    move = the_move(planned, ShiftBy(by), clamp=True)
    assert planned.lag is not None

    assert start <= move.to <= end
    assert move.read_again == 0 or move.skipped == 0
    assert move.lag_after == planned.lag.records + move.read_again - move.skipped


def test_metadata_is_kept_and_the_leader_epoch_goes_with_its_offset() -> None:
    here = Committed(offset=850, leader_epoch=4, metadata="m")

    assert Committed(offset=500, metadata="m") == the_move(group_partition(here), ToOffset(500)).after
    stays = the_move(group_partition(here), ToOffset(850))
    assert (here, False) == (stays.after, stays.is_change)


def test_to_current_commits_the_same_again_and_goes_to_the_end_where_nothing_is_committed() -> None:
    here = Committed(offset=850, leader_epoch=4, metadata="m")
    again = the_move(group_partition(here), ToCurrent())
    new = the_move(group_partition(None), ToCurrent())

    assert (here, True, "committed again as it is") == (again.after, again.is_change, again.note)
    assert (1000, "nothing committed yet; the end") == (new.to, new.note)


def test_offsets_of_their_own_are_taken_with_their_metadata_only_where_that_is_exact() -> None:
    here, there = Committed(offset=850, metadata="mine"), Committed(offset=500, leader_epoch=3, metadata="theirs")

    copied = the_move(group_partition(here), ToOffsets({CLICKS: there}, "group other"))
    exact = the_move(group_partition(here), ToOffsets({CLICKS: there}, "a file", is_exact=True))
    too_low = ToOffsets({CLICKS: Committed(offset=5)}, "a file", is_exact=True)
    clamped = the_move(group_partition(here), too_low, clamp=True)

    assert (Committed(offset=500, metadata="mine"), False) == (copied.after, copied.is_exact)
    assert (there, True) == (exact.after, exact.is_exact)
    assert (Committed(offset=200, metadata="mine"), "5 is below the log start") == (clamped.after, clamped.note)


@pytest.mark.parametrize(("is_after", "to"), [(False, 640), (True, 641)])
def test_a_key_leads_just_before_or_after_its_record_and_other_partitions_stay(is_after: bool, to: int) -> None:
    other, empty = TopicPartition("clicks", 1), TopicPartition("clicks", 2)
    found = {CLICKS: FoundRecord(offset=640, timestamp_ms=1_709_596_800_000)}
    partitions = [group_partition(850), group_partition(300, partition=other), group_partition(None, partition=empty)]

    moves = build_plan("fraud", partitions, ToKey(key=b"k", is_after=is_after, found=found)).moves

    assert [(to, True), (300, False), (None, False)] == [(move.to, move.is_change) for move in moves]
    assert [
        "the key is at offset 640, written 2024-03-05T00:00:00.000Z",
        "no record with this key: stays",
        "nothing committed yet; no record with this key: stays",
    ] == [move.note for move in moves]


@pytest.mark.parametrize(
    ("key", "shown"), [(b"ann", "'ann'"), (b"", "''"), (b"\xff\x00", "0xff00"), (b"a\n", "0x610a")]
)
def test_a_key_is_shown_as_text_where_it_is_one(key: bytes, shown: str) -> None:
    assert shown == format_key(key)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (ToEarliest(), "to the log start"),
        (ToLatest(), "to the end"),
        (ToOffset(5), "to offset 5"),
        (ToTime(0), "to the first record at or after 1970-01-01T00:00:00.000Z"),
        (ShiftBy(-3), "back by 3"),
        (ShiftBy(3), "forward by 3"),
        (ToCurrent(), "to the committed offsets"),
        (ToOffsets({}, "group other"), "to the offsets of group other"),
        (ToKey(key=b"k", is_after=True), "just after the first record with key 'k'"),
    ],
)
def test_a_plan_says_in_words_what_was_asked_for(target: Target, words: str) -> None:
    assert words == target.description


class TestAGroupThatMovesMeanwhile:
    def plan(self, target: Target) -> ResetPlan:
        return build_plan("fraud", [group_partition(Committed(offset=850, metadata="old"))], target)

    def test_an_absolute_plan_keeps_its_offset_and_counts_again(self) -> None:
        now = {CLICKS: Committed(offset=900, metadata="new")}
        fresh = self.plan(ToOffset(500)).rebase_on(now)

        assert (400, Committed(offset=500, metadata="new")) == (fresh.read_again, fresh.moves[0].after)
        assert self.plan(ToOffset(500)).only_forward(now)

    def test_a_relative_plan_goes_along(self) -> None:
        now = {CLICKS: Committed(offset=900)}
        assert [890] == [move.to for move in self.plan(ShiftBy(-10)).rebase_on(now).moves]
        assert [900] == [move.to for move in self.plan(ToCurrent()).rebase_on(now).moves]

    def test_going_back_and_vanishing_is_no_moving_forward(self) -> None:
        assert not self.plan(ToOffset(500)).only_forward({CLICKS: Committed(offset=849)})
        assert not self.plan(ToOffset(500)).only_forward({})

    def test_an_exact_offset_stays_exact(self) -> None:
        there = Committed(offset=500, leader_epoch=3, metadata="theirs")
        plan = self.plan(ToOffsets({CLICKS: there}, "a file", is_exact=True))
        assert [there] == [move.after for move in plan.rebase_on({CLICKS: Committed(offset=900)}).moves]
