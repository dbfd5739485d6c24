"""The acts in which pipelines with state are replayed with fixed code, as versions beside the live ones."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from examples.clicks import checks, features, fraud
from examples.clicks.stage import Stage
from logmark.spark.pipelines.declaration import version_group
from logmark.spark.pipelines.replay.plan import VersionPlan
from logmark.spark.pipelines.replay.runner import ReplayCallbacks, ReplayResult
from logmark.spark.pipelines.replay.session import ReplayRequest, open_replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEATURES, FRAUD = "features", "fraud"
_LOOK_EVERY_S = 0.2


def features_again(stage: Stage) -> None:
    """Rebuild the table beside the old one; a reader that polls it sees the old or the new."""
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
        result = replay(stage, FEATURES, features.per_user)
    finally:
        stopping.set()
        reader.join()
    at = seen.index("new") if "new" in seen else len(seen)
    stage.check(
        "a reader during the swap saw the old table, then the new one, and never a mix",
        0 < at < len(seen) and seen == ["old"] * at + ["new"] * (len(seen) - at) and checks.by_user(table) == new,
        f"{at} looks at the old, {len(seen) - at} at the new, version {result.version}",
    )


def fraud_again(stage: Stage) -> None:
    """Send the alerts that the bug has missed, and none that was sent before."""
    stage.board.act("Fraud is replayed from its start: what it missed is sent, and nothing twice")
    truth = stage.truth
    before = checks.alerts(stage.servers)
    known, wanted = truth.alerts(4 * fraud.BURST_CLICKS), truth.alerts()
    stage.check(
        "the bug is real: bursts were missed",
        before == dict.fromkeys(known, 1) and known < wanted,
        f"{len(known):,} alerts of {len(wanted):,}",
    )
    published = replay(stage, FRAUD, fraud.alerts).publication
    stage.check(
        "the replay sent the alerts that were missing, and no other",
        published is not None and published.sent == len(wanted - known),
        f"{published.sent if published else 0:,} of {len(wanted):,} that it found",
    )
    check_alerts(stage, "no alert is lost and none is there twice")


def check_alerts(stage: Stage, claim: str) -> None:
    """Compares the topic with the truth."""
    found, wanted = checks.alerts(stage.servers), stage.truth.alerts()
    stage.check(claim, found == dict.fromkeys(wanted, 1), f"{len(found):,}")


def replay(stage: Stage, name: str, fixed: "Callable[[DataFrame], DataFrame]") -> ReplayResult:
    """Do what `logmark pipelines replay NAME` does, in this process; then run the new version."""
    job = stage.job(name, fixed)
    # The new version supersedes it.
    old = stage.forget_query(name)
    with open_replay(job, lambda: stage.spark) as session:
        request = ReplayRequest()
        plan = session.plan(request)
        assert isinstance(plan, VersionPlan)
        group = version_group(job.pipeline, plan.number)
        stage.board.follow(group)
        stage.board.say(f"version {plan.number} reads {plan.records:,} clicks again, as the group {group}")
        result = session.execute(plan, request, _make_callbacks(stage, name))
    stage.board.unfollow(group)
    stage.check(f"the version of {name} with the bug has ended", not old.isActive, f"version {result.version} is live")
    stage.start_again(name)
    stage.wait_until_current(name)
    return result


def _make_callbacks(stage: Stage, name: str) -> ReplayCallbacks:
    def report(done: int, of: int) -> None:
        stage.board.progress(f"{name} again", done, of)

    return ReplayCallbacks(say=lambda message: stage.board.say(message, "dim"), report=report)
