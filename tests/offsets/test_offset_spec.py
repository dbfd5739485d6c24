import pytest

from logmark.errors import UserError
from logmark.offsets.offset_spec import OffsetSpec, parse_offset_spec
from logmark.offsets.reset.planner import parse_topic_selection

NOW = 1_709_600_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", OffsetSpec(is_earliest=True)),
        ("latest", OffsetSpec(is_latest=True)),
        ("0", OffsetSpec(offset=0)),
        ("259000000000", OffsetSpec(offset=259_000_000_000)),
        ("-10", OffsetSpec(before_end=10)),
        ("@-2h", OffsetSpec(timestamp_ms=NOW - 7_200_000)),
        ("@2h ago", OffsetSpec(timestamp_ms=NOW - 7_200_000)),
        ("@now", OffsetSpec(timestamp_ms=NOW)),
        ("@-PT2H", OffsetSpec(timestamp_ms=NOW - 7_200_000)),
        ("@2024-03-05T00:00:00.000", OffsetSpec(timestamp_ms=1_709_596_800_000)),
        ("@1709596800000", OffsetSpec(timestamp_ms=1_709_596_800_000)),
        ("@-99999d", OffsetSpec(timestamp_ms=0)),
    ],
)
def test_an_offset_spec_is_an_end_an_offset_or_a_time(text: str, expected: OffsetSpec) -> None:
    assert expected == parse_offset_spec(text, now_ms=NOW)


@pytest.mark.parametrize("text", ["", "first", "1.5", "--3", "+3", "@", "@soon", "@-", "9" * 30])
def test_what_is_no_offset_is_refused_with_an_error(text: str) -> None:
    with pytest.raises(UserError, match=r"is (no offset to start at|not a (point|length))"):
        parse_offset_spec(text, now_ms=NOW)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["orders"], {"orders": None}),
        (["orders:0,2"], {"orders": [0, 2]}),
        (["orders:2", "orders:0"], {"orders": [0, 2]}),
        (["orders", "orders:0"], {"orders": None}),
        (["orders:1", "clicks"], {"orders": [1], "clicks": None}),
    ],
)
def test_topics_may_name_their_partitions(texts: list[str], expected: dict[str, list[int] | None]) -> None:
    assert expected == parse_topic_selection(texts)


@pytest.mark.parametrize("text", ["", ":0", "orders:", "orders:x", "orders:-1", "orders:0:1"])
def test_what_names_no_partitions_is_refused_with_an_error(text: str) -> None:
    with pytest.raises(UserError, match=r"names? "):
        parse_topic_selection([text])
