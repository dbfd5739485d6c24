"""Fetch sessions: only what changed travels, in both directions."""

from collections.abc import Callable

import pytest

from logmark.broker.fetch_sessions import PARTITION_BYTES, FetchSession, FetchSessions
from logmark.errors import ErrorCode, Refused
from logmark.names import TopicPartition
from logmark.wire.fetch import FetchAnswer, FetchPartition, FetchRequest


def new_sessions(
    slots: int = 10, partitions_max: int = 1000, hold: Callable[[int], None] = lambda _: None
) -> FetchSessions:  # fmt: skip
    """Make the sessions of a broker, with memory for so many partitions of the topic `t`."""
    return FetchSessions(slots, bytes_max=partitions_max * (PARTITION_BYTES + 1), hold=hold)


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
    sessions = new_sessions()
    session, only_news = sessions.resume(fetch_request(0, 0, 0, 1))
    assert session is not None and not only_news

    again, only_news = sessions.resume(fetch_request(session.id, 1, 2, forgotten=(0,)))

    assert again is session and only_news
    assert [1, 2] == [where.partition for where in session.partitions]


def test_a_fetch_without_a_session_gets_none() -> None:
    assert (None, False) == new_sessions().resume(fetch_request(0, -1, 0))


@pytest.mark.parametrize(
    ("session_offset", "epoch", "code"),
    [(1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND), (0, 7, ErrorCode.INVALID_FETCH_SESSION_EPOCH)],
)
def test_a_lost_session_is_told_to_the_client(session_offset: int, epoch: int, code: ErrorCode) -> None:
    sessions = new_sessions()
    session, _ = sessions.resume(fetch_request(0, 0, 0))
    assert session is not None

    with pytest.raises(Refused) as refused:
        sessions.resume(fetch_request(session.id + session_offset, epoch))

    assert code is refused.value.code


def test_a_partition_is_told_again_only_when_there_is_news() -> None:
    sessions = new_sessions()
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
    sessions = new_sessions()
    session, _ = sessions.resume(fetch_request(0, 0, 0, 1))
    assert session is not None

    session.tell(TopicPartition("t", 0), FetchAnswer(0, 0, 5, 5, 0, b"data"))

    assert [1, 0] == [where.partition for where in session.partitions]


def test_the_longest_unused_session_makes_room() -> None:
    sessions = new_sessions(slots=2)
    begun = [sessions.resume(fetch_request(0, 0, 0))[0] for _ in range(3)]

    assert 2 == len(sessions)
    assert begun[0] not in list(sessions)


def begin(sessions: FetchSessions, partitions: int) -> FetchSession | None:
    """Send a full fetch of so many partitions, and return its session."""
    return sessions.resume(fetch_request(0, 0, *range(partitions)))[0]


def test_the_largest_session_ends_for_want_of_memory_and_small_ones_stay() -> None:
    sessions = new_sessions(partitions_max=10)
    small, large, other = begin(sessions, 1), begin(sessions, 8), begin(sessions, 3)

    assert large is not None
    assert [small, other] == list(sessions)


def test_a_fetch_that_would_be_the_largest_session_gets_none_and_ends_no_other() -> None:
    sessions = new_sessions(partitions_max=10)
    small = begin(sessions, 3)

    assert begin(sessions, 11) is None

    assert [small] == list(sessions)


def test_a_session_that_grows_beyond_the_memory_ends_and_its_client_is_told() -> None:
    sessions = new_sessions(partitions_max=10)
    small, growing = begin(sessions, 3), begin(sessions, 7)
    assert growing is not None

    with pytest.raises(Refused) as refused:
        sessions.resume(fetch_request(growing.id, 1, 20))

    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND is refused.value.code
    assert [small] == list(sessions)


def test_the_budget_counts_what_sessions_take_and_gets_it_back() -> None:
    held: list[int] = []
    sessions = new_sessions(hold=held.append)
    first, _ = begin(sessions, 5), begin(sessions, 2)
    assert first is not None
    assert 7 * (PARTITION_BYTES + 1) == sum(held)

    sessions.resume(fetch_request(first.id, 1, 3, 9, forgotten=(0, 1, 77)))
    assert 6 * (PARTITION_BYTES + 1) == sum(held)

    for session in list(sessions):
        sessions.resume(fetch_request(session.id, -1))
    assert 0 == sum(held)
