"""The click stream: what a seed gives, and what the readers must find in it."""

from collections import Counter
from itertools import pairwise

import pytest

from examples.clicks import billing
from examples.clicks.generator import CAMPAIGNS, DAY_MS, PARTITIONS, Click, generate
from examples.clicks.truth import Place, Truth, UserTotals

START_MS = 1_700_000_000_000
END_MS = START_MS + 30 * DAY_MS


def clicks(count: int = 20_000, seed: int = 1) -> list[Click]:
    return list(generate(count, seed=seed, start_ms=START_MS, end_ms=END_MS))


def click(id: str, **fields: object) -> Click:
    """A click of u0001, who goes to the same partition whatever else is said."""
    usual = Click(id, "u0001", "coffee-club", 100_000, START_MS, "browser", 5_000, "person")
    return usual._replace(**fields)


def test_a_seed_gives_the_same_clicks_again() -> None:
    assert clicks(seed=5) == clicks(seed=5)


def test_another_seed_gives_other_clicks() -> None:
    assert clicks(seed=5) != clicks(seed=6)


@pytest.mark.parametrize("count", [0, 1, 2, 1_999])
def test_as_many_clicks_as_were_asked_for(count: int) -> None:
    assert count == len(clicks(count))


def test_the_first_clicks_of_a_seed_are_known() -> None:
    """Changes when the generator does: then the figures that people remember change too."""
    assert (
        b'{"id":"c000000000","user":"u2916","campaign":"garden-days","price_micros":154494,'
        b'"at_ms":1700174136060,"agent":"browser","dwell_ms":27630}'
    ) == clicks(2)[0].value


def test_clicks_lie_in_the_days_asked_for_and_nearly_in_order() -> None:
    times = [one.at_ms for one in clicks()]

    assert START_MS <= min(times) < START_MS + DAY_MS
    assert END_MS - DAY_MS < max(times) <= END_MS
    assert all(later - sooner > -1_000 for sooner, later in pairwise(times))


def test_a_double_click_is_the_same_click_a_moment_later() -> None:
    by_id: dict[str, list[Click]] = {}
    for one in clicks():
        by_id.setdefault(one.id, []).append(one)
    doubles = [copies for copies in by_id.values() if len(copies) > 1]

    assert 100 < len(doubles) < 400
    for first, second in doubles:
        assert first == second._replace(at_ms=first.at_ms)
        assert 0 <= second.at_ms - first.at_ms < 400


def test_every_kind_of_visitor_and_every_campaign_is_there() -> None:
    made = clicks()

    assert {"person", "hurried", "bot", "crawler"} == {one.kind for one in made}
    assert set(CAMPAIGNS) == {one.campaign for one in made}
    assert set(range(PARTITIONS)) == {one.partition for one in made}


def test_a_reader_is_not_told_who_clicked() -> None:
    assert not any(
        b"kind" in one.value or one.kind.encode() in one.value for one in clicks(200) if one.kind != "crawler"
    )


def test_the_truth_charges_each_click_once_and_crawlers_never() -> None:
    truth = Truth()
    made = [
        click("a", price_micros=4_999),
        click("a", price_micros=4_999, at_ms=START_MS + 90),
        click("b", price_micros=1),
        click("c", price_micros=70, campaign="night-bus"),
        click("d", kind="crawler", agent="crawler"),
    ]

    assert made == list(truth.noting(made))
    assert {"coffee-club": 5_000, "night-bus": 70} == truth.owed_micros


def test_the_truth_knows_the_place_of_every_bot_and_of_people_in_a_hurry() -> None:
    truth = Truth()
    for one in (click("a"), click("b", kind="bot"), click("c", kind="hurried"), click("d", kind="bot")):
        truth.note(one)

    partition = click("a").partition
    assert {Place(partition, 1), Place(partition, 3)} == truth.bots
    assert {Place(partition, 2)} == truth.hurried


def test_the_truth_finds_the_first_click_since_a_time_by_partition() -> None:
    truth = Truth()
    for at_ms in (10, 30, 20, 40):
        truth.note(click(str(at_ms), at_ms=at_ms))
    here = click("a").partition
    elsewhere = dict.fromkeys(set(range(PARTITIONS)) - {here}, 0)

    assert {here: 0} | elsewhere == truth.first_since(10)
    assert {here: 1} | elsewhere == truth.first_since(15)
    assert {here: 3} | elsewhere == truth.first_since(31)
    assert {here: 4} | elsewhere == truth.first_since(41)


def test_the_truth_adds_up_users() -> None:
    truth = Truth()
    for one in (click("a", dwell_ms=3), click("b", dwell_ms=4, campaign="night-bus"), click("c", user="u0002")):
        truth.note(one)

    assert {
        "u0001": UserTotals(clicks=2, dwell_ms=7, campaigns={"coffee-club", "night-bus"}),
        "u0002": UserTotals(clicks=1, dwell_ms=5_000, campaigns={"coffee-club"}),
    } == truth.users


def test_the_direct_totals_are_those_of_a_second_count() -> None:
    made = clicks()
    truth = Truth()
    for one in made:
        truth.note(one)

    paid = {one.id: one for one in made if one.agent == "browser"}.values()
    assert {
        campaign: sum(one.price_micros for one in paid if one.campaign == campaign) for campaign in CAMPAIGNS
    } == truth.owed_micros
    assert Counter(one.partition for one in made) == truth.ends


@pytest.mark.parametrize(
    ("micros", "cents"), [(0, 0), (4_999, 0), (5_000, 1), (14_999, 1), (15_000, 2), (10_000_000, 1_000)]
)
def test_a_bill_is_rounded_once_half_a_cent_up(micros: int, cents: int) -> None:
    assert {"coffee-club": cents} == billing.bills({"coffee-club": micros})


@pytest.mark.parametrize(("cents", "shown"), [(0, "0.00"), (7, "0.07"), (1_234_56, "1,234.56")])
def test_money_is_shown_with_two_places(cents: int, shown: str) -> None:
    assert shown == billing.money(cents)
