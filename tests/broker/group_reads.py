"""Which records a consumer group may read twice: Kafka's promise, checked while the group reads.

The members of a group tell a `GroupReads` what they are assigned, read, commit and give up. It fails unless

- the new owner of a partition begins at the last offset whose commit the broker acknowledged, or at the offset of a
  commit whose outcome nobody knows. So it reads again only records that were not committed;
- from there a member reads every offset once, in order, and nothing of a partition that it gave up;
- the broker takes commits of a partition only from its owner;
- a member whose commit the broker took keeps its partitions for its session timeout, until it gives them up itself.

One second read has nothing to do with the broker. A cooperative rebalance makes librdkafka pause a partition that its
member keeps. If it does so after it took a record from its queue, and before it advanced its position, it fetches that
one record again. `GroupReads` counts such a record, and the records that were not committed.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

Partition = tuple[str, int]
EVENTS_KEPT = 60
REDELIVERED = "records that a client delivered twice in a rebalance"
READ_AGAIN = "records read again because they were not committed"


class CommitOutcome(Enum):
    """What a member knows about its commit."""

    ACKNOWLEDGED = auto()
    REFUSED = auto()
    UNKNOWN = auto()


@dataclass(eq=False)
class Member:
    """One member of a group, from its subscription until it leaves."""

    name: str
    # The next offset of each partition of which it has read a record since it got the partition.
    positions: dict[Partition, int] = field(default_factory=dict)
    # The last record of each partition that it had read when its last rebalance ended.
    last_before_rebalance: dict[Partition, int] = field(default_factory=dict)
    acknowledged_at: float | None = None


@dataclass
class _Offsets:
    """What the group has committed and read of one partition."""

    acknowledged: int = 0
    unknown: set[int] = field(default_factory=set)  # commits without an answer, or without one yet
    end: int = 0  # after the last record that any member has read
    owner: Member | None = None
    former: set[Member] = field(default_factory=set)  # lost the partition to another owner and do not know it yet


class GroupReads:
    """The reads and commits of one group. Threads may share it."""

    def __init__(
        self,
        name: str,
        *,
        session_timeout_s: float,
        fail: Callable[[str, object], None],
        count: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._session_timeout_s = session_timeout_s
        self._tell = fail
        self._count = count
        self._clock = clock
        self._guard = threading.RLock()
        self._offsets: dict[Partition, _Offsets] = {}
        self._events: deque[str] = deque(maxlen=EVENTS_KEPT)

    def assign(self, member: Member, partitions: Iterable[Partition]) -> None:
        """Note the partitions that a rebalance added to those of a member; there may be none."""
        with self._guard:
            for partition in partitions:
                self._note(member, f"got {partition}")
                offsets = self._of(partition)
                if offsets.owner is not None:
                    offsets.former.add(offsets.owner)
                offsets.owner = member
            member.last_before_rebalance = {each: position - 1 for each, position in member.positions.items()}

    def read(self, member: Member, partition: Partition, offset: int) -> None:
        """Check that a member may read this record next."""
        with self._guard:
            offsets = self._of(partition)
            position = member.positions.get(partition)
            if member is not offsets.owner and member not in offsets.former:
                self._fail(f"{member.name} reads {partition} at {offset}, but it does not own the partition")
            if position is None:
                self._note(member, f"begins {partition} at {offset}")
                if offset != offsets.acknowledged and offset not in offsets.unknown:
                    committed = f"committed is {offsets.acknowledged}, perhaps {sorted(offsets.unknown)}"
                    self._fail(f"{member.name} begins {partition} at {offset}, but {committed}")
            elif offset == position - 1 == member.last_before_rebalance.pop(partition, None):
                self._note(member, f"got {partition} offset {offset} twice from its client")
                self._count(REDELIVERED)
                return
            elif offset != position:
                self._fail(f"{member.name} reads {partition} at {offset}, but its position is {position}")
            if offset < offsets.end:
                self._count(READ_AGAIN)
            member.positions[partition] = offset + 1
            offsets.end = max(offsets.end, offset + 1)

    def commit(
        self, member: Member, positions: Mapping[Partition, int], send: Callable[[], CommitOutcome]
    ) -> CommitOutcome:
        """Commit with `send`, unless there is nothing to commit, and note where the next owner may begin."""
        if not positions:
            return CommitOutcome.ACKNOWLEDGED
        with self._guard:
            sent_at = self._clock()
            lost = [partition for partition in positions if member in self._of(partition).former]
            for partition, offset in positions.items():
                self._of(partition).unknown.add(offset)
        outcome = send()
        with self._guard:
            self._note(member, f"commits {dict(positions)}: {outcome.name}")
            if outcome is CommitOutcome.ACKNOWLEDGED:
                member.acknowledged_at = sent_at
                for partition in lost:
                    self._fail(f"the broker took a commit of {partition} from {member.name}, which had lost it")
            for partition, offset in positions.items():
                offsets = self._of(partition)
                if outcome is CommitOutcome.ACKNOWLEDGED:
                    offsets.acknowledged = offset
                    offsets.unknown.clear()
                elif outcome is CommitOutcome.REFUSED:
                    offsets.unknown.discard(offset)
        return outcome

    def give_up(self, member: Member, partitions: Iterable[Partition], last_commit: CommitOutcome) -> None:
        """Note that partitions were revoked from a member, or lost: then the broker would refuse a commit."""
        with self._guard:
            for partition in partitions:
                self._note(member, f"gives up {partition}, last commit {last_commit.name}")
                offsets = self._of(partition)
                offsets.former.discard(member)
                if offsets.owner is member:
                    offsets.owner = None
                member.positions.pop(partition, None)
            member.last_before_rebalance = {each: position - 1 for each, position in member.positions.items()}
            if last_commit is CommitOutcome.REFUSED and member.acknowledged_at is not None:
                seconds = self._clock() - member.acknowledged_at
                if seconds < self._session_timeout_s:
                    self._fail(f"{member.name} lost its partitions {seconds:.1f} s after a commit that the broker took")

    def _of(self, partition: Partition) -> _Offsets:
        return self._offsets.setdefault(partition, _Offsets())

    def _note(self, member: Member, what: str) -> None:
        self._events.append(f"{self._clock():.3f} {member.name} {what}")

    def _fail(self, what: str) -> None:
        self._tell(self._name, "\n    ".join([what, "The last events:", *self._events]))
