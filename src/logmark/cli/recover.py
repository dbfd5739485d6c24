"""`logmark recover`: makes a crashed data directory clean, so that every broker opens it at once."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from logmark.broker.recovery import Recovery
from logmark.broker.recovery import recover as recover_directory
from logmark.cli.options import Output, OutputFormat
from logmark.cli.tables import Column, count, print_json, print_table, say
from logmark.clock import SystemClock
from logmark.disk.file_system import FileSystem, RealFileSystem
from logmark.disk.overlay import OverlayFileSystem
from logmark.disk.read_only import ReadOnlyFileSystem
from logmark.errors import UserError
from logmark.log.verification import hold

DAMAGED = 1
# What a line on a terminal holds: longer names are cut in the table, and whole in the JSON.
_NAME_LENGTH_MAX = 30


def recover(
    data_dir: Annotated[
        str, typer.Argument(metavar="DATA_DIR", help="A data directory of Logmark.", show_default=False)
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a directory clean after a crash, without serving it; exit code 1 when records are damaged or missing.

    It writes what the write-ahead log holds to the segments, cuts what was never acknowledged, checks the end of every
    segment and closes all partitions. Afterwards Apache Kafka opens the directory too. A clean directory is left as it
    is; the command only looks whether files of segments are missing or have changed their size. `logmark verify` reads
    every record.
    """
    path = os.path.abspath(data_dir)
    with ExitStack() as stack:
        try:
            done = _recover(path, stack, dry_run=dry_run)
        except OSError as error:
            raise UserError(
                f"{error.filename or path} cannot be used: {error.strerror or error}. No acknowledged record was lost. "
                "Put that right and run the same command again."
            ) from error
    if output is OutputFormat.JSON:
        print_json(asdict(done))
    else:
        _tell(done)
    if done.damage or done.damaged_entries or done.additions:
        raise typer.Exit(DAMAGED)


def _recover(path: str, stack: ExitStack, *, dry_run: bool) -> Recovery:

    reading = ReadOnlyFileSystem()
    # Refuses what is no data directory, or in use, before anything is looked at.
    hold(path, reading).release()
    files: FileSystem = stack.enter_context(OverlayFileSystem(reading)) if dry_run else RealFileSystem()
    with _quiet():
        return recover_directory(path, files=files, clock=SystemClock())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the log layer's lines back: the command says the same in its own words."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)


def _tell(done: Recovery) -> None:
    if done.partitions:
        print_table(
            [
                Column("PARTITION"), Column("ENTRIES", True), Column("RECORDS", True), Column("FIRST OFFSET", True),
                Column("END OFFSET", True),
            ],
            [
                (_short(f"{one.topic}-{one.partition}"), one.entries, one.records, one.first_offset, one.end_offset)
                for one in done.partitions
            ],
        )  # fmt: skip
    for cut in done.cuts:
        verb = "Would cut" if done.dry_run else "Cut"
        why = "" if cut.kept else "; never acknowledged" if done.had_wal else "; only zeros"
        say(f"{verb} {cut}{why}")
    for first, last in done.damaged_entries:
        which = f"Entry {first}" if first == last else f"Entries {first} to {last}"
        say(f"Damaged: {which} of the write-ahead log cannot be read. Records in it may be lost.")
    for damage in done.damage:
        say(f"Damaged: {damage}")
    for addition in done.additions:
        say(f"Added: {addition}. No broker has written it: the next start keeps it in a file that nobody reads.")
    say(_summary(done))
    if done.damage:
        say(
            "Put files that are missing back if you have them. "
            f"Otherwise `logmark verify --repair {done.data_dir}` cuts the damage out."
        )


def _summary(done: Recovery) -> str:
    if done.was_clean and (done.damage or done.additions):
        return f"{done.data_dir} was stopped cleanly: there is nothing to recover, and nothing was changed."
    if done.was_clean:
        return f"{done.data_dir} is clean: there is nothing to recover, and nothing was changed."
    state = "is stopped cleanly now; what is damaged stays so" if done.damage or done.damaged_entries else "is clean"
    if done.had_wal:
        what = f"{count(done.records, 'record')} from {_entries(done.entries)} of the write-ahead log"
        if done.dry_run:
            return f"Dry run: a recovery would write {what}. Nothing was changed."
        return f"Recovered {what}. {done.data_dir} {state}."
    if done.dry_run:
        return "Dry run: there is no write-ahead log; a recovery would check the end of each log. Nothing was changed."
    return f"There was no write-ahead log; the end of each log was checked. {done.data_dir} {state}."


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH_MAX else f"{name[: _NAME_LENGTH_MAX - 12]}...{name[-9:]}"
