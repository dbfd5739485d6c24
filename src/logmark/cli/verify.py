"""`logmark verify`: every byte of a data directory, gone through while no broker runs; and its repair."""

import os
import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from logmark.cli.options import Output, OutputFormat, Yes
from logmark.cli.progress import bar
from logmark.cli.tables import Column, count, print_json, print_table, say, write_line
from logmark.disk.file_system import FileSystem, RealFileSystem
from logmark.disk.read_only import ReadOnlyFileSystem
from logmark.errors import UserError
from logmark.log.recovery_preview import has_wal
from logmark.log.repair import Repair, check_recovered
from logmark.log.verification import Verification, Verified, hold, view_verification

FOUND = 1


def verify(
    data_dir: Annotated[
        str, typer.Argument(metavar="DATA_DIR", help="A directory of Logmark or Apache Kafka.", show_default=False)
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Say what is lost, ask, then cut out what is damaged.")
    ] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Check every batch, index, snapshot, id and setting; exit code 1 when anything is wrong.

    After a crash it checks the write-ahead log too, and the segments as a recovery will leave them: notes say what that
    will write and cut. Nothing is written without --repair. A repair changes no offset: what is lost becomes a gap,
    which readers pass.
    """

    path = os.path.abspath(data_dir)
    files: FileSystem = RealFileSystem() if repair else ReadOnlyFileSystem()
    try:
        lock = hold(path, files)
        try:
            if repair:
                check_recovered(path, has_wal=has_wal(path, files))
            verified = _verified(path, files, output)
            if repair and verified.findings:
                verified = _repaired(path, files, verified, yes=yes, output=output)
        finally:
            lock.release()
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be used: {error.strerror or error}.") from error
    if verified.findings:
        raise typer.Exit(FOUND)


def _verified(path: str, files: FileSystem, output: OutputFormat, *, is_again: bool = False) -> Verified:

    began = time.monotonic()
    verification = Verification(path, files)
    with bar("Checking") as shown:
        shown.expect(verification.size_bytes)
        verified = verification.run(shown.advance)
    if output is OutputFormat.JSON:
        if not is_again:
            print_json(asdict(view_verification(verified)))
        return verified
    for finding in verified.found:
        write_line(f"note: {finding}" if finding.is_note else str(finding))
    seconds = max(time.monotonic() - began, 1e-9)
    whose = "Logmark" if verified.is_ours else "Apache Kafka"
    say(
        f"{count(len(verified.partitions), 'partition')} of {whose}, {count(verified.segments, 'segment')}, "
        f"{count(verified.records, 'record')}, {verified.size_bytes / 1e6:.1f} MB in {seconds:.1f} s "
        f"({verified.size_bytes / 1e6 / seconds:.0f} MB/s): "
        + (f"{count(len(verified.findings), 'finding')}." if verified.findings else "nothing is wrong.")
    )
    return verified


def _repaired(path: str, files: FileSystem, verified: Verified, *, yes: bool, output: OutputFormat) -> Verified:

    repair = Repair(verified, files)
    _print_plan(repair, output)
    if not repair.steps:
        say("Nothing of this can be repaired here, and nothing was changed.")
        return verified
    if not yes:
        if not sys.stdin.isatty():
            raise UserError("Nothing was changed: there is no terminal to ask in. Add --yes to repair.")
        if not typer.confirm("Repair this?", err=True):
            raise UserError("Nothing was changed.")
    while True:
        with bar("Repairing") as shown:
            shown.expect(repair.size_bytes)
            repair.apply(shown.advance)
        for kept in repair.kept:
            say(f"Kept as it was: {kept}")
        say("Repaired. Checking again.")
        verified = _verified(path, files, output, is_again=True)
        repair = Repair(verified, files)
        if not repair.steps or repair.losses:
            return verified
        say("What was hidden by the damage is made again from the log too; nothing is lost by that.")


def _print_plan(repair: Repair, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        return
    if repair.losses:
        print_table(
            [
                Column("FILE"), Column("AT BYTE", True), Column("BYTES", True), Column("FIRST OFFSET", True),
                Column("NEXT OFFSET", True), Column("RECORDS LOST", True),
            ],
            [
                (
                    loss.path, loss.position, loss.size_bytes, loss.first_offset, loss.next_offset,
                    "unknown" if loss.records_lost_max is None else f"up to {loss.records_lost_max}",
                )
                for loss in repair.losses
            ],
        )  # fmt: skip
        say("This would be lost for good to readers; the bytes are kept beside the segments as .damaged files.")
    else:
        say("A repair loses no record.")
    for step in repair.steps:
        say(f"Would {step}")
