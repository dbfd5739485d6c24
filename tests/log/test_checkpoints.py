"""The small text files: Kafka's bytes, and an error for anything else."""

import pytest

from logmark.errors import Malformed
from logmark.log import checkpoints
from logmark.names import TopicPartition


def test_offsets_are_written_as_kafka_writes_them_and_read_back() -> None:
    offsets = {TopicPartition("clicks", 1): 259_000_000_000, TopicPartition("clicks", 0): 0}

    text = checkpoints.write_offsets(offsets)

    assert b"0\n2\nclicks 0 0\nclicks 1 259000000000\n" == text
    assert offsets == checkpoints.read_offsets(text)


def test_an_empty_file_is_an_empty_checkpoint() -> None:
    assert {} == checkpoints.read_offsets(b"")
    assert [] == checkpoints.read_epochs(b"")


def test_leader_epochs_are_written_as_kafka_writes_them_and_read_back() -> None:
    assert b"0\n1\n0 200\n" == checkpoints.write_epochs([(0, 200)])
    assert [(0, 200)] == checkpoints.read_epochs(b"0\n1\n0 200\n")


NOT_CHECKPOINTS = (
    b"1\n0\n",
    b"0\n",
    b"0\n2\nclicks 0 0\n",
    b"0\n1\nclicks 0\n",
    b"0\n1\nclicks zero 0\n",
    b"0\nmany\n",
    b"\xff\xfe",
)


@pytest.mark.parametrize("data", NOT_CHECKPOINTS)
def test_a_checkpoint_that_is_not_one_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        checkpoints.read_offsets(data)


def test_a_topic_id_is_written_in_22_characters() -> None:
    topic_id = bytes(range(16))

    assert b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw" == checkpoints.write_partition_metadata(topic_id)
    assert topic_id == checkpoints.read_partition_metadata(checkpoints.write_partition_metadata(topic_id))


@pytest.mark.parametrize("data", [b"", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", b"version: 0\ntopic_id: short"])
def test_a_partition_metadata_without_an_id_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        checkpoints.read_partition_metadata(data)
