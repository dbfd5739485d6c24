"""A bar for long work, on standard error and only in a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Bar:
    """Bytes, or records, done of those expected."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._expected = 0
        self._done = 0

    def expect(self, size: int) -> None:
        """So many bytes are to come from here on."""
        self._expected = self._done + size
        self._progress.update(self._task, total=self._expected)

    def advance(self, size: int) -> None:
        """So many more bytes are done."""
        self._done += size
        # What is measured while it grows can turn out larger than it was.
        self._expected = max(self._expected, self._done)
        self._progress.update(self._task, completed=self._done, total=self._expected)


@contextmanager
def bar(title: str, *, is_bytes: bool = True) -> Iterator[Bar]:
    """Show a progress bar of bytes, or of records, and remove it at the end."""

    amounts = (DownloadColumn(), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        yield Bar(progress, progress.add_task(title, total=None))
