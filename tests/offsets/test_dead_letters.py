"""A letter holds the record that was refused, and becomes that record again."""

import pytest

from logmark.names import TopicPartition
from logmark.offsets.dead_letters.dead_letter import (
    ERROR,
    ERROR_BYTES_MAX,
    DeadLetter,
    dead_letter_for_lost_record,
    dead_letter_for_record,
    dead_letter_headers,
    parse_dead_letter,
    restored_headers,
)

PARTITION = TopicPartition("clicks", 3)
OWN = [(b"trace", b"1"), (b"trace", None), (b"\xff", b"\x00")]


def letter(headers: list[tuple[bytes, bytes | None]], key: bytes | None = b"k", error: str = "é") -> DeadLetter:
    return dead_letter_for_record(
        PARTITION, 42, 1_700_000_000_123, key, b"\xffv", headers, error=error, pipeline="billing"
    )


@pytest.mark.parametrize("key", [None, b"", b"\xff\x00"])
def test_a_dead_letter_is_read_as_it_was_written(key: bytes | None) -> None:
    written = letter(OWN, key)

    assert '["clicks",3,42]' == written.dead_letter_key
    assert written == parse_dead_letter(b"\xffv", dead_letter_headers(written))


def test_a_record_that_is_sent_back_has_its_own_headers_and_its_attempts_and_nothing_else() -> None:
    sent_back = restored_headers(letter(OWN))
    again = dead_letter_for_record(PARTITION, 77, 1, b"k", b"v", sent_back, error="still", pipeline="billing")

    assert [*OWN, (b"logmark.letter.attempts", b"1"), (b"logmark.letter.origin", b'["clicks",3,42]')] == sent_back
    assert (OWN, 2, '["clicks",3,42]') == (again.headers, again.attempts, again.origin)
    assert '["clicks",3,77]' == again.dead_letter_key
    third = dead_letter_for_record(
        PARTITION, 99, 1, b"k", b"v", restored_headers(again), error="still", pipeline="billing"
    )
    assert (3, '["clicks",3,42]') == (third.attempts, third.origin)


def test_what_is_no_dead_letter_is_not_read_as_one() -> None:
    assert None is parse_dead_letter(b"v", OWN)
    assert None is parse_dead_letter(b"v", [(ERROR, b"x")])
    assert None is parse_dead_letter(b"v", restored_headers(letter(OWN)))


def test_numbers_that_are_none_do_no_harm() -> None:
    spoilt = [
        (name, b"many" if name.endswith((b"attempts", b"offset")) else value)
        for name, value in dead_letter_headers(letter([]))
    ]

    found = parse_dead_letter(b"", spoilt)

    assert found is not None
    assert (1, 0) == (found.attempts, found.offset)
    assert 1 == letter([(b"logmark.letter.attempts", b"9" * 30)]).attempts


def test_a_reason_is_cut_between_characters_where_it_is_a_document() -> None:
    found = parse_dead_letter(None, dead_letter_headers(letter([], error="é" * ERROR_BYTES_MAX)))

    assert found is not None
    assert "é" * (ERROR_BYTES_MAX // 2) == found.error


def test_a_dead_letter_about_a_record_that_is_gone_says_so() -> None:
    gone = dead_letter_for_lost_record(PARTITION, 42, error="bad", pipeline="billing", missing="deleted")

    found = parse_dead_letter(None, dead_letter_headers(gone))

    assert found is not None
    assert (None, "deleted", "bad") == (found.value, found.missing, found.error)
