"""`logmark replay`: a bounded, filtered range of a topic is shown, or copied to another topic."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, chosen_cluster, complete_context, complete_topic, on_cluster
from logmark.cli.options import OutputFormat, Yes
from logmark.cli.replay_command import Session, print_runs
from logmark.cli.tables import say
from logmark.cli.topics import check_topic_name
from logmark.errors import UserError
from logmark.offsets.bounded_replay.copy_headers import ORIGINAL_TOPIC_HEADERS
from logmark.offsets.bounded_replay.rate import Rate, parse_rate
from logmark.offsets.bounded_replay.runs import ReplayRequest, RunStore, check_run_id
from logmark.offsets.user_files import state_folder


class Timestamp(StrEnum):
    """The time of a copy."""

    KEEP = "keep"
    NOW = "now"


class Codec(StrEnum):
    """How the batches of copies are compressed."""

    KEEP = "keep"
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


_OFFSETS = (
    "earliest, latest, an offset (42), so many records before the end (-10), a time (@2024-03-05T00:00:00, @-2h), "
    "or one of these for each partition (0:100,1:200)"
)


@on_cluster
def replay(
    cluster: Cluster,
    topic: Annotated[
        str | None,
        typer.Argument(help="The topic to read.", autocompletion=complete_topic, show_default=False),
    ] = None,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="OFFSET",
            help=f"Where to start: {_OFFSETS}; or unsent: behind the dead letters that were sent back before.",
        ),
    ] = "earliest",
    end: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="OFFSET",
            help="Where to end, written in the same way and not included; latest is the end at the start of the run.",
        ),
    ] = "latest",
    partition: Annotated[
        list[int] | None, typer.Option(help="Only this partition; may be repeated.", min=0, show_default=False)
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Only records with this key; may be repeated.", show_default=False)
    ] = None,
    key_hex: Annotated[bool, typer.Option("--key-hex", help="The keys are written in hexadecimal.")] = False,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Only records with this header; may be repeated, and then all must be there.",
            show_default=False,
        ),
    ] = None,
    value_contains: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only records whose value has this in it.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after N records.", min=1, show_default=False)
    ] = None,
    to_topic: Annotated[
        str | None,
        typer.Option(
            help="Copy to this topic; without it the records are shown.",
            autocompletion=complete_topic,
            show_default=False,
        ),
    ] = None,
    to_original: Annotated[
        bool,
        typer.Option(
            "--to-original", help="Copy each record to the topic that its headers name: to redrive dead letters."
        ),
    ] = False,
    original_topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEADER",
            help="With --to-original: the header that names the topic; may be repeated, the first one found counts; by "
            "default Spring's, Kafka Connect's and our own.",
            show_default=False,
        ),
    ] = None,
    restore: Annotated[
        bool,
        typer.Option(
            "--restore",
            help="With --to-topic: dead letters of pipelines become the records that they were, as --to-original does.",
        ),
    ] = False,
    pipeline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only the dead letters of this pipeline.", show_default=False),
    ] = None,
    to_partition: Annotated[
        int | None, typer.Option(metavar="N", help="Copy everything to this partition.", min=0, show_default=False)
    ] = None,
    create_topic: Annotated[
        bool, typer.Option("--create-topic", help="Create the topic to copy to, with as many partitions.")
    ] = False,
    allow_same_topic: Annotated[
        bool, typer.Option("--allow-same-topic", help="Allow a topic to be copied to itself.")
    ] = False,
    max_hops: Annotated[
        int, typer.Option(metavar="N", help="Leave out records that N replays have copied already.", min=1)
    ] = 1,
    timestamp: Annotated[
        Timestamp, typer.Option(help="The time of a copy: the record's own, or the present.")
    ] = Timestamp.KEEP,
    compression: Annotated[Codec, typer.Option(help="How copies are compressed: as they were, or so.")] = Codec.KEEP,
    strip_headers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX", help="Leave out the headers that begin so; may be repeated.", show_default=False
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Write no faster: 1000/s (records) or 10MB/s.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and count what would be copied; write nothing.")
    ] = False,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="A name for this replay, for scripts: the same command with the same name copies once, however often "
            "it is run.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Resume an interrupted replay.", show_default=False)
    ] = None,
    start_over: Annotated[
        bool, typer.Option("--start-over", help="Start a new replay although the same command was interrupted before.")
    ] = False,
    forget: Annotated[
        str | None, typer.Option(metavar="ID", help="Forget an interrupted replay.", show_default=False)
    ] = None,
    runs: Annotated[bool, typer.Option("--runs", help="List the replays that were started from here.")] = False,
    to_bootstrap_servers: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,...", help="Copy to this cluster. Unless given: the same.", show_default=False),
    ] = None,
    to_command_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Client properties for that cluster.", show_default=False)
    ] = None,
    to_context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Copy to the cluster of this context.",
            autocompletion=complete_context,
            show_default=False,
        ),
    ] = None,
    with_offsets: Annotated[
        bool, typer.Option("--with-offsets", help="Show partition, offset and key before each value.")
    ] = False,
    yes: Yes = False,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="For people, or JSON: a line for each record that is shown.")
    ] = OutputFormat.TABLE,
) -> None:
    """Show a range of a topic, or copy it to another topic; live consumer groups are not affected."""

    store = RunStore(state_folder() / "replays")
    if runs:
        print_runs(store, output)
        return
    if forget is not None:
        with store.lock(forget):
            store.forget(forget)
        say(f"Replay {forget} is forgotten; what it has copied stays.")
        return
    pace = parse_rate(rate) if rate else Rate()
    other = _other_cluster(cluster, to_bootstrap_servers, to_command_config, to_context)
    session = Session(cluster, other, store, pace, yes=yes, output=output)
    if resume is not None:
        session.resume(resume)
        return
    if topic is None:
        raise UserError("Name the topic to read, or a replay to resume (--resume ID).", exit_code=2)
    for name in (topic, *([to_topic] if to_topic else [])):
        check_topic_name(name)
    if to_topic and to_original:
        raise UserError("Choose one of --to-topic and --to-original.", exit_code=2)
    if (restore and not to_topic) or (pipeline is not None and not (restore or to_original)):
        raise UserError("--restore goes with --to-topic, and --pipeline with --to-original or --restore.", exit_code=2)
    originals = original_topic or [name.decode() for name in ORIGINAL_TOPIC_HEADERS]
    request = ReplayRequest(
        topic=topic,
        begin=begin,
        end=end,
        partitions=tuple(sorted(set(partition or ()))),
        keys=tuple(sorted(one.hex() for one in parse_keys(key or [], is_hex=key_hex))),
        headers=tuple(
            (name.decode(), None if value is None else value.decode()) for name, value in parse_headers(header or [])
        ),
        value_contains=value_contains,
        to_topic=to_topic or "",
        to_original=tuple(originals) if to_original else (),
        to_partition=to_partition,
        timestamp=timestamp.value,
        compression=compression.value,
        strip_headers=tuple(strip_headers or ()),
        max_hops=max_hops,
        limit=limit,
        restore=restore,
        pipeline=pipeline,
    )
    if dry_run:
        session.survey(request, create=create_topic, allow_same_topic=allow_same_topic)
    elif not request.is_copy:
        session.show(request, with_offsets=with_offsets)
    else:
        session.copy(
            request,
            create=create_topic,
            allow_same_topic=allow_same_topic,
            start_over=start_over,
            run_id=check_run_id(run_id) if run_id is not None else None,
        )


def _other_cluster(
    cluster: Cluster, bootstrap_servers: str | None, command_config: Path | None, context: str | None
) -> Cluster:
    if not bootstrap_servers and not context:
        if command_config is not None:
            raise UserError("--to-command-config goes with --to-bootstrap-servers or --to-context.", exit_code=2)
        return cluster
    return chosen_cluster(
        bootstrap_servers=bootstrap_servers,
        command_config=command_config,
        context=context,
        read_only=cluster.is_read_only,
    )


def parse_keys(texts: Sequence[str], *, is_hex: bool) -> frozenset[bytes]:
    """Keys as they are written after --key: text, or with --key-hex the bytes in hexadecimal."""
    if not is_hex:
        return frozenset(text.encode() for text in texts)
    try:
        return frozenset(bytes.fromhex(text.removeprefix("0x")) for text in texts)
    except ValueError:
        raise UserError(
            f"--key {' '.join(texts)!r} is not hexadecimal: with --key-hex write two digits for each byte (00ff10).",
            exit_code=2,
        ) from None


def parse_headers(texts: Sequence[str]) -> tuple[tuple[bytes, bytes | None], ...]:
    """Headers as they are written after --header: NAME, or NAME=VALUE."""
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise UserError(f"--header {text!r} names no header: write NAME or NAME=VALUE.", exit_code=2)
        found.append((name.encode(), value.encode() if equals else None))
    return tuple(found)
