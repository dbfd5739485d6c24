"""When alerts fire, stay quiet and are resolved; time is a number in these tests."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from logmark.names import TopicPartition
from logmark.offsets.monitor.alerts import AlertEvent, AlertMemory, AlertRule, AlertSubject, evaluate_rules, matches
from logmark.offsets.monitor.readings import GroupReading, PartitionReading, Reading

MINUTE = 60_000
LAG = AlertRule(name="behind", when="lag", over=100, for_ms=5 * MINUTE, notify=("ops",), severity="page")


def at(
    partition: int = 0,
    *,
    lag: int | None = 0,
    topic: str = "orders",
    lost: int = 0,
    seconds: float | None = None,
    verdict: str = "",
    uncommitted: bool = False,
    left_s: float | None = None,
) -> PartitionReading:
    return PartitionReading(
        TopicPartition(topic, partition), lag=lag, lost=lost, seconds=seconds, verdict=verdict, evidence="Evidence.",
        is_uncommitted=uncommitted, left_s=left_s,
    )  # fmt: skip


def group(*partitions: PartitionReading, name: str = "billing", **more: object) -> GroupReading:
    return GroupReading(group=name, state="Stable", members=1, partitions=partitions, **more)  # type: ignore[arg-type]


class AlertDriver:
    """Feeds samples to rules and keeps what they remember."""

    def __init__(self, *rules: AlertRule, gap_ms_max: float = math.inf) -> None:
        self.rules: Sequence[AlertRule] = rules
        self.memory = AlertMemory()
        self._gap_ms_max = gap_ms_max

    def see(self, now_ms: int, *groups: GroupReading, is_complete: bool = True) -> list[AlertEvent]:
        reading = Reading(at_ms=now_ms, groups=groups, is_complete=is_complete)
        self.memory, events = evaluate_rules(
            self.rules, self.memory, reading, now_ms=now_ms, gap_ms_max=self._gap_ms_max
        )
        return events

    def fail(self, now_ms: int) -> list[AlertEvent]:
        self.memory, events = evaluate_rules(self.rules, self.memory, None, now_ms=now_ms, failure="Nobody answers.")
        return events

    def outcomes(self, now_ms: int, *groups: GroupReading) -> list[tuple[str, str]]:
        return [("firing" if one.is_firing else "resolved", one.sentence) for one in self.see(now_ms, *groups)]


def test_an_alert_fires_once_after_its_time_and_is_resolved_once() -> None:
    watch = AlertDriver(LAG)

    assert [] == watch.see(0, group(at(lag=101)))
    assert [] == watch.see(4 * MINUTE, group(at(lag=500)))
    (fired,) = watch.see(5 * MINUTE, group(at(lag=700)))
    assert fired.is_firing
    assert "Group billing is 700 records behind, more than 100 for 5 min." == fired.sentence
    assert (AlertSubject("billing"), 0, ("ops",), "page") == (
        fired.state.subject, fired.state.since_ms, fired.state.notify, fired.state.severity,
    )  # fmt: skip
    for minute in range(6, 60):
        assert [] == watch.see(minute * MINUTE, group(at(lag=minute * 1000)))
    (resolved,) = watch.see(60 * MINUTE, group(at(lag=100)))
    assert not resolved.is_firing
    assert fired.state.id == resolved.state.id
    assert "Group billing is 100 records behind, not more than 100." == resolved.sentence
    assert [] == watch.see(61 * MINUTE, group(at(lag=0)))
    assert AlertMemory(alerts={}, known={}) == watch.memory


def test_a_condition_that_breaks_off_starts_over() -> None:
    watch = AlertDriver(LAG)
    watch.see(0, group(at(lag=101)))
    watch.see(4 * MINUTE, group(at(lag=3)))

    assert [] == watch.see(5 * MINUTE, group(at(lag=101)))
    assert [] == watch.see(9 * MINUTE, group(at(lag=101)))
    assert 1 == len(watch.see(10 * MINUTE, group(at(lag=101))))


def test_a_gap_without_samples_does_not_count_as_time_in_which_a_condition_held() -> None:
    watch = AlertDriver(LAG, gap_ms_max=MINUTE)
    watch.see(0, group(at(lag=101)))

    assert [] == watch.see(10 * MINUTE, group(at(lag=101)))
    assert [] == watch.see(11 * MINUTE, group(at(lag=101)))
    assert 10 * MINUTE == watch.memory.alerts["behind", AlertSubject("billing")].since_ms


def test_a_gap_does_not_fire_an_alert_again() -> None:
    watch = AlertDriver(replace(LAG, for_ms=0), gap_ms_max=MINUTE)
    watch.see(0, group(at(lag=101)))

    assert [] == watch.see(10 * MINUTE, group(at(lag=101)))


def test_a_flapping_alert_waits_before_it_is_resolved() -> None:
    watch = AlertDriver(replace(LAG, for_ms=0, clear_for_ms=2 * MINUTE))

    assert 1 == len(watch.see(0, group(at(lag=101))))
    assert [] == watch.see(1 * MINUTE, group(at(lag=0)))
    assert [] == watch.see(2 * MINUTE, group(at(lag=101)))
    assert [] == watch.see(3 * MINUTE, group(at(lag=0)))
    assert [] == watch.see(4 * MINUTE, group(at(lag=0)))
    assert 1 == len(watch.see(5 * MINUTE, group(at(lag=0))))


def test_what_cannot_be_told_changes_nothing() -> None:
    watch = AlertDriver(replace(LAG, for_ms=0))
    watch.see(0, group(at(lag=101)))

    assert [] == watch.see(1, group(at(lag=None)))
    assert [] == watch.see(2, group(problem="You are not allowed to use it."))
    assert [] == watch.see(3, is_complete=False)
    assert [] == watch.fail(4)
    assert 1 == len(watch.memory.firing)
    assert [("resolved", "Group billing is not there any more.")] == watch.outcomes(5)


def test_a_known_part_that_is_too_large_is_enough() -> None:
    watch = AlertDriver(replace(LAG, for_ms=0))

    assert 1 == len(watch.see(0, group(at(0, lag=101), at(1, lag=None))))


def test_a_partition_without_commit_is_no_lag() -> None:
    watch = AlertDriver(replace(LAG, for_ms=0))
    watch.see(0, group(at(lag=101)))

    assert 1 == len(watch.see(1, group(at(lag=None, uncommitted=True))))


def test_an_alert_that_left_the_file_is_resolved() -> None:
    watch = AlertDriver(replace(LAG, for_ms=0))
    watch.see(0, group(at(lag=101)))
    watch.rules = []

    (event,) = watch.see(1, group(at(lag=101)))
    assert ("The alert was taken out of the file.", ("ops",)) == (event.sentence, event.state.notify)


@pytest.mark.parametrize(
    ("per", "subjects"),
    [
        ("group", [AlertSubject("billing")]),
        ("topic", [AlertSubject("billing", "orders")]),
        ("partition", [AlertSubject("billing", "orders", 1)]),
    ],
)
def test_lag_counts_per_group_topic_or_partition(per: str, subjects: list[AlertSubject]) -> None:
    watch = AlertDriver(replace(LAG, for_ms=0, per=per))

    events = watch.see(0, group(at(0, lag=60), at(1, lag=101), at(0, topic="refunds", lag=99)))

    assert subjects == [one.state.subject for one in events]


@pytest.mark.parametrize(
    ("patterns", "fits", "fits_not"),
    [
        (["*"], ["a", "billing-1"], []),
        (["billing-*"], ["billing-1"], ["billing", "Billing-1", "x-billing-1"]),
        (["a", "b"], ["a", "b"], ["ab"]),
        (["!test-*"], ["billing"], ["test-1"]),
        (["*-prod", "!secret-*"], ["a-prod"], ["a", "secret-prod"]),
    ],
)
def test_patterns_choose_by_wildcards_and_leave_out_with_an_exclamation_mark(
    patterns: list[str], fits: list[str], fits_not: list[str]
) -> None:
    assert all(matches(name, patterns) for name in fits)
    assert not any(matches(name, patterns) for name in fits_not)


def test_a_rule_sees_only_its_groups_and_topics() -> None:
    watch = AlertDriver(replace(LAG, for_ms=0, groups=("billing",), topics=("orders",)))

    assert [] == watch.see(0, group(at(lag=500), name="other"), group(at(topic="refunds", lag=500), at(lag=3)))
    assert 1 == len(watch.see(1, group(at(topic="refunds", lag=0), at(lag=500))))


def test_a_topic_that_a_group_does_not_read_any_more_is_resolved() -> None:
    watch = AlertDriver(replace(LAG, for_ms=0, per="topic"))
    watch.see(0, group(at(lag=500)))

    assert [("resolved", "Group billing in orders is not watched for this any more.")] == watch.outcomes(
        1, group(at(topic="refunds", lag=0))
    )


@pytest.mark.parametrize(
    ("reading", "holds"),
    [
        (at(lag=5, seconds=61), True),
        (at(lag=5, seconds=60), False),
        (at(lag=0, seconds=None), False),
        (at(lag=5, seconds=None), None),
        (at(lag=None, uncommitted=True), False),
    ],
)
def test_seconds_behind(reading: PartitionReading, holds: bool | None) -> None:
    rule = AlertRule(name="old", when="seconds", over=60)
    fresh, old = AlertDriver(rule), AlertDriver(rule)
    old.see(0, group(at(lag=9, seconds=999)))

    assert (1 if holds else 0) == len(fresh.see(1, group(reading)))
    assert (1 if holds is False else 0) == len(old.see(1, group(reading)))


def test_seconds_are_those_of_the_oldest_partition() -> None:
    watch = AlertDriver(AlertRule(name="old", when="seconds", over=60))

    assert [("firing", "The oldest unread record of group billing is 2 min old, more than 1 min.")] == watch.outcomes(
        0, group(at(0, lag=1, seconds=3), at(1, lag=1, seconds=120), at(2, lag=1))
    )


def test_a_verdict_fires_with_its_evidence() -> None:
    watch = AlertDriver(AlertRule(name="stuck", when="verdict", verdicts=frozenset({"STALLED", "STOPPED"})))

    assert [] == watch.see(0, group(at(), verdict="SLOW", evidence="..."))
    assert [("firing", "Group billing is STALLED: It stood still.")] == watch.outcomes(
        1, group(at(), verdict="STALLED", evidence="It stood still.")
    )
    assert [] == watch.outcomes(2, group(at(), verdict="STOPPED", evidence="No members."))
    assert [] == watch.outcomes(3, group(at(), verdict=""))
    assert [("resolved", "Group billing is OK.")] == watch.outcomes(4, group(at(), verdict="OK"))


def test_a_verdict_per_partition_names_the_partition() -> None:
    watch = AlertDriver(AlertRule(name="stuck", when="verdict", verdicts=frozenset({"STALLED"}), per="partition"))

    assert [("firing", "Group billing in orders-1 is STALLED: Evidence.")] == watch.outcomes(
        0, group(at(0, verdict="OK"), at(1, verdict="STALLED"), verdict="STALLED")
    )


GONE = AlertRule(name="gone", when="gone", groups=("billing*",))


def test_a_group_that_was_seen_and_is_not_there_is_gone_until_it_is_back() -> None:
    watch = AlertDriver(GONE)

    assert [] == watch.see(0, group(), group(name="other"))
    assert [("firing", "Group billing is gone: the cluster does not know it.")] == watch.outcomes(1)
    assert [] == watch.outcomes(2)
    assert [("resolved", "Group billing is there.")] == watch.outcomes(3, group())


def test_a_group_is_not_gone_because_a_coordinator_was_silent() -> None:
    watch = AlertDriver(GONE)
    watch.see(0, group())

    assert [] == watch.see(1, is_complete=False)
    assert [] == watch.fail(2)


def test_a_group_named_in_full_is_expected_from_the_start() -> None:
    watch = AlertDriver(replace(GONE, groups=("billing", "audit-*")))

    assert ["Group billing is gone: the cluster does not know it."] == [one.sentence for one in watch.see(0)]


def test_a_group_that_nobody_knows_counts_as_gone_also_where_it_was_asked_for_by_name() -> None:
    watch = AlertDriver(GONE)
    watch.see(0, group())

    assert 1 == len(watch.see(1, replace(group(), state="Dead")))


def test_a_group_that_has_been_gone_for_a_week_is_forgotten() -> None:
    watch = AlertDriver(GONE)
    watch.see(0, group())
    watch.see(1)

    (event,) = watch.see(8 * 86_400_000)
    assert not event.is_firing
    assert AlertMemory() == watch.memory


FALLING = AlertRule(name="falling", when="falling-off", within_s=3600)


def test_an_unread_record_that_will_soon_be_deleted_fires() -> None:
    watch = AlertDriver(FALLING)

    assert [] == watch.see(0, group(at(0, lag=5, left_s=3600), at(1, lag=0, left_s=None)))
    assert [("firing", "What group billing has not read in orders-1 may be deleted in 30 min.")] == watch.outcomes(
        1, group(at(0, lag=5, left_s=7200), at(1, lag=5, left_s=1800))
    )
    assert [] == watch.see(2, group(at(0, lag=5, left_s=None)))
    assert 1 == len(watch.see(3, group(at(0, lag=0))))


def test_records_that_are_lost_already_fire() -> None:
    assert [("firing", "Group billing has lost 7 records: they expired before they were read.")] == AlertDriver(
        FALLING
    ).outcomes(0, group(at(lag=5, lost=7)))


def test_an_idle_group_is_announced_before_it_expires() -> None:
    watch = AlertDriver(AlertRule(name="expiry", when="expiring", within_s=86_400))

    assert [] == watch.see(0, group(expires_in_s=86_400.0))
    assert [
        ("firing", "Group billing is idle and its committed offsets expire in 23 h unless somebody commits.")
    ] == watch.outcomes(1, group(expires_in_s=23 * 3600.0))
    assert [("resolved", "Group billing is in use.")] == watch.outcomes(2, group(expires_in_s=None))


def test_a_cluster_that_does_not_answer_fires_and_is_resolved() -> None:
    watch = AlertDriver(AlertRule(name="down", when="unreachable", for_ms=MINUTE))

    assert [] == watch.see(0)
    assert [] == watch.fail(1)
    assert ["Nobody answers."] == [one.sentence for one in watch.fail(1 + MINUTE)]
    assert [] == watch.fail(2 + MINUTE)
    assert [("resolved", "The cluster answers again.")] == watch.outcomes(3 + MINUTE)


@pytest.mark.parametrize(
    "rule",
    [
        replace(LAG, for_ms=0),
        AlertRule(name="old", when="seconds", over=60),
        AlertRule(name="v", when="verdict", verdicts=frozenset({"REWOUND"})),
        FALLING,
    ],
    ids=lambda rule: rule.when,
)
def test_a_move_that_we_made_ourselves_raises_no_alarm_for_an_hour(rule: AlertRule) -> None:
    watch = AlertDriver(rule)
    bad = group(at(lag=500, seconds=999, left_s=1), verdict="REWOUND", reset_at_ms=1000)

    assert [] == watch.see(2000, bad)
    assert [] == watch.see(1000 + 59 * MINUTE, bad)
    assert 1 == len(watch.see(1000 + 60 * MINUTE, bad))


def test_a_move_of_ours_does_not_resolve_what_fires() -> None:
    watch = AlertDriver(replace(LAG, for_ms=0))
    watch.see(0, group(at(lag=500)))

    assert [] == watch.see(2000, group(at(lag=500), reset_at_ms=1000))
    assert 1 == len(watch.memory.firing)
    assert 1 == len(watch.see(3000, group(at(lag=0), reset_at_ms=1000)))
