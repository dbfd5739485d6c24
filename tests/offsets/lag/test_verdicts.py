"""Verdicts by their rules: one row is one group in one partition, sampled every half minute."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from logmark.names import TopicPartition
from logmark.offsets.lag.annotations import Annotation
from logmark.offsets.lag.history import PartitionSample
from logmark.offsets.lag.verdicts import Finding, Verdict, judge_group, judge_partition

BEGAN_MS = 1_700_000_000_000
EVERY_MS = 30_000
ORDERS = TopicPartition("orders", 0)
OLD, NEW = f"{BEGAN_MS - 3_600_000} q1 40", f"{BEGAN_MS - 3_600_000} q1 41"
FRESH = f"{BEGAN_MS + 5_000} q2 40"


class Row(NamedTuple):
    claim: str
    verdict: Verdict
    rule: int
    committed: Sequence[int]
    ends: Sequence[int]
    members: int = 0
    start: int = 0
    signs: Sequence[str] = ()
    allowed: int = 0
    every_ms: int = EVERY_MS
    reset_at: int | None = None  # our own tools reset the group to `reset_to` just before this sample
    reset_to: int | None = None
    says: str = ""


OK, UNKNOWN, SLOW = Verdict.OK, Verdict.UNKNOWN, Verdict.SLOW
STALLED, STOPPED, REWOUND = Verdict.STALLED, Verdict.STOPPED, Verdict.REWOUND
TABLE = [
    Row("caught up", OK, 1, [10, 20, 30], [10, 20, 30], says="0 records behind"),
    Row("an idle topic that was read to its end is well", OK, 1, [30, 30, 30], [30, 30, 30]),
    Row("an idle topic is well also when nobody reads it", OK, 1, [0, 0, 0], [0, 0, 0]),
    Row("caught up at the first look", OK, 1, [30], [30]),
    Row("no further behind than is allowed", OK, 1, [10, 10, 10], [15, 15, 15], allowed=5),
    Row("further behind than is allowed", STOPPED, 5, [10, 10, 10], [16, 16, 16], allowed=5),
    Row("rewound and caught up again", OK, 1, [30, 10, 30], [30, 30, 30]),
    Row("committed beyond the end of a topic that was recreated", OK, 1, [900, 900, 900], [5, 6, 7]),
    Row("everything unread has expired", OK, 1, [10, 10, 10], [50, 50, 50], start=50),
    Row("one sample is too few", UNKNOWN, 2, [10], [30], says="not enough samples: 1"),
    Row("two samples are too few", UNKNOWN, 2, [10, 10], [30, 40], says="not enough samples: 2 in 30 s"),
    Row("many samples in a short time are too few", UNKNOWN, 2, [10] * 9, [30] * 9, every_ms=5_000),
    Row("three samples in a minute are enough", STOPPED, 5, [10] * 3, [30] * 3, says="for at least 1 min, 20 records"),
    Row("somebody took it back", REWOUND, 3, [20, 30, 5, 6], [40, 41, 42, 43], says="went back from 30 to 5"),
    Row("taken back, and it stands still there", REWOUND, 3, [30, 30, 0, 0, 0, 0], [40] * 6),
    Row("taken back and moving, with members", REWOUND, 3, [30, 0, 10, 20], [40] * 4, members=2),
    Row("taken back twice, the second time deeper", REWOUND, 3, [30, 20, 25, 5], [40] * 4),
    Row("taken back, and past where it was", OK, 8, [20, 5, 15, 25], [40, 41, 42, 43]),
    Row("was caught up a moment ago", OK, 6, [10, 20, 20], [20, 20, 30], says="was caught up 30 s ago"),
    Row("falls behind, and was caught up not long ago", OK, 6, [20, 25, 30, 35], [20, 40, 60, 80]),
    Row("was within what is allowed", OK, 6, [20, 20, 20], [20, 23, 30], allowed=3),
    Row("an idle topic gets a record", OK, 6, [20] * 9, [20] * 8 + [21]),
    Row("caught up, and stands still ever since", STOPPED, 5, [20] * 4, [20, 30, 40, 50], says="for at least 1 min,"),
    Row("caught up at times, in pauses like this one", OK, 6, [0, 0, 0, 50, 50, 50], [9, 20, 50, 50, 60, 90]),
    Row("members, and nothing moves", STALLED, 4, [10] * 4, [30, 31, 32, 33], members=3, says="group has 3 members"),
    Row("one member, and nothing moves or comes", STALLED, 4, [10] * 4, [30] * 4, members=1, says="has 1 member"),
    Row("moved, then stood still for long, with members", STALLED, 4, [10, 20, 20, 20, 20, 20], [60] * 6, members=1),
    Row("no members, and the query's token was renewed", STALLED, 4, [10] * 4, [30] * 4, signs=[OLD, OLD, NEW, NEW],
        says="its Logmark query commits"),
    Row("no members, and a query began within the window", STALLED, 4, [10] * 3, [30] * 3, signs=["", FRESH, FRESH]),
    Row("a token that nobody renews is no sign of life", STOPPED, 5, [10] * 4, [30] * 4, signs=[OLD] * 4),
    Row("neither members nor a token", STOPPED, 5, [10] * 4, [30, 40, 50, 60], says="the group has no members"),
    Row("moved, then stopped", STOPPED, 5, [10, 20, 20, 20, 20], [60] * 5),
    Row("a pause like the ones before is none", OK, 8, [10, 10, 10, 50, 50, 50], [90] * 6),
    Row("a pause somewhat longer than the ones before", OK, 8, [10, 10, 10, 50, 50, 50, 50], [90] * 7),
    Row("more than twice as long as ever before", STOPPED, 5, [10] * 3 + [50] * 6, [90] * 9, says="2 min 30 s"),
    Row("stands below the log start, and something is left", STOPPED, 5, [5] * 3, [90] * 3, start=50,
        says="40 records behind"),
    Row("reads, and falls behind", SLOW, 7, [10, 20, 30, 40], [20, 40, 60, 80], says="lag grew from 10 to 40"),
    Row("falls behind in steps", SLOW, 7, [10, 20, 30, 40], [30, 40, 60, 70]),
    Row("falls behind with members", SLOW, 7, [10, 20, 30, 40], [20, 40, 60, 80], members=5),
    Row("always as far behind", OK, 8, [10, 20, 30, 40], [15, 25, 35, 45], says="5 records behind, and reading"),
    Row("further behind than at first, but catching up now", OK, 8, [10, 20, 30, 60], [20, 60, 90, 100]),
    Row("catching up", OK, 8, [10, 40, 70, 90], [100, 100, 100, 100]),
    Row("our own reset is no alarm", OK, 8, [50, 50, 50, 5, 15, 25, 35], [60] * 7, reset_at=3, reset_to=5,
        says="reset"),
    Row("our own reset of a group that does not run", UNKNOWN, 2, [50, 50, 50, 5, 5], [60] * 5, reset_at=3, reset_to=5),
    Row("stands still after our own reset", STOPPED, 5, [50, 50, 5, 5, 5], [60] * 5, reset_at=2, reset_to=5),
    Row("somebody else took it back after our reset", REWOUND, 3, [50, 40, 45, 50, 55, 3, 4], [60] * 7, reset_at=1,
        reset_to=40),
    Row("our reset does not explain an offset below its target", REWOUND, 3, [50, 50, 1, 2], [60] * 4, reset_at=2,
        reset_to=40),
]  # fmt: skip


def _window(row: Row) -> list[PartitionSample]:
    signs = row.signs or [""] * len(row.committed)
    return [
        PartitionSample(BEGAN_MS + index * row.every_ms, committed, row.start, end, row.members, sign)
        for index, (committed, end, sign) in enumerate(zip(row.committed, row.ends, signs, strict=True))
    ]


def _resets(row: Row) -> list[Annotation]:
    if row.reset_at is None:
        return []
    at_ms = BEGAN_MS + row.reset_at * row.every_ms - 1_000
    return [Annotation(id="c1", at_ms=at_ms, group="billing", text="reset by ann", moves={ORDERS: row.reset_to})]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.claim)
def test_the_verdict_on_a_partition(row: Row) -> None:
    finding = judge_partition(_window(row), allowed_lag=row.allowed, annotations=_resets(row), partition=ORDERS)

    assert (row.verdict, row.rule) == (finding.verdict, finding.rule), finding.evidence
    assert row.says in f"{finding.evidence} {finding.note}"


def test_every_rule_has_its_rows() -> None:
    assert set(range(1, 9)) == {row.rule for row in TABLE}
    assert len(TABLE) >= 25


def test_a_reset_elsewhere_explains_nothing_here() -> None:
    window = [PartitionSample(BEGAN_MS + index * EVERY_MS, at, 0, 60) for index, at in enumerate([50, 50, 5, 6])]
    elsewhere = Annotation(
        id="c1", at_ms=BEGAN_MS + 59_000, group="billing", text="reset", moves={TopicPartition("orders", 1): 5}
    )

    assert REWOUND == judge_partition(window, annotations=[elsewhere], partition=ORDERS).verdict


def test_nothing_sampled_is_said() -> None:
    assert "not enough samples: none has a commit here" == judge_partition([]).evidence


def _finding(verdict: Verdict, evidence: str = "", note: str = "") -> Finding:
    return Finding(verdict=verdict, rule=0, evidence=evidence, note=note)


def test_a_group_is_as_well_as_its_worst_partition_and_shows_the_one_furthest_behind() -> None:
    group = judge_group(
        [
            (TopicPartition("orders", 0), _finding(OK), 5),
            (TopicPartition("orders", 1), _finding(STALLED, "at 3"), 10),
            (TopicPartition("orders", 2), _finding(STALLED, "at 4"), 900),
            (TopicPartition("orders", 3), _finding(UNKNOWN), 1_000),
        ]
    )

    assert (STALLED, "2 of 4 partitions, orders-2: at 4") == (group.verdict, group.evidence)


def test_a_group_is_not_called_well_while_too_little_is_known_of_a_partition_that_is_behind() -> None:
    behind = (ORDERS, _finding(UNKNOWN, "not enough samples"), 9)
    caught_up = (TopicPartition("orders", 1), _finding(OK, "well", "reset by ann"), 0)

    group = judge_group([behind, caught_up])

    assert (UNKNOWN, "not enough samples", "reset by ann") == (group.verdict, group.evidence, group.note)
    assert OK == judge_group([caught_up]).verdict
    assert UNKNOWN == judge_group([]).verdict
