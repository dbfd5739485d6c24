"""What a monitor remembers comes back as it was."""

from logmark.offsets.monitor.alerts import AlertMemory, AlertState, AlertSubject
from logmark.offsets.monitor.retention import IdleGroup
from logmark.offsets.monitor.state import MonitorState


def alert(subject: AlertSubject, *, fired_ms: int | None = None) -> AlertState:
    return AlertState(
        rule="behind", subject=subject, since_ms=1, seen_ms=2, fired_ms=fired_ms, value=7.5, sentence="Ümläut \udc80",
        severity="page", notify=("ops",),
    )  # fmt: skip


def test_everything_comes_back() -> None:
    states = [alert(AlertSubject()), alert(AlertSubject("g"), fired_ms=5), alert(AlertSubject("g", "t", 3))]
    state = MonitorState(
        memory=AlertMemory(alerts={("behind", one.subject): one for one in states}, known={"g": 9}),
        idle={"g": IdleGroup("mark", 4)},
        outbox=[("ops", {"text": "hello"})],
    )

    assert state == MonitorState.from_text(state.to_text())


def test_nothing_and_another_version_remember_nothing() -> None:
    assert MonitorState() == MonitorState.from_text(None) == MonitorState.from_text('{"version": 99}')


def test_very_many_pending_alerts_do_not_crowd_out_those_that_fire() -> None:
    pending = [alert(AlertSubject("g", "t", number)) for number in range(20_000)]
    firing = alert(AlertSubject("h"), fired_ms=5)
    memory = AlertMemory(alerts={(one.rule, one.subject): one for one in [*pending, firing]})

    found = MonitorState.from_text(MonitorState(memory=memory).to_text()).memory

    assert [firing] == found.firing
    assert 10_001 == len(found.alerts)
