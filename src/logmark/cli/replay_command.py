"""What `logmark replay` does: show, count, confirm, copy, resume."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import typer

from logmark.cli.clusters import Cluster
from logmark.cli.options import OutputFormat
from logmark.cli.progress import bar
from logmark.cli.tables import (
    Column,
    confirm,
    count,
    counted,
    json_line,
    print_json,
    print_table,
    say,
    write_line,
)
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.escaping import escape, json_text
from logmark.names import TopicPartition
from logmark.offsets.bounded_replay.copier import ReplayCopier
from logmark.offsets.bounded_replay.dead_letter_restore import UNSENT, redriven_ends, specs_after
from logmark.offsets.bounded_replay.plan import (
    ReplayRanges,
    TargetPlan,
    check_unchanged,
    plan_target,
    resolve_ranges,
    retention_warnings,
    start_run,
)
from logmark.offsets.bounded_replay.range_reader import RangeCount, count_selected, range_times, read_selected
from logmark.offsets.bounded_replay.rate import Rate
from logmark.offsets.bounded_replay.runs import ReplayRequest, ReplayRun, RunStore
from logmark.offsets.bounded_replay.views import range_json, run_json
from logmark.offsets.times import format_time
from logmark.wire.batches import Record

NOTHING = 3
# A copy outlasts the restart of a broker; a person who only looks does not want to.
_COPY_TIMEOUT_S = 60.0


class Session:
    """One call of the command: its clusters, where runs are kept, and how it talks."""

    def __init__(
        self, source: Cluster, target: Cluster, store: RunStore, rate: Rate, *, yes: bool, output: OutputFormat
    ) -> None:
        self._source = source
        self._target = target
        self._store = store
        self._rate = rate
        self._yes = yes
        self._output = output

    def show(self, request: ReplayRequest, *, with_offsets: bool) -> None:
        """Print the records to standard output."""
        is_json = self._output is OutputFormat.JSON
        shown = 0
        with self._source.connect() as client:
            sought = resolve_ranges(client, request, now_ms=_now_ms())
            for span in sought.spans:
                if span.note:
                    say(f"Partition {span.partition}: {span.note}.")
            counts = {span.partition: RangeCount() for span in sought.spans}
            for number, record in read_selected(
                client, request, sought.spans, counts=counts, step=lambda offsets: None
            ):
                partition = TopicPartition(request.topic, number)
                sys.stdout.write(
                    _json_line(partition, record) if is_json else _text_line(partition, record, with_offsets)
                )
                shown += 1
        sys.stdout.flush()
        if not shown:
            say("There was nothing to show.")
            raise typer.Exit(NOTHING)

    def survey(self, request: ReplayRequest, *, create: bool, allow_same_topic: bool) -> None:
        """Tells what a run would copy, and writes nothing."""
        goal = None
        with self._source.connect() as client, self._target.connect() as target:
            request = self._with_start_offsets(client, request)
            sought = resolve_ranges(client, request, now_ms=_now_ms())
            if request.to_topic:
                # Before the range is read: what is refused need not be counted.
                plan_target(
                    client, target, request, sought, create=create, allow_same_topic=allow_same_topic, now_ms=_now_ms()
                )
            with bar("Reading", is_bytes=False) as shown:
                shown.expect(sought.offsets)
                counts = count_selected(client, request, sought.spans, step=shown.advance)
            if request.to_topic:
                oldest = min((one.first_ms for one in counts.values() if one.first_ms is not None), default=None)
                goal = plan_target(
                    client, target, request, sought,
                    create=create, allow_same_topic=allow_same_topic, oldest_ms=oldest, now_ms=_now_ms(),
                )  # fmt: skip
        self._print_survey(request, sought, counts, goal)
        self._warn(request, sought)
        if not any(one.records for one in counts.values()):
            raise typer.Exit(NOTHING)

    def copy(
        self, request: ReplayRequest, *, create: bool, allow_same_topic: bool, start_over: bool, run_id: str | None
    ) -> None:
        """Show the plan, ask, and copy; resume an interrupted run of the same command, or of the same id."""
        self._target.refuse_writing()
        with self._source.connect() as client, self._target.connect() as target:
            # Before the offsets are looked up: what is left of an interrupted run may have no first record any more.
            target_cluster = target.metadata([]).cluster_id
            request = self._with_start_offsets(client, request)
            known = self._known(request.digest(client.metadata([]).cluster_id, target_cluster), run_id)
            if known is not None and not start_over:
                self._take_up(client, target, known)
                return
            sought = resolve_ranges(client, request, now_ms=_now_ms())
            times = range_times(client, request.topic, sought.spans)
            oldest = min((first for first, _ in times.values() if first is not None), default=None)
            goal = None
            if request.to_topic:
                goal = plan_target(
                    client, target, request, sought,
                    create=create, allow_same_topic=allow_same_topic, oldest_ms=oldest, now_ms=_now_ms(),
                )  # fmt: skip
            if self._output is OutputFormat.TABLE:
                _print_plan(request, sought, times, goal)
                self._warn(request, sought)
            if not sought.offsets:
                say("There is nothing to copy.")
                raise typer.Exit(NOTHING)
            self._ask(f"Copy this to {request.target}?")
            if goal is not None and goal.is_missing:
                target.create_topic(
                    goal.topic,
                    partitions=goal.partitions,
                    replication_factor=goal.replication_factor,
                    config=goal.settings,
                )
                say(f"Created topic {goal.topic}.")
                _say_all(retention_warnings(target, request, oldest_ms=oldest, now_ms=_now_ms()))
            if known is not None:
                with self._store.lock(known.id):
                    self._store.forget(known.id)
            run = start_run(
                target, request, sought, goal, target_cluster=target_cluster, now_ms=_now_ms(), run_id=run_id
            )  # fmt: skip
            self._run(client, target, run, is_resumed=False)

    def _with_start_offsets(self, client: Client, request: ReplayRequest) -> ReplayRequest:
        """Return the request with offsets for `--from unsent`, the same until another replay sends something back."""
        if request.begin != UNSENT:
            return request
        if not request.restores:
            raise UserError("--from unsent goes with --to-original or --restore.", exit_code=2)
        cluster = client.metadata([request.topic])
        topic = cluster.topics.get(request.topic)
        if topic is None:
            return replace(request, begin="earliest")  # which is refused with a message that names similar topics
        ends = redriven_ends(
            self._store.runs(), request, source_cluster=cluster.cluster_id, topic_id=topic.topic_id.hex()
        )  # fmt: skip
        starts = {
            partition.partition: start
            for partition, start in client.earliest(cluster.partitions(request.topic)).items()
        }
        return replace(request, begin=specs_after(ends, sorted(starts), starts))

    def _warn(self, request: ReplayRequest, sought: ReplayRanges) -> None:
        if not request.restores:
            return
        if request.to_original:
            say(
                "What is sent back comes to the end of its topic as a new record, for every group that reads the topic."
            )
        ends = redriven_ends(
            self._store.runs(), request, source_cluster=sought.cluster_id, topic_id=sought.topic_id
        )  # fmt: skip
        if any(span.start < ends.get(span.partition, 0) for span in sought.spans if span.offsets):
            say("Some of these were sent back from here before, and would be again; --from unsent begins behind them.")

    def _known(self, digest: str, run_id: str | None) -> ReplayRun | None:
        if run_id is None:
            return self._store.find_unreported(digest)
        if not self._store.has(run_id):
            return None
        run = self._store.load(run_id)
        if run.digest != digest:
            raise UserError(
                f"Replay {run_id} was started with another command. Nothing was copied; choose another --id, or resume "
                f"that one: logmark replay --resume {run_id}"
            )
        return run

    def _take_up(self, client: Client, target: Client, run: ReplayRun) -> None:
        if run.is_finished:
            say(f"Replay {run.id} of the same command is finished already; --start-over would start a new one.")
            self._report(run)
            return
        say(
            f"The same command was interrupted before: replay {run.id}, started {format_time(run.started_ms)}. "
            "It is resumed; --start-over would start a new one."
        )
        self._go_on(client, target, run)

    def resume(self, run_id: str) -> None:
        """Resume an interrupted run."""
        self._target.refuse_writing()
        run = self._store.load(run_id)
        if run.is_finished and not run.is_reported:
            self._report(run)
            return
        if run.is_finished:
            say(f"Replay {run.id} is finished: {counted(run.copied, 'record')} copied. There is nothing to resume.")
            raise typer.Exit(NOTHING)
        with self._source.connect() as client, self._target.connect() as target:
            self._go_on(client, target, run)

    def _go_on(self, client: Client, target: Client, run: ReplayRun) -> None:
        check_unchanged(client, target, run)
        self._ask(
            f"Resume copying {run.request.topic} to {run.request.target} "
            f"(at most {count(run.offsets_left, 'record')} more)?"
        )
        self._run(client, target, run, is_resumed=True)

    def _run(self, client: Client, target: Client, run: ReplayRun, *, is_resumed: bool) -> None:
        client.timeout_s = target.timeout_s = _COPY_TIMEOUT_S
        with self._store.lock(run.id):
            # Another process may have had it meanwhile.
            if is_resumed:
                run = self._store.load(run.id)
            elif self._store.has(run.id):
                raise UserError(f"Replay {run.id} was started by another process meanwhile. Nothing was copied.")
            try:
                with bar("Copying", is_bytes=False) as shown:
                    shown.expect(run.offsets_left)
                    copier = ReplayCopier(
                        client, target, run, self._store, is_resumed=is_resumed, rate=self._rate, step=shown.advance
                    )
                    done = copier.copy()
            except KeyboardInterrupt:
                say(f"Stopped. {copier.describe_progress()}. Resume it with: logmark replay --resume {run.id}")
                raise
        self._report(done)

    def _ask(self, question: str) -> None:
        if self._yes:
            return
        if not sys.stdin.isatty():
            raise UserError("Nothing was copied: there is no terminal to ask in. Add --yes to copy.")
        if not confirm(question):
            raise UserError("Nothing was copied.")

    def _report(self, run: ReplayRun) -> None:
        request = run.request
        if self._output is OutputFormat.JSON:
            print_json(run_json(run))
        else:
            write_line(
                f"Copied {count(run.copied, 'record')} from {request.topic} to {request.target} (replay {run.id})."
            )
        if run.hopped:
            say(
                f"{counted(run.hopped, 'record')} left out, because replays have copied them before "
                f"(--max-hops {request.max_hops})."
            )
        if run.unaddressed:
            say(f"{counted(run.unaddressed, 'record')} left out, because no header names their topic.")
        _say_all(_describe_left_out(run.repeated, run.valueless))
        sys.stdout.flush()
        self._store.mark_reported(run)
        if run.expired:
            raise UserError(
                f"{run.expired} offsets of {request.topic} were deleted before they could be read; their records are "
                "not among the copies."
            )
        if not run.copied:
            raise typer.Exit(NOTHING)

    def _print_survey(
        self, request: ReplayRequest, sought: ReplayRanges, counts: Mapping[int, RangeCount], goal: TargetPlan | None
    ) -> None:
        if self._output is OutputFormat.JSON:
            print_json([range_json(request.topic, span, counts[span.partition]) for span in sought.spans])
            return
        _print_heading(request, goal)
        print_table(
            [
                Column("PARTITION", True), Column("FROM", True), Column("TO", True), Column("RECORDS", True),
                Column("BYTES", True), Column("FIRST TIME"), Column("LAST TIME"), Column("NOTE"),
            ],
            [
                (
                    span.partition, span.start, span.stop, (one := counts[span.partition]).records, one.size_bytes,
                    _time(one.first_ms), _time(one.last_ms), span.note,
                )
                for span in sought.spans
            ],
        )  # fmt: skip
        hopped = sum(one.hopped for one in counts.values())
        left_out = f", {hopped} left out as copied before" if hopped else ""
        records = sum(one.records for one in counts.values())
        write_line(f"In total: {count(records, 'record')}{left_out}.")
        for topic, number in sorted(sum((one.topics for one in counts.values()), Counter()).items()):
            write_line(f"To {topic}: {count(number, 'record')}.")
        unaddressed = sum(one.unaddressed for one in counts.values())
        if unaddressed:
            write_line(f"To nowhere, because no header names a topic: {count(unaddressed, 'record')}.")
        repeated, valueless = (sum(getattr(one, name) for one in counts.values()) for name in ("repeated", "valueless"))
        for sentence in _describe_left_out(repeated, valueless):
            write_line(sentence)
        say("This was a dry run: nothing was written.")


def _print_plan(
    request: ReplayRequest,
    sought: ReplayRanges,
    times: Mapping[int, tuple[int | None, int | None]],
    goal: TargetPlan | None,
) -> None:
    _print_heading(request, goal)
    print_table(
        [
            Column("PARTITION", True), Column("FROM", True), Column("TO", True), Column("RECORDS", True),
            Column("FIRST TIME"), Column("LAST TIME"), Column("NOTE"),
        ],
        [
            (
                span.partition, span.start, span.stop, f"<= {span.offsets}" if span.offsets else "0",
                *(_time(moment) for moment in times.get(span.partition, (None, None))), span.note,
            )
            for span in sought.spans
        ],
    )  # fmt: skip
    write_line(f"In total: at most {count(sought.offsets, 'record')}{_conditions(request)}.")


def _conditions(request: ReplayRequest) -> str:
    words = []
    if not request.selection.is_everything:
        words.append("those that are selected")
    if request.limit is not None:
        words.append(f"the first {request.limit}")
    return f", of them {' and '.join(words)}" if words else ""


def _print_heading(request: ReplayRequest, goal: TargetPlan | None) -> None:
    if goal is None:
        where = f" to {request.target}" if request.is_copy else ""
        write_line(f"Replay of {request.topic}{where}:")
        return
    made = "to be created with " if goal.is_missing else ""
    settings = "".join(f", {name}={value}" for name, value in sorted(goal.settings.items()))
    times = "keeping their times" if request.timestamp == "keep" else "with the time of the copy"
    write_line(
        f"Replay of {request.topic} to {goal.topic} ({made}{count(goal.partitions, 'partition')}, replication factor "
        f"{goal.replication_factor}{settings}), {times}:"
    )
    _say_all(goal.warnings)


def print_runs(store: RunStore, output: OutputFormat) -> None:
    """Print the runs that were started on this machine, the newest last."""
    runs = store.runs()
    if output is OutputFormat.JSON:
        print_json([run_json(run) for run in runs])
        return
    if not runs:
        say("No replay was started from here.")
        return
    print_table(
        [
            Column("ID"), Column("STARTED"), Column("FROM"), Column("TO"), Column("COPIED", True),
            Column("OFFSETS LEFT", True), Column("STATE"),
        ],
        [
            (
                run.id, format_time(run.started_ms), run.request.topic, run.request.target, run.copied,
                0 if run.is_finished else run.offsets_left, "finished" if run.is_finished else "unfinished",
            )
            for run in runs
        ],
    )  # fmt: skip


def _json_line(partition: TopicPartition, record: Record) -> str:
    found = {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": json_text(record.key),
        "value": json_text(record.value),
        "headers": [[name.decode("utf-8", "replace"), json_text(content)] for name, content in record.headers],
    }
    return json_line(found) + "\n"


def _text_line(partition: TopicPartition, record: Record, with_offsets: bool) -> str:
    line = "" if record.value is None else escape(record.value.decode("utf-8", "replace"))
    if with_offsets:
        key = "-" if record.key is None else escape(record.key.decode("utf-8", "replace"))
        line = f"partition {partition.partition}\toffset {record.offset}\t{key}\t{line}"
    return line + "\n"


def _describe_left_out(repeated: int, valueless: int) -> list[str]:
    sentences = []
    if repeated:
        sentences.append(
            f"{counted(repeated, 'dead letter')} left out, because another one about the same record is sent back."
        )
    if valueless:
        sentences.append(f"{counted(valueless, 'dead letter')} left out, because the record is not in them.")
    return sentences


def _time(moment: int | None) -> str | None:
    return None if moment is None else format_time(moment)


def _say_all(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        say(sentence)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
