"""A picture has every mark under the record that is read next, and says what the mark means."""

import pytest

from logmark.tour.pictures import CELLS_MAX, SCALE, WIDTH, Committed, Log, Mark, Position, draw, in_ascii, writable


def log(end: int, *, start: int = 0, owner: str = "") -> Log:
    return Log(topic="clicks", partition=0, start=start, end=end, owner=owner)


def drawn(of: Log, *marks: Mark) -> str:
    return "\n".join(draw(of, marks))


def committed(offset: int | None, group: str = "billing") -> Committed:
    return Committed(group=group, offset=offset)


def test_three_groups_stand_under_the_records_that_they_read_next() -> None:
    shown = drawn(log(6), committed(3), committed(0, "fraud"), committed(5, "ml-features"))

    assert (
        """\
             ┌───┬───┬───┬───┬───┬───┐
clicks-0     │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6
             └───┴───┴───┴───┴───┴───┘
billing                    ▲ committed 3 (last processed 2), lag 3
fraud          ▲ committed 0 (nothing processed), lag 6
ml-features                        ▲ committed 5 (last processed 4), lag 1"""
        == shown
    )


@pytest.mark.parametrize("end", [1, 9, 10, 11, CELLS_MAX])
def test_a_mark_stands_exactly_under_its_offset_for_every_offset_up_to_the_end(end: int) -> None:
    for offset in range(end + 1):
        _, cells, _, mark = draw(log(end), [Position(reader="consumer", offset=offset)])
        numbers = cells.split("│", 1)[1]
        column = len(cells) - len(numbers) + _column_of(numbers, offset)
        assert "△" == mark[column], f"offset {offset} of {end}:\n{cells}\n{mark}"


def _column_of(numbers: str, offset: int) -> int:
    return numbers.index(f" {offset} " if f" {offset} " in numbers else f" {offset}") + 1


def test_what_is_gone_is_shaded_and_an_offset_below_the_log_start_says_what_is_lost() -> None:
    shown = drawn(log(6, start=3), committed(1))

    assert "│░░░│░░░│░░░│ 3 │ 4 │ 5 │ 6" in shown
    assert "▲ committed 1 (last processed 0), lag 3, 2 lost" in shown


def test_nothing_committed_is_said_and_has_no_mark() -> None:
    shown = drawn(log(2), committed(None))

    assert "billing      nothing committed" == shown.splitlines()[-1]
    assert "▲" not in shown


def test_an_empty_log_shows_where_the_first_record_will_go() -> None:
    assert ["             ┌", "clicks-0     │ 0", "             └"] == draw(log(0), [])


def test_the_worker_of_a_partition_is_named() -> None:
    assert "│ 0 │ 1 │ 2   read by worker-1" in drawn(log(2, owner="worker-1"))


def test_a_long_log_is_a_scale_with_the_marks_in_proportion() -> None:
    shown = drawn(log(1000, start=200), committed(600), Position(reader="consumer", offset=1000)).splitlines()

    numbers, line, mark, position = shown
    assert ["200", "1000"] == numbers.split()
    assert f"clicks-0     {'░' * 10}├{'─' * 39}┤" == line
    assert 13 + 600 * SCALE // 1000 == mark.index("▲")
    assert line.index("┤") == position.index("△") == numbers.index("1000")


@pytest.mark.parametrize("end", [8, CELLS_MAX, CELLS_MAX + 1, 1000, 100_000])
@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_words_that_find_no_room_behind_their_mark_stand_before_it(end: int, behind: int) -> None:
    *box, mark = draw(log(end), [committed(end - behind)])

    assert max(map(len, [*box, mark])) <= WIDTH
    assert f"committed {end - behind} (last processed {end - behind - 1}), lag {behind}" in mark


def test_a_long_name_moves_the_whole_picture_and_no_line_ends_in_spaces() -> None:
    lines = draw(log(3), [committed(1, "a-group-with-a-long-name"), committed(2)])

    assert lines[1].index("│ 0") == lines[0].index("┌") == 26
    assert lines[3].index("▲") == lines[1].index("1")
    assert lines == [line.rstrip() for line in lines]


def test_where_there_is_only_ascii_the_picture_is_in_ascii() -> None:
    shown = drawn(log(4, start=1), committed(2), Position(reader="consumer", offset=3))

    assert shown == writable(shown, "utf-8")
    plain = writable(shown, "ascii")
    assert plain == in_ascii(shown)
    assert plain.isascii()
    assert "|...| 1 | 2 | 3 | 4" in plain
    assert ["^", "*"] == [line.split()[1] for line in plain.splitlines()[-2:]]
