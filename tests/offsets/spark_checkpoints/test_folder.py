"""Folders, on this machine and elsewhere: what is made appears as a whole and replaces nothing."""

import builtins
import errno
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from logmark.errors import UserError
from logmark.offsets.spark_checkpoints.folder import Folder, LocalFolder, RemoteFolder, open_folder


@pytest.fixture(params=["local", "file-url", "memory", "objects"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    if request.param in ("memory", "objects"):
        files = fsspec.filesystem("memory")
        files.mkdirs("/bucket/checkpoint/offsets", exist_ok=True)
        if request.param == "memory":
            yield open_folder("memory://bucket/checkpoint")
        else:
            # As the libraries of object stores are: asynchronous inside, and able to make an object that must be new.
            objects = AsyncFileSystemWrapper(files, asynchronous=False)
            yield RemoteFolder(objects, "/bucket/checkpoint", "memory://bucket/checkpoint")
        files.rm("/bucket", recursive=True)
    else:
        (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
        where = tmp_path / "checkpoint"
        yield open_folder(str(where) if request.param == "local" else where.as_uri())


def test_a_file_is_made_once(folder: Folder) -> None:
    folder.create("offsets/1", b"one")

    with pytest.raises(FileExistsError):
        folder.create("offsets/1", b"two")

    assert b"one" == folder.read("offsets/1")
    assert ["1"] == [entry.name for entry in folder.entries("offsets")], "no temporary file is left"
    assert [("offsets", True)] == [(entry.name, entry.is_folder) for entry in folder.entries()]


def test_what_is_not_there_is_nothing(folder: Folder) -> None:
    assert None is folder.read("offsets/1")
    assert None is folder.read("offsets")
    assert [] == folder.entries("commits")


def test_a_files_time_is_known(folder: Folder) -> None:
    folder.create("offsets/1", b"one")

    (entry,) = folder.entries("offsets")

    assert entry.changed_ms is not None
    assert entry.changed_ms > 1_600_000_000_000


def test_a_folder_is_opened_again_by_its_url(folder: Folder) -> None:
    folder.create("offsets/1", b"one")

    assert b"one" == open_folder(folder.url).read("offsets/1")
    assert b"one" == open_folder(folder.parent().url).read("checkpoint/offsets/1")


def test_the_host_stays_in_the_url() -> None:
    folder = RemoteFolder(object(), "/checkpoints/clicks", "hdfs://namenode:8020/checkpoints/clicks/")

    assert ("hdfs://namenode:8020/checkpoints/clicks", "hdfs://namenode:8020/checkpoints") == (
        folder.url,
        folder.parent().url,
    )


@pytest.mark.parametrize(("path", "url"), [("bucket", "s3://bucket"), ("/", "hdfs://namenode")])
def test_a_bucket_lies_in_nothing(path: str, url: str) -> None:
    assert url == RemoteFolder(object(), path, url).parent().url


def test_the_folder_around_it_is_found(folder: Folder) -> None:
    assert folder.url.startswith(folder.parent().url)
    assert ["checkpoint"] == [entry.name for entry in folder.parent().entries()]


@pytest.mark.parametrize("location", ["/tmp/a/../b", "file:///tmp/b", "file:/tmp/b", "/tmp/b/"])
def test_one_folder_has_one_name(location: str) -> None:
    assert "/tmp/b" == open_folder(location).url


def test_hadoops_name_for_s3_is_understood() -> None:
    with pytest.raises(UserError, match=r"s3a://bucket/x cannot be reached: .*s3fs.* Nothing was changed"):
        open_folder("s3a://bucket/x")


def test_a_scheme_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(UserError, match=r"nowhere://x cannot be reached: .*nowhere.* Nothing was changed"):
        open_folder("nowhere://x")


def test_without_fsspec_a_url_is_an_error_and_a_path_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def imported(name: str, *more: Any) -> Any:
        if name.startswith("fsspec"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", imported)

    open_folder(str(tmp_path)).create("1", b"")
    with pytest.raises(UserError, match=r"pip install 'logmark\[remote\]'"):
        open_folder("s3://bucket/x")


def test_a_checksum_that_belongs_to_no_file_goes_before_the_file_comes(tmp_path: Path) -> None:
    (tmp_path / ".7.crc").write_bytes(b"crc\0 of a file that is gone")

    LocalFolder(tmp_path).create("7", b"new")

    assert ["7"] == os.listdir(tmp_path)


def test_a_file_system_without_links_is_written_to_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    LocalFolder(tmp_path).create("7", b"new")
    with pytest.raises(FileExistsError):
        LocalFolder(tmp_path).create("7", b"other")

    assert {"7": b"new"} == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_write_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space left"):
        LocalFolder(tmp_path).create("7", b"new")

    assert [] == os.listdir(tmp_path)


def test_a_file_is_for_whoever_the_folder_is_for(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    before = os.umask(0o077)
    try:
        LocalFolder(tmp_path).create("7", b"new")
    finally:
        os.umask(before)

    made = (tmp_path / "7").stat()
    assert (0o640, tmp_path.stat().st_gid) == (made.st_mode & 0o777, made.st_gid)


def test_what_a_library_raises_is_an_error_of_the_disk() -> None:
    class Broken:
        def exists(self, path: str) -> bool:
            raise RuntimeError("token expired")

        ls = cat_file = invalidate_cache = exists

    folder = RemoteFolder(Broken(), "bucket/x", "s3://bucket/x")

    with pytest.raises(OSError, match="RuntimeError: token expired"):
        folder.create("offsets/1", b"")
    with pytest.raises(UserError, match=r"s3://bucket/x/offsets cannot be read: token expired\. Nothing was changed"):
        folder.entries("offsets")
    with pytest.raises(UserError, match="s3://bucket/x/offsets/1 cannot be read"):
        folder.read("offsets/1")


@pytest.mark.parametrize(
    ("info", "changed_ms"),
    [
        ({"LastModified": datetime(2024, 3, 5, tzinfo=UTC)}, 1_709_596_800_000),
        ({"last_modified": datetime(2024, 3, 5)}, 1_709_596_800_000),
        ({"updated": "2024-03-05T00:00:00.000Z"}, 1_709_596_800_000),
        ({"mtime": 1_709_596_800.0}, 1_709_596_800_000),
        ({"modificationTime": 1_709_596_800_000}, 1_709_596_800_000),
        ({"updated": "yesterday"}, None),
        ({}, None),
    ],
)
def test_times_are_understood_in_every_librarys_way(info: dict[str, Any], changed_ms: int | None) -> None:
    class One:
        def invalidate_cache(self, path: str) -> None: ...

        def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
            return [{"name": "bucket/x/1", "type": "file", **info}]

    (entry,) = RemoteFolder(One(), "bucket/x", "s3://bucket/x").entries()

    assert ("1", changed_ms) == (entry.name, entry.changed_ms)
