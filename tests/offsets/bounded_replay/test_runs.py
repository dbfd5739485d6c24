"""A run is remembered as it was saved, or as it was saved before; never half."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.bounded_replay.runs import (
    ReplayRequest,
    ReplayRun,
    RunStore,
    SourceProgress,
    TargetProgress,
    TargetTopic,
)


def make_run(run_id: str = "r-000000000001", *, topic: str = "orders", started_ms: int = 5) -> ReplayRun:
    return ReplayRun(
        id=run_id,
        request=ReplayRequest(
            topic=topic, begin="0:5", partitions=(0, 2), keys=("00ff",), headers=(("n", None), ("m", "1")),
            to_topic="sandbox", strip_headers=("x-",), limit=7,
        ),
        source_cluster="a", target_cluster="b", source_topic_id="00", source_partitions=3,
        producer_id=4, producer_epoch=0, started_ms=started_ms, updated_ms=6,
        sources={
            0: SourceProgress(start=5, stop=9, next=6, copied=1),
            2: SourceProgress(start=0, stop=3, next=3, hopped=2),
        },
        topics={"sandbox": TargetTopic(topic_id="01", partitions=2)},
        targets={TopicPartition("sandbox", 1): TargetProgress(end=8, sequence=2)},
    )  # fmt: skip


def test_a_run_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "replays")
    store.save(make_run())

    loaded = store.load("r-000000000001")

    assert make_run() == loaded
    assert (1, 2, 3) == (loaded.copied, loaded.hopped, loaded.offsets_left)
    assert ((b"n", None), (b"m", b"1")) == loaded.request.selection.headers
    assert frozenset({b"\x00\xff"}) == loaded.request.selection.keys


def test_a_save_that_dies_before_its_end_leaves_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path)
    store.save(make_run())

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(os, step, die)
            store.save(replace(make_run(), producer_id=99))
        assert make_run() == store.load("r-000000000001")
    assert ["r-000000000001.json"] == [path.name for path in tmp_path.iterdir()]


def test_only_a_run_of_the_same_command_on_the_same_clusters_is_found_until_its_end_was_told(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    mine, other = make_run(), make_run("nightly.2026-11-16", topic="clicks")
    store.save(mine)
    store.save(other)

    assert mine == store.find_unreported(mine.digest)
    assert store.find_unreported(mine.request.digest("a", "c")) is None
    assert store.find_unreported(replace(mine.request, limit=8).digest("a", "b")) is None
    store.finish(mine)
    assert replace(mine, is_finished=True) == store.find_unreported(mine.digest), "killed before it could say so"
    store.mark_reported(mine)
    assert store.find_unreported(mine.digest) is None
    store.forget(other.id)
    assert ["r-000000000001"] == [run.id for run in store.runs()]


def test_old_finished_runs_are_forgotten_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.save(make_run("r-00000000ffff", started_ms=0))
    for number in range(55):
        store.mark_reported(make_run(f"r-{number:012x}", started_ms=number))

    assert ["r-00000000ffff", *(f"r-{number:012x}" for number in range(5, 55))] == [run.id for run in store.runs()]


def test_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with store.lock("r-000000000001"), pytest.raises(UserError, match="running in another process"):  # noqa: SIM117
        with RunStore(tmp_path).lock("r-000000000001"):
            pass
    with store.lock("r-000000000001"):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 99}', "null"])
def test_a_file_that_cannot_be_read_is_an_error_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r-000000000001.json"
    path.write_text(text)

    with pytest.raises(UserError, match="left as it is"):
        RunStore(tmp_path).load("r-000000000001")

    assert [] == RunStore(tmp_path).runs()
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["", ".", "../r-000000000001", "r-000000000009", "a/b"])
def test_an_unknown_run_is_an_error_that_names_the_unfinished_ones(tmp_path: Path, name: str) -> None:
    store = RunStore(tmp_path / "replays")
    store.save(make_run())

    with pytest.raises(UserError, match="Unfinished: r-000000000001"):
        store.load(name)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match="XDG_STATE_HOME"):
        RunStore(tmp_path / "file" / "replays").save(make_run())
