"""Watches a cluster: one sample after the other, its metrics to be served, its alerts to be sent.

The loop never ends because a cluster is away. It says so once, tries again after growing pauses, and meanwhile serves
nothing that could pass for a fresh number.
"""

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from logmark.client.errors import ClientError
from logmark.clock import Clock
from logmark.errors import Malformed
from logmark.offsets.monitor.alert_file import AlertFile
from logmark.offsets.monitor.alerts import AlertEvent, AlertMemory, AlertRule, evaluate_rules
from logmark.offsets.monitor.cluster_sampler import ClusterSampler, SampleResult
from logmark.offsets.monitor.exporters import LagExporter
from logmark.offsets.monitor.metrics import (
    FAMILIES,
    KAFKA_EXPORTER,
    KAFKA_LAG_EXPORTER,
    Health,
    Served,
    problems_of,
    served_families,
)
from logmark.offsets.monitor.notifications import Message, NotificationDispatcher, build_message
from logmark.offsets.monitor.prometheus_text import format_metrics
from logmark.offsets.monitor.readings import Reading
from logmark.offsets.monitor.state import MonitorState
from logmark.offsets.times import format_duration

_STATE_KEY = "monitor"
_BACKOFF_MAX_S = 60.0
# A sample may be late by so many intervals before it counts as old.
_LATE_INTERVALS = 3
# One look may wait for several brokers that do not answer; after this nobody believes in it any more.
_LOOK_MAX_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """How often, what is served, and what is watched for; without a file, alerts of an earlier one stay as they are."""

    interval_s: float = 10.0
    families: Collection[str] = FAMILIES
    alerts: AlertFile | None = None
    cluster_name: str = ""
    gap_ms_max: float | None = None


class Monitor:
    """One cluster under watch. One thread takes the steps; any number may ask for metrics meanwhile."""

    def __init__(
        self,
        lookout: ClusterSampler,
        post: NotificationDispatcher,
        *,
        settings: MonitorSettings,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._lookout = lookout
        self._post = post
        self._settings = settings
        self._clock = clock
        self._say = say
        self._lag_exporter = LagExporter()
        self._memory = AlertMemory()
        self._written = ""
        self._is_kept = True
        self._failures_in_a_row = 0
        self._down_since_ms: int | None = None
        self._began_ms = clock.now_ms()
        self._health = Health(is_up=False)
        self._served = Served(health=self._health)
        self.status = "no sample yet"

    def begin(self) -> None:
        """Connect, open the history and load the firing alerts; raises if the cluster cannot be reached."""
        state = MonitorState.from_text(self._lookout.open().get_value(_STATE_KEY))
        self._memory = state.memory
        self._lookout.idle = state.idle
        for name, message in state.outbox:
            self._post.resend(name, message)

    def run(
        self,
        stop: threading.Event,
        *,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        after: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a step in every interval until stopped.

        `around` wraps each sample, `after` is called after each step.
        """
        while not stop.is_set():
            began = monotonic()
            self.step(around)
            after()
            stop.wait(self.pause_s(monotonic() - began))

    def pause_s(self, took_s: float) -> float:
        """How long to wait after a step that took so long: until the next one is due, longer after failures."""
        interval = self._settings.interval_s
        if self._failures_in_a_row:
            return min(interval * 2.0 ** min(self._failures_in_a_row - 1, 20), max(_BACKOFF_MAX_S, interval))
        # A cluster too large for its interval is not asked without a pause.
        return max(interval - took_s, interval / 10)

    def step(self, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> bool:
        """Take a sample and act on it; return whether the cluster answered."""
        self._began_ms = self._clock.now_ms()
        try:
            with around():
                look = self._lookout.look()
        except (ClientError, Malformed, sqlite3.Error) as error:
            self._failed(str(error))
            return False
        self._succeeded(look)
        return True

    @property
    def firing(self) -> int:
        """How many alerts are firing, of those that are watched for."""
        return len(self._memory.firing) if self._rules else 0

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Send what can still be sent in time, and store the rest for the next start."""
        self._post.close(timeout_s)
        self._remember([])
        self._lookout.close()

    def metrics(self) -> Iterator[str]:
        """Yield the text of all metrics as of now."""
        served = self._served
        last_ms = served.health.last_success_ms
        late_ms = _LATE_INTERVALS * self._settings.interval_s * 1000 + served.health.took_ms
        if served.reading is not None and last_ms is not None and self._clock.now_ms() - last_ms > late_ms:
            served = Served(health=replace(served.health, is_up=False))
        return format_metrics(served_families(served, self._settings.families))

    def health(self) -> tuple[bool, str]:
        """Whether the monitor works, which does not take a cluster that answers, and a line about it."""
        since_ms = self._clock.now_ms() - self._began_ms
        if since_ms > (_LOOK_MAX_S + max(self._settings.interval_s, _BACKOFF_MAX_S)) * 1000:
            return False, f"stuck: the last sample was begun {format_duration(since_ms)} ago"
        health = self._served.health
        return True, "ok" if health.is_up else "ok, but the cluster does not answer"

    def _failed(self, reason: str) -> None:
        now_ms = self._clock.now_ms()
        self._failures_in_a_row += 1
        if self._down_since_ms is None:
            self._down_since_ms = now_ms
            self._say(f"{reason} Trying again; until then logmark_up is 0 and no old number is served.")
        self._alert(None, now_ms, failure=reason)
        self._health = replace(
            self._health, is_up=False, samples=self._health.samples + 1, failures=self._health.failures + 1
        )
        self.status = f"the cluster has not answered for {format_duration(now_ms - self._down_since_ms)}"
        self._publish(None)

    def _succeeded(self, look: SampleResult) -> None:
        now_ms = self._clock.now_ms()
        self._failures_in_a_row = 0
        if self._down_since_ms is not None:
            self._say(f"The cluster answers again after {format_duration(now_ms - self._down_since_ms)}.")
            self._down_since_ms = None
        self._alert(look.reading, look.reading.at_ms)
        self._health = replace(
            self._health,
            is_up=True,
            samples=self._health.samples + 1,
            last_success_ms=look.sample.at_ms,
            took_ms=look.took_ms,
            requests=look.requests,
            problems=problems_of(look.reading) + len(look.sample.notes),
        )
        self.status = self._summary(look)
        self._publish(look)

    def _alert(self, reading: Reading | None, now_ms: int, *, failure: str = "") -> None:
        alerts = self._settings.alerts
        if alerts is None:
            return
        self._memory, events = evaluate_rules(
            alerts.rules,
            self._memory,
            reading,
            now_ms=now_ms,
            failure=failure,
            gap_ms_max=self._gap_ms_max,
            quiet_ms=alerts.quiet_after_reset_ms,
        )
        self._send(events)

    @property
    def _rules(self) -> Sequence[AlertRule]:
        return self._settings.alerts.rules if self._settings.alerts else ()

    @property
    def _gap_ms_max(self) -> float:
        given = self._settings.gap_ms_max
        return _LATE_INTERVALS * (self._settings.interval_s + _BACKOFF_MAX_S) * 1000 if given is None else given

    def _send(self, events: Sequence[AlertEvent]) -> None:
        """Store the messages before they are sent, so that a crash in between loses none."""
        rules = {rule.name: rule for rule in self._rules}
        messages = [
            (
                event.state.notify,
                build_message(
                    event,
                    rules.get(event.state.rule),
                    cluster_id=self._lookout.cluster_id,
                    cluster_name=self._settings.cluster_name or self._lookout.cluster_id,
                ),
            )
            for event in events
        ]
        self._remember([(name, message) for names, message in messages for name in names or ("stdout",)])
        for names, message in messages:
            self._post.send(names, message)

    def _remember(self, outbox: Sequence[tuple[str, Message]]) -> None:
        history = self._lookout.history
        if history is None:
            return
        waiting = [*self._post.waiting(), *outbox]
        text = MonitorState(memory=self._memory, idle=self._lookout.idle, outbox=waiting).to_text()
        if text == self._written:
            return
        try:
            history.set_value(_STATE_KEY, text)
            self._written, self._is_kept = text, True
        except sqlite3.Error as error:
            if self._is_kept:
                self._say(f"What is firing cannot be kept ({error}): a restart would tell it again.")
            self._is_kept = False

    def _publish(self, look: SampleResult | None) -> None:
        firing = Counter(one.rule for one in self._memory.firing)
        health = replace(
            self._health,
            delivered=self._post.delivered,
            given_up=self._post.given_up,
            waiting=len(self._post.waiting()),
            firing={rule.name: firing[rule.name] for rule in self._rules},
        )
        if look is None:
            self._served = Served(health=health)
            return
        values = None
        if KAFKA_LAG_EXPORTER in self._settings.families:
            self._lag_exporter.learn(look.seen)
            values = self._lag_exporter.measure(look.seen)
        self._served = Served(
            health=health,
            reading=look.reading,
            seen=look.seen if KAFKA_EXPORTER in self._settings.families else None,
            lag_exporter=values,
        )

    def _summary(self, look: SampleResult) -> str:
        records = sum(one.lag or 0 for group in look.reading.groups for one in group.partitions)
        firing = f"; {_count(self.firing, 'alert')} firing" if self._rules else ""
        return (
            f"{_count(len(look.sample.groups), 'group')}, {_count(records, 'record')} behind{firing}; "
            f"sampled in {format_duration(look.took_ms)} with {_count(look.requests, 'request')}"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
