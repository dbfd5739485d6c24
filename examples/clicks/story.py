"""The story that the demo tells, act by act; every act checks what it claims."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from examples.clicks import apache, billing, features, fraud
from examples.clicks.board import Board, View
from examples.clicks.checks import Checks, fingerprint, places
from examples.clicks.generator import DAY_MS, TOPIC, generate
from examples.clicks.parsing import clicks
from examples.clicks.topic import publish
from examples.clicks.truth import Place, Truth
from logmark.client import Client
from logmark.offsets.moves.applying import apply
from logmark.offsets.moves.journal import FileJournal
from logmark.offsets.moves.reset import plan_reset
from logmark.offsets.moves.targets import ToEarliest, ToTime
from logmark.spark import Pipeline, Table, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE_S = 300
RESTARTS_MAX = 5
BILLING, FRAUD, FEATURES, NEWCOMER = "billing", "fraud", "features", "newcomer"


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything that the acts share."""

    servers: str
    spark: "SparkSession"
    board: Board
    checks: Checks
    truth: Truth
    work: Path
    seed: int
    now_ms: int
    queries: "dict[str, StreamingQuery]" = field(default_factory=dict)
    _pipelines: dict[str, Pipeline] = field(default_factory=dict)
    _restarts: int = 0

    def table(self, group: str) -> Path:
        return self.work / "tables" / group

    def start(
        self, group: str, transform: "Callable[[DataFrame], DataFrame]", every: str | None = None, **options: str
    ) -> None:
        """The group's pipeline runs, from its own checkpoint if it has one."""
        self._pipelines[group] = Pipeline(
            name=group,
            bootstrap_servers=self.servers,
            topics=TOPIC,
            sink=Table(self.table(group)),
            transform=transform,
            options=options,
            every=every,
        )
        self._start(group)
        self.board.follow(group)
        # One at a time: Spark gives each new Python process ten seconds, and they would share the processors.
        self.wait(lambda view: bool(view.committed.get(group)), f"{group} to take its place")

    def _start(self, group: str) -> None:
        self.queries[group] = self._pipelines[group].start(self.spark, home=self.work / "pipelines")

    def stop(self, group: str) -> None:
        """The group's pipeline has stopped; its checkpoint and its table stay."""
        self.queries.pop(group).stop()

    def wait(self, reached: Callable[[View], bool], what: str) -> View:
        """The first view in which something is so, while every pipeline is well."""
        return self.board.wait(reached, alive=self._check_alive, what=what, timeout_s=PATIENCE_S)

    def wait_until_current(self, *groups: str) -> View:
        """The first view in which these groups have read everything that was written."""
        end = self.truth.count
        return self.wait(
            lambda view: view.end == end and not any(view.lag(group) for group in groups),
            f"{' and '.join(groups)} to read up to the end",
        )

    def check(self, claim: str, held: bool, found: str) -> None:
        """Notes and shows one claim."""
        self.checks.add(claim, held, found)
        self.board.say(f"{'✓' if held else '✗'} {claim}: {found}", "green" if held else "bold red")

    def _check_alive(self) -> None:
        for group, query in list(self.queries.items()):
            error = query.exception()
            if error is None:
                continue
            if "connect back" not in str(error) or self._restarts == RESTARTS_MAX:
                raise RuntimeError(f"The pipeline {group} stopped: {str(error).splitlines()[0]}")
            self._restarts += 1
            self.board.say(f"{group} starts again: on this busy machine Spark lost patience with a Python process")
            self._start(group)


def tell(stage: Stage) -> None:
    """All acts, in order."""
    three_readers(stage)
    a_new_reader(stage)
    untouched = fingerprint(stage.table(BILLING))
    since = a_bug_in_fraud(stage)
    the_fix(stage, since)
    the_running_query(stage)
    nobody_else_noticed(stage, untouched)


def three_readers(stage: Stage) -> None:
    """Billing is current, fraud is behind, features begins at offset 0."""
    board, count = stage.board, stage.truth.count
    board.act("Three readers of one log, each at its own pace")
    board.say("billing takes a quarter at a time, fraud a tenth; features is still being written")
    for group in (BILLING, FRAUD, FEATURES):
        board.follow(group)
    fast = {"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": str(max(count // 4, 1))}
    stage.start(BILLING, billing.charges, **fast)
    slow = {"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": str(max(count // 10, 1))}
    stage.start(FRAUD, fraud.alerts_with_a_bug, every="1 second", **slow)
    view = stage.wait_until_current(BILLING)
    stage.check(
        "billing is current, fraud is behind, features has not begun",
        view.lag(FRAUD) > 0 and not view.committed[FEATURES],
        f"lag {view.lag(BILLING):,} and {view.lag(FRAUD):,} of {view.end:,}",
    )
    board.say("features joins a month late and replays from offset 0")
    replay = {"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": str(max(count // 3, 1))}
    stage.start(FEATURES, features.observations, **replay)


def a_new_reader(stage: Stage) -> None:
    """A reader that begins at the end sees what comes after, and all the others see it too."""
    board, truth = stage.board, stage.truth
    board.act("A new reader starts at latest")
    stage.start(NEWCOMER, clicks, **{"auto.offset.reset": "latest"})
    ends = truth.ends
    stage.wait(lambda view: view.committed.get(NEWCOMER) == ends, "newcomer to take its place at the end")
    board.say("newcomer stands at the end of the log; people go on clicking")
    live = publish_live(stage)
    board.say(f"{live:,} more clicks, from the last seconds")
    stage.wait_until_current(BILLING, FRAUD, FEATURES, NEWCOMER)
    stage.stop(NEWCOMER)
    expected = {Place(partition, at): 1 for partition, end in truth.ends.items() for at in range(ends[partition], end)}
    seen = places(stage.table(NEWCOMER))
    stage.check("newcomer has the clicks since it came, each once, and no other", seen == expected, f"{len(seen):,}")


def publish_live(stage: Stage) -> int:
    """A twenty-fifth more clicks arrive over a few seconds, dated up to now."""
    before = stage.truth.count
    bursts = 5
    for burst in range(bursts):
        start_ms, stage.now_ms = stage.now_ms, time.time_ns() // 1_000_000
        made = generate(
            max(before // 25 // bursts, 1),
            seed=stage.seed + 1 + burst,
            start_ms=start_ms,
            end_ms=stage.now_ms,
            first_id=stage.truth.count,
        )
        publish(stage.servers, stage.truth.noting(made))
        time.sleep(0.4)
    return stage.truth.count - before


def a_bug_in_fraud(stage: Stage) -> int:
    """Fraud accuses people; returns the point in time three days ago."""
    stage.board.act("A bug is found in fraud")
    found, truth = places(stage.table(FRAUD)), stage.truth
    wrong = found.keys() - truth.bots
    stage.board.say(f"{len(found):,} alerts, but only {len(truth.bots):,} clicks were made by bots: a zero too many")
    stage.check(
        "the bug is real: people in a hurry are taken for bots", wrong == truth.hurried != set(), f"{len(wrong):,}"
    )
    return stage.now_ms - 3 * DAY_MS


def the_fix(stage: Stage, since_ms: int) -> None:
    """The fixed version goes on from the old one's checkpoint, at the offsets to which the group was reset."""
    board, truth = stage.board, stage.truth
    board.act("The fixed version is deployed on the same checkpoint, and the group is reset three days back")
    stage.stop(FRAUD)
    tool = reset_by_time(stage, since_ms)
    first = truth.first_since(since_ms)
    with Client(stage.servers) as client:
        stands = {place.partition: commit.offset for place, commit in client.committed(FRAUD).items()}
    again = sum(end - first[partition] for partition, end in truth.ends.items())
    stage.check(f"{tool} set fraud to the first clicks of three days ago", stands == first, f"{again:,} to read again")
    stage.start(FRAUD, fraud.alerts)
    stage.wait_until_current(FRAUD)
    expected = truth.bots | {place for place in truth.hurried if place.offset < first[place.partition]}
    found = places(stage.table(FRAUD))
    recent = {place for place in truth.hurried if place.offset >= first[place.partition]}
    gone = recent - found.keys()
    stage.check("the false alerts of these days are gone", gone == recent, f"{len(gone):,} of {len(recent):,}")
    true = [place for place in truth.bots if place.offset >= first[place.partition]]
    once = sum(found[place] == 1 for place in true)
    stage.check("the true alerts of these days are there once", once == len(true), f"{once:,} of {len(true):,}")
    stage.check("older alerts are as they were", found == dict.fromkeys(expected, 1), f"{len(found):,} in all")


def reset_by_time(stage: Stage, at_ms: int) -> str:
    """The group of fraud is moved by Apache's tool where it is there, else by ours; returns which one it was."""
    tool = apache.find()
    if tool is not None:
        stage.board.say(tool.reset_to_datetime(stage.servers, FRAUD, TOPIC, at_ms), "dim")
        return "Apache's ConsumerGroupCommand"
    with Client(stage.servers) as client:
        plan = plan_reset(client, FRAUD, {TOPIC: None}, ToTime(at_ms))
        apply(client, plan, journal=FileJournal(stage.work / "journal.jsonl"))
    return "logmark.offsets"


def the_running_query(stage: Stage) -> None:
    """A reset moves a query that runs: it goes back by itself."""
    board, truth = stage.board, stage.truth
    board.act("A second reset, to the beginning, while the query runs")
    query = stage.queries[FRAUD]
    with Client(stage.servers) as client:
        plan = plan_reset(client, FRAUD, {TOPIC: None}, ToEarliest())
        apply(client, plan, journal=FileJournal(stage.work / "journal.jsonl"))
    board.say(f"logmark.offsets moved fraud back to 0: {plan.read_again:,} clicks to read again")
    stage.wait_until_current(FRAUD)
    stage.check(
        "the running query went back and read all again",
        stage.queries[FRAUD] is query and query.isActive and plan.read_again == truth.count,
        f"{plan.read_again:,} clicks",
    )
    found = places(stage.table(FRAUD))
    stage.check(
        "every bot has one alert and nobody else has any", found == dict.fromkeys(truth.bots, 1), f"{len(found):,}"
    )


def nobody_else_noticed(stage: Stage, untouched: str) -> None:
    """The other readers have what they had, and it is right."""
    board, truth = stage.board, stage.truth
    board.act("The others")
    view = stage.wait_until_current(BILLING, FRAUD, FEATURES)
    for group in list(stage.queries):
        stage.stop(group)
    now = fingerprint(stage.table(BILLING))
    stage.check("billing's table is untouched to the byte", now == untouched, f"sha256 {now[:16]}")
    owed = billing.owed_micros(read_table(stage.table(BILLING)))
    due, direct = billing.bills(owed), billing.bills(truth.owed_micros)
    for campaign, cents in due.items():
        board.say(f"{campaign:<14} owes {billing.money(cents):>14}")
    stage.check(
        "billing equals a direct computation to the cent, campaign by campaign",
        owed == truth.owed_micros and due == direct,
        billing.money(sum(due.values())),
    )
    rows = features.per_user(read_table(stage.table(FEATURES)))
    found = {row["user"]: (row["clicks"], row["campaigns"], row["dwell_ms"]) for row in rows.to_pylist()}
    expected = {user: (one.clicks, len(one.campaigns), one.dwell_ms) for user, one in truth.users.items()}
    stage.check("features has every click since offset 0, per user", found == expected, f"{len(found):,} users")
    stage.check(
        "all clicks of the 30 days are still in the log",
        set(view.starts.values()) == {0} and view.ends == truth.ends,
        f"{view.end:,} from offset 0 on",
    )
