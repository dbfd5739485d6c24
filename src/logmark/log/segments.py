"""The segments of a partition in order, and which of them are open."""

from collections.abc import Iterable, Iterator

from logmark.log.segment import Segment

OPEN_MAX = 8


class Segments:
    """Segments, the oldest first and the active one last; a few of the others stay open after they were used."""

    __slots__ = ("_is_held", "_listed", "_recent", "_released", "active")

    def __init__(self, listed: Iterable[Segment] = ()) -> None:
        self._listed = list(listed)
        self.active: Segment | None = self._listed[-1] if self._listed else None
        self._recent: dict[Segment, None] = {}
        self._released: list[Segment] = []
        self._is_held = False

    def load(self, listed: Iterable[Segment]) -> None:
        """Close all segments and hold others instead, which were read from the same folder."""
        self.close()
        self._listed = list(listed)
        self.active = self._listed[-1] if self._listed else None
        self._recent.clear()

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._listed)

    def __reversed__(self) -> Iterator[Segment]:
        return reversed(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __getitem__(self, at: int) -> Segment:
        return self._listed[at]

    def begin(self, segment: Segment) -> None:
        """Make a new segment the active one."""
        old, self.active = self.active, segment
        self._listed.append(segment)
        if old is not None:
            self.use(old)

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segment that would hold an offset, and those behind it."""
        return self._listed[max(0, self._count_up_to(offset) - 1) :]

    def after(self, segment: Segment) -> Segment | None:
        """Return the segment behind a segment, if there is one."""
        at = self._count_up_to(segment.base_offset)
        return self._listed[at] if at < len(self._listed) else None

    def _count_up_to(self, offset: int) -> int:
        low, high = 0, len(self._listed)
        while low < high:
            middle = (low + high) // 2
            if self._listed[middle].base_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def take_oldest(self, count: int) -> list[Segment]:
        """Take the oldest segments out, close them and return them."""
        taken, self._listed = self._listed[:count], self._listed[count:]
        for segment in taken:
            self._recent.pop(segment, None)
            self._release(segment)
        return taken

    def replace(self, old: list[Segment], segment: Segment) -> None:
        """Replace neighbouring segments by one; reads that have begun may still use the old ones."""
        at = self._count_up_to(old[0].base_offset) - 1
        assert self._listed[at : at + len(old)] == old and old[-1] is not self.active
        self._listed[at : at + len(old)] = [segment]
        for each in old:
            self._recent.pop(each, None)
        self.use(segment)

    def use(self, segment: Segment) -> None:
        """Note that a segment is used, and close the one that was not used for longest if too many are open."""
        if segment is self.active:
            return
        recent = self._recent
        recent.pop(segment, None)
        recent[segment] = None
        if len(recent) > OPEN_MAX:
            oldest = next(iter(recent))
            del recent[oldest]
            self._release(oldest)

    def _release(self, segment: Segment) -> None:
        # A thread may be syncing the file, and a closed descriptor may be another file's already.
        if self._is_held:
            self._released.append(segment)
        else:
            segment.release()

    def hold(self) -> None:
        """Keep every open file open until `unhold`."""
        self._is_held = True

    def unhold(self) -> None:
        """Close the files that were to be closed meanwhile."""
        self._is_held = False
        for segment in self._released:
            if segment not in self._recent:
                segment.release()
        self._released.clear()

    def close(self) -> None:
        """Close every file."""
        self.unhold()
        for segment in self._listed:
            segment.release()
