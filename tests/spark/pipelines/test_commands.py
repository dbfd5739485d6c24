"""Commands to one pipeline of a run, with queries that are only played: sent by another hand, carried out, answered."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.spark.errors import NotSupervised
from logmark.spark.pipelines.commands import Action, Answer, Outcome, send_command
from logmark.spark.pipelines.status import RunState, read_status
from logmark.spark.pipelines.supervisor import STOP_PATIENCE_MS, Supervisor
from tests.harness.node import wait_until
from tests.spark.pipelines.test_failures import A_DEAD_WORKER
from tests.spark.pipelines.test_status import report
from tests.spark.pipelines.test_supervisor import NO_TOPIC, TAKEN_OVER, SupervisorDriver

FILE = """
from logmark.spark import Pipeline, Table
billing = Pipeline(name="billing", topics="clicks", transform=lambda frame: frame, sink=Table("table"){more})
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SupervisorDriver:
    return SupervisorDriver(tmp_path, monkeypatch)


class Sender:
    """A command that waits for its answer, as one of another process does."""

    def __init__(self, driver: SupervisorDriver, action: Action, *, takeover: bool = False) -> None:
        self.answer: Answer | None = None
        self.error: UserError | None = None
        self._driver = driver
        self._action = action
        self._takeover = takeover
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        try:
            self.answer = send_command(self._driver.home, self._action, takeover=self._takeover)
        except UserError as error:
            self.error = error

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def has_sent(self) -> bool:
        return (self._driver.home.folder / "command.json").exists() and self._driver.home.is_commanded()


def order(driver: SupervisorDriver, supervisor: Supervisor, action: Action, *, takeover: bool = False) -> Answer:
    """The answer to a command; each poll finds a query that runs, and that has asked its source."""
    sender = Sender(driver, action, takeover=takeover)

    def poll() -> bool:
        supervisor.poll()
        query = driver.queries[-1] if driver.queries else None
        if query is not None and query.isActive and not query.reports:
            query.reports.append(report(0, 0, 5))
        return sender.is_done()

    wait_until(poll, f"{action} is answered")
    assert sender.answer is not None, sender.error
    return sender.answer


def run(driver: SupervisorDriver, *, available_now: bool = False) -> Supervisor:
    supervisor = driver.supervisor(available_now=available_now)
    supervisor.poll()
    return supervisor


def test_a_pipeline_is_stopped_between_two_batches_and_started_again_while_its_run_goes_on(
    driver: SupervisorDriver,
) -> None:
    supervisor = run(driver)
    driver.checkpoint(planned=3, finished=3)

    stopped = order(driver, supervisor, Action.STOP)

    assert (Outcome.DONE, "billing: stopped; batch 2 is done, and the next offsets are clicks-0: 30") == (
        stopped.outcome, stopped.message,
    )  # fmt: skip
    assert (False, False, [1]) == (driver.queries[0].isActive, driver.home.is_live(), driver.committed)
    status = read_status(driver.home.status_file)
    assert status is not None and (RunState.HALTED, False) == (status.state, status.state.is_over)
    supervisor.poll()
    assert 1 == len(driver.queries), "it stays stopped"

    started = order(driver, supervisor, Action.START)
    assert (Outcome.DONE, "billing: version 1 runs as group billing") == (started.outcome, started.message)
    assert (RunState.RUNNING, True, 2) == (supervisor.state, driver.home.is_live(), len(driver.queries))


def test_a_batch_under_way_is_waited_for_and_interrupted_after_a_minute(driver: SupervisorDriver) -> None:
    supervisor = run(driver)
    driver.checkpoint(planned=3, finished=2)
    sender = Sender(driver, Action.STOP)
    wait_until(sender.has_sent, "the command is sent")
    for _ in range(3):
        supervisor.poll()
        assert (RunState.STOPPING, True) == (supervisor.state, driver.queries[0].isActive)

    driver.clock.advance(seconds=STOP_PATIENCE_MS / 1000)
    supervisor.poll()
    supervisor.poll()

    wait_until(sender.is_done, "it is answered")
    assert sender.answer is not None and Outcome.DONE is sender.answer.outcome
    assert RunState.HALTED is supervisor.state


def test_a_pipeline_that_ended_is_started_again_inside_its_run(driver: SupervisorDriver) -> None:
    supervisor = run(driver)
    driver.queries[0].fail(NO_TOPIC)
    supervisor.poll()
    assert RunState.FAILED is supervisor.state

    assert Outcome.DONE is order(driver, supervisor, Action.START).outcome
    assert (RunState.RUNNING, None) == (supervisor.state, supervisor.status.error)


def test_a_start_that_fails_is_answered_with_its_error(driver: SupervisorDriver) -> None:
    supervisor = run(driver)
    order(driver, supervisor, Action.STOP)
    driver.refusals.append(UserError("There is no topic clicks."))

    answer = order(driver, supervisor, Action.START)

    assert (Outcome.FAILED, "billing: There is no topic clicks.") == (answer.outcome, answer.message)


def test_a_pipeline_that_lost_its_group_takes_it_back_by_one_command(
    driver: SupervisorDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = run(driver)
    for _ in range(2):
        driver.queries[-1].fail(TAKEN_OVER)
        supervisor.poll()
        supervisor.poll()
    assert RunState.FAILED is supervisor.state

    assert Outcome.DONE is order(driver, supervisor, Action.START, takeover=True).outcome
    assert [None, None, "true"] == [one.get("takeover") for one in driver.options]
    supervisor.poll()
    driver.queries[-1].fail(A_DEAD_WORKER)
    supervisor.poll()
    driver.clock.advance(seconds=2)
    supervisor.poll()
    assert None is driver.options[-1].get("takeover"), "once it has the group it does not fight for it"


def test_a_restart_stops_and_starts_whatever_it_is_doing(driver: SupervisorDriver) -> None:
    supervisor = run(driver)
    assert Outcome.DONE is order(driver, supervisor, Action.RESTART).outcome
    assert [False, True] == [one.isActive for one in driver.queries]

    driver.queries[-1].fail(A_DEAD_WORKER)
    supervisor.poll()
    assert RunState.RESTARTING is supervisor.state, "it would wait a second"
    assert Outcome.DONE is order(driver, supervisor, Action.RESTART).outcome
    assert (RunState.RUNNING, 3) == (supervisor.state, len(driver.queries))


def test_a_changed_file_is_loaded_and_a_broken_one_leaves_the_query_running(
    driver: SupervisorDriver, tmp_path: Path
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(FILE.format(more=""))
    driver.job = replace(driver.job, file=str(file))
    supervisor = run(driver)

    file.write_text(FILE.format(more=', every="5 seconds"'))
    assert Outcome.DONE is order(driver, supervisor, Action.RELOAD).outcome
    assert ("5 seconds", [False, True]) == (supervisor.job.pipeline.every, [one.isActive for one in driver.queries])

    file.write_text(FILE.format(more=', every="5 seconds"') + "\nbilling.nonsense(\n")
    refused = order(driver, supervisor, Action.RELOAD)
    assert Outcome.REFUSED is refused.outcome
    assert "Its file cannot be loaded. The query runs on as it was." in refused.message
    assert "shop.py, line " in refused.message
    assert [False, True] == [one.isActive for one in driver.queries]

    assert Outcome.DONE is order(driver, supervisor, Action.RESTART).outcome, "with what was loaded last"


def test_a_pipeline_without_a_file_cannot_be_loaded_again(driver: SupervisorDriver) -> None:
    answer = order(driver, run(driver), Action.RELOAD)

    assert (Outcome.REFUSED, True) == (answer.outcome, "declared in no file" in answer.message)


def test_what_needs_nothing_to_be_done_is_said(driver: SupervisorDriver) -> None:
    supervisor = run(driver)
    assert "runs already. Nothing was changed." in order(driver, supervisor, Action.START).message
    order(driver, supervisor, Action.STOP)
    assert "does not run (stopped by command)" in order(driver, supervisor, Action.STOP).message
    assert 1 == len(driver.queries)


def test_a_stop_during_a_run_that_is_to_end_ends_the_pipeline(driver: SupervisorDriver) -> None:
    supervisor = run(driver, available_now=True)

    assert Outcome.DONE is order(driver, supervisor, Action.STOP).outcome
    assert (RunState.STOPPED, True) == (supervisor.state, supervisor.state.is_over)


def test_a_command_whose_sender_is_gone_is_never_carried_out(driver: SupervisorDriver) -> None:
    supervisor = run(driver)
    left = {"id": "killed", "action": "stop", "takeover": False}
    (driver.home.folder / "command.json").write_text(json.dumps(left))
    supervisor.poll()
    assert RunState.RUNNING is supervisor.state

    (driver.home.folder / "command.json").write_text("{")
    with driver.home.commanding():
        supervisor.poll()
        (driver.home.folder / "command.json").write_text(json.dumps({**left, "action": "dance"}))
        supervisor.poll()
    assert RunState.RUNNING is supervisor.state


def test_two_commands_at_once_are_one_too_many(driver: SupervisorDriver) -> None:
    supervisor = run(driver)

    with driver.home.commanding(), pytest.raises(UserError, match="Another command to the pipeline billing is under"):
        send_command(driver.home, Action.STOP)
    supervisor.stop()


def test_without_a_run_a_command_says_how_the_pipeline_is_started(driver: SupervisorDriver) -> None:
    driver.job = replace(driver.job, file="/srv/billing.py")
    run(driver).stop()

    with pytest.raises(NotSupervised, match=r"has the pipeline billing now.* It is declared in /srv/billing\.py"):
        send_command(driver.home, Action.START)
    with driver.home.live(), pytest.raises(UserError, match="such as a notebook"):
        send_command(driver.home, Action.STOP)


def test_a_run_that_ends_answers_the_command_under_way(driver: SupervisorDriver) -> None:
    supervisor = run(driver)
    driver.checkpoint(planned=3, finished=2)
    sender = Sender(driver, Action.RESTART)
    wait_until(sender.has_sent, "the command is sent")
    supervisor.poll()
    supervisor.stop()

    wait_until(sender.is_done, "it is answered")
    assert sender.answer is not None and Outcome.FAILED is sender.answer.outcome
    assert sender.answer.message.endswith("The run ended.")


def test_every_state_that_is_over_can_be_started_again_and_every_other_can_end() -> None:
    for state in RunState:
        assert state.can_become(RunState.STARTING) if state.is_over else state.can_become(RunState.STOPPED)
    for state in (RunState.DONE, RunState.FAILED, RunState.STOPPED, RunState.HALTED):
        assert not state.can_become(RunState.RUNNING), "it takes the live lock first"
