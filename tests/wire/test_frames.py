"""Headers are read without trust and written as Kafka's clients expect them."""

from random import Random

import pytest

from logmark.errors import Malformed
from logmark.wire.frames import (
    HEADER_TAGS_MAX,
    RequestHeader,
    read_request_header,
    read_response_header,
    request_frame,
    response_header,
)

FLEXIBLE_FROM = {3: 9, 18: 3}.get


def test_a_plain_request_header_ends_after_the_client_id() -> None:
    frame = request_frame(3, 8, 77, "reader", flexible=False, body=b"body")

    assert (len(frame) - 4).to_bytes(4, "big") == frame[:4]
    assert RequestHeader(3, 8, 77, "reader", 16) == read_request_header(memoryview(frame)[4:], FLEXIBLE_FROM)
    assert b"body" == frame[4 + 16 :]


def test_a_flexible_request_header_keeps_a_plain_client_id_and_ends_with_tagged_fields() -> None:
    frame = request_frame(3, 9, 77, "reader", flexible=True, body=b"body")

    assert b"\0\6reader\0body" == frame[12:]
    assert RequestHeader(3, 9, 77, "reader", 17) == read_request_header(memoryview(frame)[4:], FLEXIBLE_FROM)


def test_a_client_may_have_no_id() -> None:
    frame = request_frame(3, 0, 1, None, flexible=False, body=b"")

    assert read_request_header(memoryview(frame)[4:], FLEXIBLE_FROM).client_id is None


def test_tagged_fields_of_a_header_are_skipped() -> None:
    head = request_frame(3, 9, 1, "c", flexible=True, body=b"")[4:-1]

    header = read_request_header(memoryview(head + b"\2\0\3abc\5\0" + b"body"), FLEXIBLE_FROM)

    assert len(head) + 8 == header.body_at


def test_an_unknown_api_has_a_plain_header() -> None:
    frame = request_frame(999, 50, 5, "c", flexible=False, body=b"\xff")

    assert (999, 50, 5, "c", 11) == read_request_header(memoryview(frame)[4:], FLEXIBLE_FROM)


def test_a_newer_api_versions_request_is_still_understood_up_to_its_body() -> None:
    frame = request_frame(18, 5, 5, "java", flexible=True, body=b"anything")

    header = read_request_header(memoryview(frame)[4:], FLEXIBLE_FROM)

    assert (18, 5, 5, "java") == header[:4]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\3\0\0\0\0\0",
        b"\0\3\0\0\0\0\0\1",
        b"\0\3\0\0\0\0\0\1\0\5abcd",
        b"\0\3\0\0\0\0\0\1\xff\xfe",
        b"\0\3\0\0\0\0\0\1\0\1\xff",
        b"\0\3\0\11\0\0\0\1\0\1c",
        b"\0\3\0\11\0\0\0\1\0\1c\1\0",
        b"\0\3\0\11\0\0\0\1\0\1c\1\0\5abcd",
        b"\0\3\0\11\0\0\0\1\0\1c\xff\xff\xff\xff\x07" + bytes(1000),
        b"\0\3\0\11\0\0\0\1\0\1c\xff\xff\xff\xff\xff\xff" + bytes(1000),
    ],
)
def test_a_broken_header_is_malformed(frame: bytes) -> None:
    with pytest.raises(Malformed):
        read_request_header(memoryview(frame), FLEXIBLE_FROM)


def test_a_header_full_of_tagged_fields_is_malformed_before_they_are_read() -> None:
    head = request_frame(3, 9, 1, "c", flexible=True, body=b"")[4:-1]
    many = bytes([HEADER_TAGS_MAX + 1]) + b"\0\0" * (HEADER_TAGS_MAX + 1)

    with pytest.raises(Malformed, match="too many objects"):
        read_request_header(memoryview(head + many), FLEXIBLE_FROM)
    enough = bytes([HEADER_TAGS_MAX]) + b"\0\0" * HEADER_TAGS_MAX
    assert len(head + enough) == read_request_header(memoryview(head + enough), FLEXIBLE_FROM).body_at


def test_any_bytes_give_a_header_or_malformed() -> None:
    random = Random("headers")
    for _ in range(3_000):
        frame = b"\0\3\0\11" * random.randrange(2) + bytes(
            random.choices((0, 1, 9, 0x7F, 0xFF), k=random.randrange(30))
        )
        try:
            header = read_request_header(memoryview(frame), FLEXIBLE_FROM)
        except Malformed:
            continue
        assert 10 <= header.body_at <= len(frame)


def test_response_headers() -> None:
    assert b"\0\0\0\7" == response_header(7, flexible=False)
    assert b"\0\0\0\7\0" == response_header(7, flexible=True)
    assert (7, 4) == read_response_header(memoryview(b"\0\0\0\7\5"), flexible=False)
    assert (7, 8) == read_response_header(memoryview(b"\0\0\0\7\1\4\1x\5"), flexible=True)
    for broken in (b"\0\0\0", b"\0\0\0\1\1"):
        with pytest.raises(Malformed):
            read_response_header(memoryview(broken), flexible=True)


def test_a_client_id_that_is_too_long_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="longer than 32767"):
        request_frame(3, 0, 1, "c" * 32_768, flexible=False, body=b"")
