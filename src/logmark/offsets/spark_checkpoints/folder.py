"""A checkpoint's folder, on this machine or wherever fsspec reaches: listed, read, and added to, never overwritten."""

import contextlib
import errno
import os
import posixpath
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from logmark.errors import UserError
from logmark.offsets.user_files import sync_folder

# Hadoop's names for what fsspec knows by another one.
_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A name in a folder; when it was last changed is not known everywhere."""

    name: str
    is_folder: bool = False
    changed_ms: int | None = None


class LocalFolder:
    """A folder of this machine's file system."""

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.abspath(path))  # links keep their names, as Spark keeps them

    @property
    def url(self) -> str:
        """The absolute path."""
        return str(self._path)

    def entries(self, path: str = "") -> list[Entry]:
        """Return the entries of a subfolder, empty if it does not exist."""
        found = []
        try:
            with os.scandir(self._path / path) as listing:
                for one in listing:
                    with contextlib.suppress(FileNotFoundError):
                        changed_ms = one.stat().st_mtime_ns // 1_000_000
                        found.append(Entry(name=one.name, is_folder=one.is_dir(), changed_ms=changed_ms))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unreadable(f"{self._path / path}", error) from None
        return found

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, None if it does not exist."""
        try:
            return (self._path / path).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(f"{self._path / path}", error) from None

    def create(self, path: str, content: bytes) -> None:
        """Create a file atomically and durably; raises FileExistsError if it exists."""
        final = self._path / path
        temporary = final.with_name(_temporary(final.name))
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                _belong(file.fileno(), final.parent)
                os.fsync(file.fileno())
            if not final.exists():
                # The checksum of a file that is gone would make Hadoop call ours damaged; a file without one is read.
                final.with_name(f".{final.name}.crc").unlink(missing_ok=True)
            _name(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(final.parent)

    def parent(self) -> "LocalFolder":
        """Return the parent folder."""
        return LocalFolder(self._path.parent)


class RemoteFolder:
    """A folder of any file system that fsspec has."""

    def __init__(self, files: Any, path: str, url: str) -> None:
        self._files = files
        self._path = path.rstrip("/")
        self._url = url.rstrip("/")  # the path alone may lack the host

    @property
    def url(self) -> str:
        """The folder's URL, which opens it again."""
        return self._url

    def entries(self, path: str = "") -> list[Entry]:
        """Return the entries of a subfolder, empty if it does not exist."""
        folder = self._full(path)
        try:
            self._files.invalidate_cache(folder)
            listed = self._files.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:  # noqa: BLE001 (every file system raises what its library raises)
            raise _unreadable(f"{self._url}/{path}", error) from None
        return [
            Entry(
                name=posixpath.basename(one["name"].rstrip("/")),
                is_folder=one["type"] == "directory",
                changed_ms=_changed_ms(one),
            )
            for one in listed
            if one["name"].rstrip("/") != folder
        ]

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, None if it does not exist."""
        try:
            return bytes(self._files.cat_file(self._full(path)))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except Exception as error:  # noqa: BLE001 (every file system raises what its library raises)
            raise _unreadable(f"{self._url}/{path}", error) from None

    def create(self, path: str, content: bytes) -> None:
        """Create a file atomically; raises FileExistsError if it exists."""
        try:
            self._create(self._full(path), content)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 (every file system raises what its library raises)
            raise OSError(f"{type(error).__name__}: {error}") from None

    def _create(self, final: str, content: bytes) -> None:
        # An extra: only remote checkpoints need it.
        from fsspec.asyn import AsyncFileSystem

        if isinstance(self._files, AsyncFileSystem):
            # An object store shows an object when it is whole, and its library can ask for it to be new.
            self._files.pipe_file(final, content, mode="create")
            return
        if self._files.exists(final):
            raise FileExistsError(final)
        temporary = posixpath.join(posixpath.dirname(final), _temporary(posixpath.basename(final)))
        try:
            self._files.pipe_file(temporary, content)
            self._files.mv(temporary, final)
        except BaseException:
            with contextlib.suppress(Exception):
                self._files.rm_file(temporary)
            raise

    def parent(self) -> "RemoteFolder":
        """Return the parent folder; a bucket, or the root, is its own parent."""
        outer = posixpath.dirname(self._path)
        return RemoteFolder(self._files, outer, posixpath.dirname(self._url)) if outer.strip("/") else self

    def _full(self, path: str) -> str:
        return f"{self._path}/{path}" if path else self._path


# Paths in a folder are relative and have slashes. The root is its own parent.
Folder = LocalFolder | RemoteFolder


def open_folder(location: str) -> Folder:
    """Open a folder by path, file: URL, or any URL that fsspec knows."""
    scheme, colon, _ = location.partition(":")
    if not colon or "/" in scheme or len(scheme) < 2:
        return LocalFolder(Path(location).expanduser())
    if scheme == "file":
        return LocalFolder(Path(unquote(urlsplit(location).path) or "/"))
    return _remote(location, scheme)


def _remote(location: str, scheme: str) -> RemoteFolder:
    try:
        # An extra: only remote checkpoints need it.
        import fsspec
    except ImportError:
        raise UserError(
            f"{location} is not on this machine, and what reaches it is not installed. Nothing was changed; install it "
            f"with: pip install 'logmark[remote]' and what fsspec needs for {scheme}: (s3fs, gcsfs, adlfs, …)."
        ) from None
    url = f"{_SCHEMES.get(scheme, scheme)}:{location.partition(':')[2]}"
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UserError(f"{location} cannot be reached: {error} Nothing was changed.") from None
    return RemoteFolder(files, path, url)


def _belong(descriptor: int, folder: Path) -> None:
    """Give the file the owner and mode of its folder: the query often runs as another user than ours."""
    around = folder.stat()
    if os.geteuid() == 0:
        os.fchown(descriptor, around.st_uid, around.st_gid)
    os.fchmod(descriptor, around.st_mode & 0o666)


def _name(temporary: Path, final: Path) -> None:
    """Rename a finished file; raises FileExistsError if the name is taken."""
    try:
        os.link(temporary, final)  # unlike a rename it never replaces
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # A file system without links: the moment between the look and the rename is as short as Spark's own.
        if final.exists():
            raise FileExistsError(final) from None
        os.rename(temporary, final)


def _temporary(name: str) -> str:
    """Return the name of an unfinished file as Spark has it: the leading dot keeps it from being read as a batch."""
    return f".{name}.{uuid.uuid4()}.tmp"


def _changed_ms(info: Mapping[str, Any]) -> int | None:
    if isinstance(info.get("modificationTime"), int):
        return int(info["modificationTime"])  # WebHDFS, in milliseconds
    found = next((info[key] for key in _TIME_KEYS if info.get(key) is not None), None)
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError:
            return None
    if isinstance(found, datetime):
        return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    return round(found * 1000) if isinstance(found, int | float) else None


def _unreadable(path: str, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}. Nothing was changed.")
