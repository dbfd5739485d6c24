"""Reset plans as CSV."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.names import TopicPartition
from logmark.offsets.kafka_consumer_groups import plan_files
from logmark.offsets.kafka_consumer_groups.failures import Failed, Usage

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), min_size=1, max_size=40)
PLANS = st.dictionaries(
    NAMES,
    st.dictionaries(
        st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), min_size=1, max_size=4
    ),
    min_size=2,
    max_size=4,
)


@given(PLANS)
def test_what_is_written_is_read_again(plans: dict[str, dict[TopicPartition, int]]) -> None:
    assert plans == plan_files.read_plans(plan_files.write_plans(plans, with_group=True), list(plans))


@given(PLANS)
def test_what_is_written_of_one_group_is_read_again(plans: dict[str, dict[TopicPartition, int]]) -> None:
    group, plan = next(iter(plans.items()))

    assert {group: plan} == plan_files.read_plans(plan_files.write_plans({group: plan}, with_group=False), [group])


def test_names_are_quoted_as_kafkas_library_quotes_them() -> None:
    for topic, shown in {
        "orders": "orders",
        "a.b_c-d": "a.b_c-d",
        "x" * 24: "x" * 24,
        "x" * 25: '"' + "x" * 25 + '"',
        "a b": '"a b"',
        'a"b': '"a""b"',
    }.items():
        assert f"{shown},0,5\n" == plan_files.write_plans({"g": {TopicPartition(topic, 0): 5}}, with_group=False)


def test_the_first_line_decides_whether_lines_begin_with_the_group() -> None:
    five = {TopicPartition("t", 0): 5}
    assert {"g": five} == plan_files.read_plans("t,0,5\n", ["g"])
    assert {"g": five} == plan_files.read_plans("g,t,0,5\n", ["g"])
    assert {"g": five} == plan_files.read_plans("g,t,0,5\n", ["g", "h"])
    assert {} == plan_files.read_plans("\n", ["g"])
    # For several groups the name is always the first column, whatever stands there.
    assert {"t": {TopicPartition("0", 5): 0}} == plan_files.read_plans("t,0,5\n", ["g", "h"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "No content to map due to end-of-input"),
        ("t,0,x\n", 'Cannot deserialize value of type `int` from String "x": not a valid `int` value'),
        ('"t,0,5\n', "Missing closing quote for value"),
        ("t,0,5\ng,t,0,5\n", '["partition"])'),
    ],
)
def test_a_file_that_is_none_says_why(text: str, message: str) -> None:
    with pytest.raises(Failed) as failed:
        plan_files.read_plans(text, ["g"])
    assert message in failed.value.message


def test_no_offset_is_negative() -> None:
    with pytest.raises(Usage, match=r"^Invalid negative offset$"):
        plan_files.read_plans("t,0,-1\n", ["g"])
