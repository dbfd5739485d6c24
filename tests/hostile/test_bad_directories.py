"""A data directory that is not ours, or of another version, or held by somebody: an error, and not a byte changed."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from logmark.errors import ErrorCode, UserError
from logmark.testing import Broker
from tests.harness import wire
from tests.hostile.test_bad_input import refused, snapshot

TOPIC = "orders"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly closed directory with three records and a committed offset; tests work on copies."""
    path = tmp_path_factory.mktemp("closed") / "data"
    with Broker(subprocess=True, data_dir=str(path)) as broker:
        broker.create_topic(TOPIC)
        answer = wire.produce(broker.bootstrap_servers, TOPIC, bytes(wire.batch([b"one", b"two", b"three"])))
        assert ErrorCode.NONE == answer.error_code
    assert (path / ".kafka_cleanshutdown").exists()
    return path


@pytest.fixture
def copy(closed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(closed, tmp_path / "data"))


def in_catalog(**changes: object) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), "version": 1, **changes})


def in_topic(**changes: object) -> Callable[[str], str]:
    def change(text: str) -> str:
        document = json.loads(text) | {"version": 1}
        document["topics"][0].update(changes)
        return json.dumps(document)

    return change


def swap(pattern: str, to: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        changed = re.sub(pattern, to, text)
        assert changed != text
        return changed

    return change


META, CATALOG, IDS = "meta.properties", "logmark.catalog", f"{TOPIC}-0/partition.metadata"
OTHER_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


BAD = {
    "meta of a later version": (META, swap("version=1", "version=2"), "version 2"),
    "meta without a cluster": (META, swap(r"cluster.id=.*\n", ""), "cluster.id"),
    "meta with a strange node": (META, swap(r"node.id=1", "node.id=one"), "node.id"),
    "meta of another cluster": (META, swap(r"cluster.id=.*", f"cluster.id={OTHER_CLUSTER}"), OTHER_CLUSTER),
    "catalogue of a later version": (CATALOG, in_catalog(version=3), "version 3"),
    "catalogue of another cluster": (CATALOG, in_catalog(cluster_id=OTHER_CLUSTER), OTHER_CLUSTER),
    "half a catalogue": (CATALOG, lambda text: text[: len(text) // 2], "cannot be read"),
    "catalogue of brackets": (CATALOG, lambda _: "[" * 100_000, "cannot be read"),
    "catalogue of another shape": (CATALOG, lambda _: "[]", "cannot be read"),
    "topic of too many partitions": (CATALOG, in_topic(partitions=10**12), "1000000000000 partitions"),
    "topic with half an id": (CATALOG, in_topic(id="short"), "id of topic orders"),
    "topic with a path for a name": (CATALOG, in_topic(name="../elsewhere"), "Topic name is invalid"),
    "topic with a setting of the future": (CATALOG, in_topic(overrides={"retention.years": "7"}), "retention.years"),
    "ids of a later version": (IDS, swap("version: 0", "version: 1"), "version"),
    "ids that are none": (IDS, lambda _: "nonsense", "topic id"),
    "no ids": (IDS, lambda _: "", "topic id"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_of_another_version_or_cluster_is_named_and_nothing_is_changed(copy: Path, name: str) -> None:
    file, change, cause = BAD[name]
    (copy / file).write_text(change((copy / file).read_text()))
    before = snapshot(copy)

    with pytest.raises(UserError) as error, Broker(data_dir=str(copy)):
        pass

    assert f"{copy}/{file}" in str(error.value), "the file is not named"
    assert cause in str(error.value)
    # A folder is looked at after a crash has been recovered from, so there only the records are spoken of.
    assert ("No record was changed" if file == IDS else "Nothing was changed") in str(error.value)
    assert before == snapshot(copy)


def test_on_the_command_line_it_is_one_error_message(copy: Path) -> None:
    (copy / META).write_text((copy / META).read_text().replace("version=1", "version=2"))

    message = refused("serve", "--data-dir", str(copy), "--listen", "127.0.0.1:0")

    assert "meta.properties" in message and "version 2" in message and "--data-dir" in message


@pytest.mark.parametrize(
    "content",
    ["7\n1\norders 0 3\n", "0\n99\norders 0 3\n", "0\n1\norders 0 three\n", "\0" * 100],
    ids=["version", "count", "number", "zeros"],
)
@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_a_checkpoint_of_another_version_is_told_and_costs_nothing(
    copy: Path, caplog: pytest.LogCaptureFixture, name: str, content: str
) -> None:
    (copy / name).write_text(content)

    with Broker(data_dir=str(copy)) as broker:
        answer = wire.produce(broker.bootstrap_servers, TOPIC, bytes(wire.batch([b"four"])))

    assert (ErrorCode.NONE, 3) == (answer.error_code, answer.base_offset)
    assert f"{copy}/{name} is not used" in caplog.text


def test_a_directory_that_another_process_holds_is_refused_and_left_alone(copy: Path) -> None:
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print('held');"
            "sys.stdout.flush(); sys.stdin.read()",
            str(copy / ".lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and "held\n" == holder.stdout.readline()
        before = snapshot(copy)

        message = refused("serve", "--data-dir", str(copy), "--listen", "127.0.0.1:0")

        assert str(copy) in message and "in use" in message
        assert before == snapshot(copy)
    finally:
        holder.communicate("")
