"""Which cluster a command means: options, the environment, the settings file; and names to complete."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logmark.cli.clusters import Origin, chosen_cluster
from logmark.client.client import Client
from tests.cli.conftest import as_printed, run
from tests.harness.brokers import BrokerUnderTest

NONE = {"bootstrap_servers": None, "command_config": None, "context": None, "read_only": False}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "logmark.toml"
    path.write_text(
        'current = "test"\n[contexts.test]\nbootstrap_servers = "test:1"\n'
        '[contexts.prod]\nbootstrap_servers = "prod:1"\nread_only = true\n'
    )
    monkeypatch.setenv("LOGMARK_CONFIG", str(path))
    return path


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        ({}, {}, ("test:1", False, Origin.SETTINGS)),
        ({}, {"LOGMARK_CONTEXT": "prod"}, ("prod:1", True, Origin.ENVIRONMENT)),
        ({}, {"LOGMARK_BOOTSTRAP_SERVERS": "env:1"}, ("env:1", False, Origin.ENVIRONMENT)),
        ({"context": "prod"}, {"LOGMARK_BOOTSTRAP_SERVERS": "env:1"}, ("prod:1", True, Origin.OPTION)),
        ({"bootstrap_servers": "own:1"}, {"LOGMARK_CONTEXT": "prod"}, ("own:1", False, Origin.OPTION)),
        ({"bootstrap_servers": "own:1", "context": "prod"}, {}, ("own:1", True, Origin.OPTION)),
        ({"read_only": True}, {}, ("test:1", True, Origin.SETTINGS)),
    ],
)
def test_options_come_before_the_environment_and_that_before_the_settings(
    settings: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], variables: dict[str, str],
    expected: tuple[str, bool, Origin],
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    found = chosen_cluster(**{**NONE, **options})

    assert expected == (found.bootstrap_servers, found.is_read_only, found.said_by)


def test_a_misspelt_context_is_an_error_with_the_one_that_was_meant(settings: Path) -> None:
    refused = run("topics", "list", "--context", "prd")

    assert 2 == refused.exit_code
    assert "Did you mean prod?" in refused.error


def test_the_contexts_are_listed_with_the_current_one_marked(settings: Path) -> None:
    assert ["*", "test", "test:1", "PLAINTEXT", "yes"] in run("contexts").words
    assert [("test", True, False), ("prod", False, True)] == [
        (one["context"], one["is_current"], one["read_only"]) for one in run("contexts", "-o", "json").json
    ]


def test_programs_get_the_contexts_as_json(settings: Path) -> None:
    expected = [
        {
            "context": name,
            "is_current": name == "test",
            "bootstrap_servers": f"{name}:1",
            "security_protocol": "PLAINTEXT",
            "read_only": name == "prod",
        }
        for name in ("test", "prod")
    ]

    assert as_printed(expected) == run("contexts", "-o", "json").out


def test_read_only_refuses_every_command_that_writes(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("clicks")
    group = broker.group("billing")
    broker.commit(group, {(topic, 0): 0})
    for command in (
        ["topics", "create", "other"],
        ["topics", "delete", topic, "--yes"],
        ["produce", topic],
        ["consume", topic, "--group", group],
        ["groups", "delete", group, "--yes"],
        ["offsets", "reset", group, "--topic", topic, "--to-latest", "--yes"],
    ):
        refused = run(*command, "--read-only", stdin="one\n", servers=broker.bootstrap_servers)

        assert (1, True) == (refused.exit_code, "Nothing was changed" in refused.error), command
    with Client(broker.bootstrap_servers) as client:
        assert topic in client.metadata([topic]).topics
        assert 0 == broker.end_offset(topic)
        assert [0] == [one.offset for one in client.committed(group).values()]


def test_the_shell_completes_groups_and_topics_of_the_live_cluster(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("clicks")
    group = our_broker.group("billing")
    our_broker.commit(group, {(topic, 0): 0})

    def completions(words: str) -> list[str]:
        environment = {
            **os.environ, "_LOGMARK_COMPLETE": "complete_bash", "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1), "LOGMARK_BOOTSTRAP_SERVERS": our_broker.bootstrap_servers,
        }  # fmt: skip
        done = subprocess.run(
            [Path(sys.executable).with_name("logmark")], env=environment, capture_output=True, text=True, timeout=60
        )
        return done.stdout.split()

    assert [group] == completions(f"logmark groups describe {group[:-2]}")
    assert [topic] == completions(f"logmark topics describe {topic[:-2]}")
