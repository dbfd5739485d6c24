"""The entries of an index, compared with the batches that they point to as these go by."""

from collections.abc import Iterable

_NEVER = 2**63 - 1


class IndexCheck:
    """The entries of one index, met one after the other while the batches go by."""

    def __init__(self, found: Iterable[tuple[int, int]], *, by: int) -> None:
        self.entries = list(found)
        self._entries = iter(self.entries)
        self._by = by  # which of the two numbers grows with the batches: what is compared with `due`
        self._entry: tuple[int, int] | None = None
        self.count = 0
        self.due = -_NEVER
        self.wrong: list[tuple[int, tuple[int, int]]] = []
        self.last: tuple[int, int] | None = None
        self._advance()

    def meet(self, position: int, value: int) -> None:
        """Check the entries up to a batch: one at its position must have its value, an earlier one has no batch."""
        while self.due <= position:
            assert self._entry is not None
            if self.due != position or self._entry[1 - self._by] != value:
                self._blame()
            self._advance()

    def skip(self, until: int) -> None:
        """Skip the entries of damage: nothing says whether they are right."""
        while self.due < until:
            self._advance()

    def finish(self) -> None:
        """Report the entries that are left: no batch follows, so they point nowhere."""
        while self._entry is not None:
            self._blame()
            self._advance()

    def _blame(self) -> None:
        assert self._entry is not None
        if not self.wrong or self.wrong[-1][0] != self.count - 1:
            self.wrong.append((self.count - 1, self._entry))

    def _advance(self) -> None:
        before, self._entry = self._entry, next(self._entries, None)
        if self._entry is None:
            self.due = _NEVER
            return
        self.count += 1
        self.last = self._entry
        self.due = self._entry[self._by]
        if before is not None and not (before[0] < self._entry[0] and before[1] <= self._entry[1]):
            self._blame()
