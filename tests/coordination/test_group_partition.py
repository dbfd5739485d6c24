"""A group lives where Kafka would look for it."""

import pytest

from logmark.coordination.group_partition import java_hash, partition_of_group


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\N{SLIGHTLY SMILING FACE}", 31 * 0xD83D + 0xDE42),
    ],
)
def test_the_hash_is_javas_over_utf_16(text: str, expected: int) -> None:
    assert expected == java_hash(text)


@pytest.mark.parametrize(
    ("group", "expected"), [("", 0), ("hello", 22), ("polygenelubricants", 0), ("a", 47), ("\U0001f642", 15)]
)
def test_a_group_is_in_the_partition_of_its_hash(group: str, expected: int) -> None:
    assert expected == partition_of_group(group)
