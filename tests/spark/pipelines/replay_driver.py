"""A replay in a process of its own that kills itself once a step is done: what to replay, and the step, are given."""

import os
import signal
import sys
from pathlib import Path

from logmark.offsets.reset.targets import ToEarliest
from logmark.spark import session
from logmark.spark.pipelines.replay.build import connect
from logmark.spark.pipelines.replay.plan import plan_version
from logmark.spark.pipelines.replay.runner import Choices, Replay, Telling, begin, unfinished
from logmark.spark.pipelines.replay.state import Kind
from tests.harness.sparks import quick_java
from tests.spark.pipelines.number_pipelines import Declared


def main(kind: str, name: str, servers: str, topic: str, alerts: str, folder: str, killed_at: int) -> None:
    """Replays by the new code from the beginning, as far as the step."""
    declared = Declared(servers=servers, topic=topic, alerts=alerts, folder=Path(folder))
    declared.label, declared.divisors = "new", [2, 3]
    job = declared.counts(name) if kind == "counts" else declared.fraud(name)
    spark = session("killed", master="local[1]", config=quick_java())

    def reached(step: int) -> None:
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with job.home.replaying(), connect(job.brokers) as client:
        plan = plan_version(job, client, ToEarliest(), kind=Kind.SWAP, is_stateful=True)
        work = unfinished(job) or begin(job, client, plan, Choices())
        Replay(job, lambda: spark, client, work, telling=Telling(reached=reached)).carry_out()


if __name__ == "__main__":
    main(*sys.argv[1:7], int(sys.argv[7]))
