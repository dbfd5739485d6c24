"""A disk in memory that knows what was not synced, and every state in which a power loss may leave it.

Nothing is assumed but POSIX: bytes are on the medium after a sync of their file, names after a sync of their directory,
and of the rest any part may be there, in any order. A rename happens as a whole or not at all.
"""

import errno
import os
import posixpath
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from logmark.disk.file_system import Bytes

SECTOR_BYTES = 512


class Fate(Enum):
    """What became of a change that was not synced."""

    KEPT = "kept"
    LOST = "lost"
    TORN = "torn at a sector"
    ZEROS = "zeros in its place"
    GARBAGE = "garbage in its place"


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at a position of a file."""

    number: int
    at: int
    data: bytes

    def after(self, content: bytes, fate: Fate) -> bytes:
        """Return what the file holds when this has become of the write."""
        if fate is Fate.LOST:
            return content
        data, end = self.data, self.at + len(self.data)
        if fate is Fate.TORN:
            # The last sector boundary inside the write: what lies before it came, the rest did not.
            data = data[: max(0, (end - 1) // SECTOR_BYTES * SECTOR_BYTES - self.at)]
        elif fate is Fate.ZEROS:
            data = bytes(len(data))
        elif fate is Fate.GARBAGE:
            data = random.Random(self.number).randbytes(len(data))
        if not data:
            return content
        return content[: self.at].ljust(self.at, b"\0") + data + content[self.at + len(data) :]


@dataclass(frozen=True, slots=True)
class Truncate:
    """A new size of a file."""

    number: int
    size: int

    def after(self, content: bytes, fate: Fate) -> bytes:
        """Return what the file holds when this has become of the truncation."""
        return content[: self.size].ljust(self.size, b"\0") if fate is Fate.KEPT else content


@dataclass(frozen=True, slots=True)
class Name:
    """A directory's entries that come and go together: a new file, a removal, a rename."""

    number: int
    gone: str | None
    come: str | None
    node: int

    def after(self, entries: Mapping[str, int], fate: Fate) -> Mapping[str, int]:
        """Return what the directory holds when this has become of the change."""
        if fate is not Fate.KEPT:
            return entries
        changed = dict(entries)
        # A change before this one may be lost, and the name may be another's by now.
        if self.gone is not None and changed.get(self.gone) == self.node:
            del changed[self.gone]
        if self.come is not None:
            changed[self.come] = self.node
        return changed


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes = b""
    synced: bytes = b""
    pending: tuple[Write | Truncate, ...] = ()


@dataclass(frozen=True, slots=True)
class _Directory:
    entries: Mapping[str, int] = field(default_factory=dict)
    synced: Mapping[str, int] = field(default_factory=dict)
    pending: tuple[Name, ...] = ()


Change = Write | Truncate | Name
_ROOT = 0


@dataclass(frozen=True, slots=True)
class PowerLoss:
    """One way to lose power: what became of each change that was not synced; of those not named, `other`."""

    name: str
    fates: Mapping[int, Fate]
    other: Fate = Fate.KEPT

    def fate(self, change: Change) -> Fate:
        return self.fates.get(change.number, self.other)


class CrashFile:
    """An open file: it stays the same file when its name changes."""

    # The kernel cannot write it by itself: bytes reach the medium by a write and a sync.
    direct_descriptor = None

    def __init__(self, path: str, node: int, disk: "CrashFileSystem") -> None:
        self.path = path
        self._node = node
        self._disk = disk

    def pread(self, size: int, at: int) -> bytes:
        return self._disk._file(self._node).content[at : at + size]

    def pwrite(self, data: Bytes, at: int) -> None:
        self._disk._write(self._node, bytes(data), at)

    def truncate(self, size: int) -> None:
        self._disk._truncate(self._node, size)

    def size(self) -> int:
        return len(self._disk._file(self._node).content)

    def sync(self) -> None:
        self._disk._sync(self._node)

    def is_in_place(self) -> bool:
        return self._disk._find(self.path) == self._node

    def hold_open(self) -> "CrashFile":
        """Return itself: it stays the same file when its name changes."""
        return self

    def size_if_deleted(self) -> int:
        """Return 0: it holds no descriptor."""
        return 0

    def close(self) -> None:
        """Do nothing: no descriptor is held."""


class CrashLock:
    """Held until it is released or the process is gone."""

    def __init__(self, disk: "CrashFileSystem", path: str) -> None:
        self._disk = disk
        self._path = path

    @property
    def inheritable(self) -> Sequence[int]:
        return ()

    def is_in_place(self) -> bool:
        return True

    def release(self) -> None:
        self._disk._locked.discard(self._path)


class CrashFileSystem:
    """A file system in memory, to be used by one thread; `before_change` is called before each change and each sync."""

    def __init__(self) -> None:
        self._nodes: dict[int, _File | _Directory] = {_ROOT: _Directory()}
        # Directories that were found by their paths; no name of a directory has changed since.
        self._found: dict[str, int] = {}
        self._number = 0
        self._locked: set[str] = set()
        self.before_change: Callable[[], None] = lambda: None

    # Crashing

    def killed(self) -> "CrashFileSystem":
        """Return the same disk after the process was killed: nothing is lost, and nothing more is synced."""
        copy = CrashFileSystem()
        copy._nodes = dict(self._nodes)
        copy._number = self._number
        return copy

    def unsynced(self) -> list[Change]:
        """Return the changes that a power loss may take, oldest first."""
        changes: list[Change] = [change for node in self._nodes.values() for change in node.pending]
        return sorted(changes, key=lambda change: change.number)

    def power_losses(self) -> Iterator[PowerLoss]:
        """Yield every kind of state that a power loss may leave now, the plain ones first."""
        changes = self.unsynced()
        yield PowerLoss("nothing unsynced kept", {}, Fate.LOST)
        if not changes:
            return
        yield PowerLoss("everything kept", {})
        names = {change.number: Fate.LOST for change in changes if isinstance(change, Name)}
        yield PowerLoss("names lost, data kept", names)
        yield PowerLoss("names kept, data lost", dict.fromkeys(names, Fate.KEPT), Fate.LOST)
        for node in self._nodes.values():
            writes = [change for change in node.pending if isinstance(change, Write)]
            for fate in (Fate.TORN, Fate.ZEROS, Fate.GARBAGE) if writes else ():
                yield PowerLoss(f"last write of a file: {fate.value}", {writes[-1].number: fate})
        for at, change in enumerate(changes):
            yield PowerLoss(f"{type(change).__name__} {change.number} lost", {change.number: Fate.LOST})
            if at:
                kept = {earlier.number: Fate.KEPT for earlier in changes[:at]}
                yield PowerLoss(f"the first {at} kept", kept, Fate.LOST)

    def any_power_loss(self, choose: random.Random) -> PowerLoss:
        """Return any other state: each change has a fate of its own."""
        fates = {}
        for change in self.unsynced():
            possible = list(Fate) if isinstance(change, Write) else [Fate.KEPT, Fate.LOST]
            fates[change.number] = choose.choice(possible)
        return PowerLoss("each change for itself", fates)

    def after(self, loss: PowerLoss) -> "CrashFileSystem":
        """Return the disk after a power loss: what it holds now is durable."""
        copy = self.killed()
        for key, node in self._nodes.items():
            if not node.pending:
                continue
            if isinstance(node, _File):
                content = node.synced
                for change in node.pending:
                    content = change.after(content, loss.fate(change))
                copy._nodes[key] = _File(content, content)
            else:
                entries = node.synced
                for name in node.pending:
                    entries = name.after(entries, loss.fate(name))
                copy._nodes[key] = _Directory(entries, entries)
        return copy

    def image(self) -> dict[str, bytes | None]:
        """Return every path with its content, None for a directory: what tells two states apart."""
        found: dict[str, bytes | None] = {}
        waiting = [("", _ROOT)]
        while waiting:
            path, key = waiting.pop()
            node = self._nodes[key]
            if isinstance(node, _File):
                found[path] = node.content
            else:
                found[path or "/"] = None
                waiting += [(f"{path}/{name}", child) for name, child in node.entries.items()]
        return found

    # What the files do

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _file(self, key: int) -> _File:
        node = self._nodes[key]
        assert isinstance(node, _File)
        return node

    def _change(self, key: int, change: Write | Truncate) -> None:
        node = self._file(key)
        self._nodes[key] = _File(change.after(node.content, Fate.KEPT), node.synced, (*node.pending, change))

    def _write(self, key: int, data: bytes, at: int) -> None:
        self.before_change()
        self._change(key, Write(self._next(), at, data))

    def _truncate(self, key: int, size: int) -> None:
        if size == len(self._file(key).content):
            return
        self.before_change()
        self._change(key, Truncate(self._next(), size))

    def _sync(self, key: int) -> None:
        self.before_change()
        content = self._file(key).content
        self._nodes[key] = _File(content, content)

    # Names

    def _find(self, path: str) -> int | None:
        folder, name = _split(path)
        key = self._found.get(folder)
        if key is None:
            key = self._walk(folder)
            if key is None:
                return None
            self._found[folder] = key
        node = self._nodes[key]
        assert isinstance(node, _Directory)
        return node.entries.get(name) if name else key

    def _walk(self, folder: str) -> int | None:
        """Return the directory of that path, from the root on."""
        key = _ROOT
        for name in folder.split("/"):
            if not name:
                continue
            node = self._nodes[key]
            found = node.entries.get(name) if isinstance(node, _Directory) else None
            if found is None:
                return None
            key = found
        return key if isinstance(self._nodes[key], _Directory) else None

    def _at(self, path: str) -> int:
        found = self._find(path)
        if found is None:
            raise _error(errno.ENOENT, path)
        return found

    def _directory(self, path: str) -> tuple[int, _Directory]:
        key = self._at(path)
        node = self._nodes[key]
        if not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, path)
        return key, node

    def _rename(self, folder: str, *, gone: str | None, come: str | None, node: int) -> None:
        key, directory = self._directory(folder)
        replaced = None if come is None else directory.entries.get(come)
        if any(isinstance(self._nodes[each], _Directory) for each in (node, replaced) if each is not None):
            self._found.clear()
        change = Name(self._next(), gone, come, node)
        entries = change.after(directory.entries, Fate.KEPT)
        self._nodes[key] = _Directory(entries, directory.synced, (*directory.pending, change))

    def _create(self, path: str, node: _File | _Directory) -> int:
        folder, name = _split(path)
        self._directory(folder)
        self.before_change()
        key = self._next()
        self._nodes[key] = node
        self._rename(folder, gone=None, come=name, node=key)
        return key

    # The file system

    def open(self, path: str, *, create: bool = False) -> CrashFile:
        key = self._find(path)
        if key is None and create:
            key = self._create(path, _File())
        if key is None:
            raise _error(errno.ENOENT, path)
        if isinstance(self._nodes[key], _Directory):
            raise _error(errno.EISDIR, path)
        return CrashFile(path, key, self)

    def open_direct(self, path: str) -> CrashFile:
        return self.open(path)

    def read(self, path: str) -> bytes:
        file = self.open(path)
        return file.pread(file.size(), 0)

    def write(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        file = self.open(path, create=True)
        file.truncate(0)
        if data:
            file.pwrite(data, 0)
        if sync:
            file.sync()

    def write_atomically(self, path: str, data: Bytes) -> None:
        self.write(path + ".tmp", data)
        self.replace(path + ".tmp", path)
        self.sync_directory(posixpath.dirname(path))

    def size(self, path: str) -> int:
        return self.open(path).size()

    def modified_ms(self, path: str) -> int:
        """Return 0 always: no promise depends on when a file was written."""
        self._at(path)
        return 0

    def change_stamp(self, path: str) -> str:
        """Return the number of the file: bits that flip at rest change no time."""
        return str(self._at(path))

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        key = self._find(path)
        return key is not None and isinstance(self._nodes[key], _Directory)

    def listdir(self, path: str) -> Sequence[str]:
        return sorted(self._directory(path)[1].entries)

    def mkdir(self, path: str) -> None:
        if self.exists(path):
            raise _error(errno.EEXIST, path)
        self._create(path, _Directory())

    def replace(self, source: str, target: str) -> None:
        key = self._at(source)
        folder, name = _split(source)
        target_folder, target_name = _split(target)
        self.before_change()
        if folder == target_folder:
            self._rename(folder, gone=name, come=target_name, node=key)
        else:
            self._rename(target_folder, gone=None, come=target_name, node=key)
            self._rename(folder, gone=name, come=None, node=key)

    def remove(self, path: str) -> None:
        key = self._at(path)
        folder, name = _split(path)
        self.before_change()
        self._rename(folder, gone=name, come=None, node=key)

    def rmdir(self, path: str) -> None:
        if self.listdir(path):
            raise _error(errno.ENOTEMPTY, path)
        self.remove(path)

    def sync_file(self, path: str) -> None:
        self.open(path).sync()

    def sync_directory(self, path: str) -> None:
        key, directory = self._directory(path)
        self.before_change()
        self._nodes[key] = _Directory(directory.entries, directory.entries)

    def free_bytes(self, path: str) -> int:
        return 1 << 60

    def lock(self, path: str) -> CrashLock | None:
        if path in self._locked:
            return None
        self.open(path, create=True)
        self._locked.add(path)
        return CrashLock(self, path)


@lru_cache(maxsize=4096)
def _split(path: str) -> tuple[str, str]:
    """Return the path of a directory and the name in it; the root has none."""
    return posixpath.split(posixpath.normpath(path))


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
