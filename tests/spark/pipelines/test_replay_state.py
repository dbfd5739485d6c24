"""The state of a replay: one step, one table of transitions, and a file that survives a crash."""

import json
import re
from pathlib import Path

import pytest

from logmark.client.answers import Committed
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.errors import Superseded
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.replay.state import (
    RESUME_AT,
    TRANSITIONS,
    ReplayKind,
    ReplayState,
    ReplayStep,
    check_live_may_run,
    delete_state,
    load_state,
    save_state,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "pipeline-replays.md"
CLICKS_0 = TopicPartition("clicks", 0)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, "billing")


def test_the_documented_steps_are_those_of_the_code_in_the_same_order() -> None:
    rows = re.findall(r"^\| \d+ \| `([a-z-]+)` \|", DOCUMENT.read_text(), re.MULTILINE)

    assert [step.value for step in ReplayStep] == rows


def test_the_documented_steps_of_a_backfill_are_those_of_the_table_of_transitions() -> None:
    [line] = re.findall(r"^A backfill has only the steps (.+)\.$", DOCUMENT.read_text(), re.MULTILINE)

    assert [step.value for step in TRANSITIONS[ReplayKind.BACKFILL]] == re.findall(r"`([a-z-]+)`", line)


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_a_replay_goes_from_each_step_to_the_next_one_of_its_kind_and_nowhere_else(kind: ReplayKind) -> None:
    steps = TRANSITIONS[kind]
    for at, step in enumerate(steps):
        state = ReplayState(version=2, kind=kind, step=step)
        allowed = steps[at + 1 : at + 2]
        for other in ReplayStep:
            if other in allowed:
                assert other is state.advance(other).step
            else:
                with pytest.raises(ValueError, match=re.escape(step)):
                    state.advance(other)


def test_a_resumed_replay_never_enters_after_the_saved_step_and_never_before_what_it_has_prepared() -> None:
    order = list(ReplayStep)
    for step in ReplayStep:
        resumed = ReplayState(version=2, kind=ReplayKind.SWAP, step=step).resume()
        assert order.index(resumed.step) <= order.index(step)
        assert resumed.has_reached(ReplayStep.PREPARED) == (step is not ReplayStep.PLANNED)
        assert resumed.is_irrevocable == (order.index(step) >= order.index(ReplayStep.PUBLISHING))
    assert set(RESUME_AT.values()) <= set(ReplayStep)


@pytest.mark.parametrize("step", ReplayStep)
def test_a_state_is_read_as_it_was_written(home: Home, step: ReplayStep) -> None:
    state = ReplayState(
        version=3,
        kind=ReplayKind.ROLLBACK,
        step=step,
        starts={CLICKS_0: 5},
        stops={CLICKS_0: 9},
        keep_old=False,
        keep_side_topic=True,
        missing_id="skip",
        replaced=2,
        group_before={CLICKS_0: Committed(offset=7, metadata="by somebody")},
    )
    save_state(home, state)
    assert state == load_state(home)

    delete_state(home)
    assert None is load_state(home)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2}', '{"format": 2, "kind": "swap", "step": "flying"}', '{"number": 2}']
)
def test_a_state_that_cannot_be_read_is_not_guessed(home: Home, text: str) -> None:
    save_state(home, ReplayState(version=2, kind=ReplayKind.SWAP))
    (home.folder / "replay.json").write_text(text)

    with pytest.raises(UserError, match=r"the step of the replay is unknown\. Nothing was changed"):
        load_state(home)


def test_a_state_of_a_newer_logmark_is_left_alone(home: Home) -> None:
    save_state(home, ReplayState(version=2, kind=ReplayKind.SWAP))
    path = home.folder / "replay.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3}))

    with pytest.raises(UserError, match="written by a newer Logmark"):
        load_state(home)


def test_the_old_version_must_not_run_from_the_moment_on_in_which_the_new_one_is_published(home: Home) -> None:
    order = list(ReplayStep)
    for kind in TRANSITIONS:
        for step in TRANSITIONS[kind]:
            save_state(home, ReplayState(version=2, kind=kind, step=step))
            if kind is ReplayKind.BACKFILL or order.index(step) < order.index(ReplayStep.PUBLISHING):
                check_live_may_run(home)
            else:
                with pytest.raises(Superseded, match="must not run any more"):
                    check_live_may_run(home)
