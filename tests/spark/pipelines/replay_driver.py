"""A replay in a process of its own that kills itself once a step is done: what to replay, and the step, are given."""

import os
import signal
import sys
from pathlib import Path

from logmark.offsets.reset.targets import ToEarliest
from logmark.spark import session
from logmark.spark.pipelines.replay.plan import plan_version
from logmark.spark.pipelines.replay.runner import ReplayCallbacks, ReplayOptions, ReplayRunner, save_planned_replay
from logmark.spark.pipelines.replay.state import ReplayKind, ReplayStep, load_state
from tests.harness.sparks import quick_java
from tests.spark.pipelines.number_pipelines import DeclaredPipelines


def main(kind: str, name: str, servers: str, topic: str, alerts: str, folder: str, killed_at: int) -> None:
    """Replays by the new code from the beginning, as far as the step."""
    declared = DeclaredPipelines(servers=servers, topic=topic, alerts=alerts, folder=Path(folder))
    declared.label, declared.divisors = "new", [2, 3]
    job = declared.counts(name) if kind == "counts" else declared.fraud(name)
    spark = session("killed", master="local[1]", config=quick_java())

    def on_step(step: ReplayStep) -> None:
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with job.home.replaying(), job.connect() as client:
        plan = plan_version(job, client, ToEarliest(), kind=ReplayKind.SWAP, is_stateful=True)
        state = load_state(job.home) or save_planned_replay(job, client, plan, ReplayOptions())
        ReplayRunner(job, lambda: spark, client, state, callbacks=ReplayCallbacks(on_step=on_step)).run()


if __name__ == "__main__":
    *words, step = sys.argv[1:]
    main(*words, killed_at=int(step))
