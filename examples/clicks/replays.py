"""The acts in which pipelines with state are read again with fixed code, as versions beside the live ones."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from examples.clicks import checks, features, fraud
from examples.clicks.stage import Stage
from logmark.offsets.reset.targets import ToEarliest
from logmark.spark.pipelines.replay.build import connect, group_of
from logmark.spark.pipelines.replay.plan import plan_version
from logmark.spark.pipelines.replay.runner import Choices, Outcome, Replay, Telling, begin
from logmark.spark.pipelines.replay.state import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEATURES, FRAUD = "features", "fraud"
_LOOK_EVERY_S = 0.2


def features_again(stage: Stage) -> None:
    """The table is built anew beside the old one; a reader that looks all the time sees the old or the new."""
    stage.board.act("Features is built again with fixed code, beside the version that runs")
    truth, table = stage.truth, stage.table(FEATURES)
    old, new = truth.features(with_crawlers=True), truth.features()
    rows = checks.by_user(table)
    crawlers = len(rows.keys() - new.keys())
    stage.check("the bug is real: crawlers are taken for users", rows == old != new, f"{crawlers} of {len(rows):,}")
    seen: list[str] = []
    stopping = threading.Event()

    def look() -> None:
        is_last = False
        while not is_last:
            # Once more after the swap: it may come just before the reader is told to stop.
            is_last = stopping.wait(_LOOK_EVERY_S)
            try:
                rows = checks.by_user(table)
                seen.append("new" if rows == new else "old" if rows == old else "a mix")
            except Exception as error:  # noqa: BLE001 - a reader that cannot read is what this is about
                seen.append(f"nothing: {error}")

    reader = threading.Thread(target=look, name="reader of features", daemon=True)
    reader.start()
    try:
        outcome = replay(stage, FEATURES, features.per_user)
    finally:
        stopping.set()
        reader.join()
    at = seen.index("new") if "new" in seen else len(seen)
    stage.check(
        "a reader during the swap saw the old table, then the new one, and never a mix",
        0 < at < len(seen) and seen == ["old"] * at + ["new"] * (len(seen) - at) and checks.by_user(table) == new,
        f"{at} looks at the old, {len(seen) - at} at the new, version {outcome.number}",
    )


def fraud_again(stage: Stage) -> None:
    """The alerts that the bug has missed are sent; those that were sent before are not sent again."""
    stage.board.act("Fraud is replayed from its start: what it missed is sent, and nothing twice")
    truth = stage.truth
    before = checks.alerts(stage.servers)
    known, wanted = truth.alerts(4 * fraud.BURST_CLICKS), truth.alerts()
    stage.check(
        "the bug is real: bursts were missed",
        before == dict.fromkeys(known, 1) and known < wanted,
        f"{len(known):,} alerts of {len(wanted):,}",
    )
    outcome = replay(stage, FRAUD, fraud.alerts)
    released = outcome.released
    stage.check(
        "the replay sent the alerts that were missing, and no other",
        released is not None and released.sent == len(wanted - known),
        f"{released.sent if released else 0:,} of {len(wanted):,} that it found",
    )
    check_alerts(stage, "no alert is lost and none is there twice")


def check_alerts(stage: Stage, claim: str) -> None:
    """Compares the topic with the truth."""
    found, wanted = checks.alerts(stage.servers), stage.truth.alerts()
    stage.check(claim, found == dict.fromkeys(wanted, 1), f"{len(found):,}")


def replay(stage: Stage, name: str, fixed: "Callable[[DataFrame], DataFrame]") -> Outcome:
    """What `logmark pipelines replay NAME` does, in this process; then the new version runs in the old one's place."""
    job = stage.job(name, fixed)
    # It loses its place to the new version.
    old = stage.let_go(name)
    with job.home.replaying(), connect(job.brokers) as client:
        plan = plan_version(job, client, ToEarliest(), kind=Kind.SWAP, is_stateful=True)
        beside = group_of(job.pipeline, plan.number)
        stage.board.follow(beside)
        stage.board.say(f"version {plan.number} reads {plan.records:,} clicks again, as the group {beside}")
        work = begin(job, client, plan, Choices())
        outcome = Replay(job, lambda: stage.spark, client, work, telling=_telling(stage, name)).carry_out()
    stage.board.unfollow(beside)
    stage.check(f"the version of {name} with the bug has ended", not old.isActive, f"version {outcome.number} is live")
    stage.start_again(name)
    stage.wait_until_current(name)
    return outcome


def _telling(stage: Stage, name: str) -> Telling:
    def report(done: int, of: int) -> None:
        stage.board.progress(f"{name} again", done, of)

    return Telling(say=lambda sentence: stage.board.say(sentence, "dim"), report=report)
