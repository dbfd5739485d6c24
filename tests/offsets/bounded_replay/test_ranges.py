"""What a replay takes, where it puts it and what travels with it: decided without a broker."""

import pytest

from logmark.cli.replay import parse_headers, parse_keys
from logmark.client.errors import OffsetOutOfRange
from logmark.errors import UserError
from logmark.offsets.bounded_replay.copy_buffer import Route
from logmark.offsets.bounded_replay.copy_headers import CopyHeaders, Headers, copy_source, count_hops, original_topic
from logmark.offsets.bounded_replay.ranges import (
    OffsetRange,
    OffsetSpecs,
    PartitionLog,
    parse_offset_specs,
    plan_ranges,
)
from logmark.offsets.bounded_replay.runs import Selection
from logmark.offsets.offset_spec import OffsetSpec

NOW = 1_700_000_000_000
LATEST = OffsetSpec(is_latest=True)
EARLIEST = OffsetSpec(is_earliest=True)


@pytest.mark.parametrize(
    ("selection", "key", "value", "headers", "is_taken"),
    [
        (Selection(), None, None, [], True),
        (Selection(keys=frozenset({b"a", b"b"})), b"b", b"", [], True),
        (Selection(keys=frozenset({b"a"})), b"ab", b"", [], False),
        (Selection(keys=frozenset({b"a"})), None, b"", [], False),
        (Selection(keys=frozenset({b""})), b"", b"", [], True),
        (Selection(headers=((b"n", None),)), None, None, [(b"n", None)], True),
        (Selection(headers=((b"n", None),)), None, None, [(b"m", b"n")], False),
        (Selection(headers=((b"n", b"1"),)), None, None, [(b"n", b"0"), (b"n", b"1")], True),
        (Selection(headers=((b"n", b"1"),)), None, None, [(b"n", b"11")], False),
        (Selection(headers=((b"n", b"1"), (b"m", None))), None, None, [(b"n", b"1")], False),
        (Selection(value_contains=b"err"), None, b"an error", [], True),
        (Selection(value_contains=b"err"), b"err", b"fine", [], False),
        (Selection(value_contains=b"err"), None, None, [], False),
        (Selection(keys=frozenset({b"a"}), value_contains=b"x"), b"a", b"y", [], False),
    ],
)
def test_a_record_is_taken_when_all_that_was_named_fits(
    selection: Selection, key: bytes | None, value: bytes | None, headers: Headers, is_taken: bool
) -> None:
    assert is_taken is selection.takes(key, value, headers)


def test_keys_are_text_or_hexadecimal_and_headers_have_a_value_or_not() -> None:
    assert frozenset({"Zürich".encode(), b"00"}) == parse_keys(["Zürich", "00"], is_hex=False)
    assert frozenset({b"\x00\xff", b"\x10"}) == parse_keys(["00ff", "0x10"], is_hex=True)
    assert ((b"n", None), (b"m", b""), (b"k", b"a=b")) == parse_headers(["n", "m=", "k=a=b"])
    with pytest.raises(UserError, match="two digits for each byte"):
        parse_keys(["xyz"], is_hex=True)
    with pytest.raises(UserError, match="NAME=VALUE"):
        parse_headers(["=1"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42", OffsetSpec(offset=42)),
        ("0:100,1:-5", {0: OffsetSpec(offset=100), 1: OffsetSpec(before_end=5)}),
        ("2:@2024-03-05T00:00:00", {2: OffsetSpec(timestamp_ms=1_709_596_800_000)}),
    ],
)
def test_an_offset_is_for_all_partitions_or_for_those_named(text: str, expected: OffsetSpecs) -> None:
    assert expected == parse_offset_specs(text, now_ms=NOW)


@pytest.mark.parametrize("text", ["0:1,0:2", "0:1,5", "0:", "0:1,x:2", "1:soon"])
def test_offsets_that_name_no_partition_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_offset_specs(text, now_ms=NOW)


LOGS = {
    0: PartitionLog(start=10, end=100, at_from_time=40, at_to_time=60),
    1: PartitionLog(start=0, end=50, at_from_time=-1),
}


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (EARLIEST, LATEST, [(0, 10, 100, ""), (1, 0, 50, "")]),
        (LATEST, LATEST, [(0, 100, 100, ""), (1, 50, 50, "")]),
        (OffsetSpec(offset=20), OffsetSpec(offset=30), [(0, 20, 30, ""), (1, 20, 30, "")]),
        (OffsetSpec(before_end=20), LATEST, [(0, 80, 100, ""), (1, 30, 50, "")]),
        (OffsetSpec(before_end=500), LATEST, [(0, 10, 100, ""), (1, 0, 50, "")]),
        (EARLIEST, OffsetSpec(before_end=20), [(0, 10, 80, ""), (1, 0, 30, "")]),
        # A time that no record has reached yet is the end.
        (OffsetSpec(timestamp_ms=1), LATEST, [(0, 40, 100, ""), (1, 50, 50, "")]),
        (EARLIEST, OffsetSpec(timestamp_ms=1), [(0, 10, 60, ""), (1, 0, 50, "")]),
        # What one partition does not hold is said; what none holds is refused.
        (OffsetSpec(offset=0), LATEST, [(0, 10, 100, "0 is below the log start"), (1, 0, 50, "")]),
        (OffsetSpec(offset=5), OffsetSpec(offset=80),
         [(0, 10, 80, "5 is below the log start"), (1, 5, 50, "80 is beyond the end")]),
        (OffsetSpec(offset=70), LATEST, [(0, 70, 100, ""), (1, 50, 50, "70 is beyond the end")]),
        ({1: OffsetSpec(offset=7)}, LATEST, [(1, 7, 50, "")]),
        ({0: EARLIEST, 1: EARLIEST}, {0: OffsetSpec(offset=11)}, [(0, 10, 11, ""), (1, 0, 50, "")]),
    ],
)  # fmt: skip
def test_a_range_begins_at_one_offset_and_ends_before_another(
    begin: OffsetSpecs, end: OffsetSpecs, expected: list[tuple[int, int, int, str]]
) -> None:
    wanted = [
        OffsetRange(partition=number, start=start, stop=stop, note=note) for number, start, stop, note in expected
    ]
    assert wanted == plan_ranges("orders", LOGS, begin, end)


@pytest.mark.parametrize(("begin", "end"), [(OffsetSpec(offset=101), LATEST), (EARLIEST, OffsetSpec(offset=101))])
def test_an_offset_that_no_partition_holds_is_refused(begin: OffsetSpecs, end: OffsetSpecs) -> None:
    with pytest.raises(OffsetOutOfRange, match="Offset 101"):
        plan_ranges("orders", LOGS, begin, end)


def test_an_end_before_the_beginning_is_refused() -> None:
    with pytest.raises(UserError, match="The range ends before it starts"):
        plan_ranges("orders", LOGS, OffsetSpec(offset=40), OffsetSpec(offset=30))


@pytest.mark.parametrize(
    ("route", "partition", "key", "expected"),
    [
        (Route(source_partitions=3, target_partitions=3), 2, b"21", 2),
        (Route(source_partitions=3, target_partitions=3), 1, None, 1),
        (Route(source_partitions=3, target_partitions=10), 0, b"foobar", (-790332482 & 0x7FFFFFFF) % 10),
        (Route(source_partitions=3, target_partitions=2), 2, None, 0),
        (Route(source_partitions=3, target_partitions=3, fixed=1), 2, b"21", 1),
    ],
)
def test_a_copy_keeps_its_partition_number_or_goes_where_its_key_belongs(
    route: Route, partition: int, key: bytes | None, expected: int
) -> None:
    assert expected == route.to(partition, key)


def test_a_copy_keeps_its_headers_and_tells_where_it_comes_from() -> None:
    made = CopyHeaders("r-1", "orders", 2).headers(42, 1000, [(b"n", None), (b"n", b"2")])

    assert [
        (b"n", None), (b"n", b"2"),
        (b"logmark.replay.id", b"r-1"), (b"logmark.replay.topic", b"orders"), (b"logmark.replay.partition", b"2"),
        (b"logmark.replay.offset", b"42"), (b"logmark.replay.timestamp", b"1000"), (b"logmark.replay.hops", b"1"),
    ] == list(made)  # fmt: skip
    assert (2, 42) == copy_source(made, b"r-1")
    assert copy_source(made, b"r-2") is None
    assert made[2:] == list(CopyHeaders("r-1", "orders", 2).bare([42], [1000])[0])


def test_a_copy_of_a_copy_names_its_last_offset_counts_its_hops_and_keeps_its_first_offset() -> None:
    once = CopyHeaders("r-1", "orders", 2).headers(42, 1000, [(b"n", b"1")])
    twice = CopyHeaders("r-2", "sandbox", 0).headers(7, 1000, once)
    thrice = CopyHeaders("r-3", "third", 1).headers(9, 1000, twice)

    assert [0, 1, 2, 3] == [count_hops(headers) for headers in ([], once, twice, thrice)]
    assert {b"n": b"1", b"logmark.replay.id": b"r-3", b"logmark.replay.topic": b"third"}.items() <= dict(thrice).items()
    assert len(dict(thrice)) == len(thrice)
    assert b"orders-2@42" == dict(twice)[b"logmark.replay.origin"] == dict(thrice)[b"logmark.replay.origin"]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"n", b"1")], 0),
        ([(b"logmark.replay.hops", b"x")], 1),
        ([(b"logmark.replay.hops", None)], 1),
        ([(b"logmark.replay.hops", b"-5")], 1),
        ([(b"logmark.replay.id", b"r-1")], 1),
        ([(b"logmark.replay.hops", b"9"), (b"logmark.replay.hops", b"2")], 2),
    ],
)
def test_a_damaged_count_of_hops_is_one_hop_at_least(headers: Headers, expected: int) -> None:
    assert expected == count_hops(headers)


def test_headers_are_stripped_by_their_beginning_but_not_the_count_of_hops() -> None:
    stamp = CopyHeaders("r-2", "dead", 0, strip=[b"kafka_dlt-", b"logmark."])

    made = stamp.headers(
        7, 1000, [(b"kafka_dlt-original-topic", b"orders"), (b"n", b"1"), (b"logmark.replay.hops", b"1")]
    )

    assert b"n" == made[0][0] and b"2" == dict(made)[b"logmark.replay.hops"]
    assert not any(name.startswith(b"kafka_dlt-") for name, _ in made)


def test_a_dead_letter_goes_to_the_topic_that_the_first_known_header_names() -> None:
    names = [b"kafka_dlt-original-topic", b"__connect.errors.topic"]

    assert "orders" == original_topic(
        [(b"__connect.errors.topic", b"clicks"), (b"kafka_dlt-original-topic", b"orders")], names
    )
    assert "clicks" == original_topic([(b"__connect.errors.topic", b"clicks")], names)
    assert original_topic([(b"other", b"clicks"), (b"kafka_dlt-original-topic", None)], names) is None
