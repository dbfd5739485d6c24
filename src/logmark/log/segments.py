"""The segments of a partition in order, and which of them are open."""

from collections.abc import Iterable, Iterator

from logmark.log.segment import Segment

OPEN_MAX = 8


class Segments:
    """Oldest first; the last one is active. A few of the others stay open after they were used."""

    __slots__ = ("_is_held", "_listed", "_recent", "_released", "active")

    def __init__(self, listed: Iterable[Segment] = ()) -> None:
        self._listed = list(listed)
        self.active: Segment | None = self._listed[-1] if self._listed else None
        self._recent: dict[Segment, None] = {}
        self._released: list[Segment] = []
        self._is_held = False

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __getitem__(self, at: int) -> Segment:
        return self._listed[at]

    def begin(self, segment: Segment) -> None:
        """Makes a new segment the active one."""
        old, self.active = self.active, segment
        self._listed.append(segment)
        if old is not None:
            self.use(old)

    def from_offset(self, offset: int) -> list[Segment]:
        """The segment that would hold an offset, and those behind it."""
        return self._listed[max(0, self._count_up_to(offset) - 1) :]

    def after(self, segment: Segment) -> Segment | None:
        """The segment behind a segment."""
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
        """Takes the oldest segments out and closes them."""
        gone, self._listed = self._listed[:count], self._listed[count:]
        for segment in gone:
            self._recent.pop(segment, None)
            self._release(segment)
        return gone

    def replace(self, gone: list[Segment], segment: Segment) -> None:
        """Puts one segment in the place of several, which whoever is reading may go on to use."""
        at = self._count_up_to(gone[0].base_offset) - 1
        assert self._listed[at : at + len(gone)] == gone and gone[-1] is not self.active
        self._listed[at : at + len(gone)] = [segment]
        for each in gone:
            self._recent.pop(each, None)
        self.use(segment)

    def use(self, segment: Segment) -> None:
        """Notes that a segment is used; the one that was not used for longest gives its file and indexes back."""
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
        """Keeps every open file open until `let_go`."""
        self._is_held = True

    def let_go(self) -> None:
        """Closes what was to be closed meanwhile."""
        self._is_held = False
        for segment in self._released:
            if segment not in self._recent:
                segment.release()
        self._released.clear()

    def close(self) -> None:
        """Closes every file."""
        self.let_go()
        for segment in self._listed:
            segment.release()
