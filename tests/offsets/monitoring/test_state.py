"""What a monitor remembers comes back as it was."""

from logmark.offsets.monitoring.alerts import AlertState, Memory, Subject
from logmark.offsets.monitoring.expiry import Idle
from logmark.offsets.monitoring.state import MonitorState


def alert(subject: Subject, *, fired_ms: int | None = None) -> AlertState:
    return AlertState(
        rule="behind", subject=subject, since_ms=1, seen_ms=2, fired_ms=fired_ms, value=7.5, sentence="Ümläut \udc80",
        severity="page", notify=("ops",),
    )  # fmt: skip


def test_everything_comes_back() -> None:
    states = [alert(Subject()), alert(Subject("g"), fired_ms=5), alert(Subject("g", "t", 3))]
    state = MonitorState(
        memory=Memory(alerts={("behind", one.subject): one for one in states}, known={"g": 9}),
        idle={"g": Idle("mark", 4)},
        outbox=[("ops", {"text": "hello"})],
    )

    assert state == MonitorState.from_text(state.to_text())


def test_nothing_and_another_version_remember_nothing() -> None:
    assert MonitorState() == MonitorState.from_text(None) == MonitorState.from_text('{"version": 99}')


def test_very_many_pending_alerts_do_not_crowd_out_those_that_fire() -> None:
    pending = [alert(Subject("g", "t", number)) for number in range(20_000)]
    firing = alert(Subject("h"), fired_ms=5)
    memory = Memory(alerts={(one.rule, one.subject): one for one in [*pending, firing]})

    found = MonitorState.from_text(MonitorState(memory=memory).to_text()).memory

    assert [firing] == found.firing
    assert 10_001 == len(found.alerts)
