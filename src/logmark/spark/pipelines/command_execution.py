"""Carries out commands to one pipeline of a run, one after another, as far as its state allows."""

from enum import StrEnum
from typing import Protocol

from logmark.clock import Clock
from logmark.errors import UserError
from logmark.spark.pipelines.commands import Action, Command, CommandInbox, Outcome
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.status import RunState

# A query whose first batch takes longer counts as started.
_STARTED_AFTER_MS = 60_000
_BUSY = {
    RunState.REBUILDING: "its lost checkpoint is being rebuilt",
    RunState.EXAMINING: "the record on which it failed is being looked for",
    RunState.SUPERSEDED: "another query has its group, and a replay may be about to swap its version in",
    RunState.STOPPING: "it is being stopped",
}


class Supervised(Protocol):
    """A pipeline of a run, as far as commands go."""

    job: Job
    last_message: str

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> RunState: ...

    @property
    def has_reported(self) -> bool: ...

    def request_stop(self) -> None: ...

    def begin(self, *, job: Job | None = None, takeover: bool = False) -> None: ...


class Phase(StrEnum):
    """How far a command is."""

    STOPPING = "stopping"
    STARTING = "starting"


class CommandExecution:
    """The command that a pipeline carries out now, if any."""

    def __init__(self, home: Home, clock: Clock) -> None:
        self._inbox = CommandInbox(home)
        self._clock = clock
        self._command: Command | None = None
        self._phase = Phase.STOPPING
        self._job: Job | None = None
        self._begun_ms = 0

    def poll(self, supervisor: Supervised) -> None:
        """Take up a command, or take the next step of the one under way."""
        if self._command is None:
            self._command = self._inbox.receive()
            if self._command is None:
                return
            try:
                done = self._begin(supervisor, self._command)
            except UserError as error:
                self._answer(Outcome.REFUSED, f"{supervisor.name}: {error}")
                return
            if done:
                self._answer(Outcome.DONE, done)
                return
        if self._phase is Phase.STOPPING:
            self._stop(supervisor, self._command)
        else:
            self._watch_start(supervisor)

    def close(self, supervisor: Supervised) -> None:
        """Answer the command under way, because the run ends, and take no more."""
        if self._command is not None:
            is_done = self._command.action is Action.STOP and supervisor.state.is_over
            self._answer(Outcome.DONE if is_done else Outcome.FAILED, f"{supervisor.last_message} The run ended.")
        self._inbox.close()

    def _begin(self, supervisor: Supervised, command: Command) -> str:
        """Begin a command; return what to answer if there is nothing to do. Raises UserError if it is not possible."""
        state = supervisor.state
        if state in _BUSY:
            raise UserError(f"{_BUSY[state]}, so it can not be told to {command.action} now. Nothing was changed.")
        if command.action is Action.START and state is RunState.RUNNING:
            return f"{supervisor.name} runs already. Nothing was changed."
        if command.action is Action.STOP and (state.is_over or state is RunState.HALTED):
            return f"{supervisor.name} does not run ({state}). Nothing was changed."
        self._job = self._reload(supervisor) if command.action is Action.RELOAD else None
        self._phase = Phase.STOPPING
        if command.action is not Action.START and not (state.is_over or state is RunState.HALTED):
            supervisor.request_stop()
        elif command.action is not Action.STOP:
            self._start(supervisor, command)
        return ""

    def _reload(self, supervisor: Supervised) -> Job:
        if supervisor.job.file is None:
            raise UserError("It is declared in no file that could be loaded again. Nothing was changed.")
        try:
            return supervisor.job.reload()
        except UserError as error:
            runs = "The query runs on as it was" if supervisor.state is RunState.RUNNING else "Nothing was started"
            raise UserError(f"Its file cannot be loaded. {runs}. {error}") from None

    def _stop(self, supervisor: Supervised, command: Command) -> None:
        if not (supervisor.state.is_over or supervisor.state is RunState.HALTED):
            return
        if command.action is Action.STOP:
            self._answer(Outcome.DONE, supervisor.last_message)
        else:
            self._start(supervisor, command)

    def _start(self, supervisor: Supervised, command: Command) -> None:
        self._phase, self._begun_ms = Phase.STARTING, self._clock.monotonic_ms()
        supervisor.begin(job=self._job, takeover=command.takeover)

    def _watch_start(self, supervisor: Supervised) -> None:
        state = supervisor.state
        is_slow = self._clock.monotonic_ms() - self._begun_ms >= _STARTED_AFTER_MS
        if state is RunState.RUNNING and (supervisor.has_reported or is_slow):
            self._answer(Outcome.DONE, supervisor.last_message)
        elif state in (RunState.REBUILDING, RunState.DONE):
            self._answer(Outcome.DONE, f"{supervisor.name}: {state}")
        elif state in (RunState.FAILED, RunState.RESTARTING, RunState.STOPPED, RunState.HALTED):
            self._answer(Outcome.FAILED, supervisor.last_message)

    def _answer(self, outcome: Outcome, message: str) -> None:
        assert self._command is not None
        self._inbox.answer(self._command, outcome, message)
        self._command = None
