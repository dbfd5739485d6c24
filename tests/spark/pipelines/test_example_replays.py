"""Every example pipeline replayed from three days back by the command line, while it runs and clicks arrive."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.clicks.generator import DAY_MS
from logmark.spark import read_table
from tests.harness.brokers import own_broker
from tests.harness.node import wait_until
from tests.spark.example_pipelines import NAMES, ExamplePipelines
from tests.spark.kills.processes import Program

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

DAYS, CLICKS, SHARE = 5, 12_000, 1_000
DEADLINE_S = 600


@contextmanager
def watched(table: Path) -> Iterator[list[tuple[int, int]]]:
    """How many rows a reader saw and of how many users, at every look, while something else goes on."""
    seen: list[tuple[int, int]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            users = read_table(table, ["user"])["user"]
            seen.append((len(users), len(users.unique())))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join(DEADLINE_S)


@pytest.mark.parametrize("kind", ["logmark", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_a_replay_from_three_days_back_in_mid_stream_gives_what_a_single_pass_gives(
    tmp_path: Path, record_property: Callable[[str, object], None], kind: str
) -> None:
    now_ms = time.time_ns() // 1_000_000
    with own_broker(kind, tmp_path) as broker:
        start_ms = now_ms - DAYS * DAY_MS
        examples = ExamplePipelines(
            broker.bootstrap_servers, tmp_path / "examples", seed=3, clicks=CLICKS, start_ms=start_ms, days=DAYS
        )
        examples.publish(CLICKS // 2)
        with Program(examples.command(), tmp_path / "run.log", examples.environment) as running:
            features = tmp_path / "examples" / "tables" / "features"
            wait_until((features / "_delta_log").is_dir, "there are features", deadline_s=DEADLINE_S)
            with watched(features) as seen:
                for name in NAMES:
                    examples.publish(SHARE)
                    told = replay(examples, name)
                    assert running.is_running(), running.output()
                    if name != "billing":
                        assert "records before --from as well" in told, told
            examples.publish(CLICKS)
        with Program(examples.command("--available-now"), tmp_path / "rest.log", examples.environment) as rest:
            assert 0 == rest.wait(DEADLINE_S), rest.output()
        examples.check("after three replays")
        assert [] == [look for look in seen if look[0] != look[1]], "a reader saw users of two versions"
        record_property("replayed from three days back", ", ".join(NAMES))
        record_property("looks at the table", len(seen))


def replay(examples: ExamplePipelines, name: str) -> str:
    """What `logmark pipelines replay` says."""
    command = examples.replay_command(name, "--from", "3d")
    ran = subprocess.run(
        command, env=examples.environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert 0 == ran.returncode, f"{name}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}\n{examples.output()}"
    return ran.stdout + ran.stderr
