"""Fetch sessions (KIP-227): a client that fetches the same partitions again sends only what changed."""

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sized

from logmark.errors import ErrorCode, Refused
from logmark.names import TopicPartition
from logmark.wire.fetch import FetchAnswer, FetchPartition, FetchRequest

EPOCH_MAX = 2**31 - 1
INITIAL_EPOCH = 0
FINAL_EPOCH = -1


class FetchSession:
    """The partitions of one client, in the order in which they are served, and what it was last told of each."""

    __slots__ = ("_told", "epoch", "id", "partitions")

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.epoch = 1
        self.partitions: dict[TopicPartition, FetchPartition] = {}
        self._told: dict[TopicPartition, tuple[int, int]] = {}

    def change(self, request: FetchRequest) -> None:
        """Take over new positions, and drop the partitions that the client dropped."""
        for topic, wanted in request.topics:
            for partition in wanted:
                self.partitions[TopicPartition(topic, partition.partition)] = partition
        for topic, forgotten in request.forgotten:
            for index in forgotten:
                self.partitions.pop(TopicPartition(topic, index), None)
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
    """The sessions of all clients, the longest unused one making room for a new one."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(self._sessions.values())

    def resume(self, request: FetchRequest) -> tuple[FetchSession | None, bool]:
        """Return the request's session, if it has or may have one, and whether the response holds only changes."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            if request.session_epoch == FINAL_EPOCH or not self._slots:
                return None, False
            return self._begin(request), False
        session = self._sessions.get(request.session_id)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.change(request)
        self._sessions.move_to_end(session.id)
        return session, True

    def _begin(self, request: FetchRequest) -> FetchSession:
        while len(self._sessions) >= self._slots:
            self._sessions.popitem(last=False)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = secrets.randbelow(2**31 - 1)
        session = self._sessions[session_id] = FetchSession(session_id)
        session.change(request)
        return session
