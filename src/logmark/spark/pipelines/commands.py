"""Commands to one pipeline of a running `logmark pipelines run`, another process: files in the pipeline's home.

    <root>/<name>/run.lock       held by the process that runs the pipeline, also while the pipeline is stopped
    <root>/<name>/command.lock   held by the process that sent the command and waits for its answer
    <root>/<name>/command.json   the command
    <root>/<name>/answer.json    the answer to it

A command counts while its sender waits: what a killed sender left behind is never carried out. Both files are replaced
as a whole, and an answer names its command.
"""

import contextlib
import json
import time
import uuid
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from logmark.errors import UserError
from logmark.spark.errors import NotSupervised
from logmark.spark.pipelines.home import Home, write_file

_POLL_EVERY_S = 0.1
_COMMAND_FILE, _ANSWER_FILE = "command.json", "answer.json"


class Action(StrEnum):
    """What a pipeline is to do."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RELOAD = "reload"


class Outcome(StrEnum):
    """What became of a command."""

    DONE = "done"
    REFUSED = "refused"  # nothing was changed
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to one pipeline; with `takeover` its query may take the group from another one."""

    id: str
    action: Action
    takeover: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a command."""

    id: str
    outcome: Outcome
    message: str


def send_command(home: Home, action: Action, *, takeover: bool = False) -> Answer:
    """Send a command to the process that runs the pipeline, wait until it is carried out, and return the answer.

    Raises NotSupervised if no process would take it, UserError if another command is under way.
    """
    command = Command(id=uuid.uuid4().hex, action=action, takeover=takeover)
    with home.commanding():
        _check_supervised(home)
        write_file(home.folder / _COMMAND_FILE, json.dumps(asdict(command)) + "\n")
        try:
            while (answer := read_answer(home)) is None or answer.id != command.id:
                if not home.is_supervised():
                    raise UserError(
                        f"The run of {home.name} ended before it had answered. `logmark pipelines status {home.name}` "
                        "shows what was done."
                    )
                time.sleep(_POLL_EVERY_S)
        finally:
            (home.folder / _COMMAND_FILE).unlink(missing_ok=True)
    return answer


def _check_supervised(home: Home) -> None:
    if home.is_supervised():
        return
    file = home.record().file
    if home.is_live():
        raise UserError(
            f"{home.name} runs in a process that takes no commands, such as a notebook. Nothing was changed. Stop or "
            "start its query there."
        )
    where = f"It is declared in {file}." if file else "It was declared in no file, as in a notebook."
    raise NotSupervised(f"No `logmark pipelines run` has the pipeline {home.name} now. Nothing was changed. {where}")


def read_answer(home: Home) -> Answer | None:
    """Return the last answer, None if there is none."""
    fields = _read(home.folder / _ANSWER_FILE)
    with contextlib.suppress(TypeError, ValueError, KeyError):
        return None if fields is None else Answer(**{**fields, "outcome": Outcome(fields["outcome"])})
    return None


class CommandInbox:
    """The side of the process that runs the pipeline."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._answered: str | None = None
        self._lock = contextlib.ExitStack()
        self._has_lock = False

    def receive(self) -> Command | None:
        """Return a command that was not answered yet and whose sender waits; None if there is none."""
        if not self._open():
            return None
        fields = _read(self._home.folder / _COMMAND_FILE)
        command = None
        with contextlib.suppress(TypeError, ValueError, KeyError):
            command = None if fields is None else Command(**{**fields, "action": Action(fields["action"])})
        if command is None or command.id == self._answered or not self._home.is_commanded():
            return None
        return command

    def answer(self, command: Command, outcome: Outcome, message: str) -> None:
        """Answer a command; it is not received again."""
        self._answered = command.id
        text = json.dumps(asdict(Answer(id=command.id, outcome=outcome, message=message)))
        write_file(self._home.folder / _ANSWER_FILE, text + "\n")

    def close(self) -> None:
        """Take no more commands."""
        self._lock.close()
        self._has_lock = False

    def _open(self) -> bool:
        """Return whether this process has the lock of those who take commands; another run may have it still."""
        if not self._has_lock and not self._home.is_supervised():
            with contextlib.suppress(UserError):
                self._lock.enter_context(self._home.supervising())
                self._has_lock = True
        return self._has_lock


def _read(path: Path) -> dict[str, Any] | None:
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return fields if isinstance(fields, dict) else None
