"""`logmark pipelines dead-letters`, and the topics that a run creates, on both brokers, without Spark."""

from pathlib import Path

import pytest

from logmark.cli.pipelines import topics
from logmark.client.client import Client
from logmark.spark.pipelines.declaration import Topic
from logmark.spark.pipelines.home import Home, PipelineRecord
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.pipeline import Pipeline
from logmark.spark.pipelines.query import Brokers
from tests.cli.conftest import run
from tests.cli.test_replay_dead_letters import write_dead_letters
from tests.harness.brokers import BrokerUnderTest


def test_the_newest_dead_letters_of_a_pipeline_are_listed_and_all_are_counted(
    broker: BrokerUnderTest, tmp_path: Path
) -> None:
    dead = broker.create_topic("dead", 1, {"retention.ms": "-1"})
    write_dead_letters(broker, dead, "clicks", range(3))
    write_dead_letters(broker, dead, "clicks", range(90, 190), pipeline="fraud")
    write_dead_letters(broker, dead, "clicks", range(2))
    Home(tmp_path, "billing").save(PipelineRecord(bootstrap_servers=broker.bootstrap_servers, dead_letters=dead))
    here = ["--home", str(tmp_path)]

    shown = run("pipelines", "dead-letters", "billing", "--limit", "3", *here)
    as_json = run("pipelines", "dead-letters", "billing", "--limit", "3", "--output", "json", *here).json
    tally = run("pipelines", "dead-letters", "billing", "--tally", *here)
    other = run("pipelines", "dead-letters", "fraud", "--topic", dead, "--limit", "1", servers=broker.bootstrap_servers)

    assert ["WRITTEN", "RECORD", "ATTEMPTS", "BYTES", "ERROR"] == shown.words[0]
    assert [["clicks-1", "offset", str(offset), "1", "2", "bad"] for offset in (1, 0, 2)] == [
        words[1:] for words in shown.words[1:]
    ]
    assert ["v1", "v0", "v2"] == [one["value"] for one in as_json]
    assert {"topic": dead, "partition": 0, "offset": 104} == as_json[0]["letter"]
    assert ('["clicks",1,1]', "k1", 1_700_000_000_001) == tuple(
        as_json[0][name] for name in ("origin", "key", "timestamp_ms")
    )
    assert f"5 dead letters in {dead}, about 3 records of billing." == tally.lines[0]
    assert ["3", "bad"] == tally.words[-1]
    assert ["clicks-1", "offset", "189"] == other.words[1][1:4]


def test_a_pipeline_without_dead_letters_is_an_error(our_broker: BrokerUnderTest, tmp_path: Path) -> None:
    dead = our_broker.create_topic("dead")
    for name, topic in (("none", None), ("gone", "no-such-topic"), ("empty", dead)):
        Home(tmp_path, name).save(PipelineRecord(bootstrap_servers=our_broker.bootstrap_servers, dead_letters=topic))

    said = {
        name: run("pipelines", "dead-letters", name, "--home", str(tmp_path)) for name in ("none", "gone", "empty", "?")
    }

    assert [1, 1, 3, 2] == [one.exit_code for one in said.values()]
    assert 'Add dead_letters="none.dead" to it' in said["none"].error
    assert "So there are no dead letters to look at." in said["gone"].error
    assert f"There are no dead letters of empty in {dead}." in said["empty"].error


def test_the_topics_that_pipelines_write_to_are_created_and_said(
    broker: BrokerUnderTest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alerts, dead = broker.unique("alerts"), broker.unique("dead")
    job = Job(
        pipeline=Pipeline(
            name="fraud", topics="clicks", transform=lambda rows: rows, sink=Topic(alerts), dead_letters=dead
        ),
        brokers=Brokers(bootstrap_servers=broker.bootstrap_servers),
        home=Home(tmp_path, "fraud"),
    )

    with Client(broker.bootstrap_servers) as client:
        for _ in range(2):
            topics.create_topics([job], {broker.bootstrap_servers: client})
        assert {alerts, dead} <= set(client.metadata().topics)

    assert [
        f"Created topic {dead} for the dead letters of fraud.",
        f"Created topic {alerts} for the rows of fraud.",
    ] == [line.removeprefix("logmark: ") for line in capsys.readouterr().err.splitlines()]
