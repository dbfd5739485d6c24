"""The files of a checkpoint, as several versions of Spark write them."""

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.spark_checkpoints import log_files
from tests.offsets.spark_checkpoints.checkpoint_builder import CONF, FIRST_MS, commit_file, dumped, kafka, plan_file

LINE = '{"orders":{"0":10,"1":7},"clicks":{"11":5,"2":8}}'
OFFSETS = {
    TopicPartition("orders", 0): 10,
    TopicPartition("orders", 1): 7,
    TopicPartition("clicks", 11): 5,
    TopicPartition("clicks", 2): 8,
}


@pytest.mark.parametrize("version", [1, 2])
def test_a_plan_is_read_and_written_byte_for_byte(version: int) -> None:
    content = plan_file(LINE, version=version)

    plan = log_files.read_offset_log_entry(content, "offsets/3")

    assert (version, FIRST_MS, OFFSETS) == (plan.version, plan.planned_ms, plan.sources[0].offsets)
    assert content == plan.to_bytes()


@pytest.mark.parametrize("version", [1, 2])
def test_a_moved_plan_has_other_offsets_and_a_new_time_and_nothing_else(version: int) -> None:
    plan = log_files.read_offset_log_entry(plan_file(LINE, version=version, batchWatermarkMs=77), "offsets/3")

    moved = plan.moved({**OFFSETS, TopicPartition("clicks", 11): 2}, now_ms=99)

    line = '{"orders":{"0":10,"1":7},"clicks":{"11":2,"2":8}}'
    assert plan_file(line, version=version, at_ms=99, batchWatermarkMs=77) == moved.to_bytes()


def test_a_plan_of_the_first_sparks_has_no_metadata() -> None:
    content = b"v1\n\n" + LINE.encode()

    plan = log_files.read_offset_log_entry(content, "offsets/0")

    assert (None, 0, OFFSETS) == (plan.planned_ms, plan.watermark_ms, plan.sources[0].offsets)
    assert content == plan.to_bytes()


@pytest.mark.parametrize(
    ("content", "watermark_ms", "has_state", "sink"),
    [
        (b"v1\n{}", 0, False, None),
        (b"v1", 0, False, None),
        (commit_file(nextBatchWatermarkMs=1234), 1234, False, None),
        (commit_file(2, stateUniqueIds={}), 0, False, None),
        (commit_file(2, stateUniqueIds={"0": [["a"]]}), 0, True, None),
        (
            commit_file(
                3,
                sinkMetadataMap={
                    "old": {"sinkName": "old", "providerName": "console", "isActive": False},
                    "now": {"sinkName": "now", "commitOffset": "-", "providerName": "parquet", "isActive": True},
                },
            ),
            0,
            False,
            "parquet",
        ),
    ],
)
def test_a_commit_is_read(content: bytes, watermark_ms: int, has_state: bool, sink: str | None) -> None:
    commit = log_files.read_commit_log_entry(content, "commits/3")

    assert (watermark_ms, has_state, sink) == (commit.watermark_ms, commit.has_state, commit.sink)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_commit_is_written_byte_for_byte(version: int) -> None:
    content = commit_file(version, nextBatchWatermarkMs=5)

    assert content == log_files.read_commit_log_entry(content, "commits/3").to_bytes()


@pytest.mark.parametrize(
    ("content", "offsets"),
    [
        (b"\0v1\n" + LINE.encode(), OFFSETS),
        (b"\0" + LINE.encode(), OFFSETS),
        (b'v1\n{"path":"/in/1.json"}', None),
        (b"\0v1\nnonsense", None),
    ],
)
def test_the_first_offsets_are_behind_a_zero_byte(content: bytes, offsets: object) -> None:
    assert offsets == log_files.read_initial_offsets(content, "sources/0/0")


@pytest.mark.parametrize(
    ("read", "content", "known"),
    [
        (log_files.read_offset_log_entry, b"v3\n{}\n" + LINE.encode(), "1 and 2"),
        (log_files.read_commit_log_entry, b"v4\n{}", "1, 2 and 3"),
        (log_files.read_initial_offsets, b"\0v2\n{}", "1"),
    ],
)
def test_an_unknown_version_is_refused(read: object, content: bytes, known: str) -> None:
    with pytest.raises(UserError, match=f"has version . of its format, and this Logmark knows {known}: a newer Spark"):
        read(content, "a/file")  # type: ignore[operator]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"offsets", b"v1", b"v1\n[]", b"v2\n{}\n{}", b"v1\nnonsense\n-"])
def test_a_damaged_plan_is_an_error(content: bytes) -> None:
    with pytest.raises(UserError, match=r"a/file is damaged, or is no file of a Spark checkpoint"):
        log_files.read_offset_log_entry(content, "a/file")


@pytest.mark.parametrize(
    "line",
    ["-", "12", '"x"', "{}", '{"logOffset":3}', '{"t":{"a":1}}', '{"t":{"0":"1"}}', '{"t":{"0":true}}', '{"t":[1]}'],
)
def test_the_line_of_another_source_is_not_taken_for_kafkas(line: str) -> None:
    assert None is log_files.SourceOffset(id="0", text=line).offsets


def test_our_own_line_is_known() -> None:
    more = {"first": {"clicks": {"0": 1}}, "generation": 1, "group": "g", "query": "x"}
    ours = {"clicks": {"0": 2}, "~logmark": more}
    of_earlier_versions = {"f": {"t": {"0": 1}}, "g": 1, "group": "g", "q": "x", "t": {"t": {"0": 2}}}

    for line in (ours, of_earlier_versions):
        found = log_files.SourceOffset(id="0", text=dumped(line))
        assert (True, None) == (found.is_ours, found.offsets)
    assert not log_files.SourceOffset(id="0", text=kafka({"f": {0: 1}, "g": {0: 1}})).is_ours


def test_the_second_format_names_the_kind_of_a_source() -> None:
    info = {"0": {"sourceId": "0", "providerName": "kafka", "apiVersion": "v2"}}

    assert {"0": "kafka"} == log_files.read_offset_log_entry(
        plan_file(LINE, version=2, sourceMetadataInfo=info), "x"
    ).providers
    assert {} == log_files.read_offset_log_entry(plan_file(LINE), "x").providers
    assert CONF == log_files.read_offset_log_entry(plan_file(LINE), "x").metadata["conf"]
