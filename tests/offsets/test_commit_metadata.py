"""What a query writes beside its committed offsets, and what is read of earlier and later versions."""

import pytest

from logmark.offsets.commit_metadata import CommitMetadata

OF_BEFORE = "logmark query=host-1-ab generation=7 offset=5"
MARK = CommitMetadata(query="host-1-ab", generation=7, offset=5)


@pytest.mark.parametrize(("is_stateful", "words"), [(None, ""), (True, " stateful=true"), (False, " stateful=false")])
@pytest.mark.parametrize("restored_ms", [None, 1_795_117_092_705])
def test_what_is_written_is_read(is_stateful: bool | None, words: str, restored_ms: int | None) -> None:
    mark = CommitMetadata(query="host-1-ab", generation=7, offset=5, is_stateful=is_stateful, restored_ms=restored_ms)

    text = mark.to_text()
    read = CommitMetadata.parse(text)

    assert text.startswith(f"{OF_BEFORE}{words}")
    assert read is not None
    assert (mark, is_stateful, restored_ms) == (read, read.is_stateful, read.restored_ms)


def test_metadata_of_an_earlier_version_says_nothing_of_state() -> None:
    read = CommitMetadata.parse(OF_BEFORE)

    assert read is not None
    assert (MARK, None, None) == (read, read.is_stateful, read.restored_ms)


def test_words_of_a_later_version_do_no_harm() -> None:
    assert MARK == CommitMetadata.parse(f"{OF_BEFORE} alive=1795117092705 stateful=perhaps")


@pytest.mark.parametrize(
    "text",
    [
        "", None, "logmark", "logmark query=a generation=7", "other query=a generation=7 offset=5",
        "logmark query=a generation=x offset=5",
    ],
)  # fmt: skip
def test_what_no_query_wrote_is_none(text: str | None) -> None:
    assert CommitMetadata.parse(text) is None


def test_what_is_told_of_a_query_does_not_make_another_commit_of_it() -> None:
    told = CommitMetadata(query="host-1-ab", generation=7, offset=5, is_stateful=True, restored_ms=9)

    assert MARK == told
    assert hash(MARK) == hash(told)


def test_the_metadata_fits_what_kafka_takes() -> None:
    longest = CommitMetadata(
        query="h" * 255 + "-4194304-12345678", generation=2**63 - 1, offset=2**63 - 1, is_stateful=False,
        restored_ms=2**63 - 1,
    )  # fmt: skip

    assert len(longest.to_text().encode()) < 4096
