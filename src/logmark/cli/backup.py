"""`logmark backup` and `logmark restore`: a copy of a cluster's data, and a data directory made of one."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Annotated, Protocol

import typer
from rich.filesize import decimal

from logmark.backup import folder_checks
from logmark.backup.broker_copier import BrokerCopier
from logmark.backup.directory_copier import DirectoryCopier
from logmark.backup.manifest import Manifest
from logmark.backup.restorer import Restorer
from logmark.backup.store import Store, refuse_nested
from logmark.backup.views import describe_damage, view_backup, view_restore
from logmark.cli.clusters import Cluster, Origin, on_cluster
from logmark.cli.options import Output, OutputFormat
from logmark.cli.progress import bar
from logmark.cli.tables import count, print_json, say, write_line
from logmark.clock import SystemClock
from logmark.disk.file_system import RealFileSystem
from logmark.disk.read_only import ReadOnlyFileSystem
from logmark.errors import UserError

DAMAGED = 1


class Copier(Protocol):
    """Takes a backup of one source; `lost` says what the source itself cannot give any more."""

    @property
    def lost(self) -> Sequence[str]: ...

    def copy(self, store: Store, *, expect: Callable[[int], None]) -> Manifest: ...


@on_cluster
def backup(
    cluster: Cluster,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="[DATA_DIR] DEST",
            help="A broker's data directory, unless --bootstrap-servers is given, and the folder of the backup.",
            show_default=False,
        ),
    ],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Copy all records, topics, settings and committed offsets, while the broker runs.

    From a data directory on this machine, whether its broker runs or not, or from the brokers of any Kafka. A second
    run into the same folder copies only what is new, and again what was damaged there; one that was interrupted is
    resumed.
    """

    source, dest = _source_and_dest(cluster, paths)
    with ExitStack() as stack:
        stack.enter_context(_user_errors(dest))
        if source is not None:
            refuse_nested(source, dest)
            copier: Copier = DirectoryCopier(os.path.abspath(source), SystemClock())
        else:
            client = stack.enter_context(cluster.connect())
            copier = BrokerCopier(client, SystemClock())
        shown = stack.enter_context(bar("Copying"))
        store = stack.enter_context(
            Store.open(dest, files=RealFileSystem(), on_progress=shown.advance, on_check=shown.advance)
        )
        if store.is_resumed:
            say(f"The last run to {store.path} was interrupted; this one resumes it.")
        done = copier.copy(store, expect=shown.expect)
    _tell_backup(store, done, copier.lost, output)


def restore(
    backup: Annotated[str, typer.Argument(metavar="BACKUP", help="What `logmark backup` made.", show_default=False)],
    data_dir: Annotated[
        str, typer.Argument(metavar="DATA_DIR", help="The data directory to make.", show_default=False)
    ],
    new_cluster: Annotated[
        bool, typer.Option("--new-cluster", help="Give the directory a cluster id of its own.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a data directory from a backup, and check every file and every batch.

    It is the same cluster: topic ids, offsets, settings and committed offsets are those of the source. The directory
    appears complete or not at all.
    """

    with _user_errors(data_dir), bar("Restoring") as shown:
        restorer = Restorer.open(
            backup, data_dir, source=ReadOnlyFileSystem(), files=RealFileSystem(), clock=SystemClock(),
            on_progress=shown.advance, free_bytes=folder_checks.free_bytes,
        )  # fmt: skip
        shown.expect(restorer.work_bytes)
        restorer.restore(is_new_cluster=new_cluster)
    manifest = restorer.manifest
    if output is OutputFormat.JSON:
        print_json(asdict(view_restore(restorer.data_dir, manifest)))
    else:
        write_line(f"Restored {_contents(manifest)} to {restorer.data_dir}.")
        write_line(f"Serve it: logmark serve --data-dir {restorer.data_dir}")
    damage = describe_damage(manifest)
    for line in damage:
        say(f"Damaged before the backup was taken, and restored as it was: {line}")
    if damage:
        raise typer.Exit(DAMAGED)


def _source_and_dest(cluster: Cluster, paths: list[str]) -> tuple[str | None, str]:
    """Return the data directory, None for a backup over the network, and the folder of the backup."""
    if len(paths) == 2 and cluster.said_by != Origin.OPTION:
        return paths[0], paths[1]
    if len(paths) == 1 and cluster.said_by != Origin.NOBODY:
        return None, paths[0]
    raise UserError(
        "Say what to back up and where to: logmark backup DATA_DIR DEST, or "
        "logmark backup --bootstrap-servers HOST:PORT DEST. Nothing was copied.",
        exit_code=2,
    )


def _tell_backup(store: Store, done: Manifest, lost: Sequence[str], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(asdict(view_backup(store, done, lost=lost)))
    else:
        write_line(f"Backed up {_contents(done)} to {store.path}; {decimal(store.new_bytes)} were new.")
        for note in done.notes:
            say(f"Note: {note}")
        for file in store.damaged_files:
            say(
                f"Note: {file} was damaged or missing. What the source has of it was copied again, and the backup is "
                "complete. Check the disk that holds it."
            )
        write_line(f"Restore it: logmark restore {store.path} DATA_DIR")
    damage = describe_damage(done)
    for line in lost:
        say(f"Damaged at the source: {line}")
    for line in damage:
        say(f"Damaged at the source, and copied as it is: {line}")
    if lost or damage:
        raise typer.Exit(DAMAGED)


def _contents(manifest: Manifest) -> str:
    partitions = sum(entry.partitions for entry in manifest.topics)
    return f"{count(len(manifest.topics), 'topic')}, {count(partitions, 'partition')}, {decimal(manifest.size_bytes)}"


@contextmanager
def _user_errors(target: str) -> Iterator[None]:
    """Raise UserError for an OSError inside, with what it means for the target."""
    try:
        target = os.path.abspath(target)
        yield
    except OSError as error:
        where = error.filename or target
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"The disk with {target} is full. What was complete before is as it was. "
                "Free some space and run the same command again."
            ) from error
        raise UserError(
            f"{where} cannot be used: {error.strerror or error}. What was complete before is as it was. "
            "Put that right and run the same command again."
        ) from error
