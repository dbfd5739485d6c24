"""When an alert fires and when it is resolved: rules, what is remembered, and a sample give events.

Nothing here reads a clock, a file or the network. A rule whose condition holds is pending until it has held for as
long as the rule says, then it fires, once; when the condition does not hold any more it is resolved, once. Where a
sample cannot tell, an alert stays what it is.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from logmark.offsets.monitor.readings import GroupReading, PartitionReading, Reading
from logmark.offsets.times import format_duration

LAG, SECONDS, VERDICT, FALLING_OFF = "lag", "seconds", "verdict", "falling-off"
GONE, EXPIRING, UNREACHABLE = "gone", "expiring", "unreachable"
KINDS = (LAG, SECONDS, VERDICT, GONE, FALLING_OFF, EXPIRING, UNREACHABLE)
# A move that we made ourselves explains these for a while; nothing explains the others.
_QUIET_AFTER_RESET = (LAG, SECONDS, VERDICT, FALLING_OFF)
QUIET_AFTER_RESET_MS = 3_600_000
# A group that has been gone for so long is forgotten, and its alert with it.
FORGET_MS = 7 * 86_400_000


class AlertSubject(NamedTuple):
    """What an alert is about; a cluster has no group."""

    group: str | None = None
    topic: str | None = None
    partition: int | None = None

    def __str__(self) -> str:
        if self.group is None:
            return "the cluster"
        if self.topic is None:
            return f"group {self.group}"
        where = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        return f"group {self.group} in {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """One alert of the file; which of `over` (records or seconds), `within_s` and `verdicts` counts, `when` decides."""

    name: str
    when: str
    over: float = 0
    within_s: float = 0
    verdicts: frozenset[str] = frozenset()
    per: str = "group"
    groups: Sequence[str] = ("*",)
    topics: Sequence[str] = ("*",)
    for_ms: int = 0
    clear_for_ms: int = 0
    severity: str = ""
    notify: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """A condition that holds: since when, and when it fired if it has."""

    rule: str
    subject: AlertSubject
    since_ms: int
    seen_ms: int
    fired_ms: int | None = None
    clear_since_ms: int | None = None
    value: float | None = None
    sentence: str = ""
    severity: str = ""
    notify: Sequence[str] = ()

    @property
    def id(self) -> str:
        """The same for the message that it fires and the one that it is resolved."""
        text = "\0".join(map(str, (self.rule, *self.subject, self.since_ms)))
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEvent:
    """A message to be sent: an alert fires, or is resolved."""

    is_firing: bool
    state: AlertState
    at_ms: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMemory:
    """What is remembered from sample to sample: alerts that are pending or firing, and when groups were last seen."""

    alerts: Mapping[tuple[str, AlertSubject], AlertState] = field(default_factory=dict)
    known: Mapping[str, int] = field(default_factory=dict)

    @property
    def firing(self) -> list[AlertState]:
        """The alerts that are firing."""
        return [one for one in self.alerts.values() if one.fired_ms is not None]


class ConditionResult(NamedTuple):
    """Whether a condition holds (None: nobody can tell now), by how much, in a sentence."""

    holds: bool | None
    value: float | None
    sentence: str


def evaluate_rules(
    rules: Sequence[AlertRule],
    memory: AlertMemory,
    reading: Reading | None,
    *,
    now_ms: int,
    failure: str = "",
    gap_ms_max: float = math.inf,
    quiet_ms: int = QUIET_AFTER_RESET_MS,
) -> tuple[AlertMemory, list[AlertEvent]]:
    """Return the state after a sample, and the resulting messages; no reading means that the cluster did not answer.

    A pending alert starts again after a gap of more than `gap_ms_max` between two samples: nobody knows whether its
    condition held in between. For `quiet_ms` after our own tools moved a group, what follows from that fires nothing.
    """
    known = _known_groups(rules, memory, reading, now_ms)
    alerts: dict[tuple[str, AlertSubject], AlertState] = {}
    events: list[AlertEvent] = []
    for rule in rules:
        findings = _findings(rule, reading, failure, known, now_ms=now_ms)
        quiet = _quiet_groups(rule, reading, now_ms - quiet_ms)
        subjects = dict.fromkeys([*findings, *(subject for name, subject in memory.alerts if name == rule.name)])
        for subject in subjects:
            before = memory.alerts.get((rule.name, subject))
            finding = findings.get(subject) or _missing(subject, reading)
            if subject.group in quiet and finding.holds and (before is None or before.fired_ms is None):
                continue
            after, event = _next(rule, subject, before, finding, now_ms=now_ms, gap_ms_max=gap_ms_max)
            if after is not None:
                alerts[rule.name, subject] = after
            if event is not None:
                events.append(event)
    names = {rule.name for rule in rules}
    for (name, _), state in memory.alerts.items():
        if name not in names and state.fired_ms is not None:
            events.append(
                AlertEvent(is_firing=False, state=state, at_ms=now_ms, sentence="The alert was taken out of the file.")
            )
    return AlertMemory(alerts=alerts, known=known), events


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the name matches a pattern, and none of those that start with `!`."""
    wanted = [one for one in patterns if not one.startswith("!")] or ["*"]
    unwanted = [one[1:] for one in patterns if one.startswith("!")]
    return any(fnmatchcase(name, one) for one in wanted) and not any(fnmatchcase(name, one) for one in unwanted)


def _next(
    rule: AlertRule,
    subject: AlertSubject,
    before: AlertState | None,
    finding: ConditionResult,
    *,
    now_ms: int,
    gap_ms_max: float,
) -> tuple[AlertState | None, AlertEvent | None]:
    """Return the state of one alert after a sample, and its message if there is one."""
    if finding.holds is None:
        return before, None
    if not finding.holds:
        return _cleared(rule, before, finding, now_ms)
    since_ms = now_ms
    if before is not None and (before.fired_ms is not None or 0 <= now_ms - before.seen_ms <= gap_ms_max):
        since_ms = before.since_ms
    after = AlertState(
        rule=rule.name,
        subject=subject,
        since_ms=since_ms,
        seen_ms=now_ms,
        fired_ms=before.fired_ms if before else None,
        value=finding.value,
        sentence=finding.sentence,
        severity=rule.severity,
        notify=tuple(rule.notify),
    )
    if after.fired_ms is not None or now_ms - since_ms < rule.for_ms:
        return after, None
    after = replace(after, fired_ms=now_ms)
    return after, AlertEvent(is_firing=True, state=after, at_ms=now_ms, sentence=finding.sentence)


def _cleared(
    rule: AlertRule, before: AlertState | None, finding: ConditionResult, now_ms: int
) -> tuple[AlertState | None, AlertEvent | None]:
    if before is None or before.fired_ms is None:
        return None, None
    clear_since_ms = now_ms if before.clear_since_ms is None else before.clear_since_ms
    after = replace(before, clear_since_ms=clear_since_ms, seen_ms=now_ms)
    if now_ms - clear_since_ms < rule.clear_for_ms:
        return after, None
    after = replace(after, value=finding.value)
    return None, AlertEvent(is_firing=False, state=after, at_ms=now_ms, sentence=finding.sentence)


def _missing(subject: AlertSubject, reading: Reading | None) -> ConditionResult:
    if reading is None or not reading.is_complete:
        return ConditionResult(None, None, "")
    if any(one.group == subject.group and _is_there(one) for one in reading.groups):
        return ConditionResult(False, None, f"{_named(subject)} is not watched for this any more.")
    return ConditionResult(False, None, f"{_named(subject)} is not there any more.")


def _quiet_groups(rule: AlertRule, reading: Reading | None, after_ms: int) -> set[str | None]:
    if reading is None or rule.when not in _QUIET_AFTER_RESET:
        return set()
    return {one.group for one in reading.groups if one.reset_at_ms is not None and one.reset_at_ms > after_ms}


def _known_groups(
    rules: Sequence[AlertRule], memory: AlertMemory, reading: Reading | None, now_ms: int
) -> dict[str, int]:
    """When each group that must not go was last seen; one that is named without a wildcard counts from the start."""
    watching = [rule for rule in rules if rule.when == GONE]
    known = {
        group: seen_ms
        for group, seen_ms in memory.known.items()
        if now_ms - seen_ms < FORGET_MS and any(matches(group, rule.groups) for rule in watching)
    }
    if reading is None:
        return known
    for rule in watching:
        for pattern in rule.groups:
            if not any(character in pattern for character in "!*?["):
                known.setdefault(pattern, now_ms)
    for one in reading.groups:
        if _is_there(one) and any(matches(one.group, rule.groups) for rule in watching):
            known[one.group] = now_ms
    return known


def _is_there(one: GroupReading) -> bool:
    return one.state != "Dead" or bool(one.problem)


def _findings(
    rule: AlertRule, reading: Reading | None, failure: str, known: Mapping[str, int], *, now_ms: int
) -> dict[AlertSubject, ConditionResult]:
    if rule.when == UNREACHABLE:
        return {
            AlertSubject(): ConditionResult(
                reading is None, None, failure if reading is None else "The cluster answers again."
            )
        }
    if reading is None:
        return {}
    if rule.when == GONE:
        return _gone(rule, reading, known, now_ms)
    found: dict[AlertSubject, ConditionResult] = {}
    for group in reading.groups:
        if not matches(group.group, rule.groups) or not _is_there(group):
            continue
        if rule.when == EXPIRING:
            found[AlertSubject(group.group)] = _expiring(rule, group)
            continue
        for subject, partitions in _scoped(rule, group):
            problem = ConditionResult(None, None, group.problem) if group.problem else None
            found[subject] = problem or _CONDITIONS[rule.when](rule, subject, group, partitions)
    return found


def _scoped(rule: AlertRule, group: GroupReading) -> Iterator[tuple[AlertSubject, Sequence[PartitionReading]]]:
    is_everywhere = tuple(rule.topics) == ("*",)
    fits = {topic: matches(topic, rule.topics) for topic in {one.partition.topic for one in group.partitions}}
    for topic, partition, readings in group.slices(rule.per):
        wanted = readings if is_everywhere else [one for one in readings if fits[one.partition.topic]]
        if wanted or (is_everywhere and rule.per == "group"):
            yield AlertSubject(group.group, topic, partition), wanted


def _gone(
    rule: AlertRule, reading: Reading, known: Mapping[str, int], now_ms: int
) -> dict[AlertSubject, ConditionResult]:
    found = {}
    there = {one.group for one in reading.groups if _is_there(one)}
    for group in known:
        if not matches(group, rule.groups):
            continue
        if group in there:
            found[AlertSubject(group)] = ConditionResult(False, None, f"Group {group} is there.")
        elif reading.is_complete:
            found[AlertSubject(group)] = ConditionResult(
                True, None, f"Group {group} is gone: the cluster does not know it."
            )
        else:
            found[AlertSubject(group)] = ConditionResult(None, None, "")
    return found


def _expiring(rule: AlertRule, group: GroupReading) -> ConditionResult:
    left = group.expires_in_s
    if group.problem:
        return ConditionResult(None, None, group.problem)
    if left is None:
        return ConditionResult(False, None, f"Group {group.group} is in use.")
    if left >= rule.within_s:
        return ConditionResult(
            False, left, f"Group {group.group} has {format_duration(left * 1000)} before it expires."
        )
    when = f"in {format_duration(left * 1000)}" if left > 0 else "any moment"
    return ConditionResult(
        True, left, f"Group {group.group} is idle and its committed offsets expire {when} unless somebody commits."
    )


def _lag(
    rule: AlertRule, subject: AlertSubject, group: GroupReading, partitions: Sequence[PartitionReading]
) -> ConditionResult:
    records = sum(one.lag for one in partitions if one.lag is not None)
    is_known = all(one.lag is not None or one.is_uncommitted for one in partitions)
    sentence = f"{_named(subject)} is {_count(records)} behind"
    if records > rule.over:
        return ConditionResult(True, records, f"{sentence}, more than {rule.over:g}{_held(rule)}.")
    return ConditionResult(False if is_known else None, records, f"{sentence}, not more than {rule.over:g}.")


def _seconds(
    rule: AlertRule, subject: AlertSubject, group: GroupReading, partitions: Sequence[PartitionReading]
) -> ConditionResult:
    ages = [0.0 if one.lag == 0 else one.seconds for one in partitions if not one.is_uncommitted]
    oldest = max((age for age in ages if age is not None), default=0.0)
    sentence = f"The oldest unread record of {subject} is {format_duration(oldest * 1000)} old"
    limit = format_duration(rule.over * 1000)
    if oldest > rule.over:
        return ConditionResult(True, oldest, f"{sentence}, more than {limit}{_held(rule)}.")
    return ConditionResult(None if None in ages else False, oldest, f"{sentence}, not more than {limit}.")


def _verdict(
    rule: AlertRule, subject: AlertSubject, group: GroupReading, partitions: Sequence[PartitionReading]
) -> ConditionResult:
    if subject.topic is None and tuple(rule.topics) == ("*",):
        verdicts = [(group.verdict, group.evidence)]
    else:
        verdicts = [(one.verdict, one.evidence) for one in partitions if not one.is_uncommitted]
    for verdict, evidence in verdicts:
        if verdict in rule.verdicts:
            return ConditionResult(True, None, f"{_named(subject)} is {verdict}{_held(rule)}: {evidence}")
    known = [verdict for verdict, _ in verdicts if verdict]
    is_known = len(known) == len(verdicts)
    return ConditionResult(
        False if is_known else None, None, f"{_named(subject)} is {', '.join(dict.fromkeys(known)) or 'OK'}."
    )


def _falling_off(
    rule: AlertRule, subject: AlertSubject, group: GroupReading, partitions: Sequence[PartitionReading]
) -> ConditionResult:
    lost = sum(one.lost for one in partitions)
    if lost:
        return ConditionResult(
            True, 0.0, f"{_named(subject)} has lost {_count(lost)}: they expired before they were read."
        )
    behind = [one for one in partitions if one.lag]
    left = [(one.left_s, one.partition) for one in behind if one.left_s is not None]
    if left and min(left)[0] < rule.within_s:
        seconds, partition = min(left)
        when = f"in {format_duration(seconds * 1000)}" if seconds > 0 else "any moment"
        return ConditionResult(
            True, seconds,
            f"What {subject} has not read in {partition} may be deleted {when}.",
        )  # fmt: skip
    is_known = len(left) == len(behind) and all(one.lag is not None or one.is_uncommitted for one in partitions)
    return ConditionResult(
        False if is_known else None, None, f"Nothing that {subject} has not read will be deleted soon."
    )


_CONDITIONS: Mapping[
    str, Callable[[AlertRule, AlertSubject, GroupReading, Sequence[PartitionReading]], ConditionResult]
] = {
    LAG: _lag,
    SECONDS: _seconds,
    VERDICT: _verdict,
    FALLING_OFF: _falling_off,
}


def _named(subject: AlertSubject) -> str:
    text = str(subject)
    return text[0].upper() + text[1:]


def _held(rule: AlertRule) -> str:
    return f" for {format_duration(rule.for_ms)}" if rule.for_ms else ""


def _count(records: int) -> str:
    return f"{records} record{'' if records == 1 else 's'}"
