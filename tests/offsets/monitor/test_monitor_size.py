"""A monitor of 10,000 partitions and 1,000 groups with 100 commits each keeps its memory in bounds."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# A program of its own, because what other tests have used of this process would count.
PROGRAM = textwrap.dedent(
    """
    import dataclasses, json, resource, sys
    from pathlib import Path
    from logmark.client.answers import Committed
    from logmark.clock import ManualClock
    from logmark.names import TopicPartition
    from logmark.offsets.monitor import cluster_sampler
    from logmark.offsets.monitor.alert_file import AlertFile
    from logmark.offsets.monitor.alerts import AlertRule
    from logmark.offsets.monitor.monitor import Monitor, MonitorSettings
    from logmark.offsets.monitor.notifications import NotificationDispatcher
    from logmark.offsets.lag.sample import GroupSample, Sample

    clock = ManualClock()
    partitions = [TopicPartition(f"topic-{topic}", number) for topic in range(100) for number in range(100)]
    count = 0

    def take_sample(client, groups, topics, *, now_ms):
        global count
        count += 1
        end = 1000 + count * 50
        found = {}
        for number in range(1000):
            lag = 0 if number % 2 else 500
            offsets = {partitions[(number * 10 + at) % 10_000]: Committed(offset=end - lag) for at in range(100)}
            found[f"group-{number}"] = GroupSample(group=f"group-{number}", state="Empty", committed=offsets)
        return Sample(
            at_ms=now_ms(), cluster_id="c", groups=found, starts=dict.fromkeys(partitions, 0),
            ends=dict.fromkeys(partitions, end),
        )

    class Nobody:
        requests_sent, cluster_id = 0, "c"
        def metadata(self, topics=None): return dataclasses.replace(cluster_sampler._NO_METADATA, cluster_id="c")
        def close(self): pass
        def changes(self, **asked): return []

    cluster_sampler.take_sample = take_sample
    cluster_sampler.open_journal = lambda client: Nobody()
    cluster_sampler.AgeCache.of = lambda self, sample, history, client: compute_ages(sample, history=history)
    from logmark.offsets.lag.ages import compute_ages

    say = lambda message: print(message, file=sys.stderr)
    watching = cluster_sampler.ClusterSampler(
        Nobody, wanted=cluster_sampler.SampleScope(), clock=clock, say=say,
        history_path=Path(sys.argv[1]) / "history.sqlite",
    )
    rules = [
        AlertRule(name="lag", when="lag", over=10**9),
        AlertRule(name="old", when="seconds", over=10**9, per="partition"),
    ]
    settings = MonitorSettings(alerts=AlertFile(rules=rules))
    dispatcher = NotificationDispatcher({}, say=say, write=print)
    monitor = Monitor(watching, dispatcher, settings=settings, clock=clock, say=say)
    monitor.begin()
    peaks = []
    for _ in range(20):
        monitor.step()
        clock.advance(seconds=10)
        assert sum(map(len, monitor.metrics())) > 50_000_000
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    print(json.dumps(peaks))
    """
)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_is_bounded_for_a_hundred_thousand_offsets(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=1700, check=False
    )

    assert 0 == done.returncode, done.stderr
    peaks = json.loads(done.stdout)
    assert peaks[-1] < 400, f"{peaks[-1]} MB"
    assert peaks[-1] - peaks[9] < 50, f"it grows: {peaks}"
