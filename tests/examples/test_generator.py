"""The click stream: what a seed gives."""

import json
from collections import Counter
from functools import cache
from itertools import islice, pairwise

import pytest

from examples.clicks import billing, bounces, features, fraud
from examples.clicks.generator import CUT, DAY_MS, MISSING, TYPE, WORDS, Click, endless, generate
from examples.clicks.world import CAMPAIGNS, PARTITIONS, distance_km, offers_at, people

START_MS = 1_700_000_000_000
END_MS = START_MS + 30 * DAY_MS
FIRST = (
    b'{"id":"c000000000","user":"u3590","address":"198.18.5.152","north":-12.05,"east":-77.04,"campaign":"night-bus",'
    b'"price_micros":45284,"at_ms":1700174096296,"agent":"browser","dwell_ms":39513}'
)


@cache
def clicks(count: int = 20_000, seed: int = 1) -> list[Click]:
    return list(generate(count, seed=seed, start_ms=START_MS, end_ms=END_MS))


def test_a_seed_gives_the_same_clicks_again() -> None:
    assert clicks(2_000, seed=5) == clicks.__wrapped__(2_000, seed=5)


def test_another_seed_gives_other_clicks() -> None:
    assert clicks(2_000, seed=5) != clicks(2_000, seed=6)


@pytest.mark.parametrize("count", [0, 1, 2, 1_999])
def test_as_many_clicks_as_were_asked_for(count: int) -> None:
    assert count == len(clicks(count))


def test_the_first_click_of_a_seed_is_known() -> None:
    """Changes when the generator does: then the figures that people remember change too."""
    assert FIRST == clicks(2)[0].value


def test_clicks_arrive_in_order_within_the_days_asked_for() -> None:
    times = [one.arrived_ms for one in clicks()]

    assert START_MS <= min(times) < START_MS + DAY_MS
    assert END_MS - DAY_MS < max(times) <= END_MS
    assert all(sooner <= later for sooner, later in pairwise(times))


def test_a_click_that_comes_twice_is_the_same_to_the_byte_and_may_come_days_later() -> None:
    by_id: dict[str, list[Click]] = {}
    for one in clicks():
        by_id.setdefault(one.id, []).append(one)
    twice = [copies for copies in by_id.values() if len(copies) > 1]

    assert 100 < len(twice) < 400
    assert all(first.value == second.value and first.key == second.key for first, second in twice)
    gaps_ms = [second.arrived_ms - first.arrived_ms for first, second in twice]
    assert min(gaps_ms) < 1_000 and DAY_MS < max(gaps_ms) < 3 * DAY_MS


def test_some_clicks_arrive_up_to_a_day_late_and_none_before_it_was_made() -> None:
    first = {one.id: one for one in reversed(clicks())}
    delays_ms = [one.arrived_ms - one.at_ms for one in first.values()]

    assert 0 == min(delays_ms)
    assert DAY_MS / 2 < max(delays_ms) < DAY_MS
    assert 0.005 < sum(delay_ms > 0 for delay_ms in delays_ms) / len(delays_ms) < 0.05


def test_every_kind_of_visitor_every_campaign_and_every_flaw_is_there() -> None:
    made = clicks()

    assert {"person", "bot", "thief", "crawler"} == {one.kind for one in made}
    assert set(CAMPAIGNS) == {one.campaign for one in made}
    assert set(range(PARTITIONS)) == {one.partition for one in made}
    assert {"", CUT, WORDS, TYPE, MISSING} == {one.flaw for one in made}


def test_a_short_stream_has_bursts_and_thefts_too() -> None:
    kinds = Counter(one.kind for one in clicks(3_000))

    assert kinds["bot"] >= 30 and kinds["thief"] >= 2 and kinds["crawler"] >= 24


def test_a_reader_is_not_told_who_clicked() -> None:
    assert not any(b"kind" in one.value or b"flaw" in one.value for one in clicks(2_000))


def test_a_broken_record_is_broken_in_the_way_it_says() -> None:
    broken = {one.flaw: one.value for one in clicks() if one.flaw}

    for flaw in (CUT, WORDS):
        with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
            json.loads(broken[flaw])
    assert "noon" == json.loads(broken[TYPE])["at_ms"]
    assert "price_micros" not in json.loads(broken[MISSING])


@pytest.mark.parametrize("schema", [billing.SCHEMA, bounces.SCHEMA, features.SCHEMA, fraud.SCHEMA])
def test_pipelines_ask_for_fields_that_clicks_have(schema: str) -> None:
    fields = json.loads(clicks(1)[0].value)

    assert {column.split()[0] for column in schema.split(", ")} <= fields.keys()
    assert "at_ms BIGINT" in schema  # so that a click of another type is refused by all of them


def test_households_share_an_address_and_users_stay_at_home_mostly() -> None:
    members = Counter(address for _, address, _ in people())
    home = {user: address for user, address, _ in people()}
    made = [one for one in clicks() if one.kind == "person"]

    assert {1, 2, 3, 4} == set(members.values())
    assert sum(home[one.user] == one.address for one in made) > 0.9 * len(made)


def test_campaigns_keep_their_hours_and_change_their_prices() -> None:
    noon_ms = START_MS // DAY_MS * DAY_MS + DAY_MS // 2
    noon, midnight = dict(offers_at(noon_ms)), dict(offers_at(noon_ms + DAY_MS // 2))

    assert "night-bus" not in noon and "coffee-club" in noon
    assert "night-bus" in midnight and "piano-lessons" not in midnight
    prices = {dict(offers_at(noon_ms + day * DAY_MS))["new-shoes"] for day in range(20)}
    assert len(prices) > 10
    average = CAMPAIGNS["new-shoes"].price_micros
    assert all(0.7 * average - 1 <= price <= 1.3 * average for price in prices)
    assert all(one.campaign in dict(offers_at(one.at_ms)) for one in clicks(2_000))


def test_there_is_more_to_do_by_day_than_by_night() -> None:
    hours = Counter(one.arrived_ms // (DAY_MS // 24) % 24 for one in clicks())

    assert sum(hours[hour] for hour in (18, 19, 20)) > 5 * sum(hours[hour] for hour in (2, 3, 4))


def test_distances_are_those_of_the_globe() -> None:
    berlin, hamburg, lima = (52.52, 13.40), (53.55, 9.99), (-12.05, -77.04)

    assert 0 == distance_km(berlin, berlin)
    assert 250 < distance_km(berlin, hamburg) < 260
    assert 11_000 < distance_km(berlin, lima) < 11_200


def test_an_endless_stream_has_the_rate_asked_for_and_no_id_of_two_clicks() -> None:
    made = list(islice(endless(50_000.0, seed=3, start_ms=START_MS), 40_000))

    seconds = (made[-1].arrived_ms - START_MS) / 1000
    assert abs(0.8 - seconds) < 0.05
    first: dict[str, bytes] = {}
    assert all(first.setdefault(one.id, one.value) == one.value for one in made)
