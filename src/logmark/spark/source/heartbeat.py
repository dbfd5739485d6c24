"""The heartbeat of a query, renewed by a thread: a batch of ten minutes keeps Spark from asking the source for it."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import ClientError
from logmark.offsets.commit_metadata import CommitMetadata, Heartbeat
from logmark.spark.source.position import GroupCommit, HeldCommits

log = logging.getLogger(__name__)


def repeat_commit(cluster: Client, group: str, query: str, held: HeldCommits, heartbeat: Heartbeat) -> bool:
    """Commit one offset that the query holds in the group again, where it is, with a heartbeat.

    Return False if there is none, or if a newer query owns any of its partitions. What the group holds otherwise is
    left alone, such as a commit that an earlier process made too late: only the query may follow it or commit over it.
    """
    if not held:
        return False
    committed = cluster.committed(group, list(held))
    marks = {one: mark for one, at in committed.items() if (mark := CommitMetadata.parse(at.metadata)) is not None}
    own = {
        partition: mark
        for partition, mark in marks.items()
        if mark.query == query
        and mark.offset == committed[partition].offset
        and GroupCommit(offset=mark.offset, mark=mark) in held.get(partition, ())
    }
    newest = max((mark.generation for mark in own.values()), default=0)
    is_foreign = any(mark.query != query and mark.generation > newest for mark in marks.values())
    if not own or is_foreign:
        return False
    partition, mark = min(own.items(), key=lambda one: one[0])
    metadata = replace(mark, heartbeat=heartbeat).to_text()
    cluster.commit(group, {partition: Committed(offset=mark.offset, metadata=metadata)})
    return True


class HeartbeatThread:
    """Calls `beat` again and again until it is stopped or its process ends."""

    def __init__(self, beat: Callable[[], None], *, every_s: float) -> None:
        self._beat = beat
        self._every_s = every_s
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logmark heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let no further call begin; one that has begun may still be under way."""
        self._is_stopped.set()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._every_s):
            try:
                self._beat()
            except ClientError as error:
                log.warning("The heartbeat of the query was not renewed, and is tried again: %s", error)
            except Exception:
                # The query does not depend on it, and says at its next trigger what is wrong.
                log.warning("The heartbeat of the query was not renewed.", exc_info=True)
