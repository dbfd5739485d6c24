"""`logmark pipelines dead-letters`: the records that a pipeline has refused, and why; without Spark."""

from dataclasses import asdict
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, complete_topic, on_cluster
from logmark.cli.options import Output, OutputFormat
from logmark.cli.pipelines.homes import HomeFolder, complete_pipeline, find_homes, home_root, recorded_cluster
from logmark.cli.tables import Column, count, print_json, print_table, say, write_line
from logmark.errors import UserError
from logmark.offsets.dead_letters.topic import (
    DeadLetterCounts,
    StoredDeadLetter,
    newest_dead_letters,
    tally_dead_letters,
)
from logmark.offsets.dead_letters.views import view_dead_letter, view_tally
from logmark.offsets.times import format_time

NOTHING_FOUND = 3
_COLUMNS = [
    Column("WRITTEN"), Column("RECORD"), Column("ATTEMPTS", True), Column("BYTES", True), Column("ERROR"),
]  # fmt: skip
_ERRORS_SHOWN = 10


@on_cluster
def dead_letters(
    cluster: Cluster,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.", autocompletion=complete_pipeline)],
    limit: Annotated[int, typer.Option(metavar="N", help="Show the newest N.", min=1, max=10_000)] = 20,
    tally: Annotated[
        bool,
        typer.Option("--tally", help="Read all dead letters, and count their records and errors."),
    ] = False,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="The dead-letter topic; the one that the pipeline was last run with unless given.",
            autocompletion=complete_topic,
            show_default=False,
        ),
    ] = None,
    home: HomeFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the newest dead letters of a pipeline: which record, how large, and why it was refused."""
    if topic is None:
        [found] = find_homes(home_root(home), [name])
        record = found.record()
        cluster, topic = recorded_cluster(cluster, record), record.dead_letters
    if topic is None:
        raise UserError(
            f"The pipeline {name} has no dead-letter topic: its file declares none. Add "
            f'dead_letters="{name}.dead" to it, or name a topic with --topic.'
        )
    with cluster.connect() as client:
        if tally:
            _print_tally(tally_dead_letters(client, topic, pipeline=name), name, topic, output)
            return
        newest = newest_dead_letters(client, topic, limit=limit, pipeline=name)
    if output is OutputFormat.JSON:
        print_json([asdict(view_dead_letter(one)) for one in newest])
    elif newest:
        _print(newest)
    else:
        say(f"There are no dead letters of {name} in {topic}.")
    if not newest:
        raise typer.Exit(NOTHING_FOUND)


def _print(newest: list[StoredDeadLetter]) -> None:
    print_table(
        _COLUMNS,
        [
            (
                format_time(kept.at_ms), f"{kept.dead_letter.partition} offset {kept.dead_letter.offset}",
                kept.dead_letter.attempts, len(kept.dead_letter.value or b""), kept.dead_letter.error,
            )
            for kept in newest
        ],
    )  # fmt: skip


def _print_tally(tally: DeadLetterCounts, name: str, topic: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(asdict(view_tally(name, topic, tally)))
        return
    found = count(tally.dead_letters, "dead letter")
    write_line(f"{found} in {topic}, about {count(tally.records, 'record')} of {name}.")
    if tally.errors:
        print_table(
            [Column("RECORDS", True), Column("ERROR")],
            [(number, error) for error, number in tally.errors.most_common(_ERRORS_SHOWN)],
        )
