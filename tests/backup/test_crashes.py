"""Power may be lost at every moment of a backup or a restore: all of it is there, or what was there before."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logmark.backup.directory_copier import DirectoryCopier
from logmark.backup.manifest import Manifest
from logmark.backup.restorer import Restorer
from logmark.backup.store import LOCK, MANIFEST, PROGRESS, Store, read_manifest
from logmark.clock import ManualClock
from logmark.disk.file_system import RealFileSystem
from logmark.errors import UserError
from logmark.names import TopicPartition
from tests.backup.backup_driver import nothing, write_source
from tests.crash.crash_file_system import CrashFileSystem

DEST = "/backups/orders"
DATA_DIR = "/data/orders"


DONE = "after the end"


class _Crash(OSError):
    """The power is gone."""


def back_up(source: Path, disk: CrashFileSystem) -> Manifest:
    with Store.open(DEST, files=disk, on_progress=nothing) as store:
        return DirectoryCopier(str(source), ManualClock()).copy(store, expect=nothing)


def crashes(disk: CrashFileSystem, work: Callable[[CrashFileSystem], object]) -> Iterator[tuple[str, CrashFileSystem]]:
    """Every state in which the work leaves the disk when power is lost before each of its changes and syncs."""
    at = 0
    while True:
        running, frozen, left = disk.killed(), [], [at]

        def before(running: CrashFileSystem = running, frozen: list = frozen, left: list = left) -> None:
            if not left[0]:
                frozen or frozen.append(running.killed())
                raise _Crash
            left[0] -= 1

        running.before_change = before
        with contextlib.suppress(_Crash, UserError):
            work(running)
        if not frozen:
            break
        for loss in frozen[0].power_losses():
            yield f"before change {at}, {loss.name}", frozen[0].after(loss)
        at += 1
    for loss in running.power_losses():
        yield f"{DONE}, {loss.name}", running.after(loss)


def stored(disk: CrashFileSystem) -> dict[int, int] | None:
    """The segments of the backup with their ends, None when there is no complete one; each must be sound."""
    manifest = read_manifest(DEST, MANIFEST, disk)
    if manifest is None:
        return None
    with Store.open(DEST, files=disk, on_progress=nothing) as store:
        for _, segment in manifest.segments():
            assert store._has_checksum(segment), f"{segment.file} is not what the manifest says"
    return {one.base_offset: one.next_offset for one in manifest.partitions[TopicPartition("orders", 0)].segments}


@pytest.fixture(params=[-1, 60], ids=["progress after every piece", "progress at the beginning"])
def progress(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How often progress is written; pieces are small, and what is looked at before going on is less than a piece."""
    monkeypatch.setattr("logmark.backup.store.PROGRESS_S", request.param)
    monkeypatch.setattr("logmark.log.scanner.CHUNK_BYTES", 2000)
    monkeypatch.setattr("logmark.backup.directory_copier.TAIL_BYTES", 100)


@pytest.mark.usefixtures("progress")
def test_a_first_backup_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    write_source(tmp_path, segments={0: 4, 4: 3})
    count = 0
    for state, disk in crashes(CrashFileSystem(), lambda disk: back_up(tmp_path, disk)):
        assert stored(disk) in ({0: 4, 4: 7}, None if DONE not in state else 0), state
        back_up(tmp_path, disk)
        assert {0: 4, 4: 7} == stored(disk), f"{state}: a second run does not complete it"
        count += 1
    assert count > 50


@pytest.mark.usefixtures("progress")
def test_a_second_backup_replaces_the_first_atomically(tmp_path: Path) -> None:
    write_source(tmp_path, segments={0: 4, 4: 3, 7: 2})
    first = CrashFileSystem()
    back_up(tmp_path, first)
    # The oldest has expired, the next was rewritten and the last has grown.
    (tmp_path / "orders-0" / f"{0:020d}.log").unlink()
    (tmp_path / "orders-0" / f"{4:020d}.log").unlink()
    write_source(tmp_path, segments={4: 3, 7: 4, 11: 1})
    was, will_be = {0: 4, 4: 7, 7: 9}, {4: 7, 7: 11, 11: 12}
    count = 0
    for state, disk in crashes(first, lambda disk: back_up(tmp_path, disk)):
        assert stored(disk) in (will_be, was if DONE not in state else 0), state
        back_up(tmp_path, disk)
        assert will_be == stored(disk), f"{state}: another run does not complete it"
        count += 1
    assert count > 50


@pytest.mark.usefixtures("progress")
def test_progress_that_a_power_loss_brings_back_harms_nothing(tmp_path: Path) -> None:
    write_source(tmp_path, segments={0: 4, 4: 3})
    disk = CrashFileSystem()
    progress = f"{DEST}/{PROGRESS}"
    taken: list[bytes] = []

    def save_progress(_: int) -> None:
        taken.append(disk.read(progress))

    with Store.open(DEST, files=disk, on_progress=save_progress) as store:
        DirectoryCopier(str(tmp_path), ManualClock()).copy(store, expect=nothing)
    # It was removed when the run was complete, and its removal was not on disk yet.
    disk.write(progress, taken[1])
    write_source(tmp_path, segments={0: 4, 4: 5})
    for state, after in crashes(disk, lambda disk: back_up(tmp_path, disk)):
        assert stored(after) in ({0: 4, 4: 9}, {0: 4, 4: 7} if DONE not in state else 0), state


def test_a_restored_directory_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    write_source(tmp_path / "source", segments={0: 4, 4: 3})
    real = RealFileSystem(sync=False)
    backup = str(tmp_path / "backup")
    with Store.open(backup, files=real, on_progress=nothing) as store:
        DirectoryCopier(str(tmp_path / "source"), ManualClock()).copy(store, expect=nothing)

    def restore(disk: CrashFileSystem) -> None:
        Restorer.open(backup, DATA_DIR, source=real, files=disk, clock=ManualClock(), on_progress=nothing).restore()

    whole = CrashFileSystem()
    restore(whole)
    wanted = {path: data for path, data in whole.image().items() if path.startswith(DATA_DIR) and path != DATA_DIR}
    random = {f"{DATA_DIR}/meta.properties"}  # the directory's own id is drawn anew
    seen = set()
    for state, disk in crashes(CrashFileSystem(), restore):
        if disk.exists(DATA_DIR):
            image = {path: data for path, data in disk.image().items() if path.startswith(f"{DATA_DIR}/")}
            assert wanted.keys() == image.keys(), state
            assert {path: wanted[path] for path in wanted.keys() - random} == {
                path: image[path] for path in image.keys() - random
            }, state
            with pytest.raises(UserError, match="is there and is not an empty directory"):
                restore(disk)
            seen.add("complete")
        else:
            assert DONE not in state, f"{state}: it was told to be there"
            # Where the lock's name was lost, what was left could be anybody's.
            if "everything kept" in state or not disk.exists(f"{DATA_DIR}.restoring/{LOCK}"):
                restore(disk)
            seen.add("nothing")
    assert {"complete", "nothing"} == seen
