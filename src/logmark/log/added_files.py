"""Additions: what was put into a partition's folder since the last clean stop.

A clean stop lists every segment with its size (`checkpoints.ListedSegment`). No broker has written what the list does
not have: another segment, the output of a compaction, batches behind the end of the last segment. A start sets that
aside before it removes the mark of the clean stop: if the start is killed, the list is still in force for the next one.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import NamedTuple

from logmark.disk.file_system import FileSystem
from logmark.errors import UserError
from logmark.log import cut_files
from logmark.log.catalog import Entry
from logmark.log.checkpoints import SEGMENTS, Condition, ListedContent, ListedSegment, ListedSegments, checksum_head
from logmark.log.folder_names import partition_of
from logmark.log.segment import FILES, LOG, Segment, file_name
from logmark.log.segment_swap import SWAP
from logmark.wire.columns import HEADER_BYTES

_READ_BYTES = 1024 * 1024


class Addition(NamedTuple):
    """Bytes of a file, from a position to its end, that no broker has written."""

    name: str
    position: int
    problem: str

    def __str__(self) -> str:
        return f"{self.name} from byte {self.position} on ({self.problem})"


def find_all(
    path: str, segments: ListedSegments, topics: Iterable[Entry], files: FileSystem
) -> dict[str, list[Addition]]:  # fmt: skip
    """Return what was added to the folders of these topics since the clean stop that has listed the segments."""
    found = {}
    for name, listed in _folders(path, segments, topics, files):
        if additions := find_additions(f"{path}/{name}", listed, files):
            found[name] = additions
    return found


def check_all_owners(path: str, segments: ListedSegments, topics: Iterable[Entry], files: FileSystem) -> None:
    """Raise UserError if the folders of partitions of these topics were exchanged since the clean stop."""
    for name, listed in _folders(path, segments, topics, files):
        last = _last_segment(listed)
        for base, one in listed.items():
            log = f"{path}/{name}/{file_name(base, LOG)}"
            if (base == last or one.content is not None) and files.exists(log):
                segment = Segment(
                    f"{path}/{name}", base, files, size=files.size(log), created_ms=0, index_interval=0, is_dense=False
                )  # fmt: skip
                if base == last:
                    check_owner(segment, one)
                if not has_content(segment, one.content):
                    segment.lookup.find_damage(None)
                    check_damaged(segment)
                segment.release()


def _folders(
    path: str, segments: ListedSegments, topics: Iterable[Entry], files: FileSystem
) -> Iterator[tuple[str, Mapping[int, ListedSegment]]]:  # fmt: skip
    """Yield the folders of partitions of these topics, each with the segments that it had."""
    partitions = {entry.name: entry.partitions for entry in topics}
    for name in sorted(files.listdir(path)):
        key = partition_of(name)
        if key is not None and key.partition < partitions.get(key.topic, 0):
            yield name, segments.get(key, {})


def find_additions(folder: str, listed: Mapping[int, ListedSegment], files: FileSystem) -> list[Addition]:
    """Return what a folder holds besides the segments that a clean stop has listed."""
    names = sorted(name for name in files.listdir(folder) if name[:20].isdigit())
    bases = [int(name[:20]) for name in names if name[20:] == LOG]
    found = [Addition(name, 0, "no compaction was under way at the clean stop") for name in names
             if name.endswith(LOG + SWAP)]  # fmt: skip
    found += [
        Addition(file_name(base, LOG), 0, "the clean stop has listed no such segment")
        for base in bases
        if not _is_listed(base, listed)
    ]
    last = _last_segment(listed)
    if last in bases and files.size(f"{folder}/{file_name(last, LOG)}") > listed[last].size_bytes:
        found.append(Addition(file_name(last, LOG), listed[last].size_bytes, "it was added after the clean stop"))
    return found


def set_aside(folder: str, additions: Iterable[Addition], files: FileSystem) -> list[str]:
    """Take additions out of a folder, durably, and keep them in cut files; return what was done with each."""
    done = []
    for name, position, problem in additions:
        path = f"{folder}/{name}"
        if position:
            kept: str | None = cut_files.keep_tail(path, position, files)
            with closing(files.open(path)) as file:
                file.truncate(position)
                file.sync()
        else:
            kept = cut_files.keep_file(path, files)
            # The indexes of a segment are of no use without it, and another segment may get the same name.
            for suffix in FILES if name.endswith(LOG) else ():
                with suppress(FileNotFoundError):
                    files.remove(f"{folder}/{name[:20]}{suffix}")
        what = f"{path}: what begins at byte {position} is not served: {problem}"
        done.append(f"{what}; it was only zeros" if kept is None else f"{what}; it is kept in {kept}")
    files.sync_directory(folder)
    return done


def check_owner(segment: Segment, listed: ListedSegment) -> None:
    """Raise UserError if a segment is a sound one, but not the one that the clean stop has left there.

    The folders of two partitions of a topic may have been exchanged: both have the topic's id.
    """
    if listed.head_checksum in (None, checksum_head(segment.read(0, HEADER_BYTES))):
        return
    # Otherwise the batch is damaged, and that is found and reported when the log is opened.
    if segment.lookup.sound_header(0) is not None:
        raise UserError(
            f"{segment.path} is not the segment that the last clean stop has left there: its first batch is another "
            "one. No record was changed. If folders or files were exchanged between partitions, put each back "
            f"where it was. To keep the files as they are now, delete {SEGMENTS} in the data directory."
        )


def has_content(segment: Segment, listed: ListedContent | None) -> bool:
    """Return whether a segment holds what the clean stop has left there, as far as it is listed."""
    if listed is None:
        return True
    checksum = 0
    for position in range(0, segment.size, _READ_BYTES):
        checksum = zlib.crc32(segment.read(position, min(_READ_BYTES, segment.size - position)), checksum)
    return checksum == listed.checksum


def check_damaged(segment: Segment) -> None:
    """Raise UserError if a segment that has other content than at the clean stop is not just damaged."""
    if not segment.damage:
        raise UserError(
            f"{segment.path} is not the segment that the last clean stop has left there: all its batches are sound, "
            "and they are others. It may be an older copy, from before a compaction. No record was changed. Put the "
            f"right file back. To keep the files as they are now, delete {SEGMENTS} in the data directory."
        )


def _last_segment(listed: Mapping[int, ListedSegment]) -> int | None:
    return max((base for base, one in listed.items() if one.condition is not Condition.MISSING), default=None)


def _is_listed(base: int, listed: Mapping[int, ListedSegment]) -> bool:
    """Return whether a segment was listed, or holds offsets that were missing: it was restored."""
    if base in listed:
        return True
    before = max((one for one in listed if one < base), default=None)
    return before is not None and listed[before].condition is Condition.MISSING
