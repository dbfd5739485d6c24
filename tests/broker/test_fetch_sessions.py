"""Fetch sessions: only what changed travels, in both directions."""

import pytest

from logmark.broker.fetch_sessions import FetchSessions
from logmark.errors import ErrorCode, Refused
from logmark.names import TopicPartition
from logmark.wire.fetch import FetchAnswer, FetchPartition, FetchRequest


def fetch_request(session_id: int, epoch: int, *partitions: int, forgotten: tuple[int, ...] = ()) -> FetchRequest:
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1000,
        isolation_level=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[("t", [FetchPartition(index, -1, 0, -1, -1, 1000) for index in partitions])] if partitions else [],
        forgotten=[("t", list(forgotten))] if forgotten else [],
        rack_id="",
    )


def test_a_full_fetch_begins_a_session_and_the_next_one_needs_only_changes() -> None:
    sessions = FetchSessions(10)
    session, only_news = sessions.resume(fetch_request(0, 0, 0, 1))
    assert session is not None and not only_news

    again, only_news = sessions.resume(fetch_request(session.id, 1, 2, forgotten=(0,)))

    assert again is session and only_news
    assert [1, 2] == [where.partition for where in session.partitions]


def test_a_fetch_without_a_session_gets_none() -> None:
    assert (None, False) == FetchSessions(10).resume(fetch_request(0, -1, 0))


@pytest.mark.parametrize(
    ("session_offset", "epoch", "code"),
    [(1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND), (0, 7, ErrorCode.INVALID_FETCH_SESSION_EPOCH)],
)
def test_a_lost_session_is_told_to_the_client(session_offset: int, epoch: int, code: ErrorCode) -> None:
    sessions = FetchSessions(10)
    session, _ = sessions.resume(fetch_request(0, 0, 0))
    assert session is not None

    with pytest.raises(Refused) as refused:
        sessions.resume(fetch_request(session.id + session_offset, epoch))

    assert code is refused.value.code


def test_a_partition_is_told_again_only_when_there_is_news() -> None:
    sessions = FetchSessions(10)
    session, _ = sessions.resume(fetch_request(0, 0, 0))
    assert session is not None
    where = TopicPartition("t", 0)
    quiet = FetchAnswer(0, 0, 5, 5, 0, b"")

    assert session.has_news(where, quiet)
    session.tell(where, quiet)
    assert not session.has_news(where, quiet)
    assert session.has_news(where, quiet._replace(high_watermark=6))
    assert session.has_news(where, quiet._replace(records=b"x"))


def test_who_got_data_is_served_last_the_next_time() -> None:
    sessions = FetchSessions(10)
    session, _ = sessions.resume(fetch_request(0, 0, 0, 1))
    assert session is not None

    session.tell(TopicPartition("t", 0), FetchAnswer(0, 0, 5, 5, 0, b"data"))

    assert [1, 0] == [where.partition for where in session.partitions]


def test_the_longest_unused_session_makes_room() -> None:
    sessions = FetchSessions(2)
    begun = [sessions.resume(fetch_request(0, 0, 0))[0] for _ in range(3)]

    assert 2 == len(sessions)
    assert begun[0] not in list(sessions)
