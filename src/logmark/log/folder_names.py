"""The names of the folders in a data directory: of partitions in use, deleted and stray ones, as Kafka gives them."""

import os
import re
import secrets

from logmark.names import TopicPartition

LENGTH_MAX = 255

_PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<index>\d+)")
_DELETED = re.compile(r".+\.[0-9a-f]{32}-delete")
_STRAY = re.compile(r".+\.[0-9a-f]{32}-stray")


def partition_of(folder: str) -> TopicPartition | None:
    """Return the partition that a folder is named after, or None if it is named otherwise."""
    match = _PARTITION.fullmatch(os.path.basename(folder))
    return None if match is None else TopicPartition(match["topic"], int(match["index"]))


def is_deleted(name: str) -> bool:
    """Return whether a folder is that of a deleted partition."""
    return _DELETED.fullmatch(name) is not None


def is_stray(name: str) -> bool:
    """Return whether a folder was set aside because it is of another topic id."""
    return _STRAY.fullmatch(name) is not None


def new_deleted_name(key: TopicPartition) -> str:
    """Return an unused name for the folder of a partition that is being deleted."""
    tail = f"-{key.partition}.{secrets.token_hex(16)}-delete"
    return key.topic[: LENGTH_MAX - len(tail)] + tail


