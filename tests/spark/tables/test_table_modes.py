"""The modes of a table, without Spark: what each of them does with new, repeated and older rows."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from logmark.errors import UserError
from logmark.spark.tables.commits import write_batch
from logmark.spark.tables.modes import Rules
from tests.spark.table_batches import P0, P1, WHERE, Row, batch, rows, spark_schema, write

CLICKS = {**WHERE, "value": "string"}
USERS = {**WHERE, "user": "string", "city": "string"}
TOTALS = {"campaign": "string", "total": "long"}
APPEND, UPSERT, COMPLETE = Rules.of("append"), Rules.of("upsert", keys="user"), Rules.of("complete")


def clicks(first: int, end: int, value: str = "a", partition: int = 0) -> list[Row]:
    return [
        {"topic": "clicks", "partition": partition, "offset": offset, "value": value} for offset in range(first, end)
    ]


def user(offset: int, name: str | None, city: str | None, partition: int = 0, **more: Any) -> Row:
    return {"topic": "clicks", "partition": partition, "offset": offset, "user": name, "city": city, **more}


def version(table: Path) -> int:
    return DeltaTable(str(table)).version()


# Append: what was read first stays.


def append(table: Path, first: int, end: int, value: str, generation: int = 1, **more: Any) -> bool:
    one = batch({P0: first}, {P0: end}, APPEND, generation=generation, **more)
    return write(table, one, APPEND, CLICKS, clicks(first, end, value))


def values(table: Path) -> str:
    """The values in the order of their offsets, and the offsets without gaps."""
    found = rows(table, "offset", "value")
    assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
    return "".join(value for _, value in found)


def test_an_append_leaves_out_rows_of_offsets_that_were_read_before(tmp_path: Path) -> None:
    append(tmp_path, 0, 4, "a")
    append(tmp_path, 2, 6, "b", generation=2)
    append(tmp_path, 6, 8, "c", generation=2)

    assert "aaaabbcc" == values(tmp_path)


def test_an_append_of_a_batch_that_spark_repeats_is_not_even_computed(tmp_path: Path) -> None:
    append(tmp_path, 0, 4, "a")

    assert not append(tmp_path, 0, 4, "b")
    assert ("aaaa", 0) == (values(tmp_path), version(tmp_path))


def test_an_append_of_old_offsets_alone_is_not_computed_but_noted(tmp_path: Path) -> None:
    append(tmp_path, 0, 8, "a")

    assert not append(tmp_path, 2, 4, "b", generation=2)
    assert append(tmp_path, 4, 9, "b", generation=2)
    assert "aaaaaaaab" == values(tmp_path)


def test_an_append_remembers_offsets_that_were_skipped(tmp_path: Path) -> None:
    append(tmp_path, 0, 2, "a")
    append(tmp_path, 6, 8, "b", generation=2)
    append(tmp_path, 1, 7, "c", generation=3)

    assert "aaccccbb" == values(tmp_path)


def test_an_append_of_rows_without_offsets_takes_only_what_is_new_as_a_whole(tmp_path: Path) -> None:
    def unlocated(first: int, end: int, generation: int = 1) -> bool:
        one = batch({P0: first}, {P0: end}, APPEND, generation=generation)
        return write(tmp_path, one, APPEND, {"value": "string"}, [{"value": str(n)} for n in range(first, end)])

    unlocated(0, 4)
    unlocated(1, 3, generation=2)
    files = sorted(tmp_path.rglob("*.parquet"))
    with pytest.raises(UserError, match=r"reads offsets of clicks-0 again.* appended 3 to 4.* Nothing was written"):
        unlocated(3, 6, generation=2)

    assert files == sorted(tmp_path.rglob("*.parquet"))
    assert [("0",), ("1",), ("2",), ("3",)] == rows(tmp_path)


def test_records_of_a_topic_that_was_recreated_are_others_also_at_old_offsets(tmp_path: Path) -> None:
    append(tmp_path, 0, 4, "a")
    append(tmp_path, 0, 2, "b", generation=2, topic_id="the second")
    append(tmp_path, 2, 6, "c", generation=2, topic_id="the second")
    append(tmp_path, 1, 3, "d", generation=3, topic_id="the second")

    assert ["a"] * 4 + ["b"] * 2 + ["c"] * 4 == sorted(value for (value,) in rows(tmp_path, "value"))


@pytest.mark.parametrize("rules", [Rules(), Rules.of("upsert", keys="value")])
def test_rows_of_a_topic_that_was_recreated_do_not_replace_those_of_the_old_one(tmp_path: Path, rules: Rules) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 4}, rules), rules, CLICKS, clicks(0, 4))

    with pytest.raises(UserError, match=r"The topic clicks was deleted and created again .* Nothing was written"):
        recreated = batch({P0: 0}, {P0: 4}, rules, generation=2, topic_id="the second")
        write(tmp_path, recreated, rules, CLICKS, clicks(0, 4, "b"))
    assert len(rows(tmp_path)) == (4 if rules.mode == "replace" else 1)


def test_a_query_with_state_continues_with_a_topic_that_was_recreated(tmp_path: Path) -> None:
    totals(tmp_path, 0, 10, {"a": 1}, number=0)
    totals(tmp_path, 0, 0, {}, number=1, generation=2, topic_id="the second")
    totals(tmp_path, 0, 5, {"b": 2}, number=2, generation=2, topic_id="the second")
    with pytest.raises(UserError, match="was moved back"):
        totals(tmp_path, 3, 8, {"c": 2}, number=3, generation=3, topic_id="the second")

    assert [("a", 1), ("b", 2)] == rows(tmp_path)


# Upsert: one row for each key, the newest.


def upsert(table: Path, first: int, *users: Row, generation: int = 1, rules: Rules = UPSERT, **more: Any) -> bool:
    ends = {P0: first + sum(row["partition"] == 0 for row in users), P1: 100}
    one = batch({P0: first, P1: 100}, ends, rules, generation=generation)
    return write(table, one, rules, {**USERS, **more}, users)


def cities(table: Path) -> dict[str | None, str | None]:
    """The city of each user; a user who is there twice is a failure."""
    found = rows(table, "user", "city")
    assert len(found) == len({name for name, _ in found}), found
    return dict(found)


def test_an_upsert_keeps_the_newest_row_of_each_key(tmp_path: Path) -> None:
    upsert(tmp_path, 0, user(0, "ada", "london"), user(1, "bob", "rome"), user(2, "ada", "paris"))
    upsert(tmp_path, 3, user(3, "bob", "oslo"), user(4, "eve", "kyiv"))

    assert {"ada": "paris", "bob": "oslo", "eve": "kyiv"} == cities(tmp_path)
    assert 1 == version(tmp_path)


def test_older_rows_that_are_read_again_do_not_replace_newer_ones(tmp_path: Path) -> None:
    upsert(tmp_path, 0, user(0, "ada", "london"), user(1, "bob", "rome"))
    upsert(tmp_path, 2, user(2, "ada", "paris"))
    upsert(tmp_path, 0, user(0, "ada", "wrong"), user(1, "bob", "milan"), generation=2)

    assert {"ada": "paris", "bob": "milan"} == cities(tmp_path)


def test_offsets_of_different_partitions_are_not_compared_and_the_later_batch_wins(tmp_path: Path) -> None:
    upsert(tmp_path, 50, user(50, "ada", "london"))
    upsert(tmp_path, 51, user(3, "ada", "paris", partition=1), user(51, "bob", "rome"))

    assert {"ada": "paris", "bob": "rome"} == cities(tmp_path)


def test_a_sequence_decides_where_one_is_given(tmp_path: Path) -> None:
    rules = Rules.of("upsert", keys=["user"], sequence="at")

    def put_at(first: int, *found: tuple[str, int | None]) -> None:
        users = [user(first + index, "ada", city, at=at) for index, (city, at) in enumerate(found)]
        upsert(tmp_path, first, *users, rules=rules, at="long")

    put_at(0, ("london", 5), ("paris", 9), ("rome", 7))
    assert {"ada": "paris"} == cities(tmp_path)
    put_at(3, ("oslo", 8), ("nowhere", None))
    assert {"ada": "paris"} == cities(tmp_path)
    put_at(5, ("kyiv", 9))
    assert {"ada": "kyiv"} == cities(tmp_path)


def test_a_null_is_a_key_like_any_other(tmp_path: Path) -> None:
    upsert(tmp_path, 0, user(0, None, "london"), user(1, "ada", "paris"))
    upsert(tmp_path, 2, user(2, None, "rome"))

    assert {None: "rome", "ada": "paris"} == cities(tmp_path)


def test_rows_are_deleted_by_a_column_that_says_so(tmp_path: Path) -> None:
    rules = Rules.of("upsert", keys="user", delete_by="is_gone")
    gone = {"is_gone": "boolean"}
    upsert(tmp_path, 0, user(0, "ada", "x", is_gone=False), user(1, "bob", "y", is_gone=None), rules=rules, **gone)
    upsert(tmp_path, 2, user(2, "ada", "x", is_gone=True), user(3, "eve", "z", is_gone=True), rules=rules, **gone)

    assert {"bob": "y"} == cities(tmp_path)
    assert [*USERS] == [field.name for field in DeltaTable(str(tmp_path)).schema().fields]


def test_rows_are_deleted_by_a_null_when_asked(tmp_path: Path) -> None:
    rules = Rules.of("upsert", keys="user", delete_by="city")
    upsert(tmp_path, 0, user(0, "ada", "x"), user(1, "bob", "y"), rules=rules)
    upsert(tmp_path, 2, user(2, "ada", None), rules=rules)

    assert {"bob": "y"} == cities(tmp_path)


def test_a_file_without_any_of_the_keys_is_not_opened(tmp_path: Path) -> None:
    upsert(tmp_path, 0, user(0, "ada", "x"), user(1, "bob", "y"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    for path in before:
        path.rename(path.with_suffix(".away"))

    upsert(tmp_path, 2, user(2, "zoe", "z"))

    for path in before:
        path.with_suffix(".away").rename(path)
    assert {"ada": "x", "bob": "y", "zoe": "z"} == cities(tmp_path)


def test_other_keys_than_the_tables_are_an_error(tmp_path: Path) -> None:
    upsert(tmp_path, 0, user(0, "ada", "x"))

    with pytest.raises(UserError, match=r"has other keys than city.* Nothing was written"):
        upsert(tmp_path, 1, user(1, "ada", "y"), rules=Rules.of("upsert", keys="city"))


# Complete, and queries with state: the batch is known by the query and its number.


def complete(table: Path, number: int, total: int, **more: Any) -> bool:
    settings: dict[str, Any] = {"is_stateful": True, "number": number, **more}
    one = batch({P0: number}, {P0: number + 1}, COMPLETE, **settings)
    return write(table, one, COMPLETE, TOTALS, [{"campaign": "c", "total": total}])


def test_a_complete_result_replaces_the_table_each_batch_in_one_commit(tmp_path: Path) -> None:
    for number in range(3):
        complete(tmp_path, number, total=number * 10)

    assert [("c", 20)] == rows(tmp_path)
    assert (2, 1) == (version(tmp_path), len(DeltaTable(str(tmp_path)).file_uris()))


def test_a_repeated_batch_of_a_query_with_state_is_known_by_its_number(tmp_path: Path) -> None:
    complete(tmp_path, 0, total=1)
    complete(tmp_path, 1, total=2)

    assert not complete(tmp_path, 1, total=99)
    assert not complete(tmp_path, 0, total=99)
    assert [("c", 2)] == rows(tmp_path)


def totals(table: Path, first: int, end: int, found: dict[str, int], **more: Any) -> bool:
    """Appends what a window gave that has closed."""
    settings: dict[str, Any] = {"is_stateful": True, **more}
    one = batch({P0: first}, {P0: end}, APPEND, **settings)
    return write(table, one, APPEND, TOTALS, [{"campaign": name, "total": total} for name, total in found.items()])


def test_rows_of_a_batch_that_reads_nothing_are_taken_once(tmp_path: Path) -> None:
    totals(tmp_path, 0, 10, {}, number=0)
    totals(tmp_path, 0, 10, {"closed by a timer": 5}, number=1)
    totals(tmp_path, 0, 10, {"closed by a timer": 5}, number=1)
    totals(tmp_path, 0, 10, {}, number=2)
    totals(tmp_path, 10, 20, {"next": 6}, number=3)

    assert [("closed by a timer", 5), ("next", 6)] == rows(tmp_path)
    assert 2 == version(tmp_path)


def test_the_rows_of_a_seek_are_taken_and_the_state_is_not_moved_by_it(tmp_path: Path) -> None:
    totals(tmp_path, 0, 10, {"a": 1}, number=0)
    totals(tmp_path, 4, 4, {"closed by a timer": 5}, number=1, generation=2)
    totals(tmp_path, 10, 10, {}, number=2, generation=3)
    totals(tmp_path, 10, 12, {"b": 2}, number=3, generation=3)

    assert [("a", 1), ("b", 2), ("closed by a timer", 5)] == rows(tmp_path)


@pytest.mark.parametrize(
    ("settings", "first", "message"),
    [
        ({"number": 1, "generation": 2}, 4, r"was moved back: the batch begins at offset 4 .* counted up to 10"),
        ({"number": 0, "query": "other", "generation": 2}, 10, r"began without it: its checkpoint is new"),
        ({"number": 1}, 12, r"ends at offset 10 .* but the batch starts at 12"),
        ({"number": 1, "group": "fraud"}, 10, r"the rows of another group than fraud"),
    ],
)
def test_what_would_count_twice_or_from_nothing_is_an_error_and_leaves_no_file(
    tmp_path: Path, settings: dict[str, Any], first: int, message: str
) -> None:
    totals(tmp_path, 0, 10, {"a": 1}, number=0)
    files = sorted(tmp_path.rglob("*"))

    with pytest.raises(UserError, match=message) as refused:
        totals(tmp_path, first, first + 5, {"b": 2}, **settings)

    assert "Nothing was written" in str(refused.value)
    assert files == sorted(tmp_path.rglob("*"))


def test_a_query_with_state_may_be_moved_forward(tmp_path: Path) -> None:
    totals(tmp_path, 0, 10, {"a": 1}, number=0)
    totals(tmp_path, 15, 15, {}, number=1, generation=2)
    totals(tmp_path, 15, 20, {"b": 2}, number=2, generation=2)

    assert [("a", 1), ("b", 2)] == rows(tmp_path)


# The columns, and the rules themselves.


def test_another_mode_than_the_tables_is_an_error(tmp_path: Path) -> None:
    append(tmp_path, 0, 2, "a")

    with pytest.raises(UserError, match=r"is written in mode append, and the rows of mode replace"):
        write(tmp_path, batch({P0: 2}, {P0: 3}, Rules()), Rules(), CLICKS, clicks(2, 3))


@pytest.mark.parametrize("mode", ["replace", "append", "upsert"])
def test_new_columns_are_added_when_asked_and_are_null_in_older_rows(tmp_path: Path, mode: str) -> None:
    keys = {"keys": "value"} if mode == "upsert" else {}
    plain, growing = Rules.of(mode, **keys), Rules.of(mode, **keys, merge_schema=True)
    write(tmp_path, batch({P0: 0}, {P0: 1}, plain), plain, CLICKS, clicks(0, 1, "a"))
    wide = [{**clicks(1, 2, "b")[0], "price": 5}]
    files = sorted(tmp_path.rglob("*"))

    with pytest.raises(UserError, match="merge_schema=True"):
        write(tmp_path, batch({P0: 1}, {P0: 2}, plain), plain, {**CLICKS, "price": "long"}, wide)
    assert files == sorted(tmp_path.rglob("*"))
    write(tmp_path, batch({P0: 1}, {P0: 2}, growing), growing, {**CLICKS, "price": "long"}, wide)
    write(tmp_path, batch({P0: 2}, {P0: 3}, growing), growing, CLICKS, clicks(2, 3, "c"))

    assert [(0, "a", None), (1, "b", 5), (2, "c", None)] == rows(tmp_path, "offset", "value", "price")


def test_a_column_of_another_type_is_an_error_that_names_both(tmp_path: Path) -> None:
    growing = Rules.of("append", merge_schema=True)
    write(tmp_path, batch({P0: 0}, {P0: 1}, growing), growing, CLICKS, clicks(0, 1))
    numbers = [{**clicks(1, 2)[0], "value": 7}]

    with pytest.raises(UserError, match=r"value \(long, in the table string\).* Nothing was written"):
        write(tmp_path, batch({P0: 1}, {P0: 2}, growing), growing, {**WHERE, "value": "long"}, numbers)


@pytest.mark.parametrize("kind", ["void", "interval day to second"])
def test_a_type_that_delta_does_not_have_is_an_error_before_anything_is_computed(tmp_path: Path, kind: str) -> None:
    one = batch({P0: 0}, {P0: 1}, APPEND)
    with pytest.raises(UserError, match=f"The column price has the type {kind}, which Delta tables do not have"):
        write_batch(tmp_path, one, spark_schema({**CLICKS, "price": kind}), pytest.fail, APPEND)


def test_rows_that_do_not_say_where_they_came_from_are_not_appended(tmp_path: Path) -> None:
    lost = [{"topic": None, "partition": 0, "offset": 0, "value": "a"}]

    with pytest.raises(UserError, match="Some rows have no topic, partition or offset"):
        write(tmp_path, batch({P0: 0}, {P0: 1}, APPEND), APPEND, CLICKS, lost)


@pytest.mark.parametrize(
    ("mode", "given", "message"),
    [
        ("overwrite", {}, "There is no mode 'overwrite'"),
        ("upsert", {}, "Mode upsert needs keys"),
        ("append", {"keys": ["user"]}, "keys goes with mode upsert"),
        ("complete", {"sequence": "at"}, "sequence goes with mode upsert"),
        ("upsert", {"keys": "who"}, "The rows have no column who. Their columns are topic"),
        ("upsert", {"keys": "user", "delete_by": "user"}, "is a key, so it cannot tell"),
    ],
)
def test_rules_that_do_not_go_together_are_an_error(mode: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Rules.of(mode, **given).check(USERS)
