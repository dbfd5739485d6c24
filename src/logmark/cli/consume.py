"""`logmark consume`: records become lines of standard output."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Annotated, Any

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned

from logmark.cli.clusters import Cluster, complete_topic, on_cluster
from logmark.cli.options import OutputFormat
from logmark.cli.tables import counted, json_line, say
from logmark.cli.topics import check_topic_name
from logmark.client.client import Client
from logmark.client.properties import librdkafka_properties
from logmark.errors import UserError
from logmark.escaping import escape, json_text
from logmark.names import TopicPartition
from logmark.offsets.offset_spec import OffsetSpec, parse_offset_spec, resolve_offset_spec
from logmark.offsets.partitions import LogBounds

_POLL_S = 0.2
_POLL_RECORDS = 500


@dataclass(slots=True)
class Progress:
    """What is left to read: nothing when every partition has reached where it shall stop."""

    max_records: int | None
    is_endless: bool
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    done: set[TopicPartition] = field(default_factory=set)
    records: int = 0

    @property
    def is_full(self) -> bool:
        return self.max_records is not None and self.records >= self.max_records

    @property
    def is_over(self) -> bool:
        return self.is_full or (not self.is_endless and self.done >= set(self.ends))


@on_cluster
def consume(
    cluster: Cluster,
    topic: Annotated[str, typer.Argument(help="The topic to read.", autocompletion=complete_topic, show_default=False)],
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSET",
            help="earliest, latest, an offset (42), so many records before the end (-10), a time "
            "(@2024-03-05T00:00:00) or a time ago (@-2h). With --group: where the group has committed nothing. "
            "Unless given: earliest.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Read as a member of this group: from its committed offsets, and commit what was shown."),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(help="Only this partition; may be repeated.", min=0, show_default=False)
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max", metavar="N", help="Stop after N records.", min=1, show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records instead of stopping at the end.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--with-offsets", help="Write partition, offset and key before each value.")
    ] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Write bytes as they are. Unless given, control characters are escaped."),
    ] = False,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="Plain lines, or one JSON object for each record.")
    ] = OutputFormat.TABLE,
) -> None:
    """Print the records of a topic, one line each, up to its present end."""

    check_topic_name(topic)
    if group is not None:
        cluster.refuse_writing()
    position = parse_offset_spec(begin or "earliest", now_ms=time.time_ns() // 1_000_000)
    # A reader who begins at the end wants what comes.
    progress = Progress(max_records, is_endless=follow or (position.is_latest and group is None))
    if raw and output is OutputFormat.JSON:
        raise UserError("--raw writes bytes, and --output json writes JSON: choose one. Nothing was read.", exit_code=2)
    write = _writer(output, with_offsets=show, is_raw=raw)
    settings = {
        **librdkafka_properties(cluster.properties),
        "bootstrap.servers": cluster.bootstrap_servers,
        "client.id": "logmark-consume",
        "group.id": group or "logmark-consume",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "log_level": 0,
    }
    with cluster.connect() as client:
        partitions = _partitions(client, topic, partition)
        reader = _Reader(client, settings, progress, write, position, partitions)
        if group is not None:
            reader.join(group, topic, by_hand=bool(partition))
        else:
            reader.assign()
        try:
            reader.run(commit=group is not None)
        finally:
            reader.close()
    if progress.records == 0 and sys.stderr.isatty():
        say("There was nothing to read.")


def _partitions(client: Client, topic: str, wanted: list[int] | None) -> list[TopicPartition]:
    existing = client.metadata([topic]).partitions(topic)
    if not existing:
        raise UserError(f"Topic {topic} does not exist; `logmark topics list` shows those that do.")
    for number in wanted or ():
        if TopicPartition(topic, number) not in existing:
            raise UserError(f"Topic {topic} has no partition {number}: it has {len(existing)}, numbered from 0.")
    return [TopicPartition(topic, number) for number in sorted(set(wanted))] if wanted else existing


class _Reader:
    """One consumer, from its start offsets to where it shall stop."""

    def __init__(
        self,
        client: Client,
        settings: dict[str, Any],
        progress: Progress,
        write: Callable[[Any], None],
        position: OffsetSpec,
        partitions: list[TopicPartition],
    ) -> None:
        self._client = client
        self._consumer = Consumer(settings)
        self._progress = progress
        self._write = write
        self._position = position
        self._partitions = partitions
        self._next: dict[TopicPartition, int] = {}
        self._group: str | None = None
        self._is_joined = False

    def assign(self) -> None:
        """Read these partitions from the position of --from, without a group."""
        self._begin(self._partitions, {})

    def join(self, group: str, topic: str, *, by_hand: bool) -> None:
        """Read as the group: from its committed offsets, and from --from where it has none."""
        self._group = group
        if by_hand:
            self._begin(self._partitions, self._committed(self._partitions))
            return
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def run(self, *, commit: bool) -> None:
        """Print records until the limit or the end; commit what was printed, also after an interrupt."""
        with _interrupts() as interrupted:
            self._run(interrupted, commit=commit)
        if interrupted.is_set():
            raise KeyboardInterrupt

    def _run(self, interrupted: threading.Event, *, commit: bool) -> None:
        try:
            while not interrupted.is_set() and not (self._is_joined and self._progress.is_over):
                wanted = _POLL_RECORDS
                if self._progress.max_records is not None:
                    wanted = min(wanted, self._progress.max_records - self._progress.records)
                for message in self._consumer.consume(wanted, _POLL_S):
                    self._take(message)
                sys.stdout.flush()
                if commit:
                    self._commit()
        finally:
            if commit:
                self._commit()

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            self._progress.done.add(TopicPartition(message.topic(), message.partition()))
            return
        if error is not None:
            reason = error.str()
            if error.code() == KafkaError.INVALID_MSG:
                reason = (
                    f"the batch at offset {message.offset()} is damaged on the broker's disk and is not given out; "
                    "read on behind it with --from"
                )
            raise UserError(
                f"Partition {message.partition()} of topic {message.topic()} cannot be read on: {reason}. "
                f"{counted(self._progress.records, 'record')} shown."
            )
        partition, offset = TopicPartition(message.topic(), message.partition()), message.offset()
        end = self._progress.ends.get(partition)
        if not self._progress.is_endless and end is not None and offset >= end:
            self._progress.done.add(partition)
            return
        self._write(message)
        self._next[partition] = offset + 1
        self._progress.records += 1
        if not self._progress.is_endless and end is not None and offset + 1 >= end:
            self._progress.done.add(partition)

    def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        assert self._group is not None
        return {one: found.offset for one, found in self._client.committed(self._group, partitions).items()}

    def _begin(self, partitions: list[TopicPartition], committed: dict[TopicPartition, int]) -> None:
        without = [one for one in partitions if one not in committed]
        begins, _ = resolve_offset_spec(self._client, without, self._position)
        bounds = LogBounds.fetch(self._client, partitions)
        for problem in bounds.problems.values():
            raise UserError(problem)
        for one, offset in committed.items():
            # A committed offset that has expired is no error for a person who looks: start at the log start.
            begins[one] = min(max(offset, bounds.starts[one]), bounds.ends[one])
        self._progress.ends = dict(bounds.ends)
        self._progress.done = {one for one in partitions if begins[one] >= bounds.ends[one]}
        self._consumer.assign([Assigned(one.topic, one.partition, begins[one]) for one in partitions])
        self._is_joined = True

    def _assigned(self, _: Any, assigned: list[Any]) -> None:
        partitions = [TopicPartition(one.topic, one.partition) for one in assigned]
        if not partitions:
            say(f"Every partition belongs to other members of group {self._group}.")
        self._begin(partitions, self._committed(partitions) if partitions else {})

    def _revoked(self, _: Any, __: list[Any]) -> None:
        self._commit()
        self._next.clear()

    def _commit(self) -> None:
        if self._group is None or not self._next:
            return
        try:
            self._consumer.commit(
                offsets=[Assigned(one.topic, one.partition, offset) for one, offset in self._next.items()],
                asynchronous=False,
            )
        except KafkaException as error:
            raise UserError(
                f"The offsets of group {self._group} were not committed: {error.args[0].str()}. "
                "What was shown will be shown again."
            ) from None
        self._next.clear()


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Ctrl-C stops between two records, so that what is shown and what is committed agree; a second one at once."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(_: int, __: FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _writer(output: OutputFormat, *, with_offsets: bool, is_raw: bool) -> Callable[[Any], None]:
    out = sys.stdout

    def write_json(message: Any) -> None:
        _, timestamp = message.timestamp()
        out.write(
            json_line(
                {
                    "topic": message.topic(),
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "timestamp_ms": timestamp,
                    "key": json_text(message.key()),
                    "value": json_text(message.value()),
                    "headers": [[name, json_text(value)] for name, value in message.headers() or []],
                }
            )
            + "\n"
        )

    def write_line(message: Any) -> None:
        value = message.value()
        line = "" if value is None else escape(value.decode("utf-8", "replace"))
        if with_offsets:
            key = message.key()
            shown = "-" if key is None else escape(key.decode("utf-8", "replace"))
            line = f"partition {message.partition()}\toffset {message.offset()}\t{shown}\t{line}"
        out.write(line + "\n")

    def write_bytes(message: Any) -> None:
        line: bytes = message.value() or b""
        if with_offsets:
            key = message.key()
            line = b"partition %d\toffset %d\t%b\t%b" % (
                message.partition(), message.offset(), b"-" if key is None else key, line
            )  # fmt: skip
        # What was written as text comes first.
        out.flush()
        out.buffer.write(line + b"\n")

    if output is OutputFormat.JSON:
        return write_json
    return write_bytes if is_raw else write_line
