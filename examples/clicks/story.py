"""The story that the demo tells, act by act; every act checks what it claims."""

import time
from typing import TYPE_CHECKING

from examples.clicks import apache, billing, bounces, features, fraud, replays
from examples.clicks.checks import by_user, count_rows_by_offset, dead_letters, fingerprint
from examples.clicks.generator import DAY_MS, generate
from examples.clicks.stage import Stage
from examples.clicks.topic import publish
from examples.clicks.truth import ClickOffset
from examples.clicks.world import TOPIC
from logmark.client import Client
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.reset.executor import apply_plan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ToEarliest, ToTime
from logmark.spark import Pipeline, Table, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BILLING, BOUNCES, FRAUD, FEATURES, NEWCOMER = "billing", "bounces", "fraud", "features", "newcomer"
ALL = (BILLING, BOUNCES, FRAUD, FEATURES)


def tell(stage: Stage) -> None:
    """All acts, in order."""
    readers(stage)
    a_new_reader(stage)
    bad_records(stage)
    untouched = fingerprint(stage.table(BILLING))
    since = a_bug_in_bounces(stage)
    the_fix(stage, since)
    the_running_query(stage)
    replays.features_again(stage)
    replays.fraud_again(stage)
    nobody_else_noticed(stage, untouched)
    life_goes_on(stage)


def readers(stage: Stage) -> None:
    """Billing is current, bounces is behind, features and fraud begin at offset 0."""
    board, count = stage.board, stage.truth.count
    board.act("Readers of one log, each at its own pace")
    board.say("billing takes a quarter at a time, bounces a tenth; features and fraud are still being written")
    for group in ALL:
        board.follow(group)
    stage.start(billing.billing, options=_share(count, 4))
    stage.start(
        bounces.bounces, bounces.bounced_with_a_bug, every="1 second", options=_share(count, 10)
    )  # fmt: skip
    view = stage.wait_until_current(BILLING)
    stage.check(
        "billing is current, bounces is behind, features has not begun",
        view.lag(BOUNCES) > 0 and not view.committed[FEATURES],
        f"lag {view.lag(BILLING):,} and {view.lag(BOUNCES):,} of {view.end:,}",
    )
    board.say("features and fraud join a month late and read from offset 0")
    stage.start(features.features, features.per_user_with_a_bug, options=_share(count, 3))
    stage.start(fraud.fraud, fraud.alerts_with_a_bug, options=_share(count, 3))


def _share(count: int, parts: int) -> dict[str, str]:
    return {"maxOffsetsPerTrigger": str(max(count // parts, 1))}


def a_new_reader(stage: Stage) -> None:
    """A reader that begins at the end sees what comes after, and all the others see it too."""
    board, truth = stage.board, stage.truth
    board.act("A new reader starts at latest")
    newcomer = Pipeline(name=NEWCOMER, topics=TOPIC, transform=_select_offsets, sink=Table(stage.table(NEWCOMER)))
    stage.start(newcomer, options={"auto.offset.reset": "latest"})
    ends = truth.ends
    stage.wait(lambda view: view.committed.get(NEWCOMER) == ends, "newcomer to commit the end of the log")
    board.say("newcomer stands at the end of the log; people go on clicking")
    live = publish_live(stage, 5)
    board.say(f"{live:,} more clicks, from the last seconds")
    stage.wait_until_current(*ALL, NEWCOMER)
    stage.stop(NEWCOMER)
    board.unfollow(NEWCOMER)
    expected = {
        ClickOffset(partition, at): 1 for partition, end in truth.ends.items() for at in range(ends[partition], end)
    }
    seen = count_rows_by_offset(stage.table(NEWCOMER))
    stage.check("newcomer has the clicks since it came, each once, and no other", seen == expected, f"{len(seen):,}")


def _select_offsets(records: "DataFrame") -> "DataFrame":
    return records.select("topic", "partition", "offset", "timestamp")


def publish_live(stage: Stage, bursts: int) -> int:
    """A twenty-fifth more clicks arrive over a few moments, dated up to now."""
    before = stage.truth.count
    for _ in range(bursts):
        start_ms, stage.now_ms = stage.now_ms, time.time_ns() // 1_000_000
        stage.seed += 1
        made = generate(
            max(before // 25 // bursts, 1),
            seed=stage.seed,
            start_ms=start_ms,
            end_ms=stage.now_ms,
            first_id=stage.seed * 10_000_000,
        )
        publish(stage.servers, stage.truth.noting(made))
        time.sleep(0.4)
    return stage.truth.count - before


def bad_records(stage: Stage) -> None:
    """What could not be read is kept, with the reason, by everybody who could not read it."""
    stage.board.act("Records that are no clicks")
    found, truth = dead_letters(stage.servers), stage.truth
    refused = set(truth.undecodable)
    expected = {name: refused | (truth.incomplete if name == BILLING else set()) for name in ALL}
    for click, error in sorted(found.get(BILLING, {}).items())[:3]:
        stage.board.say(f"{TOPIC}-{click.partition} offset {click.offset}: {error}", "dim")
    stage.check(
        "every bad record is a dead letter of everybody who cannot use it, and no other is",
        {name: set(some) for name, some in found.items()} == {name: some for name, some in expected.items() if some},
        f"{len(refused):,} that do not decode, {len(truth.incomplete):,} without a price",
    )


def a_bug_in_bounces(stage: Stage) -> int:
    """Bounces takes people for bots; returns the point in time three days ago."""
    stage.board.act("A bug is found in bounces")
    found, truth = count_rows_by_offset(stage.table(BOUNCES)), stage.truth
    wrong = found.keys() - truth.bounced
    stage.board.say(f"{len(found):,} rows, but only {len(truth.bounced):,} visitors left at once: a zero too many")
    stage.check("the bug is real: people in a hurry are there too", wrong == truth.hurried != set(), f"{len(wrong):,}")
    return stage.now_ms - 3 * DAY_MS


def the_fix(stage: Stage, since_ms: int) -> None:
    """The fixed version goes on from the old one's checkpoint, at the offsets to which the group was reset."""
    board, truth = stage.board, stage.truth
    board.act("The fixed version is deployed on the same checkpoint, and the group is reset three days back")
    stage.stop(BOUNCES)
    tool = reset_by_time(stage, since_ms)
    first = truth.first_since(since_ms)
    with Client(stage.servers) as client:
        stands = {partition.partition: commit.offset for partition, commit in client.committed(BOUNCES).items()}
    again = sum(end - first[partition] for partition, end in truth.ends.items())
    stage.check(
        f"{tool} set bounces to the first clicks of three days ago", stands == first, f"{again:,} to read again"
    )
    stage.start(bounces.bounces)
    stage.wait_until_current(BOUNCES)
    expected = truth.bounced | {click for click in truth.hurried if click.offset < first[click.partition]}
    found = count_rows_by_offset(stage.table(BOUNCES))
    recent = {click for click in truth.hurried if click.offset >= first[click.partition]}
    gone = recent - found.keys()
    stage.check("the wrong rows of these days are gone", gone == recent, f"{len(gone):,} of {len(recent):,}")
    true = [click for click in truth.bounced if click.offset >= first[click.partition]]
    once = sum(found[click] == 1 for click in true)
    stage.check("the right rows of these days are there once", once == len(true), f"{once:,} of {len(true):,}")
    stage.check("older rows are as they were", found == dict.fromkeys(expected, 1), f"{len(found):,} in all")


def reset_by_time(stage: Stage, at_ms: int) -> str:
    """The group of bounces is moved by Apache's tool where it is there, else by ours; returns which one it was."""
    tool = apache.find()
    if tool is not None:
        stage.board.say(tool.reset_to_datetime(stage.servers, BOUNCES, TOPIC, at_ms), "dim")
        return "Apache's ConsumerGroupCommand"
    with Client(stage.servers) as client:
        plan = plan_reset(client, BOUNCES, {TOPIC: None}, ToTime(at_ms))
        apply_plan(client, plan, journal=FileJournal(stage.journal))
    return "logmark.offsets"


def the_running_query(stage: Stage) -> None:
    """A reset moves a query that runs: it goes back by itself."""
    board, truth = stage.board, stage.truth
    board.act("A second reset, to the beginning, while the query runs")
    query = stage.queries[BOUNCES]
    with Client(stage.servers) as client:
        plan = plan_reset(client, BOUNCES, {TOPIC: None}, ToEarliest())
        apply_plan(client, plan, journal=FileJournal(stage.journal))
    board.say(f"logmark.offsets moved bounces back to 0: {plan.read_again:,} clicks to read again")
    stage.wait_until_current(BOUNCES)
    stage.check(
        "the running query went back and read all again",
        stage.queries[BOUNCES] is query and query.isActive and plan.read_again == truth.count,
        f"{plan.read_again:,} clicks",
    )
    found = count_rows_by_offset(stage.table(BOUNCES))
    stage.check(
        "every bounce is there once and nobody else is", found == dict.fromkeys(truth.bounced, 1), f"{len(found):,}"
    )


def nobody_else_noticed(stage: Stage, untouched: str) -> None:
    """Billing has what it had."""
    stage.board.act("The others")
    now = fingerprint(stage.table(BILLING))
    stage.check("billing's table is untouched to the byte", now == untouched, f"sha256 {now[:16]}")


def life_goes_on(stage: Stage) -> None:
    """The versions that were swapped in read on, and everything adds up."""
    board, truth = stage.board, stage.truth
    board.act("People go on clicking")
    board.say(f"{publish_live(stage, 2):,} more clicks")
    view = stage.wait_until_current(*ALL)
    for name in list(stage.queries):
        stage.stop(name)
    owed = billing.owed_micros(read_table(stage.table(BILLING)))
    bills = billing.bills(owed)
    for campaign, cents in billing.totals(bills).items():
        board.say(f"{campaign:<14} owes {billing.money(cents):>14}")
    stage.check(
        "billing equals a direct computation to the cent, hour by hour",
        owed == truth.owed_micros and bills == billing.bills(truth.owed_micros),
        f"{billing.money(sum(bills.values()))} in {len(bills):,} bills",
    )
    rows = by_user(stage.table(FEATURES))
    stage.check("features has every click since offset 0, per user", rows == truth.features(), f"{len(rows):,} users")
    replays.check_alerts(stage, "every alert is in the topic once, and no other")
    stage.check(
        "all clicks of the 30 days are still in the log",
        set(view.starts.values()) == {0} and view.ends == truth.ends,
        f"{view.end:,} from offset 0 on",
    )
