"""Nothing in a backup's folder is trusted: whatever a run of ours cannot have written is refused and named."""

import json
import os
import random
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logmark.backup import manifest_decoder
from logmark.backup.manifest import Manifest
from logmark.backup.store import Store
from logmark.errors import UserError
from logmark.log.catalog import PARTITIONS_MAX, PRODUCER_ID_BASE, Catalog, Entry, text_of_id
from logmark.names import OFFSETS_TOPIC
from logmark.wire import batches, columns
from tests.backup.backup_driver import QUICK, copy_directory, log_bytes, nothing, restored, write_source
from tests.cli.conftest import run

Document = dict[str, Any]
Change = Callable[[Document], object]
MANIFEST, PROGRESS = "logmark.backup", "logmark.backup.progress"
FIRST, SECOND = f"orders-0/{0:020d}.log", f"orders-0/{4:020d}.log"
LONG_MAX = 2**63 - 1
OTHER_ID = text_of_id(b"fedcba9876543210")


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A sound backup of one partition with two segments, of four and three records."""
    write_source(tmp_path / "source", segments={0: 4, 4: 3})
    copy_directory(tmp_path / "source", tmp_path / "backup")
    return tmp_path / "backup"


def seal(backup: Path, body: str, *, name: str = MANIFEST) -> None:
    """Writes a manifest with a right checksum."""
    head = f'{{"version": 1, "crc": {zlib.crc32(body.encode())}, "backup":'
    (backup / name).write_text(f"{head}\n{body}\n}}\n")


def read_document(backup: Path) -> Document:
    document: Document = json.loads((backup / MANIFEST).read_text().split("\n")[1])
    return document


def craft(backup: Path, change: Change, *, name: str = MANIFEST) -> None:
    """Changes the manifest and makes its checksum right again."""
    document = read_document(backup)
    change(document)
    seal(backup, json.dumps(document), name=name)


def image(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: the content of files, the kind of everything else."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        is_plain = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 30
        found[str(path.relative_to(folder))] = path.read_bytes() if is_plain else f"{path.lstat().st_mode:o}"
    return found


def refuse_restore(backup: Path, *parts: str) -> str:
    """Restores, expects a refusal that names the parts, and that nothing was changed anywhere."""
    before = image(backup.parent)
    with pytest.raises(UserError) as refused:
        restored(backup, backup.parent / "again")
    said = str(refused.value)
    for part in parts:
        assert part in said, f"the refusal does not name {part!r}: {said}"
    assert 1 == refused.value.exit_code
    assert before == image(backup.parent), "a refused restore left something behind"
    return said


def refuse_backup(backup: Path, *parts: str) -> None:
    """Runs an incremental backup, expects a refusal that names the parts, and that nothing was changed anywhere."""
    lock = backup / ".lock"
    before = image(backup.parent)
    with pytest.raises(UserError) as refused:
        copy_directory(backup.parent / "source", backup)
    for part in parts:
        assert part in str(refused.value), f"the refusal does not name {part!r}: {refused.value}"
    assert before == image(backup.parent), "a refused backup changed something"
    assert lock.exists() or lock.is_symlink()


def at(*steps: str | int, to: object) -> Change:
    """Sets the value behind these steps."""

    def change(document: Document) -> None:
        value: Any = document
        for step in steps[:-1]:
            value = value[step]
        value[steps[-1]] = to

    return change


def topic(**fields: object) -> Change:
    """Adds a topic that is sound but for the fields given."""

    def change(document: Document) -> None:
        document["topics"].append({"name": "more", "id": OTHER_ID, "partitions": 1, "overrides": {}, **fields})

    return change


def segment(index: int = 0, **fields: object) -> Change:
    """Changes fields of a segment."""

    def change(document: Document) -> None:
        document["partitions"][0]["segments"][index].update(fields)

    return change


def damage(*rows: tuple[int, int]) -> Change:
    return segment(damage=[{"position": position, "size_bytes": size, "problem": "torn"} for position, size in rows])


def rename(name: str) -> Change:
    """Renames the topic everywhere, as an attacker would who wants a consistent manifest."""

    def change(document: Document) -> None:
        document["topics"][0]["name"] = document["partitions"][0]["topic"] = name
        for one in document["partitions"][0]["segments"]:
            one["file"] = f"{name}-0/{one['file'].split('/')[-1]}"

    return change


def drop(*steps: str | int) -> Change:
    def change(document: Document) -> None:
        value: Any = document
        for step in steps[:-1]:
            value = value[step]
        del value[steps[-1]]

    return change


def repeat(*steps: str | int) -> Change:
    """Writes the first element of a list twice."""

    def change(document: Document) -> None:
        value: Any = document
        for step in steps:
            value = value[step]
        value.append(value[0])

    return change


def many_topics(document: Document) -> None:
    """More partitions in all than one node can open, each topic within its own limit."""
    for number in range(200):
        row = {"name": f"t{number}", "id": text_of_id(number.to_bytes(16, "big")), "partitions": 10_000}
        document["topics"].append({**row, "id": text_of_id((number + 9).to_bytes(16, "big")), "overrides": {}})


CRAFTED: dict[str, tuple[Change, str]] = {
    # Names and paths
    "a topic that climbs out": (rename("../../outside/pwned"), "topics[0].name"),
    "a topic that is a path": (rename("a/b"), "topics[0].name"),
    "a topic that is two dots": (rename(".."), "topics[0].name"),
    "a topic without a name": (rename(""), "topics[0].name"),
    "a topic with a zero byte": (rename("a\0b"), "topics[0].name"),
    "a topic with a newline": (rename("a\nb"), "topics[0].name"),
    "a topic with a long name": (rename("a" * 250), "topics[0].name"),
    "a topic with half a character": (rename("a\ud800"), "topics[0].name"),
    "a partition of a topic that climbs out": (at("partitions", 0, "topic", to="../x"), "partitions[0].topic"),
    "a file that climbs out": (segment(file="../../source/orders-0/" + FIRST[9:]), "partitions[0].segments[0].file"),
    "a file at an absolute path": (segment(file="/etc/passwd"), "segments[0].file"),
    "a file of another segment": (segment(file=SECOND), "segments[0].file"),
    "a file of another partition": (segment(file=FIRST.replace("-0", "-1")), "segments[0].file"),
    "a file with a long number": (segment(file=f"{FIRST}.{'9' * 40}"), "segments[0].file"),
    "a file with something behind its name": (segment(file=f"{FIRST}\n"), "segments[0].file"),
    # Topics
    "a billion partitions": (at("topics", 0, "partitions", to=10**9), "topics[0].partitions"),
    "one partition too many": (at("topics", 0, "partitions", to=PARTITIONS_MAX + 1), "topics[0].partitions"),
    "no partitions": (at("topics", 0, "partitions", to=0), "topics[0].partitions"),
    "half a partition": (at("topics", 0, "partitions", to=1.5), "topics[0].partitions"),
    "a partition count that is true": (at("topics", 0, "partitions", to=True), "topics[0].partitions"),
    "too many partitions in all": (many_topics, "topics[100].partitions"),
    "a topic twice": (topic(name="orders"), "topics[1].name"),
    "topics that differ by a dot": (
        lambda document: [topic(name="a.b")(document), topic(name="a_b", id="B" * 22)(document)], "topics[2].name",
    ),
    "a topic id twice": (topic(id=text_of_id(b"0123456789abcdef")), "topics[1].id"),
    "a topic id of zeros": (topic(id=text_of_id(bytes(16))), "topics[1].id"),
    "a short topic id": (topic(id="AAAA"), "topics[1].id"),
    "a topic id with other characters": (topic(id="!" * 22), "topics[1].id"),
    "a topic id that is a number": (topic(id=5), "topics[1].id"),
    "the offsets topic with seven partitions": (topic(name=OFFSETS_TOPIC, partitions=7), "topics[1].partitions"),
    "the log of a Kafka controller": (topic(name="__cluster_metadata"), "topics[1].name"),
    "an unknown setting": (topic(overrides={"no.such": "1"}), "topics[1].overrides"),
    "a setting out of range": (topic(overrides={"segment.bytes": "1"}), "topics[1].overrides"),
    "a setting that is a number": (topic(overrides={"segment.bytes": 1 << 20}), "topics[1].overrides"),
    "settings in a list": (topic(overrides=[]), "topics[1].overrides"),
    "settings that exclude each other": (
        topic(overrides={"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "1"}), "topics[1].overrides",
    ),
    "topics in an object": (at("topics", to={}), "topics"),
    "a topic that is a text": (at("topics", 0, to="orders"), "topics[0]"),
    "no topics for a partition": (at("topics", to=[]), "partitions[0].topic"),
    # Partitions
    "a partition beyond its topic": (at("partitions", 0, "partition", to=1), "partitions[0].partition"),
    "a negative partition": (at("partitions", 0, "partition", to=-1), "partitions[0].partition"),
    "a partition that is a text": (at("partitions", 0, "partition", to="0"), "partitions[0].partition"),
    "a partition twice": (repeat("partitions"), "partitions[1]"),
    "a partition of another topic id": (at("partitions", 0, "topic_id", to=OTHER_ID), "partitions[0].topic_id"),
    "a negative log start": (at("partitions", 0, "log_start_offset", to=-1), "partitions[0].log_start_offset"),
    "a log start behind the end": (at("partitions", 0, "log_start_offset", to=8), "partitions[0].log_start_offset"),
    "a log start in a log without segments": (
        lambda document: document["partitions"][0].update(segments=[], log_start_offset=3),
        "partitions[0].log_start_offset",
    ),
    "cleaned to a negative offset": (at("partitions", 0, "cleaned_to", to=-5), "partitions[0].cleaned_to"),
    "cleaned to a text": (at("partitions", 0, "cleaned_to", to="0\n1\norders 0 5"), "partitions[0].cleaned_to"),
    # Segments
    "a segment twice": (repeat("partitions", 0, "segments"), "segments[2].base_offset"),
    "segments in another order": (
        lambda document: document["partitions"][0]["segments"].reverse(), "segments[1].base_offset",
    ),
    "segments that overlap": (segment(next_offset=5), "segments[1].base_offset"),
    "a negative base offset": (segment(base_offset=-1), "segments[0].base_offset"),
    "an end before the beginning": (segment(1, next_offset=3), "segments[1].next_offset"),
    "an end beyond all offsets": (segment(1, next_offset=LONG_MAX + 1), "segments[1].next_offset"),
    "an end too far for an index": (segment(1, next_offset=4 + 2**31 + 1), "segments[1].next_offset"),
    "a negative size": (segment(size_bytes=-1), "segments[0].size_bytes"),
    "a size beyond all segments": (segment(size_bytes=2**31), "segments[0].size_bytes"),
    "an empty segment with records": (segment(size_bytes=0), "segments[0]"),
    "a checksum of sixty-four bits": (segment(crc=2**32), "segments[0].crc"),
    "a checksum that is a text": (segment(crc="0" * 8), "segments[0].crc"),
    "a negative checksum": (segment(crc=-1), "segments[0].crc"),
    "a last batch behind the end": (segment(last_position=10**6), "segments[0].last_position"),
    "an origin that is no file": (segment(origin="\x1b[2J"), "segments[0].origin"),
    "damage behind the end": (damage((0, 10**6)), "segments[0].damage[0]"),
    "damage of a negative size": (damage((5, -1)), "segments[0].damage[0].size_bytes"),
    "damage at a negative position": (damage((-1, 2)), "segments[0].damage[0].position"),
    "damage that overlaps": (damage((0, 20), (10, 20)), "segments[0].damage[1].position"),
    "damage of no size twice": (
        lambda document: damage(*[(document["partitions"][0]["segments"][0]["size_bytes"], 0)] * 2)(document),
        "segments[0].damage[1].position",
    ),
    "damage that moves the cursor": (
        segment(damage=[{"position": 0, "size_bytes": 1, "problem": "\x1b]0;x\x07"}]), "damage[0].problem",
    ),
    "a transaction without an offset": (segment(begun=[[5]]), "segments[0].begun[0]"),
    "a transaction outside of its segment": (segment(begun=[[5, 77]]), "segments[0].begun[0]"),
    "a producer twice": (segment(begun=[[5, 1], [5, 2]]), "segments[0].begun[1]"),
    "a negative producer": (segment(ended=[-2]), "segments[0].ended[0]"),
    "a field that nobody knows": (segment(mode="0777"), "segments[0].mode"),
    "a field that is missing": (drop("partitions", 0, "segments", 0, "crc"), "segments[0].crc"),
    # The top
    "a cluster id with a second line": (at("cluster_id", to="c\nnode.id=7"), "cluster_id"),
    "no cluster id": (at("cluster_id", to=""), "cluster_id"),
    "a long cluster id": (at("cluster_id", to="c" * 10_000), "cluster_id"),
    "a negative node id": (at("node_id", to=-1), "node_id"),
    "a node id with a second line": (at("node_id", to="1\nversion=0"), "node_id"),
    "a producer id that leaves no other": (at("next_producer_id", to=LONG_MAX - 5), "next_producer_id"),
    "a kind that nobody knows": (at("kind", to="tape"), "kind"),
    "a run that is null": (at("run", to=None), "run"),
    "a time that is not a number": (at("ended_ms", to=float("nan")), "NaN"),
    "notes that are no texts": (at("notes", to=[{}]), "notes[0]"),
    "a part that is missing": (drop("topics"), "topics"),
    "a part that nobody knows": (at("hooks", to=["rm"]), "hooks"),
}  # fmt: skip


@pytest.mark.parametrize("case", CRAFTED)
def test_a_manifest_that_no_backup_can_have_is_refused_by_its_field(backup: Path, case: str) -> None:
    change, field = CRAFTED[case]
    craft(backup, change)

    said = refuse_restore(backup, f"{backup}/{MANIFEST} is damaged (", field, "Nothing was changed.")

    assert said.isprintable(), "a manifest must not write to the terminal what it likes"
    assert len(said) < 1000
    refuse_backup(backup, field)


# Segments that are missing


@pytest.fixture
def long_backup(tmp_path: Path) -> Path:
    """A sound backup of one partition with three segments."""
    write_source(tmp_path / "source", segments={0: 4, 4: 4, 8: 3})
    copy_directory(tmp_path / "source", tmp_path / "backup")
    return tmp_path / "backup"


def test_a_manifest_that_lacks_a_segment_in_the_middle_is_refused_with_the_offsets_that_are_missing(
    long_backup: Path,
) -> None:
    craft(long_backup, drop("partitions", 0, "segments", 1))

    refuse_restore(
        long_backup,
        f"{long_backup}/{MANIFEST} is damaged (partitions[0].segments[1].base_offset is 8",
        "the segments of orders-0 with offsets 4 to 7 are missing",
        "take another backup, or use an older one",
    )
    refuse_backup(long_backup, "offsets 4 to 7 are missing")


@pytest.mark.parametrize(
    ("field", "value"),
    [("cleaned_to", 8), ("log_start_offset", 8)],
    ids=["compaction removed it", "it lay below the log start"],
)
def test_a_log_that_may_lack_a_segment_is_restored(long_backup: Path, field: str, value: int) -> None:
    craft(long_backup, drop("partitions", 0, "segments", 1))
    craft(long_backup, at("partitions", 0, field, to=value))

    again = restored(long_backup, long_backup.parent / "again")

    assert ["0" * 20 + ".log", f"{8:020d}.log"] == sorted(log_bytes(again / "orders-0"))


def test_restore_writes_nothing_outside_of_its_directory(tmp_path: Path, backup: Path) -> None:
    (tmp_path / "deep" / "outside").mkdir(parents=True)

    def climb(document: Document) -> None:
        document["topics"][0]["name"] = document["partitions"][0]["topic"] = "../../outside/pwned"

    craft(backup, climb)
    before = image(tmp_path)

    told = run("restore", str(backup), str(tmp_path / "deep" / "again"))

    assert (1, before) == (told.exit_code, image(tmp_path))
    assert "topics[0].name" in told.error


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe{}", "it is not text in UTF-8"),
        (b"[" * 100_000, "its first line is not that of a manifest"),
        (b'{"version": 1, "crc": 1, "backup":\n{}\n}\nmore\n', "it has other lines than a manifest"),
        (b'{"version": 1, "crc": 99999999999999, "backup":\n{}\n}\n', "its first line is not that of a manifest"),
        (b"\0" * 4096, "its first line is not that of a manifest"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(backup: Path, content: bytes, problem: str) -> None:
    (backup / MANIFEST).write_bytes(content)
    refuse_restore(backup, problem)


@pytest.mark.parametrize(
    "body", ["[" * 200_000, '{"a":' * 200_000, "9" * 10_000, '{"kind": 1, "kind": 2}', "[]", "1e999"]
)
def test_a_body_that_no_backup_can_have_is_refused(backup: Path, body: str) -> None:
    seal(backup, body)
    refuse_restore(backup, f"{MANIFEST} is damaged (")


def test_a_field_that_is_there_twice_is_refused(backup: Path) -> None:
    body = json.dumps(read_document(backup))
    seal(backup, body.replace('"run": 1', '"run": 1, "run": 1'))
    refuse_restore(backup, "the field 'run' is there twice")


def test_a_manifest_of_ten_gigabytes_is_refused_without_reading_it(backup: Path) -> None:
    os.truncate(backup / MANIFEST, 10 << 30)
    refuse_restore(backup, MANIFEST, f"{10 << 30} bytes", "Nothing was changed.")


def test_a_manifest_is_refused_from_one_byte_above_the_limit(backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (backup / MANIFEST).stat().st_size
    monkeypatch.setattr(manifest_decoder, "MANIFEST_BYTES_MAX", size - 1)
    refuse_restore(backup, f"{size} bytes")
    monkeypatch.setattr(manifest_decoder, "MANIFEST_BYTES_MAX", size)
    restored(backup, backup.parent / "again")


@pytest.mark.parametrize("version", ["0", "2", "99999999"])
def test_another_version_is_refused_before_its_content_is_looked_at(backup: Path, version: str) -> None:
    (backup / MANIFEST).write_text(f'{{"version": {version}, "crc": "of another kind"\n\n\n}}')
    refuse_restore(backup, f"is of version {version}, and this Logmark reads version 1 only")


# Files that are none


def link_elsewhere(path: Path, outside: Path) -> None:
    """Moves what is at a path elsewhere and leaves a symbolic link to it."""
    path.rename(outside)
    path.symlink_to(outside)


def put_symlink(path: Path) -> None:
    link_elsewhere(path, path.parent / "elsewhere")


def put_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def put_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def put_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            # The path of a socket may be only 108 characters long.
            made.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def put_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


KINDS = {
    "a symbolic link": put_symlink,
    "a named pipe": put_fifo,
    "a directory": put_directory,
    "a socket": put_socket,
    "a link to a device": put_device,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [f"data/{FIRST}", MANIFEST])
def test_a_file_of_another_kind_is_refused_and_never_opened(backup: Path, kind: str, name: str) -> None:
    KINDS[kind](backup / name)
    refuse_restore(backup, str(backup / name), kind.removesuffix(" to a device").replace("a link", "a symbolic link"))
    refuse_backup(backup, str(backup / name))


@pytest.mark.parametrize("kind", ["a symbolic link", "a named pipe", "a link to a device"])
@pytest.mark.parametrize("name", [".lock", PROGRESS, f"{PROGRESS}.tmp", f"{MANIFEST}.tmp"])
def test_a_file_that_a_backup_writes_is_never_one_of_another_kind(backup: Path, kind: str, name: str) -> None:
    (backup / name).touch()
    KINDS[kind](backup / name)
    refuse_backup(backup, str(backup / name))


@pytest.mark.parametrize("name", ["data", "data/orders-0"])
def test_a_folder_that_is_a_symbolic_link_is_refused(tmp_path: Path, backup: Path, name: str) -> None:
    link_elsewhere(backup / name, tmp_path / "elsewhere")
    refuse_restore(backup, str(backup / name), "a symbolic link")
    refuse_backup(backup, str(backup / name), "a symbolic link")


def test_a_link_among_the_folders_costs_nobody_a_file(tmp_path: Path, backup: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "diary").write_text("mine")
    (backup / "data" / "strange-0").symlink_to(tmp_path / "precious")

    refuse_backup(backup, str(backup / "data" / "strange-0"))

    assert "mine" == (tmp_path / "precious" / "diary").read_text()


def test_a_dangling_link_makes_no_file(tmp_path: Path, backup: Path) -> None:
    (backup / ".lock").unlink()
    (backup / ".lock").symlink_to(tmp_path / "made")
    refuse_backup(backup, str(backup / ".lock"))
    assert not (tmp_path / "made").exists()


def test_a_half_written_manifest_with_a_second_name_is_not_written_through(tmp_path: Path, backup: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (backup / f"{PROGRESS}.tmp").hardlink_to(tmp_path / "precious")

    copy_directory(tmp_path / "source", backup)

    assert "mine" == (tmp_path / "precious").read_text()


# Content that is not what the manifest says


def test_a_file_that_is_shorter_than_said_is_refused(backup: Path) -> None:
    craft(backup, segment(size_bytes=5000))
    refuse_restore(backup, f"{backup}/data/{FIRST}", "shorter than the 5000 bytes")


def test_bytes_behind_those_that_were_counted_are_not_restored(tmp_path: Path, backup: Path) -> None:
    whole = (backup / "data" / SECOND).read_bytes()
    (backup / "data" / SECOND).write_bytes(whole + b"of a run that was interrupted")
    again = restored(backup, tmp_path / "again")
    assert whole == (again / SECOND).read_bytes()


def test_a_sparse_giant_is_refused_by_its_first_bytes(backup: Path) -> None:
    path = backup / "data" / FIRST
    path.write_bytes(b"")
    os.truncate(path, 2**31 - 1)
    craft(backup, segment(size_bytes=2**31 - 1, last_position=0))
    refuse_restore(backup, f"{path}: at byte 0 the length of the batch is shorter than its header")


def test_more_than_the_disk_can_hold_is_refused_before_anything_is_written(
    tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = image(tmp_path)
    monkeypatch.setattr("logmark.backup.folder_checks.free_bytes", lambda _: 1000)
    told = run("restore", str(backup), str(tmp_path / "again"))
    assert (1, before) == (told.exit_code, image(tmp_path))
    assert "bytes, and the disk with" in told.error
    assert "has 1000 bytes free. Nothing was changed." in told.error


def test_heads_of_batches_that_are_none_are_not_searched_through(
    backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them says that it is as long as the rest: to try them all would read the file as often."""
    head = bytearray(61)
    struct.pack_into(">qiiB", head, 0, 0, 1 << 20, 0, 2)
    content = bytes(head) * 20_000
    (backup / "data" / FIRST).write_bytes(content)
    craft(backup, segment(size_bytes=len(content), crc=zlib.crc32(content), last_position=0))

    def search(*_: object) -> int:
        raise AssertionError("a restore looks for batches behind damage that the manifest does not name")

    monkeypatch.setattr("logmark.log.damage.DamageScan.next_batch", search)
    refuse_restore(backup, f"{FIRST}: at byte 0 the CRC of the batch is wrong")


def test_a_segment_that_ends_elsewhere_than_said_is_refused_by_its_name(backup: Path) -> None:
    craft(backup, segment(1, next_offset=6))
    refuse_restore(backup, f"{SECOND}: its records end at offset 7, and the manifest says 6")


def test_a_segment_with_offsets_of_the_next_one_is_refused(backup: Path) -> None:
    """The manifest's ranges do not overlap, and the records do."""
    content = b"".join(batches.build([(None, b"x")], timestamp_ms=1, base_offset=offset) for offset in range(7))
    (backup / "data" / FIRST).write_bytes(content)
    craft(backup, segment(size_bytes=len(content), crc=zlib.crc32(content), last_position=0))
    refuse_restore(backup, f"{FIRST}: its records end at offset 7, and the manifest says 4")


def test_a_sound_batch_with_nonsense_in_it_ends_in_a_directory_or_a_refusal(tmp_path: Path, backup: Path) -> None:
    choose = random.Random(5)
    original = (backup / "data" / SECOND).read_bytes()
    size = batches.read_header(original).size
    before = image(tmp_path)
    for number in range(200):
        data = bytearray(original)
        for _ in range(choose.randint(1, 4)):
            data[choose.randrange(21, size)] = choose.choice((0, 1, 0x7F, 0x80, 0xFF, choose.randrange(256)))
        struct.pack_into(">I", data, 17, columns.crc32c(data, 21, size - 21))
        (backup / "data" / SECOND).write_bytes(data)
        craft(backup, segment(1, crc=zlib.crc32(data)))
        again = tmp_path / "again" / str(number)
        try:
            restored(backup, again)
        except UserError:
            assert not again.exists()
            assert not again.parent.exists() or {str(n) for n in range(number)} >= set(os.listdir(again.parent))
    after = {name: data for name, data in image(tmp_path).items() if not name.startswith("again")}
    assert before.keys() == after.keys()


def test_a_value_changed_at_random_ends_in_a_directory_or_a_refusal(tmp_path: Path, backup: Path) -> None:
    """Whatever is in the manifest, no other exception and no file outside."""
    choose = random.Random(11)
    sound = (backup / MANIFEST).read_text()
    before = image(tmp_path).keys()
    values: list[object] = [
        None, True, -1, 0, 1, 7, 2**31, 2**63, 2**64, 1e300, "", "..", "../x", "/", "a" * 300, "\0", "\n", [], {}, [[]],
        [None], {"": None}, "0", "\ud800",
    ]  # fmt: skip
    for number in range(300):
        document = json.loads(sound.split("\n")[1])
        spots = list(_spots(document))
        for _ in range(choose.randint(1, 2)):
            holder, key = choose.choice(spots)
            holder[key] = choose.choice(values)
        seal(backup, json.dumps(document))
        again = tmp_path / f"again{number}"
        try:
            restored(backup, again)
        except UserError:
            assert not again.exists()
    found = {name for name in image(tmp_path) if not name.startswith("again")}
    assert set(before) == found
    assert not list(tmp_path.glob("*.restoring"))


def _spots(value: Any) -> Any:
    """Yield the container and the key or index of every value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _spots(inner)


# The target of the restore


def test_a_backup_that_lies_where_a_restore_works_is_not_removed(tmp_path: Path, backup: Path) -> None:
    """The work directory has the name of the target with `.restoring`; a backup of that name has a lock file too."""
    backup.rename(tmp_path / "again.restoring")
    before = image(tmp_path)

    with pytest.raises(UserError, match=r"again\.restoring"):
        restored(tmp_path / "again.restoring", tmp_path / "again")

    assert before == image(tmp_path)


def test_a_directory_of_somebody_else_where_a_restore_works_is_not_removed(tmp_path: Path, backup: Path) -> None:
    other = tmp_path / "again.restoring"
    other.mkdir()
    # As every data directory has one.
    (other / ".lock").touch()
    (other / "logmark.catalog").write_text("precious")
    refuse_restore(backup, f"{other} is in the way")


def test_a_link_in_what_an_interrupted_restore_left_is_removed_and_not_followed(tmp_path: Path, backup: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "diary").write_text("mine")
    left = tmp_path / "again.restoring"
    (left / "again").mkdir(parents=True)
    (left / ".lock").touch()
    (left / "again" / "orders-0").symlink_to(tmp_path / "precious")

    restored(backup, tmp_path / "again")

    assert "mine" == (tmp_path / "precious" / "diary").read_text()
    assert not left.exists()


@pytest.mark.parametrize("name", ["again.restoring", "again.restoring/.lock", "again.restoring/again"])
def test_a_link_where_a_restore_works_is_not_written_through(tmp_path: Path, backup: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if not name.endswith("ing"):
        (path.parent / ".lock").touch()
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "elsewhere" / "made" if name.endswith("lock") else tmp_path / "elsewhere")
    refuse_restore(backup, "is in the way")


def test_a_refused_restore_leaves_no_parent_directory_behind(tmp_path: Path, backup: Path) -> None:
    data = bytearray((backup / "data" / FIRST).read_bytes())
    data[100] ^= 1
    (backup / "data" / FIRST).write_bytes(data)
    before = image(tmp_path)

    with pytest.raises(UserError, match="The backup is damaged"):
        restored(backup, tmp_path / "a" / "b" / "again")

    assert before == image(tmp_path)


def test_a_refused_restore_leaves_an_empty_target_as_it_was(tmp_path: Path, backup: Path) -> None:
    (tmp_path / "again").mkdir()
    craft(backup, segment(1, next_offset=6))
    refuse_restore(backup, SECOND)
    assert [] == list((tmp_path / "again").iterdir())


def test_the_catalogue_gets_no_producer_id_and_no_cleaned_offset_that_the_log_cannot_have(
    tmp_path: Path, backup: Path
) -> None:
    """Ids below the base are Kafka's; a log cannot have been cleaned beyond its end."""
    craft(backup, lambda document: document.update(next_producer_id=0))
    craft(backup, at("partitions", 0, "cleaned_to", to=LONG_MAX))

    again = restored(backup, tmp_path / "again")

    assert json.loads((again / "logmark.catalog").read_text())["next_producer_id"] > PRODUCER_ID_BASE
    assert "0\n1\norders 0 7\n" == (again / "cleaner-offset-checkpoint").read_text()


# Runs that go on


@pytest.mark.parametrize("case", ["a topic that climbs out", "a file that climbs out", "a billion partitions"])
def test_what_an_interrupted_run_left_is_trusted_no_more_than_a_manifest(backup: Path, case: str) -> None:
    change, field = CRAFTED[case]
    craft(backup, lambda document: (change(document), document.update(run=2)), name=PROGRESS)
    refuse_backup(backup, f"{backup}/{PROGRESS} is damaged (", field)


def test_a_manifest_says_nothing_to_the_terminal_about_its_source(tmp_path: Path, backup: Path) -> None:
    craft(backup, lambda document: document.update(source="\x1b[2J\x07here", cluster_id="other"))
    with pytest.raises(UserError, match="is a backup of cluster other") as refused:
        copy_directory(tmp_path / "source", backup)
    assert str(refused.value).isprintable()


def test_a_backup_that_could_not_be_restored_is_not_completed(tmp_path: Path) -> None:
    """A source with two topics that no broker has both: better said now than when the backup is needed."""
    write_source(tmp_path / "source", segments={0: 6})
    catalog = Catalog(None)
    catalog.adopt([Entry(name=name, id=name.encode() * 4, partitions=1) for name in ("or.s", "or_s")], 1 << 40)
    (tmp_path / "source" / "logmark.catalog").write_bytes(catalog.encode())
    with pytest.raises(UserError, match=r"topics\[1\]\.name"):
        copy_directory(tmp_path / "source", tmp_path / "backup")
    assert not (tmp_path / "backup" / MANIFEST).exists()


def test_a_manifest_cannot_be_changed_in_memory(backup: Path) -> None:
    with Store.open(str(backup), files=QUICK, on_progress=nothing) as store:
        manifest = store.previous
    assert isinstance(manifest, Manifest)
    ((key, first), *_) = manifest.segments()
    for action in (
        lambda: setattr(manifest, "run", 5),
        lambda: setattr(first, "file", "x"),
        lambda: manifest.partitions.pop(key),  # type: ignore[attr-defined]
        lambda: first.damage.append(1),  # type: ignore[attr-defined]
        lambda: first.begun.update({1: 1}),  # type: ignore[attr-defined]
    ):
        with pytest.raises((AttributeError, TypeError)):
            action()
