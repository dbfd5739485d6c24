"""`logmark pipelines run`, `list` and `status`: in this process without Spark, and once as real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logmark.spark import read_table
from logmark.spark.pipelines.home import Home, PipelineRecord
from logmark.spark.pipelines.replay.state import ReplayKind, ReplayState, ReplayStep, save_state
from logmark.spark.pipelines.status import FinishedBatch, RunState, RunStatus, write_status
from tests.cli.conftest import CommandResult, run
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.harness.sparks import quick_java

LOGMARK = str(Path(sys.executable).with_name("logmark"))
NOBODY = "127.0.0.1:1"
Command = Callable[..., CommandResult]
PIPELINE = """
from logmark.spark import Pipeline, Table
from pyspark.sql import functions

@functions.udf("string")
def upper(value):
    return bytes(value).decode().upper()

def loud(frame):
    return frame.select("topic", "partition", "offset", upper("value").alias("value"))

billing = Pipeline(
    name="billing", group={group!r}, topics={topic!r}, transform=loud, sink=Table({table!r}),
    options={{"auto.offset.reset": "earliest", **{options!r}}}, dead_letters={dead_letters!r},
)
"""


@pytest.fixture(autouse=True)
def _no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGMARK_PIPELINES", raising=False)


class PipelineCommands:
    """A broker, a folder, and the commands on them."""

    def __init__(self, broker: BrokerUnderTest, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.root = folder / "home"
        self.home = Home(self.root, "billing")
        self.group = broker.group("billing")

    def file(self, topic: str, *, dead_letters: str | None = None, **options: str) -> str:
        file = self.folder / "shop.py"
        text = PIPELINE.replace('@functions.udf("string")\n', "") if options or topic == "nowhere" else PIPELINE
        table = str(self.folder / "table")
        file.write_text(
            text.format(group=self.group, topic=topic, table=table, options=options, dead_letters=dead_letters)
        )
        return str(file)

    def run(self, *arguments: str, servers: str | None = None) -> CommandResult:
        named = ("--home", str(self.root))
        return run("pipelines", *arguments, *named, servers=servers or self.broker.bootstrap_servers)


@pytest.fixture
def commands(our_broker: BrokerUnderTest, tmp_path: Path) -> PipelineCommands:
    return PipelineCommands(our_broker, tmp_path)


@pytest.mark.parametrize(
    ("topic", "options", "servers", "said"),
    [
        ("nowhere", {}, None, "billing: There is no topic nowhere at "),
        ("clicks", {"startingOfsets": "5"}, None, 'billing: format("logmark") has no option startingOfsets. Did you '),
        ("clicks", {"maxOffsetsPerTrigger": "many"}, None, "maxOffsetsPerTrigger must be a whole number above 0"),
        ("clicks", {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}, None, "GSSAPI"),
        ("clicks", {"a.b": "c"}, NOBODY, "has no option a.b"),
        ("clicks", {"startingOffsets": "earliest"}, NOBODY, f"{NOBODY}"),
    ],
)
def test_a_mistake_is_said_before_spark_is_started(
    commands: PipelineCommands, topic: str, options: dict[str, str], servers: str | None, said: str
) -> None:
    if topic == "clicks":
        topic = commands.broker.create_topic("clicks")

    ran = commands.run("run", commands.file(topic, **options), servers=servers)

    assert 1 == ran.exit_code
    assert said in ran.error
    assert "Starting Spark" not in ran.error
    assert "Traceback" not in ran.error
    assert {} == commands.broker.committed(commands.group)
    assert not commands.root.exists()


def test_a_replay_that_has_to_be_resumed_first_is_named_before_spark_is_started(commands: PipelineCommands) -> None:
    topic = commands.broker.create_topic("clicks")
    save_state(commands.home, ReplayState(version=2, kind=ReplayKind.SWAP, step=ReplayStep.PUBLISHING))

    refused = commands.run("run", commands.file(topic, startingOffsets="earliest"))

    assert 1 == refused.exit_code
    assert "billing: A replay is publishing version 2 of billing" in refused.error
    assert "Resume the replay with `logmark pipelines replay billing --resume`" in refused.error
    assert "Starting Spark" not in refused.error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "shop.py, line 1: "),
        ("x = 1\n", "declares no pipeline"),
        ("import nowhere_at_all\n", "shop.py, line 1: ModuleNotFoundError"),
    ],
)
def test_a_file_that_does_not_load_is_one_line_without_a_traceback(
    commands: PipelineCommands, text: str, said: str
) -> None:
    (commands.folder / "shop.py").write_text(text)

    ran = commands.run("run", str(commands.folder / "shop.py"))

    assert 2 == ran.exit_code
    assert said in ran.error
    assert 1 == len(ran.error.splitlines())


def test_a_cluster_that_may_only_be_looked_at_runs_no_pipeline(commands: PipelineCommands) -> None:
    ran = commands.run("run", commands.file("nowhere"), "--read-only")

    assert 1 == ran.exit_code
    assert "forbidden here" in ran.error


@pytest.mark.parametrize("arguments", [("--conf", "spark.ui"), ("--package", "nowhere.whl")])
def test_what_spark_would_not_understand_is_said(commands: PipelineCommands, arguments: tuple[str, ...]) -> None:
    ran = commands.run(
        "run", commands.file(commands.broker.create_topic("clicks"), startingOffsets="earliest"), *arguments
    )

    assert 2 == ran.exit_code
    assert "Nothing was run." in ran.error


def remembered(commands: PipelineCommands, **more: Any) -> PipelineRecord:
    record = PipelineRecord(
        file="/home/ann/shop.py",
        bootstrap_servers=commands.broker.bootstrap_servers,
        group=commands.group,
        topics="clicks",
        sink="table /tables/billing",
        begun=1,
    )
    return commands.home.change(lambda _: replace(record, **more))


def status_of(commands: PipelineCommands, **more: Any) -> RunStatus:
    at_ms = 1_794_837_600_000
    status = RunStatus(
        state=RunState.RUNNING, pid=77, version=1, since_ms=at_ms, at_ms=at_ms, batches=3, records=40, rate=12.5,
        batch=FinishedBatch(number=2, records=10, duration_ms=500, at_ms=at_ms, dropped_rows=4), dropped_rows=9,
    )  # fmt: skip
    status = replace(status, **more)
    write_status(commands.home.status_file, status)
    return status


def test_nothing_is_listed_where_nothing_ran(commands: PipelineCommands) -> None:
    assert "No pipeline was ever run" in commands.run("list").error
    assert [] == commands.run("list", "--output", "json").json
    assert [] == commands.run("status", "--output", "json").json


def test_a_pipeline_is_listed_with_all_that_is_known_of_it(commands: PipelineCommands) -> None:
    remembered(commands, live=2)
    status_of(commands, state=RunState.STOPPED)

    ran = commands.run("list")
    [listed] = commands.run("list", "--output", "json").json

    assert ["billing", commands.group, "clicks", "table", "/tables/billing", "2", "stopped", "/home/ann/shop.py"] == (
        ran.words[1]
    )
    assert {"name": "billing", "version": 2, "is_running": False, "file": "/home/ann/shop.py"}.items() <= listed.items()


def test_a_pipeline_of_a_notebook_is_listed_as_one(commands: PipelineCommands) -> None:
    remembered(commands, file=None)
    status_of(commands, state=RunState.STOPPED)

    assert ["stopped", "(notebook)"] == commands.run("list").words[1][-2:]
    assert "file          (notebook)" in commands.run("status").out


def test_without_a_run_a_command_to_a_pipeline_changes_nothing_and_says_how_to_start_one(
    commands: PipelineCommands,
) -> None:
    remembered(commands)

    for command in ("start", "stop", "restart", "reload"):
        ran = commands.run(command, "billing")
        assert 1 == ran.exit_code
        assert "It is declared in /home/ann/shop.py. `logmark pipelines run FILE --only NAME` starts" in ran.error
    assert 2 == commands.run("stop", "biling").exit_code


def test_status_tells_group_lag_rate_batch_restarts_error_and_dead_letters(commands: PipelineCommands) -> None:
    topic, dead = commands.broker.create_topic("clicks"), commands.broker.create_topic("dead")
    commands.broker.produce(topic, ["x"] * 10)
    commands.broker.produce(dead, ["bad"] * 3)
    commands.broker.commit(commands.group, {(topic, 0): 4})
    remembered(commands, dead_letters=dead, building=2)
    status_of(commands, restarts=2, error="Nobody answered.", error_at_ms=1_794_837_600_000)

    with commands.home.live(), commands.home.replaying():
        [seen] = commands.run("status", "billing", "--output", "json").json
        shown = commands.run("status", "billing").out

    expected = {
        "name": "billing", "group": commands.group, "lag": 6, "rate": 12.5, "restarts": 2, "error": "Nobody answered.",
        "dead_letters": 3, "version": 1, "building": 2, "is_running": True, "is_replaying": True, "pid": 77,
        "state": "running, being replayed", "problem": None,
    }  # fmt: skip
    assert expected == {name: seen[name] for name in expected}
    batch = {"number": 2, "records": 10, "duration_ms": 500, "at_ms": 1_794_837_600_000, "dropped_rows": 4}
    assert batch == seen["batch"]
    assert 9 == seen["dropped_rows"]
    assert "late rows     at least 9 dropped by the watermark in the last run" in shown
    assert 0 <= seen["seconds"] < 600
    for text in ("running, being replayed in process 77", "6 records", f"3 in {dead}", "Nobody answered.", "12/s"):
        assert text in shown


def test_a_run_that_died_is_not_taken_for_one_that_continues(commands: PipelineCommands) -> None:
    remembered(commands)
    status_of(commands)

    [seen] = commands.run("status", "--output", "json").json

    assert ("died", False, 0.0, None) == (seen["state"], seen["is_running"], seen["rate"], seen["pid"])


def test_status_of_a_cluster_that_does_not_answer_still_tells_the_rest(commands: PipelineCommands) -> None:
    remembered(commands, bootstrap_servers=NOBODY)
    status_of(commands, state=RunState.STOPPED)

    [seen] = commands.run("status", "--output", "json", servers=NOBODY).json

    assert seen["lag"] is None
    assert NOBODY in seen["problem"]
    assert 40 == seen["records"]


def test_a_name_that_nobody_ran_is_said_with_the_one_that_is_meant(commands: PipelineCommands) -> None:
    remembered(commands)

    ran = commands.run("status", "biling")

    assert 2 == ran.exit_code
    assert "There is no pipeline biling" in ran.error
    assert "Did you mean billing?" in ran.error


def test_neither_list_nor_status_needs_spark(commands: PipelineCommands) -> None:
    remembered(commands)
    status_of(commands)
    program = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['deltalake'] = None\n"
        "from logmark.cli.main import run; run()"
    )
    for command in ("list", "status", "stop --help"):
        arguments = ["pipelines", *command.split(), "--home", str(commands.root)]
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        assert 0 == done.returncode, done.stderr


@pytest.mark.spark
def test_a_pipeline_runs_until_it_is_told_to_stop_and_is_seen_from_another_process(commands: PipelineCommands) -> None:
    topic = commands.broker.create_topic("clicks")
    commands.broker.produce(topic, [f"v{number}" for number in range(20)])
    conf = [f"--conf={name}={value}" for name, value in quick_java().items()]
    command = [
        LOGMARK,
        "pipelines",
        "run",
        commands.file(topic),
        "--master",
        "local[1]",
        "--home",
        str(commands.root),
        *conf,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"LOGMARK_BOOTSTRAP_SERVERS": commands.broker.bootstrap_servers},
    )

    def is_all_told() -> bool:
        """Tell if everything is committed, and the status says so: it is written a moment later."""
        if commands.broker.committed(commands.group) != {(topic, 0): 20}:
            return False
        return [20] == [one["records"] for one in commands.run("status", "--output", "json").json]

    try:
        wait_until(lambda: process.poll() is not None or is_all_told(), "all is read", deadline_s=240)
        assert process.poll() is None, process.communicate()[0]
        [seen] = json.loads(
            subprocess.run(
                [LOGMARK, "pipelines", "status", "--home", str(commands.root), "--output", "json"],
                capture_output=True, text=True, timeout=120, check=True,
            ).stdout
        )  # fmt: skip
        again = commands.run(
            "run", commands.file(topic, startingOffsets="earliest"), "--available-now", "--master", "none"
        )
        stopped = commands.run("stop", "billing")
        state = commands.run("list", "--output", "json").json[0]["state"]
        (commands.folder / "shop.py").write_text("nonsense(\n")
        broken = commands.run("reload", "billing")
        commands.file(topic)
        reloaded = commands.run("reload", "billing", "--output", "json")
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=240)[0]

    assert 0 == process.returncode, said
    assert ("running", 0, 20, process.pid) == (seen["state"], seen["lag"], seen["records"], seen["pid"])
    assert (0, "stopped by command") == (stopped.exit_code, state), stopped.error
    assert f"billing: stopped; batch 0 is done, and the next offsets are {topic}-0: 20" in stopped.out
    assert 1 == broken.exit_code
    assert "Its file cannot be loaded. Nothing was started. " in broken.error
    assert (0, "done") == (reloaded.exit_code, reloaded.json["outcome"]), reloaded.error
    assert 1 == again.exit_code
    assert f"The pipeline billing runs already, in the process {process.pid}" in again.error
    assert [f"V{number}" for number in range(20)] == read_table(commands.folder / "table").sort_by("offset")[
        "value"
    ].to_pylist()
    assert f"billing: stopped; batch 0 is done, and the next offsets are {topic}-0: 20" in said
    assert "ERROR" not in said, "what Spark says belongs to its own log"
    assert "stopped" == commands.run("list", "--output", "json").json[0]["state"]
    assert (commands.root / "spark.log").exists()
