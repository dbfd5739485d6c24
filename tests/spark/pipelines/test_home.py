"""What is remembered of a pipeline, by several processes at once."""

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.spark import Pipeline, Table
from logmark.spark.pipelines.home import Home, PipelineRecord, default_root, list_homes

BILLING = Pipeline(name="billing", topics="clicks", transform=lambda frame: frame, sink=Table("tables/billing"))
HOLDER = """
import sys
from pathlib import Path
from logmark.spark.pipelines.home import Home
with getattr(Home(Path(sys.argv[1]), "billing"), sys.argv[2])():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "pipelines", "billing")


@pytest.fixture
def somebody_holds(home: Home) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Lets another process hold a lock until its input ends."""
    started: list[subprocess.Popen[str]] = []

    def hold(what: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(home.root), what]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert "held\n" == process.stdout.readline()
        return process

    yield hold
    for process in started:
        process.communicate(timeout=120)


def test_a_pipeline_that_never_ran_has_version_1_and_no_folder(home: Home) -> None:
    assert PipelineRecord() == home.record()
    assert [] == list_homes(home.root)
    assert not home.is_live()
    assert not home.folder.exists()


def test_what_is_remembered_is_there_again(home: Home) -> None:
    record = PipelineRecord(live=3, building=4, last=4, begun=3, group="billing", topics="clicks", context="prod")
    home.save(record)

    assert record == home.record()
    assert 5 == record.next_number()
    assert [home] == list_homes(home.root)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "unheard": 1}', '{"live": 1}'])
def test_a_record_that_cannot_be_read_is_not_guessed(home: Home, text: str) -> None:
    home.save(PipelineRecord())
    (home.folder / "record.json").write_text(text)

    with pytest.raises(UserError, match=r"the live version of billing is unknown\. Nothing was changed"):
        home.record()


def test_a_record_of_a_newer_version_of_logmark_is_left_alone(home: Home) -> None:
    home.save(PipelineRecord())
    path = home.folder / "record.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))

    with pytest.raises(UserError, match="newer Logmark"):
        home.record()


def test_changes_that_come_at_the_same_time_are_all_made(home: Home) -> None:
    def one_more(_: int) -> None:
        home.change(lambda record: replace(record, last=record.last + 1))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one_more, range(64)))

    assert 65 == home.record().last


@pytest.mark.parametrize(
    ("what", "message"), [("live", "The pipeline billing runs already"), ("replaying", "is being replayed already")]
)
def test_only_one_process_holds_a_lock_and_the_other_is_told_which(
    home: Home, somebody_holds: Callable[[str], subprocess.Popen[str]], what: str, message: str
) -> None:
    process = somebody_holds(what)

    assert (what == "live", what == "replaying") == (home.is_live(), home.is_replaying())
    with pytest.raises(UserError, match=f"{message}, in the process {process.pid}"), getattr(home, what)():
        pass


def test_a_lock_is_free_when_its_holder_has_died(
    home: Home, somebody_holds: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = somebody_holds("live")
    process.kill()
    process.wait(timeout=120)

    assert not home.is_live()
    with home.live():
        assert home.is_live()


def test_looking_whether_it_runs_keeps_nobody_from_running_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with home.live():
        pass
    with (home.folder / "live.lock").open() as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        # The look is over while whoever wants to run it waits.
        monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(look, fcntl.LOCK_UN))
        with home.live():
            pass


def test_the_live_version_has_the_pipelines_group_and_says_under_which_one_it_may_have_been_built(home: Home) -> None:
    first = home.live_version(BILLING)
    home.change(lambda record: replace(record, live=3))
    third = home.live_version(BILLING)

    assert ("billing", "billing.v1", home.folder.absolute() / "v1") == (
        first.group, first.group_before, first.checkpoint,
    )  # fmt: skip
    assert ("billing", "billing.v3", home.folder.absolute() / "v3") == (
        third.group, third.group_before, third.checkpoint,
    )  # fmt: skip
    assert first.sink == third.sink == BILLING.sink


def test_a_checkpoint_is_lost_only_if_the_live_version_had_one(home: Home) -> None:
    offsets = home.checkpoint(2) / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1")
    home.change(lambda record: replace(record, live=2))
    assert not home.has_lost_checkpoint(), "the version has not begun"

    home.change(lambda record: replace(record, begun=2))
    assert not home.has_lost_checkpoint()

    (offsets / "0").unlink()
    assert home.has_lost_checkpoint()
    home.change(lambda record: replace(record, live=3))
    assert not home.has_lost_checkpoint(), "another version is live, and has not begun"


def test_a_checkpoint_is_not_lost_if_its_query_never_came_to_a_batch(home: Home) -> None:
    home.change(lambda record: replace(record, begun=1))
    assert home.has_lost_checkpoint()

    for name in ("offsets", "commits"):
        (home.checkpoint(1) / name).mkdir(parents=True)
    (home.checkpoint(1) / "metadata").write_text("{}")
    assert not home.has_lost_checkpoint()

    (home.checkpoint(1) / "commits" / "0").write_text("v1")
    assert home.has_lost_checkpoint()


def test_the_folder_can_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGMARK_PIPELINES", raising=False)
    assert "pipelines" == default_root().name

    monkeypatch.setenv("LOGMARK_PIPELINES", str(tmp_path))
    assert tmp_path == default_root()


def test_the_record_is_plain_json(home: Home) -> None:
    home.save(PipelineRecord(group="billing"))

    assert "billing" == json.loads((home.folder / "record.json").read_text())["group"]
