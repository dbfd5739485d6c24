"""The identity of a data directory: the ids in meta.properties, and whether the directory is Logmark's at all."""

from collections.abc import Sequence
from typing import NamedTuple

from logmark import properties
from logmark.disk.file_system import FileSystem
from logmark.errors import DataDirectoryUnusable
from logmark.log import catalog, checkpoints, folder_names
from logmark.log.wal import log as wal

META = "meta.properties"
BOOTSTRAP = "bootstrap.checkpoint"
KAFKA_METADATA = "__cluster_metadata-0"
NODE_ID = 1


class Identity(NamedTuple):
    """The ids of a data directory, as meta.properties has them."""

    cluster_id: str
    directory_id: str
    node_id: int


def read_or_create(path: str, files: FileSystem, names: Sequence[str]) -> Identity:
    """Return the identity of the directory that holds these names; a new directory gets one, durably.

    Raises DataDirectoryUnusable if it is Apache Kafka's, holds other folders, or its meta.properties cannot be used.
    """
    _check_ownership(path, files, names)
    if META not in names:
        meta = {
            "cluster.id": checkpoints.id_text(catalog.new_id()),
            "directory.id": checkpoints.id_text(catalog.new_id()),
            "node.id": str(NODE_ID),
            "version": "1",
        }
        files.write_atomically(f"{path}/{META}", properties.write(meta))
    return read(path, files)


def _check_ownership(path: str, files: FileSystem, names: Sequence[str]) -> None:
    folders = [name for name in names if files.is_directory(f"{path}/{name}")]
    folders = [name for name in folders if name not in (wal.FOLDER, *wal.UNFINISHED)]
    foreign = [name for name in folders if not _is_ours(name)]
    has_catalog = catalog.FILE_NAME in names
    if KAFKA_METADATA in folders or (META in names and not has_catalog and (folders or BOOTSTRAP in names)):
        raise DataDirectoryUnusable(
            f"Apache Kafka wrote the data directory {path}. Nothing was changed. "
            "Logmark opens only directories of its own: choose another one."
        )
    if foreign or (folders and not has_catalog):
        raise DataDirectoryUnusable(
            f"{path} holds a folder that is not a partition of Logmark, {(foreign or folders)[0]!r}. Nothing was "
            "changed. A data directory holds nothing else: choose an empty one."
        )


def _is_ours(folder: str) -> bool:
    is_partition = folder_names.partition_of(folder) is not None
    return is_partition or folder_names.is_deleted(folder) or folder_names.is_stray(folder)


def read(path: str, files: FileSystem) -> Identity:
    """Return the identity of a directory; raise DataDirectoryUnusable if its meta.properties cannot be used.

    A start and a backup read the same, so that each directory that can be served can also be copied, and no other.
    """
    if not files.exists(f"{path}/{META}"):
        raise DataDirectoryUnusable(f"{path}/{META} is missing. Nothing was changed. Restore that file from a copy.")
    meta = properties.parse(files.read(f"{path}/{META}").decode("utf-8", "replace"))
    missing = {"cluster.id", "directory.id", "node.id", "version"} - meta.keys()
    if missing:
        problem, remedy = f"lacks {', '.join(sorted(missing))}", "Restore that file from a copy"
    elif meta["version"] != "1":
        problem = f"has version {meta['version']}, and this Logmark reads version 1 only"
        remedy = "Use the Logmark that wrote it, or a newer one"
    elif not meta["node.id"].isdecimal():
        problem, remedy = f"has the node.id {meta['node.id']!r}", "Restore that file from a copy"
    else:
        return Identity(meta["cluster.id"], meta["directory.id"], int(meta["node.id"]))
    raise DataDirectoryUnusable(
        f"{path}/{META} {problem}. Nothing was changed. {remedy}, or choose another directory."
    )
