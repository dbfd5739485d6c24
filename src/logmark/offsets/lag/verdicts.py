"""What a group's past says about it: numbered rules after Burrow's, on sampled positions and not on commits.

A window is what was sampled of one group in one partition, oldest first. The rules are tried in their order, and the
first that applies gives the verdict with its evidence:

    1  caught up       the lag is at most what is allowed                                       OK
    2  too few         fewer than 3 samples, or they span less than a minute                    UNKNOWN
    3  rewound         the position went back, and has not come to where it was                 REWOUND
    4  stands still    with something to read, for a minute or more, and for more than twice as
                       long as in any pause before it in the window; with members or a renewed
                       Logmark token                                                            STALLED
    5                  as 4, with neither                                                       STOPPED
    6  was caught up   the lag was at most what is allowed at some sample of the window         OK
    7  falls behind    the position moves, the lag never falls and has grown                    SLOW
    8  otherwise                                                                                OK

A reset that our own tools made explains a step back: the window then begins after it, and the verdict carries a note.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import generation_start_ms
from logmark.offsets.lag.annotations import Annotation
from logmark.offsets.lag.history import PartitionSample
from logmark.offsets.times import format_duration, format_time

WINDOW_MS = 10 * 60_000
WINDOW_POINTS = 12
SAMPLES_MIN = 3
SPAN_MIN_MS = 60_000
_CLOCK_SLACK_MS = 60_000


class Verdict(StrEnum):
    """How a group does, from good to bad; what is not known may be bad, and is not called so."""

    OK = "OK"
    UNKNOWN = "UNKNOWN"
    SLOW = "SLOW"
    STALLED = "STALLED"
    STOPPED = "STOPPED"
    REWOUND = "REWOUND"

    @property
    def severity(self) -> int:
        return list(Verdict).index(self)

    @property
    def is_bad(self) -> bool:
        return self.severity > Verdict.UNKNOWN.severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A verdict, the number of its rule, and the evidence in a sentence; `note` is about resets of our own."""

    verdict: Verdict
    rule: int
    evidence: str
    note: str = ""


Window = Sequence[PartitionSample]
_Rule = Callable[[Window, int], Finding | None]


def judge_partition(
    window: Window,
    *,
    allowed_lag: int = 0,
    annotations: Iterable[Annotation] = (),
    partition: TopicPartition | None = None,
) -> Finding:
    """Return the verdict on one group in one partition."""
    if not window:
        return Finding(verdict=Verdict.UNKNOWN, rule=2, evidence="not enough samples: none has a commit here")
    rest, note = _since_own_resets(window, annotations, partition)
    for rule in RULES:
        finding = rule(rest, allowed_lag)
        if finding is not None:
            return replace(finding, note=note)
    raise AssertionError("the last rule always applies")


def judge_group(findings: Sequence[tuple[TopicPartition, Finding, int]]) -> Finding:
    """Return the worst verdict of a group's partitions, each given with its lag.

    The evidence is that of the largest lag.
    """
    if not findings:
        return Finding(verdict=Verdict.UNKNOWN, rule=2, evidence="not enough samples: nothing is committed")
    worst = max(findings, key=lambda one: (one[1].verdict.severity, one[2]))
    where, finding, _ = worst
    same = sum(other.verdict == finding.verdict for _, other, _ in findings)
    notes = list(dict.fromkeys(other.note for _, other, _ in findings if other.note))
    evidence = finding.evidence
    if finding.verdict.is_bad:
        several = f"{same} of {len(findings)} partitions, " if len(findings) > 1 else ""
        evidence = f"{several}{where}: {evidence}"
    return replace(finding, evidence=evidence, note="; ".join(notes))


def caught_up(window: Window, allowed: int) -> Finding | None:
    """Rule 1: nothing is left to read, or no more than is allowed; an idle topic is no reason for alarm."""
    lag = window[-1].lag
    if lag > allowed:
        return None
    return Finding(verdict=Verdict.OK, rule=1, evidence=f"{_records(lag)} behind")


def too_few(window: Window, allowed: int) -> Finding | None:
    """Rule 2: what was seen is too little for a verdict."""
    span = window[-1].at_ms - window[0].at_ms
    if len(window) >= SAMPLES_MIN and span >= SPAN_MIN_MS:
        return None
    return Finding(
        verdict=Verdict.UNKNOWN,
        rule=2,
        evidence=f"not enough samples: {len(window)} in {format_duration(span)}, a verdict takes {SAMPLES_MIN} in "
        f"{format_duration(SPAN_MIN_MS)}",
    )


def rewound(window: Window, allowed: int) -> Finding | None:
    """Rule 3: the position went back, and no later one has reached what it was."""
    highest = window[0]
    for before, after in pairwise(window):
        if before.committed >= highest.committed:
            highest = before
        if after.committed < before.committed and window[-1].committed < highest.committed:
            return Finding(
                verdict=Verdict.REWOUND,
                rule=3,
                evidence=f"went back from {before.committed} to {after.committed} before {format_time(after.at_ms)}, "
                f"now at {window[-1].committed}",
            )
    return None


def stands_still(window: Window, allowed: int) -> Finding | None:
    """Rules 4 and 5: the position does not move, although there is something to read."""
    still, longest = _pauses(window, allowed)
    if still < SPAN_MIN_MS or still <= 2 * longest:
        return None
    last = window[-1]
    what = f"at {last.committed} for at least {format_duration(still)}, {_records(last.lag)} behind"
    if last.members:
        members = "1 member" if last.members == 1 else f"{last.members} members"
        return Finding(verdict=Verdict.STALLED, rule=4, evidence=f"{what}, although the group has {members}")
    if _is_renewed(window):
        return Finding(verdict=Verdict.STALLED, rule=4, evidence=f"{what}, although its Logmark query commits")
    return Finding(verdict=Verdict.STOPPED, rule=5, evidence=f"{what}, and the group has no members")


def was_caught_up(window: Window, allowed: int) -> Finding | None:
    """Rule 6: at some sample of the window there was nothing left to read."""
    for moment in reversed(window):
        if moment.lag <= allowed:
            ago = format_duration(window[-1].at_ms - moment.at_ms)
            return Finding(
                verdict=Verdict.OK, rule=6, evidence=f"{_records(window[-1].lag)} behind, was caught up {ago} ago"
            )
    return None


def falls_behind(window: Window, allowed: int) -> Finding | None:
    """Rule 7: it reads, and at no sample was it less far behind than at the one before."""
    first, last = window[0], window[-1]
    lags = [moment.lag for moment in window]
    if first.committed == last.committed or lags[-1] <= lags[0]:
        return None
    if any(after < before for before, after in pairwise(lags)):
        return None
    return Finding(
        verdict=Verdict.SLOW,
        rule=7,
        evidence=f"read {_records(last.committed - first.committed)} in {format_duration(last.at_ms - first.at_ms)}, "
        f"while its lag grew from {lags[0]} to {lags[-1]}",
    )


def keeps_up(window: Window, allowed: int) -> Finding | None:
    """Rule 8: none of the others."""
    return Finding(verdict=Verdict.OK, rule=8, evidence=f"{_records(window[-1].lag)} behind, and reading")


RULES: Sequence[_Rule] = (caught_up, too_few, rewound, stands_still, was_caught_up, falls_behind, keeps_up)


def _pauses(window: Window, allowed: int) -> tuple[int, int]:
    """For how long it is seen to stand still with something to read, and the longest that it did before."""
    since, longest = window[0].at_ms, 0
    for before, after in pairwise(window):
        if after.committed != before.committed or before.lag <= allowed:
            longest = max(longest, before.at_ms - since)
            since = after.at_ms
    return window[-1].at_ms - since, longest


def _is_renewed(window: Window) -> bool:
    """Return whether a Logmark query of this group started or committed within the window."""
    signs = [moment.sign for moment in window if moment.sign]
    if not signs:
        return False
    began = generation_start_ms(signs[-1])
    return len(set(signs)) > 1 or (began is not None and window[0].at_ms <= began)


def _since_own_resets(
    window: Window, annotations: Iterable[Annotation], partition: TopicPartition | None
) -> tuple[Window, str]:
    """Return the window after the last backward step that a reset of our own explains, and a note about it."""
    note = ""
    for one in annotations:
        if partition is not None and partition not in one.moves:
            continue
        if window[0].at_ms - _CLOCK_SLACK_MS <= one.at_ms <= window[-1].at_ms + _CLOCK_SLACK_MS:
            note = f"{one.text} at {format_time(one.at_ms)} ({one.id})"
            to = one.moves.get(partition) if partition is not None else None
            window = window[_step_of(window, one.at_ms, to) :]
    return window, note


def _step_of(window: Window, at_ms: int, to: int | None) -> int:
    """Return where the window continues after a reset: behind the first step back since then, else its start."""
    for index in range(1, len(window)):
        before, after = window[index - 1], window[index]
        is_back = after.committed < before.committed and (to is None or after.committed >= to)
        if is_back and after.at_ms >= at_ms - _CLOCK_SLACK_MS:
            return index
    return 0


def _records(number: int) -> str:
    return f"{number} record" if number == 1 else f"{number} records"
