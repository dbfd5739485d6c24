"""An overlay does what the disk would do, and the disk below stays as it is."""

import random
from pathlib import Path

import pytest

from logmark.disk.file_system import FileSystem, RealFileSystem
from logmark.disk.overlay import OverlayFileSystem
from logmark.disk.read_only import ReadOnlyFileSystem

SEED = 20_261_117
STEPS = 400
NAMES = ["one.log", "two.log", "three.log"]


def tree(root: str, files: FileSystem) -> dict[str, bytes | None]:
    """Every path below a folder with its content, None for a folder."""
    found: dict[str, bytes | None] = {}
    for name in files.listdir(root):
        path = f"{root}/{name}"
        if files.is_directory(path):
            found[path] = None
            found |= tree(path, files)
        else:
            found[path] = files.read(path)
            assert files.size(path) == len(found[path])
    return found


def change(root: str, files: FileSystem, chosen: random.Random) -> str:
    """Make one change, the same for the same choices, and say what it was or how it failed."""
    folder = f"{root}/{chosen.choice(['a', 'b'])}"
    path, other = f"{folder}/{chosen.choice(NAMES)}", f"{root}/{chosen.choice(['a', 'b'])}/{chosen.choice(NAMES)}"
    at, size = chosen.randrange(60), chosen.randrange(1, 40)
    data = chosen.randbytes(size)
    what = chosen.choice(["pwrite", "pwrite", "truncate", "write", "replace", "remove", "move", "mkdir"])
    try:
        if what in ("pwrite", "truncate"):
            file = files.open(path, create=chosen.random() < 0.5)
            if what == "pwrite":
                file.pwrite(data, at)
            else:
                file.truncate(at)
            assert file.pread(100, 0) == files.read(path)
            file.close()
        elif what == "write":
            files.write(path, data)
        elif what == "replace":
            files.replace(path, other)
        elif what == "remove":
            files.remove(path)
        elif what == "mkdir":
            files.mkdir(folder)
        else:
            files.replace(folder, f"{root}/c")
            files.replace(f"{root}/c", folder)
    except OSError as error:
        return f"{what}: {type(error).__name__}"
    return what


def test_any_changes_leave_an_overlay_as_they_leave_a_disk_and_the_disk_below_untouched(tmp_path: Path) -> None:
    below, other = tmp_path / "below", tmp_path / "other"
    for root in (below, other):
        (root / "a").mkdir(parents=True)
        for name in NAMES[:2]:
            (root / "a" / name).write_bytes(name.encode() * 9)
    real, reading = RealFileSystem(sync=False), ReadOnlyFileSystem()
    before = tree(str(below), reading)
    with OverlayFileSystem(reading) as overlay:
        for step in range(STEPS):
            seed = SEED + step
            done = change(str(other), real, random.Random(seed))
            assert done == change(str(below), overlay, random.Random(seed)), f"step {step}"
            there = {path.removeprefix(str(other)): content for path, content in tree(str(other), real).items()}
            here = {path.removeprefix(str(below)): content for path, content in tree(str(below), overlay).items()}
            assert there == here, f"step {step}, {done}"
    assert before == tree(str(below), reading)


def test_a_file_says_whether_it_is_still_the_one_below(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).write_bytes(b"x")
    with OverlayFileSystem(ReadOnlyFileSystem()) as overlay:
        overlay.open(f"{tmp_path}/{NAMES[0]}").pread(1, 0)
        overlay.open(f"{tmp_path}/{NAMES[1]}").pwrite(b"y", 0)
        assert [False, True, False] == [overlay.is_changed(f"{tmp_path}/{name}") for name in NAMES]


def test_what_was_tried_out_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with OverlayFileSystem(ReadOnlyFileSystem()) as overlay:
        overlay.write(f"{tmp_path}/new", b"x" * 1000)
        assert list(scratch.iterdir())
    assert [] == list(scratch.iterdir())
    assert not (tmp_path / "new").exists()
