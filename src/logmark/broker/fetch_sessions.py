"""Fetch sessions (KIP-227): a client that fetches the same partitions again sends only what changed.

Sessions outlive the connections that began them, so their number and their memory have limits of their own. A client
without a session sends all of its partitions with every fetch.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sized

from logmark.errors import ErrorCode, Refused
from logmark.names import TopicPartition
from logmark.wire.fetch import FetchAnswer, FetchPartition, FetchRequest

EPOCH_MAX = 2**31 - 1
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
# What a session keeps of a partition, about, beside the name of its topic.
PARTITION_BYTES = 512


class FetchSession:
    """The partitions of one client, in the order in which they are served, and what it was last told of each."""

    __slots__ = ("_told", "epoch", "id", "partitions", "size_bytes")

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.epoch = 1
        self.partitions: dict[TopicPartition, FetchPartition] = {}
        self._told: dict[TopicPartition, tuple[int, int]] = {}
        # The memory that the session takes, about.
        self.size_bytes = 0

    def change(self, request: FetchRequest) -> None:
        """Take over new positions, and drop the partitions that the client dropped."""
        for topic, wanted in request.topics:
            known = len(self.partitions)
            for partition in wanted:
                self.partitions[TopicPartition(topic, partition.partition)] = partition
            self.size_bytes += (len(self.partitions) - known) * (PARTITION_BYTES + len(topic))
        for topic, forgotten in request.forgotten:
            for index in forgotten:
                if self.partitions.pop(TopicPartition(topic, index), None) is not None:
                    self.size_bytes -= PARTITION_BYTES + len(topic)
                self._told.pop(TopicPartition(topic, index), None)

    def has_news(self, where: TopicPartition, answer: FetchAnswer[Sized]) -> bool:
        """Return whether this is news for the client."""
        return bool(
            len(answer.records)
            or answer.error_code
            or self._told.get(where) != (answer.high_watermark, answer.log_start_offset)
        )

    def tell(self, where: TopicPartition, answer: FetchAnswer[Sized], *, turns: bool = True) -> None:
        """Record what the client now knows; with `turns`, a partition that got data is served last the next time."""
        if answer.error_code:
            self._told.pop(where, None)
        else:
            self._told[where] = (answer.high_watermark, answer.log_start_offset)
        if turns and len(answer.records):
            partition = self.partitions.pop(where, None)
            if partition is not None:
                self.partitions[where] = partition


class FetchSessions:
    """The sessions of all clients: for want of slots the longest unused one ends, for want of memory the largest."""

    def __init__(self, slots: int, bytes_max: int, hold: Callable[[int], None]) -> None:
        """Take the number of slots, the bytes of all sessions together, and what counts them in the budget."""
        self._slots = slots
        self._bytes_max = bytes_max
        self._hold = hold
        self._bytes = 0
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(self._sessions.values())

    def resume(self, request: FetchRequest) -> tuple[FetchSession | None, bool]:
        """Return the request's session, if it has or may have one, and whether the response holds only changes."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            if request.session_epoch == FINAL_EPOCH or not self._slots:
                return None, False
            return self._begin(request), False
        session = self._sessions.get(request.session_id)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        self._change(session, request)
        if not self._make_room_for(session):
            self._end(session.id)
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._sessions.move_to_end(session.id)
        return session, True

    def _begin(self, request: FetchRequest) -> FetchSession | None:
        while len(self._sessions) >= self._slots:
            self._end(next(iter(self._sessions)))
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = secrets.randbelow(2**31 - 1)
        session = self._sessions[session_id] = FetchSession(session_id)
        self._change(session, request)
        if not self._make_room_for(session):
            self._end(session.id)
            return None
        return session

    def _change(self, session: FetchSession, request: FetchRequest) -> None:
        before = session.size_bytes
        session.change(request)
        self._count(session.size_bytes - before)

    def _make_room_for(self, session: FetchSession) -> bool:
        """End larger sessions until all fit into their memory; return False if this one is the largest."""
        while self._bytes > self._bytes_max:
            largest = max(self._sessions.values(), key=lambda each: each.size_bytes)
            if largest.size_bytes <= session.size_bytes:
                return False
            self._end(largest.id)
        return True

    def _end(self, session_id: int) -> None:
        ended = self._sessions.pop(session_id, None)
        if ended is not None:
            self._count(-ended.size_bytes)

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if size_bytes:
            self._hold(size_bytes)
