"""The command line in this process, against our broker."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from logmark.cli.main import app
from logmark.client.client import Client
from tests.harness.brokers import BrokerUnderTest


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command wrote and how it ended."""

    exit_code: int
    out: str
    error: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def words(self) -> list[list[str]]:
        """The words of each line: a table without its spaces."""
        return [line.split() for line in self.lines]


def as_printed(document: Any) -> str:
    """A document as `--output json` prints it: its fields in the same order, byte for byte."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


Logmark = Callable[..., CommandResult]


def run(*args: str, stdin: str | bytes = "", servers: str = "") -> CommandResult:
    """Runs `logmark` with these arguments; a traceback fails the test."""
    environment = {"LOGMARK_BOOTSTRAP_SERVERS": servers} if servers else {}
    done = CliRunner().invoke(app, list(args), input=stdin, env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return CommandResult(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Collect how long the tool waits; its clock moves by nothing else, so that a busy machine changes nothing."""
    pauses: list[float] = []
    monkeypatch.setattr("time.monotonic", lambda: sum(pauses))
    monkeypatch.setattr("time.sleep", pauses.append)
    return pauses


@pytest.fixture
def logmark(our_broker: BrokerUnderTest) -> Logmark:
    """`logmark` with our broker as the default."""
    return lambda *args, stdin="": run(*args, stdin=stdin, servers=our_broker.bootstrap_servers)


@pytest.fixture
def client(our_broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(our_broker.bootstrap_servers) as client:
        yield client
