"""Suspicions are a function of the clicks there are: not of their batches, nor of the order of late ones."""

import zlib
from itertools import pairwise
from random import Random

import pytest

from examples.clicks.fraud import (
    ADDRESS,
    BUCKETS,
    BURST_CLICKS,
    DAY_MS,
    HOUR_MS,
    KEPT_MS,
    LATE_MS_MAX,
    MINUTE_MS,
    USER,
    Alert,
    Seen,
    Watch,
)
from examples.clicks.generator import MISSING, Click, generate
from examples.clicks.truth import Truth
from examples.clicks.world import CITIES, PARTITIONS

START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
BERLIN, LIMA = CITIES["Berlin"], CITIES["Lima"]
Bucket = tuple[str, int]


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth()


@pytest.fixture(scope="module")
def seen(truth: Truth) -> list[tuple[Bucket, Seen]]:
    """A few days of clicks, as the pipeline spreads them over its buckets."""
    found: list[tuple[Bucket, Seen]] = []
    offsets = [0] * PARTITIONS
    for click in truth.noting(generate(12_000, seed=3, start_ms=START_MS, end_ms=START_MS + 6 * DAY_MS)):
        found += subjects(click, offsets[click.partition])
        offsets[click.partition] += 1
    return found


def subjects(click: Click, offset: int) -> list[tuple[Bucket, Seen]]:
    if click.flaw not in ("", MISSING) or click.agent == "crawler" or click.arrived_ms - click.at_ms > LATE_MS_MAX:
        return []
    rest = click.id, click.at_ms, click.north, click.east, click.partition
    user = USER, click.partition * BUCKETS + zlib.crc32(click.key) % BUCKETS
    address = ADDRESS, zlib.crc32(click.address.encode()) % BUCKETS
    return [
        (user, Seen(offset, click.arrived_ms, click.user, *rest)),
        (address, Seen(click.arrived_ms, click.arrived_ms, click.address, *rest)),
    ]


def watched(seen: list[tuple[Bucket, Seen]], cuts: list[int], chance: Random) -> tuple[list[str], list[int]]:
    """The ids of all alerts, and how large the states were after each batch; rows of a batch come in any order."""
    states: dict[Bucket, str] = {}
    ids: list[str] = []
    sizes: list[int] = []
    for begin, end in pairwise([0, *cuts, len(seen)]):
        batch: dict[Bucket, list[Seen]] = {}
        for bucket, one in seen[begin:end]:
            batch.setdefault(bucket, []).append(one)
        for bucket, rows in batch.items():
            chance.shuffle(rows)
            watch = Watch(bucket[0], states.get(bucket))
            ids += [alert.id for alert in watch.see(rows)]
            states[bucket] = watch.text()
        sizes.append(sum(map(len, states.values())))
    return ids, sizes


@pytest.mark.parametrize("batches", [1, 2, 7, 40])
def test_alerts_are_those_of_the_truth_each_once_whatever_the_batches(
    seen: list[tuple[Bucket, Seen]], truth: Truth, batches: int
) -> None:
    chance = Random(batches)
    ids, _ = watched(seen, sorted(chance.sample(range(len(seen)), batches - 1)), chance)

    assert {"user-burst", "address-burst", "far"} == {id.split(":")[0] for id in ids}
    assert len(ids) == len(set(ids))
    assert truth.alerts() == set(ids)


def test_the_state_is_as_large_as_two_days_of_clicks_however_long_it_runs(seen: list[tuple[Bucket, Seen]]) -> None:
    cuts = list(range(1_000, len(seen), 1_000))
    _, sizes = watched(seen, cuts, Random(1))

    third = len(sizes) // 3
    assert max(sizes[2 * third :]) < 1.3 * max(sizes[third : 2 * third])


def at(id: str, at_ms: int, *, arrived_ms: int | None = None, location: tuple[float, float] = BERLIN) -> Seen:
    arrived = at_ms if arrived_ms is None else arrived_ms
    return Seen(arrived, arrived, "u1", id, at_ms, *location)


def test_a_late_click_completes_a_burst_and_a_repeated_one_does_not() -> None:
    watch = Watch(USER)
    almost = [at(str(number), START_MS + number) for number in range(BURST_CLICKS - 1)]
    assert [] == list(watch.see(almost))

    again = Watch(USER, watch.text())
    assert [] == list(again.see([almost[3]._replace(arrived_ms=START_MS + HOUR_MS)]))
    late = at("late", START_MS + 9, arrived_ms=START_MS + DAY_MS)
    assert [Alert("user-burst", "u1", START_MS, START_MS + MINUTE_MS)] == list(again.see([late]))
    assert [] == list(Watch(USER, again.text()).see([at("more", START_MS + 10)]))


def test_an_hour_of_clicks_too_far_apart_is_one_alert_and_the_next_hour_another() -> None:
    watch = Watch(USER)
    there = [at(f"b{number}", START_MS + number * MINUTE_MS, location=LIMA) for number in (1, 2, 3)]
    next_hour = [at("c", START_MS + HOUR_MS), at("d", START_MS + HOUR_MS + 1, location=LIMA)]

    told = [alert.id for alert in watch.see([at("a", START_MS), *there])]
    assert [f"far:u1:{START_MS}"] == told
    assert [f"far:u1:{START_MS + HOUR_MS}"] == [alert.id for alert in Watch(USER, watch.text()).see(next_hour)]


def test_what_is_forgotten_is_not_told_again() -> None:
    watch = Watch(USER)
    burst = [at(str(number), START_MS + number) for number in range(BURST_CLICKS)]
    assert 1 == len(list(watch.see(burst)))

    later_ms = START_MS + KEPT_MS + HOUR_MS
    assert [] == list(watch.see([at("c", later_ms)]))
    assert [] == list(watch.see([one._replace(order=later_ms, arrived_ms=later_ms) for one in burst]))


def test_an_alert_says_no_more_than_its_id() -> None:
    alert = Alert("far", "u1", START_MS, START_MS + HOUR_MS)

    assert f"far:u1:{START_MS}" == alert.id
    assert f'{{"rule": "far", "subject": "u1", "from_ms": {START_MS}, "to_ms": {START_MS + HOUR_MS}}}' == alert.value


def test_partitions_may_be_read_days_apart() -> None:
    early, late = START_MS, START_MS + 5 * DAY_MS
    ahead = [Seen(at, at, "198.18.0.1", f"ahead {at}", at, *BERLIN, 0) for at in range(early, late, HOUR_MS)]
    behind = Seen(early, early, "198.18.0.1", "behind", early, *BERLIN, 1)
    watch = Watch(ADDRESS)
    assert [] == list(watch.see([*ahead, behind]))

    times_ms = range(START_MS + DAY_MS, START_MS + DAY_MS + BURST_CLICKS)
    burst = [Seen(at, at, "198.18.0.1", f"burst {at}", at, *BERLIN, 1) for at in times_ms]
    found = [alert.id for alert in Watch(ADDRESS, watch.text()).see(burst)]

    assert [f"address-burst:198.18.0.1:{START_MS + DAY_MS}"] == found
