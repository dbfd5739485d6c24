"""`logmark lag`: how far groups are behind, in records and seconds; now, live, or as a picture of the past."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, complete_group, complete_topic, on_cluster
from logmark.cli.lag_board import Board, JsonLines
from logmark.cli.lag_tables import print_lag_report
from logmark.cli.options import Output, OutputFormat
from logmark.cli.plots import draw_lag
from logmark.cli.tables import print_json, say
from logmark.client.client import Client
from logmark.clock import SystemClock
from logmark.errors import LogmarkError, UserError
from logmark.offsets.journal.journal import open_journal
from logmark.offsets.lag.age_cache import AgeCache
from logmark.offsets.lag.annotations import Annotation, annotations_from_changes
from logmark.offsets.lag.history import History, Tier, default_history_path, open_history
from logmark.offsets.lag.report import build_lag_report
from logmark.offsets.lag.sample import Sample, add_uncommitted_partitions, is_pattern, matches, take_sample
from logmark.offsets.lag.views import LagLevel, view_lag
from logmark.offsets.suggestions import unknown_group, unknown_topic
from logmark.offsets.times import parse_duration, parse_time

_DEFAULT_EVERY = "2s"
_DEFAULT_SINCE = "1h"
_FRESH_MS = 120_000  # a history without a sample as young as this is not being kept


@on_cluster
def lag(
    cluster: Cluster,
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP",
            help="Groups, also with wildcards ('billing-*'); none means all.",
            autocompletion=complete_group,
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="GROUP", help="The same as GROUP.", autocompletion=complete_group),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Only these topics; wildcards too.", autocompletion=complete_topic
        ),
    ] = None,
    by: Annotated[LagLevel, typer.Option("--by", help="What one line is about.")] = LagLevel.PARTITION,
    only_with_lag: Annotated[bool, typer.Option("--only-with-lag", help="Leave out what is caught up.")] = False,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Count up to the last stable offset, as such readers see it.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="A live board, until Ctrl-C.")] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="How often the board looks (2s, 1m).")
    ] = _DEFAULT_EVERY,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the history into this .svg or .png.", show_default=False),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="How far back the plot reaches (1h, 7d, or a date).")
    ] = _DEFAULT_SINCE,
    history: Annotated[
        Path | None,
        typer.Option(
            "--history", metavar="FILE", help="The file with kept samples. Unless given: the cluster's own.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Add what is seen to the history.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:  # fmt: skip
    """Show how far each group is behind in records and seconds, what it lost, and what its history says about it."""
    wanted = [*(groups or []), *(group or [])]
    with cluster.connect() as client:
        looker = _Looker(client, wanted or None, topic or None, history, keep=keep, read_committed=read_committed)
        if plot is not None:
            looker.draw(plot, since)
        elif watch or every != _DEFAULT_EVERY:
            looker.watch(every, by, output, only_with_lag=only_with_lag)
        else:
            looker.look(by, output, only_with_lag=only_with_lag)


class _Looker:
    """Takes samples for one command line, judges them, and has them written."""

    def __init__(
        self, client: Client, groups: list[str] | None, topics: list[str] | None, path: Path | None, *, keep: bool,
        read_committed: bool,
    ) -> None:  # fmt: skip
        self._client = client
        self._groups = groups
        self._topics = topics
        self._path = path
        self._keep = keep
        self._read_committed = read_committed

    def look(self, by: LagLevel, output: OutputFormat, *, only_with_lag: bool) -> None:
        """One sample, written once."""

        sample = self._sample()
        with self._history(sample.cluster_id) as history:
            shown = self._narrowed(sample)
            self._refuse_unknown(shown)
            shown = add_uncommitted_partitions(self._client, shown)
            standing = build_lag_report(shown, client=self._client, history=history, own_changes=self._own_changes)
            if history is not None and self._keep:
                history.add(sample)
        _say_problems(shown)
        if output is OutputFormat.JSON:
            print_json([asdict(one) for one in view_lag(standing, by, only_with_lag=only_with_lag)])
        else:
            print_lag_report(standing, by, only_with_lag=only_with_lag)

    def watch(self, every: str, by: LagLevel, output: OutputFormat, *, only_with_lag: bool) -> None:
        """One sample after the other, until Ctrl-C."""

        pause_s = parse_duration(every if not every.isdecimal() else f"{every}s") / 1000
        if not 0.1 <= pause_s <= 3600:
            raise UserError(f"A board looks every 0.1 s to 1 h, and {every!r} is not in between.")
        first = self._sample()
        self._refuse_unknown(self._narrowed(first))
        board = JsonLines(by, only_with_lag) if output is OutputFormat.JSON else Board(only_with_lag, pause_s)
        ages = AgeCache(records_max=20)
        with self._history(first.cluster_id) as kept, History(None, tiers=[Tier(3_600_000, 0)]) as recent, board:
            own = kept if self._keep and kept is not None else recent

            def look(sample: Sample) -> None:
                shown = self._narrowed(sample)
                past = kept if kept is not None and kept.times(since_ms=sample.at_ms - _FRESH_MS) else own
                known = ages.of(shown, past, self._client)
                standing = build_lag_report(shown, history=own, ages=known, own_changes=self._own_changes)
                own.add(sample)
                board.show(standing, own)

            board.run(first, self._sample, look, pause_s)

    def draw(self, path: Path, since: str) -> None:
        """Draw the stored history into a file."""

        now_ms = SystemClock().now_ms()
        try:
            since_ms = now_ms - parse_duration(since)
        except UserError:
            since_ms = parse_time(since, now_ms=now_ms)
        cluster_id = self._client.metadata([]).cluster_id
        history = open_history(self._path, cluster_id, read_committed=self._read_committed)
        if history is None:
            raise UserError(
                "There is no history of this cluster yet. Nothing was drawn; `logmark monitor` and "
                "`logmark lag --keep` write one."
            )
        with history:
            groups = [one for one in history.groups() if matches(one, self._groups)]
            annotations = [*history.annotations(since_ms=since_ms), *self._own_changes(since_ms)]
            drawn = draw_lag(path, history, groups, annotations, since_ms=since_ms, topics=self._topics)
        say(f"Drew {drawn} into {path}.")

    def _sample(self) -> Sample:

        # What is kept is the whole cluster; what is shown may be less.
        groups, topics = (None, None) if self._keep else (self._groups, self._topics)
        return take_sample(self._client, groups, topics, read_committed=self._read_committed)

    def _narrowed(self, sample: Sample) -> Sample:
        return sample.only(self._groups, self._topics) if self._keep else sample

    @contextmanager
    def _history(self, cluster_id: str) -> Iterator[History | None]:

        if self._keep:
            path = self._path or default_history_path(cluster_id, read_committed=self._read_committed)
            found: History | None = History(path, cluster_id=cluster_id)
        else:
            found = open_history(self._path, cluster_id, read_committed=self._read_committed)
        try:
            yield found
        finally:
            if found is not None:
                found.close()

    def _own_changes(self, since_ms: int) -> Iterable[Annotation]:

        try:
            cluster_id = self._client.metadata([]).cluster_id
            changes = open_journal(self._client).changes(cluster_id, since_ms=since_ms)
        except LogmarkError as error:
            say(f"The journal of our own changes cannot be read, so a reset of ours may look like another's: {error}")
            return []
        return annotations_from_changes(changes)

    def _refuse_unknown(self, sample: Sample) -> None:

        for one in sample.groups.values():
            if one.is_unknown:
                raise UserError(f"{unknown_group(self._client, one.group)} `logmark groups list` shows those that do.")
        seen = {one.topic for group in sample.groups.values() for one in group.partitions}
        for topic in self._topics or []:
            if topic in seen or is_pattern(topic):
                continue
            if topic not in self._client.metadata([topic]).topics:
                raise UserError(f"{unknown_topic(self._client, topic)} `logmark topics list` shows those that do.")
            say(f"No group has committed an offset in topic {topic}.")


def _say_problems(sample: Sample) -> None:
    for sentence in (*sample.notes, *(one.problem for one in sample.groups.values() if one.problem)):
        say(sentence)
    if sample.groups and all(one.problem for one in sample.groups.values()):
        raise UserError("No group could be read.")
