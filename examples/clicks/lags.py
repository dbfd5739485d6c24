"""The lag of every group over the run, for a picture at its end."""

import time
from pathlib import Path

from examples.clicks.world import TOPIC
from logmark.cli.plots import draw_lag
from logmark.client import Client
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.lag.annotations import annotations_from_changes
from logmark.offsets.lag.history import History
from logmark.offsets.lag.sample import take_sample

LOOK_EVERY_S = 1.0
SINK_GROUPS = "logmark-sink-"  # they say what was written, and read nothing


class Lags:
    """A sample of all groups about once a second, as `logmark lag` keeps them; its context closes it."""

    def __init__(self) -> None:
        self._history = History(None)
        self._due_s = 0.0

    def look(self, client: Client) -> None:
        """Takes a sample if it is time for one."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + LOOK_EVERY_S
            self._history.add(take_sample(client, None, [TOPIC]))

    def draw(self, path: Path, journal: Path) -> str:
        """Draws a line for each group, with the resets of our own tools, and says what was drawn."""
        changes = FileJournal(journal).changes() if journal.exists() else []
        groups = [group for group in self._history.groups() if not group.startswith(SINK_GROUPS)]
        return draw_lag(path, self._history, groups, annotations_from_changes(changes), since_ms=0, topics=[TOPIC])

    def close(self) -> None:
        """Forget what was noted."""
        self._history.close()
