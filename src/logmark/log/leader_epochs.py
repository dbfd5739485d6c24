"""The leader epochs of a partition.

One node never elects a leader, so there is one epoch, 0. A higher one would leave Java consumers without a position
after the data directory has moved to Apache Kafka.
"""

from logmark.log import checkpoints

LEADER_EPOCH = 0
FILE_NAME = "leader-epoch-checkpoint"
UNKNOWN = (-1, -1)


class Epochs:
    """Which leader epoch began at which offset."""

    __slots__ = ("entries",)

    def __init__(self, start_offset: int) -> None:
        self.entries = [(LEADER_EPOCH, start_offset)]

    def encode(self) -> bytes:
        """Return the bytes of the leader-epoch checkpoint."""
        return checkpoints.write_epochs(self.entries)

    def begin_at(self, log_start_offset: int) -> bool:
        """Forget what lies below the log start, and return whether that changed anything."""
        start_offset = self.entries[0][1]
        if log_start_offset <= start_offset:
            return False
        self.entries = [(LEADER_EPOCH, log_start_offset)]
        return True

    def end_offset(self, leader_epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the epoch asked for and its end, or -1 and -1 if it is not known here."""
        if leader_epoch < -1:
            # Kafka's answer to what came before the first epoch: it ended where that one began.
            return leader_epoch, self.entries[0][1]
        return (LEADER_EPOCH, log_end_offset) if leader_epoch == LEADER_EPOCH else UNKNOWN
