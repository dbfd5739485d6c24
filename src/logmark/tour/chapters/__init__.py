"""The chapters of the tour, in their order."""

from collections.abc import Callable
from dataclasses import dataclass

from logmark.tour.chapters import commits, log, offsets, readers
from logmark.tour.stage import Stage


@dataclass(frozen=True, slots=True)
class Chapter:
    """One short chapter; `name` chooses it on the command line."""

    name: str
    title: str
    play: Callable[[Stage], None]


CHAPTERS = (
    Chapter("offset", "What an offset is", log.offset),
    Chapter("partitions", "Partitions, and a record's full name", log.partitions),
    Chapter("pull", "Pull, not push, and why it is no queue", log.pull),
    Chapter("readers", "Independent readers", readers.independent),
    Chapter("workers", "Workers and assignment", readers.workers),
    Chapter("poll", "Poll and batches", readers.poll),
    Chapter("committed", "Current and committed, in both notations", commits.committed),
    Chapter("crash", "A crash, and what is read twice", commits.crash),
    Chapter("auto-commit", "Auto-commit, and what each client really promises", commits.auto_commit),
    Chapter("commit", "commitSync and commitAsync", commits.sync_and_async),
    Chapter("start", "Where to start", offsets.start),
    Chapter("lag", "Lag", offsets.lag),
    Chapter("kept", "How long records and committed offsets are kept", offsets.kept),
    Chapter("replay", "Resets and replay", offsets.replay),
)
